"""CPU time of programs that work beside the worker: read from the host, told by their names."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from envcompare.analysis.model.profiling import Ledger
from envcompare.profilers.host import HelperProcess, helper_quantities, list_helpers, used_ns
from envcompare.report.wording.profilewords import helper_sentence, largest_parts, quantity_name
from envcompare.transport import LOCAL

_COMPUTE = "sum(i * i for i in range(10 ** 6)); print(flush=True); input()"


@contextmanager
def _helper(path: Path, name: str) -> Iterator[subprocess.Popen[str]]:
    """Give a process of that name that computes whenever it gets a line, and says when it has."""
    program = path / name
    shutil.copy(Path(sys.executable).resolve(), program)
    code = f"while True: {_COMPUTE}"
    with subprocess.Popen(
        (str(program), "-c", code),
        env={"PYTHONHOME": sys.base_prefix},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def _work(process: subprocess.Popen[str], times: int) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    for _ in range(times):
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()


def _spent_ns(process: subprocess.Popen[str]) -> int:
    path = Path(f"/proc/{process.pid}/schedstat")
    return int(path.read_text().split()[0])


def test_what_a_helper_used_is_what_the_kernel_says(tmp_path: Path) -> None:
    """CPU time is read between two samples and matched by name; other tests use other names."""
    name, absent = "fuse_of_a_test", "not_running"
    with _helper(tmp_path, name) as ours, _helper(tmp_path, "another_fuse") as other:
        before, begun = list_helpers(LOCAL, (name, absent)), _spent_ns(ours)
        _work(ours, 5)
        _work(other, 5)
        time.sleep(0.05)  # until it sleeps
        spent = _spent_ns(ours) - begun
        used = used_ns((name, absent), before, list_helpers(LOCAL, (name, absent)))
    assert used[name] == pytest.approx(spent, rel=0.02)
    assert spent > 50e6
    assert used[absent] == 0
    assert "another_fuse" not in used


def _process(**changes: int | str) -> HelperProcess:
    return HelperProcess(**{
        "name": "exe", "pid": 7, "parent": 1, "began": 5, "threads": ",7,8",
        "exact_ns": 100, "ticked_ns": 0, **changes,
    })  # type: ignore[arg-type]  # fmt: skip


def test_a_thread_that_has_ended_is_counted_in_ticks() -> None:
    """What lives no more is in the ticks of its process alone."""
    then = _process()
    for threads in (",7", ",7,9"):  # gone, or another in its place
        now = _process(threads=threads, exact_ns=50, ticked_ns=10_000_000)
        assert used_ns(("exe",), (then,), (now,)) == {"exe": 10_000_000}


def test_a_number_that_was_given_anew_is_another_process() -> None:
    """All of what it has used counts, and nothing is taken off for the one before."""
    before, after = _process(exact_ns=900), _process(began=9, exact_ns=40)
    assert used_ns(("exe",), (before,), (after,)) == {"exe": 40}


def test_helpers_are_named_beside_the_parts_of_a_step() -> None:
    """In the sentence where they matter, in the fold of the comparison always."""
    used = {"squashfuse_ll": 5_000_000}
    quantity, window = helper_quantities(used, steps=5, window_ns=90_000_000)
    assert quantity_name(quantity.name) == "CPU time of squashfuse_ll"
    assert "helper programs" in quantity_name(window.name)
    assert helper_quantities({}, steps=5, window_ns=1) == ()
    ledger = Ledger(
        arm="singularity", basis="timing", whole="a step", rule="", parts=(),
        reference_ns=4_000_000, arm_ns=14_000_000, change_ns=10_000_000,
        helpers={"squashfuse_ll": 5_000_000, "dockerd": 20_000},
    )  # fmt: skip
    assert largest_parts(ledger).endswith("; CPU time outside the workload: squashfuse_ll +5.00 ms")
    assert helper_sentence(ledger, reference="vm") == (
        "CPU time outside the workload a step, against vm: squashfuse_ll +5.00 ms and dockerd "
        "+20.0 µs; no part above includes it."
    )
