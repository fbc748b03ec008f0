"""The analysis: one outcome for each arm and cell, true to what the run folder holds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from builders import CELL, block, blocks, run_record
from pairs import Facts
from summaries import markdown

from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import Comparison, RunComparison
from envcompare.analysis.timing.judge import leaning
from envcompare.report.page import render
from envcompare.report.wording.methodwords import guard_cautions
from envcompare.report.wording.verdicts import reasons_text
from envcompare.run_folder.records import (
    Block,
    Event,
    Failure,
    FingerprintRecord,
    Memory,
    Phase,
    ProcessRun,
    Sample,
    Startup,
)
from envcompare.run_folder.results import RunFolder


def compared(
    folder: Path,
    samples: Iterable[Sample],
    events: Iterable[Event] = (),
    *,
    facts: dict[str, Facts] | None = None,
) -> RunComparison:
    """Write a run folder with these samples, events and facts of arms, and analyse it."""
    made = RunFolder.create(folder, run_record())
    for arm, found in (facts or {}).items():
        made.write_fingerprint(FingerprintRecord(host="local", arm=arm, cell=CELL, facts=found))
    for sample in samples:
        made.append_sample(sample)
    for event in events:
        made.append_event(event)
    made.close()
    return compare_run(made)


def of(comparison: RunComparison, arm: str) -> Comparison:
    """Return the comparison of an arm."""
    return next(one for one in comparison.comparisons if one.arm == arm)


def why(one: Comparison) -> str:
    """Return the reason of a comparison as it is told."""
    return reasons_text((one.reason,)) if one.reason else ""


def failed(arm: str, *, phase: Phase, cell: str = CELL) -> Event:
    """Return the event of an arm that failed."""
    failure = Failure(phase=phase, brief=f"{arm}: it broke", details="why", hint="mend it")
    return Event(t=1.0, what="arm-failed", host="local", cell=cell, arm=arm, failure=failure)


def test_slower_arm_is_called_slower(tmp_path: Path) -> None:
    """A tenth more time is seen."""
    found = of(compared(tmp_path, blocks({"vm": 1.0, "docker": 1.1, "vm~control": 1.0})), "docker")
    assert found.outcome == "slower"
    assert found.primary is not None
    assert found.primary.log_ratio == pytest.approx(0.0953, abs=0.003)


def test_equal_arm_is_equivalent_and_its_control_holds(tmp_path: Path) -> None:
    """No difference inside the margin is a result, not the lack of one."""
    made = compared(tmp_path, blocks({"vm": 1.0, "docker": 1.001, "vm~control": 1.0}))
    assert of(made, "docker").outcome == "equivalent"
    assert made.cells[0].noise_floor is not None
    assert not of(made, "docker").control_failed


def test_claim_below_a_failed_control_is_not_made(tmp_path: Path) -> None:
    """Where the reference differs from itself by more, nothing is claimed."""
    found = of(compared(tmp_path, blocks({"vm": 1.0, "docker": 1.1, "vm~control": 1.2})), "docker")
    assert found.outcome == "inconclusive"
    assert found.control_failed
    assert "control failed" in why(found)


def test_claim_beyond_a_failed_control_stands(tmp_path: Path) -> None:
    """A difference larger than the control's far end is still said."""
    found = of(compared(tmp_path, blocks({"vm": 1.0, "docker": 1.5, "vm~control": 1.1})), "docker")
    assert (found.outcome, found.control_failed) == ("slower", True)


def test_too_few_restarts_are_inconclusive_and_say_so(tmp_path: Path) -> None:
    """One launch cannot tell an environment from its luck."""
    made = compared(tmp_path, blocks({"vm": 1.0, "docker": 1.5}, restarts=1, generations=8))
    found = of(made, "docker")
    assert found.outcome == "inconclusive"
    assert "1 of at least 2 restarts" in why(found)


@pytest.mark.parametrize(
    ("log_ratio", "expected"),
    [(0.0, "none"), (0.0004, "none"), (-0.0004, "none"), (0.0006, "slower"), (-0.0006, "faster")],
)
def test_what_is_printed_as_no_change_leans_to_no_side(log_ratio: float, expected: str) -> None:
    """Else a page says "leaning slower, 0.0 %"."""
    assert leaning(log_ratio) == expected


@pytest.mark.parametrize(
    ("phase", "outcome"),
    [("setup", "failed"), ("stack", "failed"), ("environment", "not-run"), ("launch", "failed")],
)
def test_arm_without_result_says_why(tmp_path: Path, phase: Phase, outcome: str) -> None:
    """A missing result is never empty: outcome, reason and the failure itself are there."""
    event = failed("docker", phase=phase, cell="" if phase in {"stack", "environment"} else CELL)
    found = of(compared(tmp_path, blocks({"vm": 1.0}), [event]), "docker")
    assert (found.outcome, why(found)) == (outcome, "docker: it broke")
    assert found.failure is not None


@pytest.mark.parametrize(("phase", "outcome"), [("setup", "failed"), ("environment", "not-run")])
def test_failed_reference_takes_its_comparisons_with_it(
    tmp_path: Path, phase: Phase, outcome: str
) -> None:
    """Without a reference there is nothing to compare with, and the reason names it."""
    made = compared(tmp_path, [], [failed("vm", phase=phase)])
    assert of(made, "docker").outcome == outcome
    assert "the reference vm failed" in why(of(made, "docker"))


def test_different_work_gives_no_ratio(tmp_path: Path) -> None:
    """Another checksum means other work, however many blocks there are, and whatever fails next."""
    samples = blocks({"vm": 1.0, "docker": 1.1})
    checksum = failed("docker", phase="checksum")
    full = Failure(phase="process", brief="the disk is full")
    disk = msgspec.structs.replace(checksum, what="cell-failed", arm="", failure=full)
    for number, events in enumerate(([checksum], [checksum, disk])):
        found = of(compared(tmp_path / f"{number}", samples, events), "docker")
        assert (found.outcome, found.primary) == ("failed", None)


def test_unreachable_host_is_a_failure_of_all_its_cells(tmp_path: Path) -> None:
    """The report holds the host's error for every arm."""
    failure = Failure(phase="connect", brief="gpu01 refuses the connection")
    event = Event(t=1.0, what="host-failed", host="local", text="refused", failure=failure)
    made = compared(tmp_path, [], [event])
    assert made.cells[0].state == "unreachable"
    assert why(of(made, "docker")) == "gpu01 refuses the connection"
    assert [row.brief for row in made.course.failures] == ["gpu01 refuses the connection"]


def test_killed_run_is_read_as_far_as_it_went(tmp_path: Path) -> None:
    """No end, a torn line: what was measured is judged, and the run is marked incomplete."""
    made = RunFolder.create(tmp_path, run_record())
    for sample in blocks({"vm": 1.0, "docker": 1.0}):
        made.append_sample(sample)
    made.close()
    with (made.path / "samples.jsonl").open("ab") as journal:
        journal.write(b'{"kind":"block","ce')
    found = compare_run(made)
    assert (found.course.is_complete, found.course.torn_lines) == (False, 1)
    assert of(found, "docker").primary is not None


def test_confounder_marks_the_comparison_beside_its_verdict(tmp_path: Path) -> None:
    """Verdict and confounded are two marks."""
    facts: dict[str, Facts]
    facts = {"vm": {"numpy.version": "2.4.6"}, "docker": {"numpy.version": "2.3.0"}}
    found = of(compared(tmp_path, blocks({"vm": 1.0, "docker": 1.1}), facts=facts), "docker")
    assert (found.outcome, found.is_confounded) == ("slower", True)


@pytest.mark.parametrize(
    ("vm", "docker", "expected"),
    [
        (
            {"numpy.version": "1", "cgroup.cpu_weight": 100, "env.ONEDNN_MAX_CPU_ISA": None},
            {"numpy.version": "2", "cgroup.cpu_weight": 50, "env.ONEDNN_MAX_CPU_ISA": "SSE41"},
            ("env.ONEDNN_MAX_CPU_ISA", "numpy.version", "cgroup.cpu_weight"),
        ),
        ({"numpy.version": "1"}, {"numpy.version": "1"}, ()),
        ({"numpy.version": "1"}, None, None),
    ],
)
def test_comparison_names_what_may_explain_it(
    vm: Facts, docker: Facts | None, expected: tuple[str, ...] | None, tmp_path: Path
) -> None:
    """What was seen in use stands first; nothing found and nothing known are told apart."""
    loaded: Facts = {"loaded_libraries": ("libtorch_cpu.so 1",)}
    facts: dict[str, Facts] = {"vm": {**loaded, **vm}}
    facts |= {"docker": {**loaded, **docker}} if docker is not None else {}
    found = of(compared(tmp_path, blocks({"vm": 1.0, "docker": 1.1}), facts=facts), "docker")
    assert found.candidates == expected


def test_facts_of_another_workload_confound_nothing(tmp_path: Path) -> None:
    """What one workload loads and another does not is no difference of environments."""
    rnn = msgspec.structs.replace(run_record().cells[0], id="local/rnn/default", workload="rnn")
    made = RunFolder.create(tmp_path, run_record(cells=(*run_record().cells, rnn)))
    for sample in blocks({"vm": 1.0, "docker": 1.0}):
        made.append_sample(sample)
    for arm, cell in (("vm", CELL), ("docker", rnn.id)):
        facts = {"torchvision.version": arm}
        made.write_fingerprint(FingerprintRecord(host="local", arm=arm, cell=cell, facts=facts))
    made.close()
    assert compare_run(made).differences == ()


def test_resumed_run_forgets_the_failure_it_overcame(tmp_path: Path) -> None:
    """A host that was lost and measured later has verdicts, no error and no stain."""
    failure = Failure(phase="connect", brief="gpu01 refuses the connection")
    events = [
        Event(t=1.0, what="host-failed", host="local", failure=failure),
        Event(t=2.0, what="run-resumed"),
        Event(t=3.0, what="cell-started", host="local", cell=CELL),
        Event(t=4.0, what="cell-ended", host="local", cell=CELL, state="ok"),
        Event(t=5.0, what="run-ended"),
    ]
    made = compared(tmp_path, blocks({"vm": 1.0, "docker": 1.0, "vm~control": 1.0}), events)
    assert (made.cells[0].state, made.course.failures, made.course.is_complete) == ("ok", (), True)
    assert of(made, "docker").outcome == "equivalent"


def test_cell_interrupted_before_its_first_block_had_begun(tmp_path: Path) -> None:
    """A cell that never began and one that was stopped while it began are told apart."""
    begun = [Event(t=3.0, what="cell-started", host="local", cell=CELL)]
    stopped = [*begun, Event(t=4.0, what="interrupted", host="local", cell=CELL)]
    assert compared(tmp_path / "a", [], []).cells[0].reason == "the run ended before this cell"
    assert compared(tmp_path / "b", [], stopped).cells[0].reason == (
        "the run ended in the middle of this cell"
    )


def test_memory_and_startup_are_summarised_apart_from_step_time(tmp_path: Path) -> None:
    """Peaks are the largest seen; a warm launch is preferred; not measured stays None."""
    samples: list[Sample] = [
        Memory(cell=CELL, arm="vm", restart=0, generation=g, max_rss_bytes=100 + g)
        for g in range(3)
    ]
    samples += [startup(repetition=0, page_cache="unknown"), startup(repetition=1)]
    made = compared(tmp_path, samples)
    assert made.views.memory[0].max_rss_bytes == 102
    assert made.views.memory[0].cgroup_peak_bytes is None
    assert (made.views.startup[0].launches, made.views.startup[0].page_cache) == (1, "warm")


def startup(*, repetition: int, page_cache: str = "warm") -> Startup:
    """Return one launch."""
    names = ("engine", "import", "data", "build", "first_step", "train", "exit", "real")
    times = {f"{name}_ns": 1_000_000 for name in (*names, "user", "sys")}
    return Startup(
        cell=CELL,
        arm="vm",
        repetition=repetition,
        order=0,
        train_steps=20,
        page_cache=page_cache,  # type: ignore[arg-type]
        **times,
    )


def test_dropped_blocks_do_not_count(tmp_path: Path) -> None:
    """Only the rounds that were measured are paired."""
    dropped: Block = block(restart=9, arm="docker", status="dropped")
    made = compared(tmp_path, [*blocks({"vm": 1.0, "docker": 1.0}), dropped])
    assert made.cells[0].rounds == 4 * 2 * 3


def with_losses(losses: dict[str, float]) -> list[Block]:
    """Return blocks of three arms, each with its loss from the first step on."""
    times = dict.fromkeys(losses, 1.0)
    return [
        msgspec.structs.replace(one, loss=losses[one.arm], checksum=losses[one.arm])
        for one in blocks(times)
    ]


def test_losses_that_differ_between_arms_are_said_in_one_line(tmp_path: Path) -> None:
    """Also where they differ by too little to make an arm fail; no cause is named."""
    losses = {"vm": 299.529, "docker": 299.544, "vm~control": 299.529}
    run = compared(tmp_path, with_losses(losses))
    said = "docker and vm give different results: loss of the first step 299.544 and 299.529"
    line = f"⚠ {said}, 0.00501 % apart."
    assert guard_cautions(run)[0] == line
    assert line in markdown(run)
    assert said in render(run)


def test_a_loss_that_is_finite_in_the_reference_alone_is_said(tmp_path: Path) -> None:
    """A worker sends none where it is not finite; one that the control lacks too tells nothing."""
    samples = with_losses(dict.fromkeys(("vm", "docker", "vm~control"), 299.529))

    def without(arms: set[str]) -> list[Block]:
        last = max(sample.round for sample in samples)
        return [
            msgspec.structs.replace(sample, loss=None)
            if sample.arm in arms and sample.round == last
            else sample
            for sample in samples
        ]

    run = compared(tmp_path / "one", without({"docker"}))
    said = "docker and vm give different results: loss not finite, against 300."
    assert f"⚠ {said}" in guard_cautions(run)
    assert said in render(run)
    for arms in ({"vm~control"}, {"vm", "docker", "vm~control"}):
        assert compared(tmp_path / "-".join(sorted(arms)), without(arms)).views.result_gaps == ()


def processes(printed: dict[str, list[dict[str, float]]]) -> list[ProcessRun]:
    """Return processes of a plain command, of which each arm has printed numbers."""
    return [
        ProcessRun(
            cell=CELL, arm=arm, number=number, order=order, t0_ns=number * 9 + order,
            wall_ns=5_000_000, user_ns=0, sys_ns=0, real_ns=6_000_000, exit_code=0, values=values,
        )
        for order, (arm, rows) in enumerate(printed.items())
        for number, values in enumerate(rows, start=1)
    ]  # fmt: skip


def test_printed_numbers_that_differ_between_arms_are_shown_with_the_digits_that_differ(
    tmp_path: Path,
) -> None:
    """Three digits would show 300 for both."""
    losses = {"vm": 299.529, "docker": 299.544, "vm~control": 299.529}
    printed = {
        arm: [{"loss": loss, "rate": float(number + order)} for number in range(1, 6)]
        for order, (arm, loss) in enumerate(losses.items())
    }
    page = render(compared(tmp_path, processes(printed)))
    assert "⚠ docker and vm give different results: loss 299.544 and 299.529, " in page
    assert ">299.544<" in page
    assert ">299.529<" in page


def test_printed_numbers_with_a_0_have_no_ratio(tmp_path: Path) -> None:
    """The rounds without one would stand for all."""
    retries = {"vm": (0.0, 0.0, 1.0), "docker": (0.0, 0.0, 5.0), "vm~control": (1.0, 1.0, 1.0)}
    printed = {arm: [{"retries": value} for value in values] for arm, values in retries.items()}
    run = compared(tmp_path, processes(printed))
    picked = {one.arm: one for one in run.views.picked}
    assert (picked["docker"].median, picked["docker"].log_ratio) == (0.0, None)


@pytest.mark.parametrize("docker", [299.529, 299.544])
def test_losses_that_the_control_does_not_repeat_are_not_compared(
    tmp_path: Path, docker: float
) -> None:
    """Two processes of one environment differ as much: that tells nothing of the other."""
    losses = {"vm": 299.529, "docker": docker, "vm~control": 299.544}
    assert compared(tmp_path, with_losses(losses)).views.result_gaps == ()


def test_numbers_of_a_restart_are_compared_with_those_of_the_same_one(tmp_path: Path) -> None:
    """A worker that fails in one leaves blocks there, and no numbers."""
    arms = ("vm", "docker", "vm~control")
    at = {"t": 6.0, "host": "local", "cell": CELL}
    events = []
    for restart in range(3):
        events.append(Event(what="restart", values={"restart": restart}, **at))
        events += [
            Event(what="generation", arm=arm, values={"accuracy": 0.9 + restart / 100}, **at)
            for arm in arms
            if (arm, restart) != ("docker", 1)
        ]
    samples = blocks(dict.fromkeys(arms, 1.0), restarts=3)
    assert compared(tmp_path / "same", samples, events).views.result_gaps == ()
    events[-2] = msgspec.structs.replace(events[-2], values={"accuracy": 0.5})
    (gap,) = compared(tmp_path / "other", samples, events).views.result_gaps
    assert (gap.arm, gap.name, gap.value) == ("docker", "accuracy", 0.5)


def test_numbers_of_finish_are_read_from_the_events_of_each_generation(tmp_path: Path) -> None:
    """Texts and what the cell is told apart by are no numbers; no ratio is made of them."""
    events = [
        Event(
            t=6.0, what="generation", host="local", cell=CELL, arm="docker",
            values={"accuracy": accuracy, "backend": "gloo", "is_done": True},
        )
        for accuracy in (0.9, 0.95, 1.0)
    ]  # fmt: skip
    run = compared(tmp_path / "run", blocks({"vm": 1.0, "docker": 1.0}), events)
    (found,) = run.views.picked
    assert (found.arm, found.name, found.processes) == ("docker", "accuracy", 3)
    assert (found.low, found.median, found.high, found.log_ratio) == (0.9, 0.95, 1.0, None)
    page = render(run)
    assert "Numbers the workloads returned" in page
    assert "0.900 to 1.00, 3 generations" in page
