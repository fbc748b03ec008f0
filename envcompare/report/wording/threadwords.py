"""The threads and CPUs of each arm, and the effect of quotas and variables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from envcompare.analysis.model.comparison import (
    ArmSummary,
    ArmThreads,
    CellSummary,
    RunComparison,
)
from envcompare.fingerprint.evidence import entries
from envcompare.fingerprint.facts import OVERWRITTEN, THREADED, fact
from envcompare.report.numbers import listed
from envcompare.report.wording.labels import cell_labels, has_programs, has_steps
from envcompare.run_folder.records import CONTROL_SUFFIX, FingerprintValue
from envcompare.text import counted, visible

_VARIABLES: Final = tuple(key for key, in_effect in OVERWRITTEN.items() if in_effect)
_MOST_NAMED: Final = 3  # arms, and cells
_LEAST_SHARE: Final = 0.005  # of the time that a quota stops an arm


def threads_text(run: RunComparison) -> str:
    """Return the number of computing threads in a few words; empty if only programs were timed."""
    if not has_steps(run):
        return ""
    return "threads as-run" if run.threads is None else counted(run.threads, "thread")


def threads_sentence(run: RunComparison) -> str:
    """State how many threads compute, and what set that number; empty for plain programs."""
    if not has_steps(run):
        return ""
    besides = " Plain commands run as many as they choose." * has_programs(run)
    if run.threads is None:
        return (
            "envcompare set no number of threads (--threads as-run): the variables, the CPU set "
            "and the quota of each environment decide it, as in your own runs."
        )
    number = counted(run.threads, "thread")
    return f"envcompare set {number} in every environment (--threads {run.threads}).{besides}"


def thread_lines(run: RunComparison) -> tuple[str, ...]:
    """State the threads and CPUs of each arm that differs from the reference.

    An arm that a quota stopped differs. With one thread in every arm, only stops are stated.
    """
    labels = cell_labels(run)
    cells: dict[str, list[str]] = {}
    for cell in run.cells:
        for text in _of_cell(run, cell):
            cells.setdefault(text, []).append(labels[cell.id])
    is_one = len(run.cells) == 1
    return tuple(
        f"{text}." if is_one else f"{text} ({listed(names, most=_MOST_NAMED)})."
        for text, names in cells.items()
    )


def _of_cell(run: RunComparison, cell: CellSummary) -> Iterator[str]:
    ran = {one.arm: one for one in cell.threads}
    arms = {one.arm: one for one in run.arms if one.host == cell.host}
    reference = run.reference_in(cell.id)
    if reference not in ran or reference not in arms:
        return
    usual = _ran(ran[reference], arms[reference])
    for name, threads in ran.items():
        if name == reference or name.endswith(CONTROL_SUFFIX) or name not in arms:
            continue
        stops = _stops(threads, arms[name])
        here = _ran(threads, arms[name])
        if stops or (run.threads != 1 and here != usual):
            before = f"{usual}{_stops(ran[reference], arms[reference])}"
            yield f"{visible(name)}: {here}{stops}; {visible(reference)}: {before}"


def _ran(threads: ArmThreads, arm: ArmSummary) -> str:
    """Return "2 threads ran on 2 CPUs" or "2 threads ran on a quota of 1 CPU"."""
    quota, cpus = _quota(arm), _cpus(arm)
    where = f" on {counted(cpus, 'CPU')}" if cpus else ""
    if quota is not None and (cpus is None or quota < cpus):
        where = f" on a quota of {_number(quota)}"
    return f"{counted(threads.running, 'thread')} ran{where}"


def _stops(threads: ArmThreads, arm: ArmSummary) -> str:
    """Return the share of time for which a quota stopped an arm; empty if negligible.

    The kernel sums the stops over all CPUs on which threads of the arm wait.
    """
    if not threads.throttled_s or not threads.measured_s:
        return ""
    at_once = max(1, min(threads.running, _cpus(arm) or threads.running))
    share = min(1.0, threads.throttled_s / threads.measured_s / at_once)
    return f", stopped for {100 * share:.0f} % of the time" * (share >= _LEAST_SHARE)


def as_run_sentence(run: RunComparison) -> str:
    """Suggest --threads as-run if a variable or quota of only one arm changes the number.

    Empty if envcompare set no number, or no loaded library has its own threads.
    """
    if not has_steps(run) or run.threads is None:
        return ""
    said: dict[str, None] = {}
    for arm in run.arms:
        key = (arm.host, run.reference_of(arm.arm))
        usual = next((one for one in run.arms if (one.host, one.arm) == key), None)
        is_control = arm.arm.endswith(CONTROL_SUFFIX)
        if usual is not None and not is_control and _has_pool(arm, usual):
            said |= dict.fromkeys(_own_numbers(arm, usual)) | dict.fromkeys(
                _own_numbers(usual, arm)
            )
    if not said:
        return ""
    number = counted(run.threads, "thread")
    return (
        f"{listed(list(said), most=_MOST_NAMED)}; envcompare set {number} in every environment. "
        "`--threads as-run` measures each with its own number."
    )


def _has_pool(*arms: ArmSummary) -> bool:
    """Tell whether each arm has loaded a library with its own thread pool."""
    names = [entries(arm.facts.get("loaded_libraries")) for arm in arms]
    return all(any(name.startswith(THREADED) for name in side) for side in names)


def _own_numbers(arm: ArmSummary, other: ArmSummary) -> Iterator[str]:
    """Yield the settings of one arm that would change its number of threads, unlike the other's."""
    for key in _VARIABLES:
        value = arm.facts.get(key)
        if value is not None and value != other.facts.get(key):
            yield visible(f"{arm.arm} sets {fact(key).name}={value}")
    quota, cpus = _quota(arm), _cpus(arm)
    if quota is not None and quota != _quota(other) and cpus is not None and quota < cpus:
        yield visible(f"{arm.arm} has a quota of {_number(quota)} on {counted(cpus, 'CPU')}")


def _quota(arm: ArmSummary) -> float | None:
    value = arm.facts.get("cgroup.cpu_quota")
    return float(value) if isinstance(value, int | float) else None


def _cpus(arm: ArmSummary) -> int | None:
    value: FingerprintValue = arm.facts.get("cpu.affinity")
    return len(value) if isinstance(value, tuple) else None


def _number(quota: float) -> str:
    return f"{quota:g} {'CPU' if quota == 1 else 'CPUs'}"
