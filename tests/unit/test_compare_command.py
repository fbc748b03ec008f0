"""`envcompare compare` as a user calls it: what it prints, how it exits, and what it leaves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import jsonschema
import msgspec
import pytest
from builders import CELL
from commandline import envcompare
from measuredruns import Made, one_cell, run_folder
from summaries import terminal_lines

from envcompare import cli
from envcompare.analysis.compare import compare_run
from envcompare.analysis.two_runs import GatedRun, RunChange
from envcompare.errors import Phase
from envcompare.run_folder.records import ArmRecord, Failure
from envcompare.run_folder.results import RunFolder

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schema"
TWO_CELLS = {
    cell: {"vm": 1.0, "docker": 1.0, "vm~control": 1.0} for cell in (CELL, "local/rnn/default")
}
NEVER = ("significant", "no change", "no difference", "identical", "× faster")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """How a call ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """Return what was printed on one line: the terminal breaks sentences where it is full."""
        return " ".join(self.out.split())


Call = Callable[..., Said]


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Call the command by its entry point."""

    def call(*arguments: str | Path) -> Said:
        monkeypatch.setattr(sys, "argv", ["envcompare", "compare", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        assert not any(word in shown.out for word in NEVER)
        return Said(code=int(ended.value.code or 0), out=shown.out, err=shown.err)

    return call


def slower_after(folder: Path) -> tuple[Path, Path]:
    """Make a run in which docker is as fast as vm, and one in which it is 10 % slower."""
    return run_folder(folder, one_cell("a", 1.0)), run_folder(folder, one_cell("b", 1.1))


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file of a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_one_run_without_a_gate_prints_the_summary_and_writes_nothing(
    tmp_path: Path, compare: Call
) -> None:
    """The sentences are those that the run itself ended with."""
    folder = run_folder(tmp_path, one_cell("a", 1.1))
    before = contents(folder)
    said = compare(folder)
    assert (said.code, said.err) == (0, "")
    for line in terminal_lines(compare_run(RunFolder.open(folder))):
        if line.role == "headline":
            assert " ".join(line.columns) in said.words
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("gates", "code", "sentence"),
    [
        (("slower:2%",), 1, "gate slower:2% hit: docker is 9.9 % slower than vm in cnn; at least"),
        (("slower",), 1, "gate slower hit: docker is 9.9 % slower than vm in cnn"),
        (("unproven:2%",), 1, "gate unproven:2% hit: docker in cnn is more than 2 % slower (+"),
        (("unproven:10%",), 1, "docker in cnn is not shown to be less than 10 % slower (+"),
        (("faster,slower:8%",), 1, "gate faster: not hit, 1 comparison judged"),
        (("slower:20%", "faster"), 0, "gate slower:20%: not hit, 1 comparison judged"),
        (("inconclusive,failed,confounded",), 0, "gate failed: not hit, 1 comparison judged"),
    ],
)
def test_a_gate_exits_1_and_says_what_hit_it(
    tmp_path: Path, compare: Call, gates: tuple[str, ...], code: int, sentence: str
) -> None:
    """With numbers, in one sentence."""
    folder = run_folder(tmp_path, one_cell("a", 1.1))
    said = compare(folder, *(part for gate in gates for part in ("--fail-on", gate)))
    assert said.code == code
    assert sentence in said.words


def test_gates_are_reported_for_people_and_programs(tmp_path: Path, compare: Call) -> None:
    """The answer is the first line of a comment and the last of a terminal."""
    path = run_folder(tmp_path, one_cell("a", 1.1))
    gates = ("--fail-on", "slower:2%,slower:20%")
    assert compare(path, *gates).out.rstrip().endswith("FAIL 1 gate hit: slower:2%")
    comment = compare(path, *gates, "--format", "md").out
    assert comment.startswith("**FAIL** 1 gate hit: slower:2%\n")
    assert comment.index("gate slower:2% hit") < comment.index("<details>")
    passed = compare(path, "--fail-on", "slower:20%,failed", "--format", "md").out
    assert passed.startswith("**PASS** 1 comparison judged by 2 gates\n")
    suite = ET.fromstring(compare(path, *gates, "--format", "junit").out)
    assert suite.attrib | {"name": ""} == {"name": "", "tests": "2", "failures": "1", "errors": "0"}
    names = {one.get("name"): one.find("failure") is not None for one in suite}
    assert names == {"slower:2%": True, "slower:20%": False}
    said = compare(path, *gates, "--format", "github").out
    assert said.startswith("::error title=gate slower%3A2%25::gate slower:2%25 hit: docker is 9.9 ")
    assert said.count("\n") == 1
    refused = compare(path, "--format", "junit")
    assert (refused.code, refused.out) == (2, "")
    assert "--format junit reports gates, and none is given" in refused.err


def test_what_nobody_looked_at_does_not_pass_as_unconfounded(tmp_path: Path, compare: Call) -> None:
    """Without fingerprints nothing is known of what differs besides the environment."""
    folder = run_folder(tmp_path, one_cell("a", 1.1))
    shutil.rmtree(folder / "fingerprints")
    said = compare(folder, "--fail-on", "confounded")
    assert said.code == 3
    assert (
        "could not judge docker in cnn: what was around it, or around the reference" in said.words
    )


def test_what_nobody_looked_at_in_one_of_two_runs_does_not_pass_as_unchanged(
    tmp_path: Path, compare: Call
) -> None:
    """The arm's own software may have changed; the reference's is known."""
    before, after = (run_folder(tmp_path, one_cell(name, 1.0)) for name in ("a", "b"))
    assert compare(before, after, "--fail-on", "confounded").code == 0
    shutil.rmtree(after / "fingerprints" / "local" / "docker")
    said = compare(before, after, "--fail-on", "confounded")
    assert said.code == 3
    assert "could not judge docker ÷ vm in cnn: what was around it was not recorded" in said.words
    assert "What else of docker changed was not recorded in both runs." in said.words


def test_the_control_is_never_gated(tmp_path: Path, compare: Call) -> None:
    """It is no environment, and a claim below its noise is withdrawn."""
    cells = {CELL: {"vm": 1.0, "docker": 1.1, "vm~control": 1.2}}
    folder = run_folder(tmp_path, one_cell("a", 1.1, cells=cells))
    said = compare(folder, "--fail-on", "slower:2%")
    assert said.code == 0
    assert "gate slower:2%: not hit, 1 comparison judged, 1 of them not beyond doubt" in said.words
    assert "docker in cnn is inconclusive and could be up to" in said.words
    assert "Control failed in cnn" in said.words


@pytest.mark.parametrize(
    ("failure", "code", "word"),
    [
        (Failure(phase="setup", brief="docker: no such layer"), 4, "failed (docker: no such"),
        (Failure(phase="environment", brief="no Docker here"), 3, "was not run (no Docker here)"),
    ],
)
def test_what_could_not_be_judged_does_not_pass(
    tmp_path: Path, compare: Call, failure: Failure, code: int, word: str
) -> None:
    """Exit 4 for a workload, 3 for an environment; without a gate it is only shown."""
    cells = {CELL: {"vm": 1.0, "vm~control": 1.0}}
    made = one_cell("a", 1.0, cells=cells, failures={"docker": failure})
    folder = run_folder(tmp_path, made)
    said = compare(folder, "--fail-on", "slower:2%")
    assert said.code == code
    assert f"gate slower:2% could not judge docker in cnn: {word}" in said.words
    assert compare(folder).code == 0
    assert compare(folder, "--fail-on", "inconclusive").code == code
    assert compare(folder, "--fail-on", "slower:2%,failed").code == 1


@pytest.mark.parametrize(
    ("phase", "code", "word"), [("environment", 3, "was not run"), ("step", 4, "failed")]
)
def test_a_reference_that_failed_has_its_own_exit_code(
    tmp_path: Path, compare: Call, phase: Phase, code: int, word: str
) -> None:
    """Nothing can be judged without it, and it says whose fault that is."""
    failure = Failure(phase=phase, brief="vm: it broke")
    made = one_cell("a", 1.0, cells={CELL: {}}, failures={"vm": failure})
    said = compare(run_folder(tmp_path, made), "--fail-on", "slower:2%")
    assert said.code == code
    assert f"{word} (the reference vm failed: vm: it broke)" in said.words


def test_no_gate_passes_a_run_that_is_not_complete(tmp_path: Path, compare: Call) -> None:
    """Its verdicts are those of what there is, and it was planned to measure more."""
    whole = run_folder(tmp_path, one_cell("a", 1.0))
    torn = run_folder(tmp_path, one_cell("b", 1.0, ended=False))
    assert compare(torn).code == 0
    for runs in ((torn,), (torn, whole), (whole, torn)):
        said = compare(*runs, "--fail-on", "slower:2%")
        assert said.code == 3
        assert "b is incomplete, so no gate can pass" in said.words
        assert "gate slower:2%: not hit, 1 comparison judged" in said.words
    assert "This run is not complete" in compare(torn).words
    slower = run_folder(tmp_path, one_cell("c", 1.1, ended=False))
    assert compare(slower, "--fail-on", "slower:2%").code == 1


def test_a_cell_that_ended_well_and_lost_its_samples_is_not_judged(
    tmp_path: Path, compare: Call
) -> None:
    """What stopped it is not why its rounds are missing."""
    made = Made(run_id="a", cells=TWO_CELLS)
    folder = run_folder(tmp_path, made)
    samples = (folder / "samples.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in samples if "local/rnn" not in line]
    (folder / "samples.jsonl").write_text("".join(kept))
    said = compare(folder, "--fail-on", "slower:2%")
    assert said.code == 3
    assert "could not judge docker in rnn: was not run (no round was complete)" in said.words


def test_imported_arms_have_nothing_to_judge(tmp_path: Path, compare: Call) -> None:
    """Beside timed ones they are named; alone they make the gate a mistake."""
    timed = (
        ArmRecord(id="vm", environment="vm", is_reference=True),
        ArmRecord(id="docker", environment="docker"),
        ArmRecord(id="vm~control", environment="vm", is_control=True),
        ArmRecord(id="colab", environment="colab", is_timed=False),
    )
    said = compare(run_folder(tmp_path, one_cell("a", 1.0, arms=timed)), "--fail-on", "slower")
    assert said.code == 0
    assert "no gate judges colab: imported profiles hold no timing" in said.words
    alone = tuple(msgspec.structs.replace(arm, is_timed=False) for arm in timed[:2])
    folder = run_folder(tmp_path, Made(run_id="b", cells={CELL: {}}, arms=alone))
    said = compare(folder, "--fail-on", "slower")
    assert said.code == 2
    assert "--fail-on has nothing to judge in b" in said.err
    assert compare(folder).code == 0


def test_two_runs_are_compared_by_their_ratios(tmp_path: Path, compare: Call) -> None:
    """That all times doubled in between is of no account."""
    before, after = slower_after(tmp_path)
    files = contents(tmp_path)
    said = compare(before, after, "--fail-on", "slower:2%")
    assert said.code == 1
    assert "▶ docker ÷ vm in cnn: 10.0 % slower than before (8.8 to 11.3 %)" in said.words
    assert "gate slower:2% hit: docker ÷ vm in cnn is 10.0 % slower than before" in said.words
    assert "are compared, never times" in said.words
    assert "widened for their comparisons (1 before, 1 after)" in said.words
    assert contents(tmp_path) == files
    said = compare(after, before, "--fail-on", "slower:2%,faster:5%")
    assert (said.code, said.err) == (1, "")
    assert "◀ docker ÷ vm in cnn: 9.1 % less time than before (8.1 to 10.2 %)" in said.words


def test_text_markdown_and_json_say_the_same_sentences(tmp_path: Path, compare: Call) -> None:
    """JSON obeys the published schemas and can be read back."""
    before, after = slower_after(tmp_path)
    gate = ("--fail-on", "slower:2%")
    document = compare(before, after, *gate, "--format", "json").out
    found = msgspec.json.decode(document, type=RunChange)
    jsonschema.validate(
        json.loads(document), json.loads((SCHEMAS / "change.schema.json").read_text())
    )
    sentences = [change.sentence for change in found.changes]
    sentences += [one.sentence for result in found.gates for one in (result, *result.findings)]
    text, markdown = (compare(before, after, *gate, "--format", form) for form in ("text", "md"))
    assert found.exit_code == text.code == markdown.code == 1
    for sentence in sentences:
        assert sentence in text.words
        assert sentence in markdown.out
    assert "| docker | cnn | −0.1 % | +10.0 % | +10.0 % (+8.8 to +11.3 %) | ▶ slower |" in (
        markdown.out
    )


def test_one_run_as_json_holds_the_comparison_and_its_gates(tmp_path: Path, compare: Call) -> None:
    """For a program that decides by itself."""
    folder = run_folder(tmp_path, one_cell("a", 1.1))
    document = compare(folder, "--fail-on", "slower:2%", "--format", "json").out
    found = msgspec.json.decode(document, type=GatedRun)
    jsonschema.validate(
        json.loads(document), json.loads((SCHEMAS / "gates.schema.json").read_text())
    )
    assert found.exit_code == 1
    assert found.comparison.run_id == "a"
    assert found.gates[0].findings[0].sentence.startswith("gate slower:2% hit: docker is 9.9 %")
    assert "**gate slower:2% hit:" in compare(
        folder, "--fail-on", "slower:2%", "--format", "md"
    ).out  # fmt: skip


def test_another_reference_is_refused_unless_allowed_and_then_said(
    tmp_path: Path, compare: Call
) -> None:
    """What differs is named with both values; nothing is printed as if it were a result."""
    before = run_folder(tmp_path, one_cell("a", 1.0))
    newer = {"vm": {"torch.version": "2.14.0"}}
    after = run_folder(tmp_path, one_cell("b", 1.1, facts=newer))
    said = compare(before, after, "--fail-on", "slower:2%")
    assert (said.code, said.out) == (2, "")
    assert "torch 2.13.0 → 2.14.0 (local/cnn/default)" in said.err
    for form in ("text", "md"):
        said = compare(before, after, "--allow-mismatch", "--format", form)
        assert said.code == 0
        assert "Compared despite a mismatch" in said.words
        assert "torch 2.13.0 → 2.14.0" in said.words
    document = compare(before, after, "--allow-mismatch", "--format", "json").out
    assert json.loads(document)["mismatches"][0]["key"] == "torch.version"


def test_what_only_one_run_holds_and_an_incomplete_run_are_named(
    tmp_path: Path, compare: Call
) -> None:
    """The reader knows what the answer leaves out."""
    wide = Made(run_id="a", cells=TWO_CELLS, ended=False)
    folders = run_folder(tmp_path, wide), run_folder(tmp_path, one_cell("b", 1.0))
    said = compare(*folders)
    assert said.code == 0
    assert "Only in the run before, and not compared: docker in local/rnn/default." in said.words
    assert "The run before (a) is not complete" in said.words


def test_what_the_run_after_holds_no_more_does_not_pass_and_what_is_new_does(
    tmp_path: Path, compare: Call
) -> None:
    """An environment that is slower must not pass by being left out; a new one has no past."""
    wide = Made(run_id="a", cells=TWO_CELLS)
    more, less = run_folder(tmp_path, wide), run_folder(tmp_path, one_cell("b", 1.0))
    said = compare(more, less, "--fail-on", "slower:2%")
    assert said.code == 3
    assert (
        "gate slower:2% could not judge docker ÷ vm in local/rnn/default: was not run (only the "
        "earlier run has it)"
    ) in said.words
    assert compare(more, less, "--fail-on", "failed").code == 1
    assert compare(less, more, "--fail-on", "slower:2%,failed").code == 0


def test_a_run_that_failed_half_way_is_told_from_one_that_did_not(
    tmp_path: Path, compare: Call
) -> None:
    """Its times stand, and the gate on failures is hit."""
    died = Failure(phase="process", brief="docker: killed by SIGKILL")
    before = run_folder(tmp_path, one_cell("a", 1.0))
    after = run_folder(tmp_path, one_cell("b", 1.0, failures={"docker": died}))
    for runs in ((after,), (before, after)):
        assert compare(*runs, "--fail-on", "slower:2%").code == 0
        said = compare(*runs, "--fail-on", "slower:2%,failed")
        assert said.code == 1
        assert "failed before the end of its cell (docker: killed by SIGKILL)" in said.words
    assert "after: docker failed before the end of its cell" in said.words
    assert compare(after, before, "--fail-on", "failed").code == 0


def test_results_are_written_on_a_terminal_that_knows_ascii_alone(tmp_path: Path) -> None:
    """An escape for a character it lacks; JSON and Markdown are UTF-8 whatever it knows."""
    folder = run_folder(tmp_path, one_cell("a", 1.1))
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    said = {}
    for form in ("text", "md", "json"):
        argv = [sys.executable, "-m", "envcompare", "compare", str(folder), "--format", form]
        done = subprocess.run(argv, capture_output=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        said[form] = done.stdout
    assert rb"\u25b6 On this host, in this run, docker" in said["text"]
    assert "▶ On this host, in this run, docker" in said["md"].decode()
    assert json.loads(said["json"].decode())["comparison"]["run_id"] == "a"


def test_an_arm_that_failed_after_cannot_be_judged(tmp_path: Path, compare: Call) -> None:
    """A regression to nothing does not pass a gate."""
    before = run_folder(tmp_path, one_cell("a", 1.0))
    broken = Failure(phase="step", brief="docker: the loss is not a number")
    cells = {CELL: {"vm": 1.0, "vm~control": 1.0}}
    after = run_folder(tmp_path, one_cell("b", 1.0, cells=cells, failures={"docker": broken}))
    said = compare(before, after, "--fail-on", "slower:2%")
    assert said.code == 4
    assert "✕ docker ÷ vm in cnn: failed: after: docker: the loss is not a number" in said.words
    assert "could not judge docker ÷ vm in cnn" in said.words


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("form", ["text", "md", "json"])
def test_results_that_a_full_disk_refuses_are_no_gate_that_was_hit(
    tmp_path: Path, form: str
) -> None:
    """As with `>> $GITHUB_STEP_SUMMARY`: exit 5, and not 1."""
    folder = run_folder(tmp_path, one_cell("a", 1.1))
    argv = [sys.executable, "-m", "envcompare", "compare", str(folder), "--fail-on", "slower"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*argv, "--format", form], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 5
    assert "No space left" in done.stderr
    assert "free some disk space" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        ((), 2, "one run or two"),
        (("a", "a", "a"), 2, "one run or two"),
        (("a", "a"), 2, "both are the same run"),
        (("a", "--allow-mismatch"), 2, "two runs"),
        (("a", "--fail-on", "slower:2"), 2, "slower:2 is not a gate"),
        (("a", "--fail-on", "groups:slower:2%"), 2, "groups:slower:2% is not a gate"),
        (("a", "--format", "html"), 2, "html"),
        (("nowhere",), 5, "nowhere is not a run folder"),
        (("a", "nowhere"), 5, "nowhere is not a run folder"),
    ],
)
def test_a_mistake_ends_in_sentences_and_its_exit_code(
    tmp_path: Path, compare: Call, arguments: tuple[str, ...], code: int, word: str
) -> None:
    """What was wrong and what to try, on stderr."""
    folder = run_folder(tmp_path, one_cell("a", 1.0))
    said = compare(*(folder if one == "a" else one for one in arguments))
    assert (said.code, said.out) == (code, "")
    assert word in said.err
    assert "  try: " in said.err


def test_a_folder_that_cannot_be_written_is_judged_all_the_same(tmp_path: Path) -> None:
    """The gate runs on what a CI keeps, in a process of its own."""
    folder = run_folder(tmp_path / "kept", one_cell("a", 1.1))
    for path in (*folder.rglob("*"), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        done = envcompare("compare", str(folder), "--fail-on", "slower:2%", cwd=tmp_path)
    finally:
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert done.returncode == 1, done.stderr
    assert "gate slower:2% hit" in " ".join(done.stdout.split())
    assert not (folder / "comparison.json").exists()


def test_hostile_titles_and_names_cannot_write_on_the_terminal(
    tmp_path: Path, compare: Call
) -> None:
    """Neither an escape sequence nor a new line of their own."""
    cell = "local/c\u202enn\x1b[31m</script>{{ x }}/default"
    made = [
        Made(run_id=name, cells={cell: {"vm": 1.0, "docker": ratio, "vm~control": 1.0}})
        for name, ratio in (("a", 1.0), ("b", 1.1))
    ]
    before, after = (run_folder(tmp_path, one) for one in made)
    for form in ("text", "md"):
        said = compare(before, after, "--fail-on", "slower", "--format", form)
        assert said.code == 1
        assert "\u202e" not in said.out
        assert "\x1b" not in said.out
