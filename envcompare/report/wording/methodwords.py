"""How and on what a run was measured, and how certain its numbers are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from envcompare.analysis.model import (
    CellSummary,
    Drift,
    Estimate,
    HostDifference,
    HostFact,
    HostSummary,
    ResultGap,
    RunComparison,
    TorchBuild,
)
from envcompare.fingerprint.comparing import BOOT, change_text, is_unverified, subject
from envcompare.report.wording import (
    ONE_PROFILE,
    cell_labels,
    change,
    distinct_numbers,
    duration,
    has_lines,
    has_programs,
    has_steps,
    listed,
    margin_percent,
    of_cells,
    percent,
    signed_percent,
    slower_text,
    three_digits,
    unsigned_percent,
)
from envcompare.report.wording.verdicts import unseen_waiting
from envcompare.run_folder.records import CAPTURED, CONTROL_SUFFIX, FingerprintValue
from envcompare.stats.intervals import MIN_PROCESSES
from envcompare.stats.verdicts import EQUAL_LEVEL
from envcompare.text import counted, one_line, sentence, shortened, visible

INCOMPLETE: Final = "it was interrupted, has not ended, or lost a part of its samples"
_LONGEST: Final = 80
_MOST_HOSTS: Final = 4
UNUSED: Final = "was not used"
MEANT_UNUSED: Final = "was not to be used"  # a program may use it all the same
_DIGITS: Final = 8  # of a lock's digest
_ByKey = dict[HostFact, dict[str, FingerprintValue]]
_MOST_CELLS: Final = 5
_PROGRAMS: Final = (
    "timed from their start inside the environment to their exit; the start of the environment is "
    "in real time only"
)
_LINES: Final = (
    "run by `sh -c` as typed, and timed to their exit, with the start and the end of a container"
)
_ONE_GPU: Final = "envcompare has been tried on one GPU so far, an NVIDIA H200."
IMPORTED: Final = (
    "The profiles were made elsewhere.",
    (
        "A change is per step if every profile says how many steps it covers (--steps); otherwise "
        "the profiles must cover the same work."
    ),
    ONE_PROFILE,
)
"""How imported profiles were read."""


def device_sentences(run: RunComparison) -> tuple[str, ...]:
    """Name the hardware of the work; hosts with the same hardware share a sentence."""
    hosts: dict[str, list[str]] = {}
    for host in run.hosts:
        if text := _device(host):
            hosts.setdefault(text, []).append(host.host)
    if [len(names) for names in hosts.values()] == [len(run.hosts)]:
        return tuple(hosts)  # all have the same
    return tuple(visible(f"{host_names(names)} {text}") for text, names in hosts.items())


def _device(host: HostSummary) -> str:
    """Return "on NVIDIA L4 (driver 570.86.10, torch 2.10.0 with CUDA 12.8)", or the processor.

    Only a worker says that it computed on the CPU; what a plain program used is not known.
    """
    on_gpu = [cell for cell, device in host.devices.items() if device != "cpu"]
    gpu = listed([_short(name) for name in host.gpus]) or "a GPU"
    known = [f"driver {_short(host.driver)}"] * bool(host.driver)
    known += [f"torch {listed(list(dict.fromkeys(map(_build, host.torch))))}"] * bool(host.torch)
    cpu = f"the CPU ({_short(host.processor)})" if host.processor else "the CPU"
    if on_gpu:
        cells = len(host.devices) - len(on_gpu)
        rest = f"; {cells} of {len(host.devices)} cells on {cpu}" * bool(cells)
        return f"on {_in_brackets(gpu, known)}{rest}"
    if host.gpus and not host.devices:  # a plain command may or may not use the GPU
        return f"with {_in_brackets(gpu, known)}"
    unused = ""
    if host.unused_gpus:
        driver = f", driver {_short(host.unused_driver)}" * bool(host.unused_driver)
        how = UNUSED if host.devices else MEANT_UNUSED
        unused = f"; its GPU ({_short(host.unused_gpus)}{driver}) {how} (--device cpu)"
    if host.devices:
        return f"on {cpu}{unused}"
    processor = _short(host.processor) or "a processor that is not known" * bool(unused)
    return f"on {processor}{unused}" if processor else ""


def _in_brackets(name: str, known: list[str]) -> str:
    return f"{name} ({', '.join(known)})" if known else name


def _build(build: TorchBuild) -> str:
    version = _short(build.version).partition("+")[0]
    return f"{version} with CUDA {_short(build.cuda)}" if build.cuda else f"{version} for the CPU"


def host_sentences(run: RunComparison) -> tuple[str, ...]:
    """State how well GPUs are tested, and name the software in which the hosts differ."""
    is_on_gpu = any(device != "cpu" for host in run.hosts for device in host.devices.values())
    return (*(_ONE_GPU,) * is_on_gpu, *difference_sentences(run.between_hosts.differences))


def difference_sentences(differences: Iterable[HostDifference]) -> tuple[str, ...]:
    """Name the differing software with the values of all hosts; arms share a sentence."""
    by_arm: dict[str, _ByKey] = {}
    for difference in differences:
        by_arm.setdefault(difference.arm, {})[difference.key] = difference.values
    arms: dict[str, list[str]] = {}
    for arm, by_key in by_arm.items():
        arms.setdefault(f"{_what(by_key)}: {_values(by_key)}", []).append(arm)
    return tuple(
        visible(
            f"The hosts have different {text} ({host_names(names)}), which may explain a "
            "difference between these hosts or an average over them."
        )
        for text, names in arms.items()
    )


def caution_of(run: RunComparison, arm: str, hosts: Iterable[str]) -> str:
    """State that an arm's cells are from hosts with different software; empty if not."""
    shown = frozenset(hosts)
    by_key = {
        difference.key: difference.values
        for difference in run.between_hosts.differences
        if difference.arm in {arm, run.reference_of(arm)}
        and len({value for host, value in difference.values.items() if host in shown}) > 1
    }
    return f"These cells are from hosts with different {_what(by_key)}." if by_key else ""


def _what(by_key: _ByKey) -> str:
    is_torch = "torch.version" in by_key or "torch.cuda" in by_key
    return "builds of PyTorch" if is_torch else "locked packages"


def _values(by_key: _ByKey) -> str:
    """Return each build with its hosts; the lock depends on the build."""
    versions, cudas = by_key.get("torch.version", {}), by_key.get("torch.cuda", {})
    hosts: dict[str, list[str]] = {}
    for host in versions or cudas or by_key.get("lock.sha256", {}):
        if not versions and not cudas:
            text = f"lock {str(by_key['lock.sha256'][host])[:_DIGITS]}"
        else:
            version = f"torch {_short(versions[host])}" if host in versions else "torch"
            cuda = f" with CUDA {_short(cudas[host])}" if cudas.get(host) else ""
            text = f"{version}{cuda}"
        hosts.setdefault(text, []).append(host)
    return "; ".join(f"{text} on {host_names(names)}" for text, names in hosts.items())


def _wheel_sentences(run: RunComparison) -> tuple[str, ...]:
    """State for each host why its arms have their PyTorch."""
    hosts: dict[str, list[str]] = {}
    for host in run.hosts:
        if host.wheels:
            hosts.setdefault(one_line(host.wheels), []).append(host.host)
    return tuple(visible(f"{host_names(names)}: {text}.") for text, names in hosts.items())


def host_names(names: list[str]) -> str:
    """Name the first hosts and the number of further ones."""
    return listed([_short(name) for name in names], most=_MOST_HOSTS)


def _short(value: FingerprintValue) -> str:
    return shortened(one_line(str(value)), most=_LONGEST)


def scope_text(run: RunComparison) -> str:
    """Return the scope of the verdicts, such as "on this host, in this run".

    With several sessions, include the number of days.
    """
    captured = {arm.arm for arm in run.arms if arm.environment == CAPTURED}
    if captured and all(
        {comparison.arm, run.reference_in(comparison.cell)} & captured
        for comparison in run.compared
    ):
        return "measured at different times, perhaps on different machines"
    hosts = {cell.host for cell in run.cells}
    where = "on these hosts" if len(hosts) > 1 else "on this host"
    if run.settings.planned_sessions == 1:
        return f"{where}, in this run"
    return f"{where}, in {sessions_text(run)}"


def sessions_text(run: RunComparison) -> str:
    """Return "3 sessions on 2 days", or "2 of 3 planned sessions on 1 day"."""
    count = counted(run.course.sessions, "session")
    if run.course.sessions < run.settings.planned_sessions:
        count = f"{run.course.sessions} of {run.settings.planned_sessions} planned sessions"
    return f"{count} on {counted(run.course.days, 'day')}"


def _sessions_sentence(run: RunComparison) -> str:
    if run.settings.planned_sessions == 1:
        return ""
    return (
        f"Measured in {sessions_text(run)}. The interval treats all restarts as independent; "
        "`envcompare combine` uses whole runs."
    )


def replication_sentence(run: RunComparison) -> str:
    """State what the intervals are based on: paired rounds, and restarts."""
    primaries = [
        comparison.primary for comparison in run.compared if comparison.primary is not None
    ]
    if not primaries:
        return "There is no interval: no comparison was measured."
    primaries = [estimate for estimate in primaries if _has_interval(estimate)]
    if not primaries:
        return "There is no interval: too little was measured for one."
    processes = [estimate.rounds for estimate in primaries if estimate.unit == "process"]
    if len(processes) == len(primaries):
        return f"Intervals come from {_range(processes, 'round')} of whole processes a cell."
    primaries = [estimate for estimate in primaries if estimate.unit != "process"]
    rounds = _range([estimate.rounds for estimate in primaries], "round")
    restarts = _range([estimate.restarts for estimate in primaries], "restart")
    commands = f"; of commands, from {_range(processes, 'round')} of processes" if processes else ""
    return f"Intervals come from {rounds} a cell in {restarts}{commands}."


def level_sentence(run: RunComparison) -> str:
    """State the confidence level, and the corrections that widen the intervals."""
    deciding = [
        comparison.deciding for comparison in run.compared if comparison.deciding is not None
    ]
    if not any(estimate.is_widened and _has_interval(estimate) for estimate in deciding):
        return ""
    # two one-sided tests at this level need no correction
    equal = [
        comparison
        for comparison in run.compared
        if comparison.outcome == "equivalent"
        and comparison.deciding
        and comparison.deciding.level == EQUAL_LEVEL
    ]
    if len(equal) == len(deciding) and not run.settings.screen:
        return _equal_sentence(run, len(equal)).strip()
    if run.settings.screen:
        return (
            f"This run screened {counted(run.settings.planned_comparisons, 'comparison')} "
            "(--screen, Benjamini and Hochberg): of those called slower or faster about 5 % are "
            "false at most, and about 5 % of their intervals miss the truth. Inconclusive "
            f"intervals hold at 95 % each.{_equal_sentence(run, len(equal))}"
        )
    text = "The intervals hold at 95 %, widened for repeated checks"
    if run.settings.planned_comparisons > 1:
        levels = {
            margin_percent(comparison.deciding.level)
            for comparison in run.compared
            if comparison.deciding and comparison.deciding.is_widened and comparison not in equal
        }
        at = f" (each at {levels.pop()} on its own)" if len(levels) == 1 else ""
        text += f" and for all {run.settings.planned_comparisons} planned comparisons{at}"
    return f"{text}.{_equal_sentence(run, len(equal))}"


def _equal_sentence(run: RunComparison, count: int) -> str:
    """State the confidence of *equivalent*: for each comparison, or for all together."""
    level, error = margin_percent(EQUAL_LEVEL), margin_percent((1 - EQUAL_LEVEL) / 2)
    if count > 1 and count == run.settings.planned_comparisons:
        return (
            f" For equivalent environments the intervals hold at {level}: the risk of calling all "
            f"{count} equivalent when one is not is at most {error}."
        )
    return (
        f" For an equivalent environment the interval holds at {level}: the risk of calling it "
        f"equivalent when it is not is at most {error}."
    ) * (count > 0)


def _has_interval(estimate: Estimate) -> bool:
    return estimate.low is not None and estimate.high is not None


def _range(counts: list[int], noun: str) -> str:
    low, high = min(counts), max(counts)
    return counted(high, noun) if low == high else f"{low} to {counted(high, noun)}"


def guard_cautions(run: RunComparison) -> tuple[str, ...]:
    """State what a reader must know before relying on a number of this run."""
    drifts = (
        (cell.id, _ratio_drift(drift, run.reference_in(cell.id), of=_stretch_word([cell])))
        for cell in run.cells
        for drift in _detected(cell, is_ratio=True)
    )
    noted = ((cell.id, sentence(one_line(text))) for cell in run.cells for text in cell.cautions)
    waiting = (
        (comparison.cell, f"{comparison.arm}: {text}; measure on a quieter machine.")
        for comparison in run.compared
        if (text := unseen_waiting(comparison, run.settings.margin))
    )
    texts = of_cells(run, (*_gaps(run), *drifts, *waiting, *noted), among=len(run.cells))
    return tuple(f"⚠ {text}" for text in texts)


def _gaps(run: RunComparison) -> Iterator[tuple[str, str]]:
    for gap in run.views.result_gaps:
        names = f"{gap.arm} and {run.reference_in(gap.cell)}"
        yield gap.cell, f"{names} give different results: {gap.name} {_apart(gap)}."


def _apart(gap: ResultGap) -> str:
    if gap.value is None or gap.reference_value is None or gap.relative is None:
        pair = (gap.value, gap.reference_value)
        other, usual = ("not finite" if one is None else three_digits(one) for one in pair)
        return f"{other}, against {usual}"
    usual, other = distinct_numbers(gap.reference_value, gap.value)
    share = three_digits(100 * gap.relative) if gap.relative > 1e-6 else "less than 0.0001"
    return f"{other} and {usual}, {share} % apart"


def _guard_sentences(run: RunComparison) -> Iterator[str]:
    tested = [cell for cell in run.cells if cell.drifts]
    steady = [cell for cell in tested if not any(drift.is_detected for drift in cell.drifts)]
    if steady:
        where = "" if len(steady) == len(run.cells) else f" in {_names(run, steady)}"
        yield f"No drift inside a {_stretch_word(steady)} was found{where} ({_tests(steady)})."
    drifting = [cell for cell in tested if any(drift.is_detected for drift in cell.drifts)]
    sentences = ((cell.id, _drift_sentence(cell)) for cell in drifting[:_MOST_CELLS])
    yield from of_cells(run, sentences, among=len(run.cells))
    if len(drifting) > _MOST_CELLS:
        more = counted(len(drifting) - _MOST_CELLS, "more cell")
        yield f"Blocks drift in {more} as well; comparison.json holds all."
    if waiting := [cell for cell in run.cells if cell.waited_s > 0]:
        total = duration(sum(cell.waited_s for cell in waiting))
        yield f"Waited {total} for a quiet machine ({_names(run, waiting)})."
    if dropped := [cell for cell in run.cells if cell.dropped_blocks]:
        count = counted(sum(cell.dropped_blocks for cell in dropped), "block")
        what = "in which a clock jumped or the machine stalled"
        yield f"Dropped {count} {what} ({_names(run, dropped)})."


def _names(run: RunComparison, cells: list[CellSummary]) -> str:
    labels = cell_labels(run)
    return visible(listed([labels[cell.id] for cell in cells]))


def _detected(cell: CellSummary, *, is_ratio: bool) -> list[Drift]:
    return [drift for drift in cell.drifts if drift.is_detected and drift.is_ratio is is_ratio]


def _ratio_drift(drift: Drift, reference: str, *, of: str) -> str:
    way = f"{unsigned_percent(drift.over_generation)} faster"
    if drift.slope > 0:
        way = slower_text(drift.over_generation)
    return (
        f"against {reference}, {drift.arm} gets {way} "
        f"from the first round of a {of} to its last (p = {drift.p_value:.2g}): its warm-up is "
        "longer than the discarded steps, or its speed changes."
    )


def _drift_sentence(cell: CellSummary) -> str:
    own, ratios = _detected(cell, is_ratio=False), _detected(cell, is_ratio=True)
    parts = []
    for way, some in (("slower", [drift for drift in own if drift.slope > 0]),
                      ("faster", [drift for drift in own if drift.slope < 0])):  # fmt: skip
        if some:
            ends = (drift.over_generation for drift in some)
            most = unsigned_percent(max(ends, key=lambda end: abs(change(end))))
            names = listed(sorted(drift.arm for drift in some), most=4)
            where = f"from the first round of a {_stretch_word([cell])} to its last"
            parts.append(f"blocks of {names} get {way} {where}, by up to {most}")
    moved = [f"{drift.arm} by {signed_percent(drift.over_generation)}" for drift in ratios]
    ratio = f"the ratio drifts for {listed(moved, most=4)}" if moved else "no ratio drifts"
    parts.append(ratio)
    return f"{'; '.join(parts)} ({_tests([cell])})."


def _tests(cells: list[CellSummary]) -> str:
    counts = [drift.generations for cell in cells for drift in cell.drifts]
    return f"trend tests over {_range(counts, _stretch_word(cells))}"


def mismatch_sentences(run: RunComparison) -> tuple[str, ...]:
    """Name the arms that were measured with software that is not proven to match.

    Hosts and arms that changed while the run was interrupted come first.
    """
    arms = [arm for arm in run.arms if not arm.arm.endswith(CONTROL_SUFFIX)]
    other = [
        f"{arm.arm} on {arm.host} was measured despite a mismatch: {arm.identity['mismatch']}."
        for arm in arms
        if arm.identity.get("mismatch")
    ]
    unproven = [
        f"it is not proven that {arm.arm} on {arm.host} has the same software: what is installed "
        f"could not be hashed ({one_line(str(arm.identity['unproven']))})."
        for arm in arms
        if arm.identity.get("unproven") and arm.identity.get("lock")  # made from the wheels
    ]
    return tuple(visible(text) for text in (*_changed(run), *other, *unproven))


def _changed(run: RunComparison) -> Iterator[str]:
    """State what changed before the run was resumed; restarting a host changes no software."""
    for identity in run.course.identity_changes:
        if identity.key == BOOT:
            yield (
                f"{identity.host} was restarted while the run was interrupted: "
                f"{change_text(identity)}. The ratios hold; absolute times may differ."
            )
        elif is_unverified(identity):
            yield (
                f"it cannot be verified that {subject(identity)} did not change while the run was "
                f"interrupted (--allow-mismatch): {change_text(identity)}."
            )
        else:
            yield (
                f"{subject(identity)} changed while the run was interrupted, and its numbers come "
                f"from both states (--allow-mismatch): {change_text(identity)}."
            )


def method_rules(run: RunComparison) -> tuple[tuple[str, str], ...]:
    """Return the rules of this measurement, each with its topic.

    The answer already gives the intervals, their level and the margin.
    """
    rules = (
        ("Rules", "docs/measurement.md"),
        ("Change", _estimate(run)),
        ("End of a cell", _stopping(run)),
        ("Intervals", _units(run)),
        ("Sessions", _sessions_sentence(run)),
        ("PyTorch", " ".join(_wheel_sentences(run))),
        ("Hosts", " ".join(difference_sentences(run.between_hosts.differences))),
        ("Threads", threads_sentence(run)),
        (
            "Memory and hash seed",
            "fixed allocator thresholds, one hash seed a restart (--stabilise)"
            if run.settings.stabilise
            else "as they are (--no-stabilise)",
        ),
        ("CPU", _holding(run)),
        ("Stopped arms", _pausing(run)),
        ("Untimed steps", _running_in(run)),
        ("Whole processes", (_LINES if has_lines(run) else _PROGRAMS) * has_programs(run)),
        ("Watched", " ".join(_guard_sentences(run))),
    )
    return tuple((name, text) for name, text in rules if text)


def _holding(run: RunComparison) -> str:
    held = [cell for cell in run.cells if cell.held_rounds]
    if not held:
        return ""
    count = f"{sum(cell.held_rounds for cell in held)} of {sum(cell.rounds for cell in held)}"
    return f"in {count} rounds of {_names(run, held)} all arms ran on one CPU"


def _pausing(run: RunComparison) -> str:
    stopped = [cell for cell in run.cells if cell.stops]
    if not stopped:
        return ""
    return (
        f"{_names(run, stopped)}: processes or threads that work in addition to the steps were "
        "stopped while other arms had their turns"
    )


def _running_in(run: RunComparison) -> str:
    cells: dict[float, list[CellSummary]] = {}
    for cell in run.cells:
        if cell.run_in_s:
            cells.setdefault(cell.run_in_s, []).append(cell)
    return "; ".join(
        f"{_names(run, alike)}: each turn began with about {duration(seconds)} of them"
        for seconds, alike in cells.items()
    )


def _estimate(run: RunComparison) -> str:
    if not has_steps(run):
        return ""
    spreads = [cell.restart_spread for cell in run.cells if cell.restart_spread is not None]
    spread = f"; restarts vary by up to {percent(max(spreads))} % (estimated)" if spreads else ""
    is_on_gpu = any("cuda" in host.devices.values() for host in run.hosts)
    typical = "mean" if is_on_gpu else "lower quartile"
    return f"of the mean of all steps; the typical step is the {typical} of a block{spread}"


def _stopping(run: RunComparison) -> str:
    if run.settings.planned_sessions > 1:
        budget = duration(run.settings.budget_s / run.settings.planned_sessions)
        return f"each session measures a cell for {budget}, whatever it shows"
    decided = (
        "excludes 0 with a fifth of its half-width to spare"
        if has_steps(run)
        else "is decided by a confidence sequence; the printed interval is the union of both"
    )
    # a target below half the margin asks for precision, so equivalence does not end the cell
    inside = "lies inside the margin, or " * (2 * run.settings.target >= run.settings.margin)
    return (
        f"checked {_looks(run)}: each interval has a half-width of "
        f"{margin_percent(run.settings.target)} or less, {inside}{decided}; "
        f"or after {duration(run.settings.budget_s)}"
    )


def _stretch_word(cells: Iterable[CellSummary]) -> str:
    return "generation" if any(cell.generations > cell.restarts for cell in cells) else "restart"


def _units(run: RunComparison) -> str:
    if run.settings.preset == "strict":
        return "only restarts are units (preset strict)"
    measured = [comparison.primary for comparison in run.compared if comparison.primary is not None]
    count = sum(estimate.unit == "restart" for estimate in measured)
    if not count:
        return ""
    return (
        f"in {count} of {counted(len(measured), 'comparison')} restarts vary by 1 % and more and "
        "are the units: more of them narrow the interval"
    )


def _looks(run: RunComparison) -> str:
    if not has_steps(run):
        return f"after each round, from {max(run.settings.min_restarts, MIN_PROCESSES)} rounds on"
    doubled = 1 << run.settings.min_restarts.bit_length()  # the next power of 2
    return f"after {run.settings.min_restarts}, {doubled}, {2 * doubled} … restarts and at the end"


def threads_sentence(run: RunComparison) -> str:
    """State how many threads compute, and what set that number; empty for plain programs."""
    if not has_steps(run):
        return ""
    besides = " Plain commands run as many as they choose." * has_programs(run)
    if run.settings.threads is None:
        return (
            "as in your own runs (--threads as-run): variables, CPU set and quota of each "
            "environment decide."
        )
    number = counted(run.settings.threads, "thread")
    return f"{number} in every environment (--threads {run.settings.threads}).{besides}"
