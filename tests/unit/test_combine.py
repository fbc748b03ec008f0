"""`envcompare combine`: what runs of several days and hosts say together, and what it refuses."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest
from builders import CELL
from measuredruns import Made, one_cell, run_folder

from envcompare import cli
from envcompare.analysis.two_runs import CombinedEffect, CombinedRuns
from envcompare.run_folder.records import event_now
from envcompare.run_folder.results import RunFolder
from envcompare.stats.acrosscells import over_hosts, over_runs

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
SCHEMA = ROOT / "docs" / "schema" / "combined.schema.json"
NEVER = ("significant", "no change", "no difference", "identical")
ARMS = {"vm": 1.0, "docker": 1.1}
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def combine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Call the command by its entry point: exit code, stdout and stderr on one line each."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["envcompare", "combine", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        shown = capsys.readouterr()
        assert not any(word in shown.out for word in NEVER)
        return code, " ".join(shown.out.split()), " ".join(shown.err.split())

    return call


def measured(out: Path, made: Made, *, machine: str = "m1") -> Path:
    """Write a run of a machine and return its folder."""
    path = run_folder(out, made)
    folder = RunFolder.open(path)
    folder.append_event(event_now("identity", host="local", values={"machine.id": machine}))
    # it was noted before the run ended
    lines = (path / "events.jsonl").read_text().splitlines(keepends=True)
    (path / "events.jsonl").write_text("".join((lines[-1], *lines[:-1])))
    folder.close()
    return path


def effect_of(combine: Call, *arguments: str | Path) -> CombinedEffect:
    """Return the only effect of combined runs, as JSON gives it; the schema holds."""
    code, out, err = combine(*arguments, "--format", "json")
    assert (code, err) == (0, "")
    jsonschema.validate(json.loads(out), json.loads(SCHEMA.read_text(encoding="utf-8")))
    (effect,) = msgspec.json.decode(out, type=CombinedRuns).effects
    return effect


@pytest.fixture
def days(tmp_path: Path) -> list[Path]:
    """Give three runs of one machine on which docker costs 9, 10 and 14 %."""
    ratios = {"a": 1.09, "b": 1.10, "c": 1.14}
    return [measured(tmp_path, one_cell(name, ratio)) for name, ratio in ratios.items()]


def test_runs_of_one_host_are_the_units(days: list[Path], combine: Call) -> None:
    """The mean lies among them, and the scatter is far beyond their own intervals."""
    effect = effect_of(combine, *days)
    assert (effect.unit, effect.runs, effect.hosts, effect.outcome) == ("run", 3, 1, "slower")
    assert effect.log_ratio == pytest.approx(np.mean(np.log([1.09, 1.10, 1.14])), abs=0.004)
    assert effect.between_runs == pytest.approx(np.std(np.log([1.09, 1.1, 1.14]), ddof=1), abs=5e-3)
    widest = max((part.high or 0) - (part.low or 0) for part in effect.parts)
    assert (effect.high or 0) - (effect.low or 0) > 3 * widest


def test_it_says_over_how_many_runs_and_how_far_they_scatter(
    days: list[Path], combine: Call
) -> None:
    """In one sentence, with each run in a row below it, in the terminal and as Markdown."""
    for form in ("text", "md"):
        code, out, _ = combine(*days, "--format", form)
        assert code == 0
        assert "slower than vm in cnn" in out
        assert (
            "over 3 runs on 1 machine; beyond their own intervals, the runs scatter by ±2." in out
        )
        assert "for other days on it alone" in out
        assert out.count("▶ slower") == 3


def test_a_large_change_is_said_as_a_multiple(tmp_path: Path, combine: Call) -> None:
    """What takes 24 times as long is not ×24 slower."""
    runs = [measured(tmp_path, one_cell(name, ratio)) for name, ratio in {"a": 24, "b": 25}.items()]
    code, out, _ = combine(*runs)
    assert code == 0
    assert "times as slow as vm in cnn (×" in out


def test_runs_that_agree_are_said_to(tmp_path: Path, combine: Call) -> None:
    """No scatter is made up where their own intervals explain it."""
    runs = [measured(tmp_path, one_cell(name, 1.10, noise=0.02)) for name in ("a", "b", "c")]
    assert effect_of(combine, *runs).between_runs == 0
    assert "differ by no more than their own intervals explain" in combine(*runs)[1]


def test_hosts_are_the_units_where_there_are_several(days: list[Path], combine: Call) -> None:
    """Three days on one machine weigh no more than one day on each of the others."""
    out = days[0].parent
    others = [
        measured(out, one_cell("d", 1.03), machine="m2"),
        measured(out, one_cell("e", 1.05), machine="m3"),
    ]
    effect = effect_of(combine, *days, *others)
    assert (effect.unit, effect.runs, effect.hosts) == ("host", 5, 3)
    of_first = np.mean(np.log([1.09, 1.10, 1.14]))
    expected = np.mean([of_first, math.log(1.03), math.log(1.05)])
    assert effect.log_ratio == pytest.approx(expected, abs=0.006)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"code": "0dd" * 16}, "the code of the workload c0dec0dec0de… → 0dd0dd0dd0dd…"),
        ({"data": "5a1t"}, "da7a → 5a1t"),
        ({"design": {"threads": 2}}, "--threads 1 → 2"),
        ({"facts": {"vm": {"torch.version": "2.1.0"}}}, "2.13.0 → 2.1.0"),
    ],
)
def test_other_work_settings_or_reference_are_refused_with_both_values(
    days: list[Path], combine: Call, changes: dict[str, object], said: str
) -> None:
    """Bad input, exit code 2: what, why and what to try; it may be allowed, and is said then."""
    other = measured(days[0].parent, one_cell("other", 1.1, **changes))
    code, out, err = combine(*days, other)
    assert (code, out) == (2, "")
    assert "error: these runs cannot be combined" in err
    assert "a → other: " in err
    assert said in err
    assert "try: measure all of them with one envcompare" in err
    code, out, err = combine(*days, other, "--allow-mismatch")
    assert (code, err) == (0, "")
    assert "Combined despite a mismatch" in out
    assert said in out


def test_another_workload_is_refused_with_what_each_run_has(
    days: list[Path], combine: Call
) -> None:
    """Nothing can be pooled."""
    cells = {"local/rnn/default": {"vm": 1.0, "docker": 1.1, "vm~control": 1.0}}
    other = measured(days[0].parent, Made(run_id="other", cells=cells))
    code, _, err = combine(days[0], other)
    assert code == 2
    assert "a has docker in cnn" in err
    assert "other has docker in rnn" in err


def test_another_machine_and_kernel_are_what_it_is_for(days: list[Path], combine: Call) -> None:
    """They are told, and nothing is refused."""
    facts = {
        arm: {"cpu.model": "Xeon", "cpu.family": "GenuineIntel, family 6", "kernel.release": "6.9"}
        for arm in ("vm", "docker", "vm~control")
    }
    other = measured(days[0].parent, one_cell("other", 1.02, facts=facts), machine="m2")
    code, out, _ = combine(days[0], other, "--format", "md")
    assert code == 0
    assert "Xeon, GenuineIntel, family 6" in out
    assert "as two machines say little about others" in out


def test_a_run_is_named_once(days: list[Path], combine: Call) -> None:
    """Twice it would seem to be two days."""
    code, _, err = combine(days[0], days[0])
    assert code == 2
    assert "the run a is named twice" in err
    assert combine(days[0])[0] == 2


def test_a_failed_control_takes_back_a_claim_that_it_could_make(
    tmp_path: Path, combine: Call
) -> None:
    """Where the reference differs from itself by 12 % in one of the runs, 10 % are no claim."""
    runs = [
        measured(tmp_path, Made(run_id=name, cells={CELL: {**ARMS, "vm~control": control}}))
        for name, control in (("a", 1.0), ("b", 1.12), ("c", 1.0))
    ]
    effect = effect_of(combine, *runs)
    assert (effect.outcome, effect.why_open) == ("inconclusive", "control-failed")


def change_docker(run: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change the blocks of docker in a run folder."""
    path = run / "samples.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["arm"] == "docker" and line["kind"] == "block":
            line.update(change(line))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_mean_that_is_not_inside_the_margin_is_never_called_equivalent(
    tmp_path: Path, combine: Call
) -> None:
    """Each restart of docker has a round of slow steps, which the typical step does not see."""
    runs = [measured(tmp_path, one_cell(name, 1.0)) for name in ("a", "b", "c")]
    assert effect_of(combine, *runs).outcome == "equivalent"

    def slow(block: dict[str, Any]) -> dict[str, Any]:
        times = 2 if block["round"] == 1 else 1
        return {key: [times * ns for ns in block[key]] for key in ("wall_ns", "cpu_ns")}

    for run in runs:
        change_docker(run, slow)
    assert effect_of(combine, *runs).outcome != "equivalent"


def test_an_arm_that_worked_outside_its_turns_in_one_run_is_not_called_equivalent(
    tmp_path: Path, combine: Call
) -> None:
    """That run says nothing of how fast it is alone."""
    runs = [measured(tmp_path, one_cell(name, 1.0)) for name in ("a", "b", "c")]
    change_docker(runs[1], lambda _: {"outside_cpu_ns": 0, "outside_runs": 3})
    effect = effect_of(combine, *runs)
    assert (effect.outcome, effect.why_open) == ("inconclusive", "outside-turns")


def test_kept_runs_of_other_code_are_refused_and_agree_when_that_is_allowed(combine: Call) -> None:
    """Two runs of the CNN on one machine, in docker and singularity."""
    runs = RESULTS / "example", RESULTS / "environments"
    code, _, err = combine(*runs)
    assert code == 2
    assert "the code of the workload 6c4d3e8c169e… → 64342f965c53…" in err
    code, out, _ = combine(*runs, "--allow-mismatch", "--format", "json")
    found = msgspec.json.decode(out, type=CombinedRuns)
    assert {(one.workload, one.arm) for one in found.effects} == {
        ("cnn", "docker"),
        ("cnn", "singularity"),
    }
    for effect in found.effects:
        assert (effect.runs, effect.hosts, effect.between_runs) == (2, 1, 0)
        assert abs(effect.log_ratio or 1) < 0.01


@pytest.mark.parametrize(("hosts", "runs"), [(1, 4), (2, 3), (4, 1), (4, 3)])
def test_the_interval_covers_what_was_planted(hosts: int, runs: int) -> None:
    """Runs scatter by 2 % and hosts by 4 %; one host has its own mean covered, several theirs."""
    generator = np.random.default_rng(hosts * 10 + runs)
    tries, covered = 1500, 0
    for _ in range(tries):
        centres = generator.normal(0.1, 0.04 if hosts > 1 else 0.0, hosts)
        values = [generator.normal(centre, math.hypot(0.02, 0.008), runs) for centre in centres]
        found = over_runs([(each.tolist(), [0.008] * runs) for each in values])
        assert found
        ends = found.ends(0.95)
        covered += ends.low <= 0.1 <= ends.high
    assert covered / tries >= 0.94


def test_one_run_of_each_host_is_the_statement_over_hosts() -> None:
    """So that the runs of a fleet and combined runs say the same."""
    hosts = [([0.1], [0.01]), ([0.12], [0.02]), ([0.3], [0.01])]
    assert over_runs(hosts) == over_hosts([0.1, 0.12, 0.3], [0.01, 0.02, 0.01])
