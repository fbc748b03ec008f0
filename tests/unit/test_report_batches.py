"""Throughput by batch in analysis and report: the knee, what fits, what was not measured."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from builders import blocks, run_record
from msgspec.structs import replace
from summaries import markdown

from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import RunComparison
from envcompare.analysis.two_runs import (
    claims_of_run,
    gates_exit_code,
    judge_gates,
    parse_gates,
)
from envcompare.errors import Phase
from envcompare.report.page import render
from envcompare.run_folder.records import CellRecord, Event, Failure, event_now
from envcompare.run_folder.results import RunFolder

SIZES = (16, 32, 64, 128, 256)
ARMS = {"vm": 1.0, "docker": 1.1, "vm~control": 1.0}
FITS = {"beyond": 200, "measurable": 128, "memory_mib": 256, "device": "cpu", "tries": 9}


def cell_of(size: int) -> CellRecord:
    """Return the cell of a batch."""
    name = f"local/cnn/batch={size}"
    return CellRecord(id=name, host="local", workload="cnn", parameters={"batch": size})


def measured_run(path: Path, *events: Event, noise: float = 0.001, **changes: Any) -> RunComparison:
    """Return a run whose steps take 10 ms up to a batch of 64, and in proportion above.

    The last size was not measured. Changes are those of the parameters.
    """
    cells = tuple(
        replace(cell, parameters={**cell.parameters, **changes}) for cell in map(cell_of, SIZES)
    )
    folder = RunFolder.create(path, run_record(cells=cells))
    for size in SIZES[:-1]:
        draws = random.Random(size)
        for block in blocks(ARMS):
            taken = block.wall_ns[0] * max(1.0, size / 64) * draws.lognormvariate(0, noise)
            times = (round(taken),) * 3
            folder.append_sample(replace(block, cell=cell_of(size).id, wall_ns=times, cpu_ns=times))
    why = "a batch of 256 does not fit in docker: the largest that fits is 197"
    ended = {"what": "cell-ended", "host": "local", "cell": cells[-1].id}
    for event in (*events, Event(t=2.0, state="skipped", text=why, **ended)):
        folder.append_event(event)
    folder.close()
    return compare_run(folder)


def fitted(arm: str, **parts: Any) -> Event:
    """Return the event of a search in an arm."""
    return Event(t=1.0, what="batch-fits", host="local", cell=cell_of(16).id, arm=arm, **parts)


def fits(arm: str, **values: Any) -> Event:
    """Return the event that says what fits in an arm."""
    return fitted(arm, values={**FITS, **values})


def test_the_knee_is_where_throughput_stops_rising(tmp_path: Path) -> None:
    """In each environment by itself, whichever is faster."""
    (sweep,) = measured_run(tmp_path).views.batch_sweeps
    assert (sweep.sizes, sweep.is_searched) == (SIZES, False)
    vm, docker = sweep.arms
    assert (vm.arm, vm.knee, docker.arm, docker.knee) == ("vm", 64, "docker", 64)
    assert [rate.batch for rate in vm.rates] == [16, 32, 64, 128]
    assert vm.rates[2].samples_per_s == pytest.approx(6400, rel=0.02)
    assert docker.rates[2].samples_per_s == pytest.approx(6400 / 1.1, rel=0.02)
    assert vm.rates[2].low is not None
    assert vm.rates[2].low <= vm.rates[2].samples_per_s


def test_the_batch_of_several_ranks_is_what_they_do_together(tmp_path: Path) -> None:
    """The parameter is that of a rank."""
    ranked = [
        event_now("note", host="local", cell=cell_of(size).id, arm="vm", values={"batch": 2 * size})
        for size in SIZES
    ]
    (sweep,) = measured_run(tmp_path, *ranked).views.batch_sweeps
    assert sweep.arms[0].rates[2].samples_per_s == pytest.approx(2 * 6400, rel=0.02)


def test_throughput_of_ranks_is_on_the_clock_as_their_speed_up_is(tmp_path: Path) -> None:
    """Without its waits one rank would have another throughput here than among several ranks."""
    notes = (Event(t=1.0, what="note", host="local", cell=cell_of(size).id, arm="vm",
                   values={"batch": size}) for size in SIZES)  # fmt: skip
    run = measured_run(tmp_path, *notes, ranks=1)
    rates = [rate.samples_per_s for rate in run.views.batch_sweeps[0].arms[0].rates]
    shown = [row.samples_per_s for row in run.views.scaling if row.arm == "vm"]
    assert rates == pytest.approx(shown, rel=0.001)
    assert "but not in cells that set" in render(run)


def test_a_noisy_knee_is_not_decided(tmp_path: Path) -> None:
    """The report names the sizes between which it lies."""
    run = measured_run(tmp_path, noise=0.5)
    (sweep,) = run.views.batch_sweeps
    assert sweep.arms[0].knee is None
    assert "not decided" in markdown(run)


def test_the_report_says_what_fits_and_why_no_more(tmp_path: Path) -> None:
    """In every environment: by memory, or by the workload in its own words."""
    said = "ValueError: no more <b>data</b>"
    run = measured_run(
        tmp_path,
        fits("vm", largest=197, limited_by="memory"),
        fits("docker", largest=190, limited_by="workload", said=said),
    )
    (sweep,) = run.views.batch_sweeps
    found = [(arm.largest, arm.limited_by) for arm in sweep.arms]
    assert found == [(197, "memory"), (190, "workload")]
    page, text = render(run), markdown(run)
    for told in (page, text):
        assert "of private memory, beyond Python and PyTorch)" in told
        assert "does not fit in docker: the largest that fits is" in told
        assert "<b>data</b>" not in told
    assert "no more &lt;b&gt;data&lt;/b&gt;" in page


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"largest": 256, "beyond": None, "limited_by": "cap"}, "256 or more"),
        ({"largest": 0, "limited_by": "memory", "beyond": 16}, "none (16 does not fit"),
        ({"largest": 197, "limited_by": "memory", "device": "cuda"}, "256 MiB on the GPU"),
        ({"largest": 9, "limited_by": "memory", "device": "cuda", "memory_mib": 0}, "of the GPU"),
    ],
)
def test_every_end_of_a_search_has_its_words(
    tmp_path: Path, values: dict[str, Any], told: str
) -> None:
    """Also on a GPU, whose limit is that of PyTorch."""
    assert told in markdown(measured_run(tmp_path, fits("vm", **values)))


def test_a_search_that_failed_says_why(tmp_path: Path) -> None:
    """It has no number."""
    why = "ImportError: no torch"
    run = measured_run(tmp_path, fitted("vm", values={"reason": why}))
    assert run.views.batch_sweeps[0].arms[0].largest is None
    assert f"not known ({why})" in markdown(run)
    run = measured_run(tmp_path / "other", fitted("vm"))
    assert "not known" in markdown(run)
    assert "not known (" not in markdown(run)


def test_a_size_that_does_not_fit_is_no_failure(tmp_path: Path) -> None:
    """Neither a gate nor the section of failures counts it; where it stands it is said."""
    run = measured_run(tmp_path, fits("vm", largest=197, limited_by="memory"))
    skipped = [one for one in run.compared if one.outcome == "not-run"]
    assert [one.cell for one in skipped] == [cell_of(256).id]
    claims = claims_of_run(run)
    assert {claim.cell for claim in claims} == {cell_of(size).id for size in SIZES[:-1]}
    results = judge_gates(parse_gates(("failed", "unproven:900%")), claims)
    assert gates_exit_code(results, claims) == 0
    page = render(run)
    assert "does not fit" not in page.split('id="failures"')[1].split("</section>")[0]
    assert "all planned work ran" not in page
    assert "1 of 5 comparisons not run: the batch does not fit." in page


def test_what_the_plan_left_out_is_no_failure_of_a_gate(tmp_path: Path) -> None:
    """An arm that fails for another reason is."""
    phases: tuple[tuple[Phase, bool], ...] = (("plan", False), ("environment", True))
    for phase, is_claimed in phases:
        folder = RunFolder.create(tmp_path / phase, run_record(cells=(cell_of(16),)))
        failure = Failure(phase=phase, brief="it runs no SIF")
        place = {"host": "local", "cell": cell_of(16).id, "arm": "docker"}
        folder.append_event(event_now("arm-failed", failure=failure, **place))
        for block in blocks({"vm": 1.0, "vm~control": 1.0}):
            folder.append_sample(replace(block, cell=cell_of(16).id))
        folder.close()
        assert bool(claims_of_run(compare_run(folder))) == is_claimed


def test_one_batch_is_no_sweep(tmp_path: Path) -> None:
    """Neither a section nor a table."""
    folder = RunFolder.create(tmp_path, run_record(cells=(cell_of(16),)))
    for block in blocks(ARMS):
        folder.append_sample(replace(block, cell=cell_of(16).id))
    folder.close()
    run = compare_run(folder)
    assert run.views.batch_sweeps == ()
    assert 'id="batches"' not in render(run)
