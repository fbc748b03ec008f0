"""Likely causes of a difference, and sentences about groups of hosts.

Causes are facts, the kernel, helper programs, parts of a step, and threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from envcompare.analysis.model import (
    ArmSummary,
    ArmThreads,
    CellSummary,
    Comparison,
    Decomposition,
    GroupDifference,
    GroupEstimate,
    RunComparison,
)
from envcompare.analysis.model.profiling import ArmPhases, CellPhases, PartDifference
from envcompare.fingerprint import (
    OVERWRITTEN,
    THREADED,
    fact,
    is_without_effect,
)
from envcompare.fingerprint.evidence import entries, likelihood
from envcompare.fingerprint.sentences import value_text
from envcompare.report.wording import (
    NS,
    cell_labels,
    group_work,
    has_steps,
    listed,
    margin_percent,
    share_text,
    signed_interval,
    signed_percent,
    slower_text,
    time_text,
    unsigned_interval,
    unsigned_percent,
)
from envcompare.report.wording.proofwords import next_step
from envcompare.report.wording.verdicts import (
    MOVED,
    SYMBOLS,
    WORDS,
    candidate_differences,
    candidate_sentence,
    estimate_text,
    excludes_zero,
    reported_differences,
)
from envcompare.run_folder.records import (
    CONTROL_SUFFIX,
    FactDifference,
    FingerprintValue,
    HostGroup,
)
from envcompare.text import counted, sentence, visible

_MOST_NAMED: Final = 2  # cells
_FELT: Final = 0.1  # of the step's extra time; a helper program below it is not named as a cause
_MOST: Final = 0.5  # of the step's extra time
_SURE: Final = 3  # standard errors
_OUTSIDE: Final = "outside of operators (Python, dispatch)"
_VARIABLES: Final = tuple(key for key, in_effect in OVERWRITTEN.items() if in_effect)
_MOST_NAMED_ARMS: Final = 3  # arms, and cells
_LEAST_SHARE: Final = 0.005  # of the time that a quota stops an arm


def candidates_text(run: RunComparison, comparisons: Iterable[Comparison]) -> str:
    """Name likely causes of an arm's decided comparisons; empty if none is decided.

    Each difference is named once, with the strongest evidence of any decided cell. Confounders are
    named only if `confounder_sentence` names them.
    """
    decided = [comparison for comparison in comparisons if comparison.outcome in MOVED]
    if not decided:
        return ""
    asked = _asked(run, decided[0].arm)
    causes: dict[tuple[str, str, str], FactDifference] = {}
    for each in sorted(candidate_differences(run, decided), key=likelihood):
        causes.setdefault((each.host, each.arm, each.key), each)
    unknown = [comparison for comparison in decided if comparison.candidates is None]
    if unknown and not causes:
        in_some = len(unknown) < len(decided)
        cause = candidate_sentence(None, arm=decided[0].arm, in_some_cells=in_some)
    elif asked and not causes:
        cause = "Nothing else that envcompare recorded can act here."
    else:
        cause = candidate_sentence(
            tuple(causes.values()),
            arm=decided[0].arm,
            on_purpose=_on_purpose(run, decided),
            besides="With it" if asked else "Besides the environment",
        )
    said = f"The arms differ in {asked}, which this run compares." if asked else ""
    seen = _in_kernel(run, decided), _helper_programs(run, decided)
    return " ".join(filter(None, (said, cause, *seen, next_step(run, decided))))


def _asked(run: RunComparison, arm: str) -> str:
    """Return what an arm and the reference compare if it is not environments; otherwise empty.

    That is values of a parameter, or images or stacks of one environment.
    """
    arms = {summary.arm: summary for summary in run.arms}
    before, after = arms.get(run.reference_of(arm)), arms.get(arm)
    if before is None or after is None:
        return ""
    values = {name: before.parameters.get(name, "not set") for name in after.parameters}
    pairs = [f"{name} ({values[name]} → {value})" for name, value in after.parameters.items()]
    if before.environment == after.environment:
        if before.stack != after.stack:
            pairs.append(f"the stack ({before.stack} → {after.stack})")
        if before.reference != after.reference:
            names = [each.reference or "envcompare's own" for each in (before, after)]
            is_folder = all(name.startswith("/") and not name.endswith(".sif") for name in names)
            what = "the Python environment" if is_folder else "the image"
            pairs.append(f"{what} ({' → '.join(names)})")
    return visible(", ".join(pairs))


def _on_purpose(run: RunComparison, decided: Iterable[Comparison]) -> tuple[FactDifference, ...]:
    """Return the intended differences of an arm's environment.

    Differences with a remedy come first, and those that no step feels come last.
    """
    found = (
        each
        for comparison in decided
        for each in reported_differences(
            run, comparison.cell, host=comparison.host, arm=comparison.arm
        ).values()
        if each.fact_class == "varied" and not each.part_of
    )
    by_key = {difference.key: difference for difference in found}

    def place(one: FactDifference) -> tuple[bool, bool, str]:
        purpose = fact(one.key).purpose
        return is_without_effect(one.key), not (purpose and purpose.remedy), one.key

    return tuple(sorted(by_key.values(), key=place))


def _in_kernel(run: RunComparison, decided: Iterable[Comparison]) -> str:
    """State the extra time that a slower arm's steps spend in the kernel, if it is most of it.

    Empty if it is less than half, or within the error of the kernel's ticks.
    """
    slower = {
        (comparison.cell, comparison.arm)
        for comparison in decided
        if comparison.outcome == "slower"
    }
    longer = [
        (part.change_ns, profiles, ledger)
        for profiles in run.profiles
        for ledger in profiles.ledgers
        for part in ledger.parts
        if part.part == "system" and (profiles.cell, ledger.arm) in slower
        if ledger.kernel_error_ns is not None and ledger.change_ns > 0
        if part.change_ns >= max(_MOST * ledger.change_ns, _SURE * ledger.kernel_error_ns)
    ]
    if not longer:
        return ""
    longer.sort(key=lambda each: -each[0] / max(1, each[2].reference_ns))
    change_ns, profiles, ledger = longer[0]
    labels = cell_labels(run)
    named = [(time_text(ns), labels.get(at.cell, at.cell)) for ns, at, _ in longer]
    takes = listed([f"{time} longer in {cell}" for time, cell in named])
    if len(longer) > _MOST_NAMED:
        takes = f"longer in {len(longer)} cells, most in {named[0][1]} ({named[0][0]})"
    if len(longer) == 1 and change_ns > ledger.change_ns:
        takes += ", and less time outside it"
    text = f"Inside the kernel a {ledger.piece} in {ledger.arm} takes {takes}."
    facts = reported_differences(run, profiles.cell, host=profiles.host, arm=ledger.arm)
    if acts := _acts_in_kernel(facts):
        ladder = "" if run.views.ladder else "; `--envs ladder` measures each part of a container"
        text += f" Possible causes there: {listed(acts)}{ladder}."
    return visible(text)


def _acts_in_kernel(facts: Mapping[str, FactDifference]) -> list[str]:
    """Return the known mechanisms that an arm has in the kernel and the reference lacks."""
    acts = []
    seccomp = facts.get("seccomp.mode")
    if seccomp is not None and seccomp.reference == 0 and seccomp.value in (1, 2):
        acts.append("a system call filter (seccomp)")
    files = facts.get("limits.nofile")
    if files is not None and _is_more(files.reference, files.value):
        acts.append(f"a higher limit of open files ({files.reference} → {files.value})")
    packages = facts.get("mount.packages")
    if packages is not None and None not in (packages.reference, packages.value):
        before, after = (str(v).split(" ")[0] for v in (packages.reference, packages.value))
        if before != after:
            acts.append(f"another file system for the packages ({after})")
    return acts


def _is_more(before: FingerprintValue, after: FingerprintValue) -> bool:
    """Tell whether one of two limits is known to be higher than the other."""
    if not isinstance(before, int):
        return False
    return after == "unlimited" or (isinstance(after, int) and after > before)


def _helper_programs(run: RunComparison, decided: Iterable[Comparison]) -> str:
    """Name the helper programs of an environment that was slower; empty without any.

    A program is left out if it used less than a tenth of the step's extra time.
    """
    compared = {(comparison.cell, comparison.arm) for comparison in decided}
    labels = cell_labels(run)
    longest: dict[tuple[str, str], tuple[int, str]] = {}
    for profiles in run.profiles:
        for ledger in profiles.ledgers:
            for name, ns in ledger.helpers.items():
                is_felt = ns >= _FELT * ledger.change_ns > 0
                if is_felt and (profiles.cell, ledger.arm) in compared:
                    where = labels.get(profiles.cell, profiles.cell)
                    key = (name, ledger.arm)
                    longest[key] = max(longest.get(key, (0, "")), (ns, where))
    return visible(
        " ".join(
            f"Outside the workload, {name} used {time_text(ns)} of CPU time a step for {arm} in "
            f"{where}."
            for (name, arm), (ns, where) in longest.items()
        )
    )


def part_name(part: PartDifference) -> str:
    """Return the name of a part of a step."""
    if part.kind == "step":
        return "whole marked step"
    if part.kind == "others":
        return "all others together"
    phase = part.phase or "other"
    return f"{phase} (phase)" if part.kind == "phase" else visible(part.operator or _OUTSIDE)


def phases_sentence(phases: ArmPhases) -> str:
    """Name the operators that differ, the largest contribution first, or state that none do."""
    differing = [
        part for part in phases.parts if part.kind == "operator" and part.is_distinguishable
    ]
    sentences = []
    if phases.lone:
        lone = [
            f"{visible(operator.operator or _OUTSIDE)} in {operator.phase} "
            f"({share_text(operator.share)} of the step in {operator.arm})"
            for operator in phases.lone
        ]
        sentences.append(f"Run in one of the two environments only: {listed(lone)}.")
    if differing:
        names = [
            f"{part_name(difference)} in {difference.phase or 'other'} "
            f"{signed_percent(difference.log_ratio)} "
            f"({signed_interval(difference.low, difference.high)})"
            for difference in differing
        ]
        verb = "operator differs" if len(names) == 1 else "operators differ"
        sentences.append(f"{len(names)} {verb}: {listed(names)}.")
    elif phases.most_log_ratio is not None:
        most = unsigned_percent(phases.most_log_ratio)
        sentences.append(f"No operator differs by more than {most}.")
    elif not phases.lone:
        few = "Too few marked rounds to compare operators"
        sentences.append(f"{few}: give a longer --budget and a smaller --target.")
    return " ".join(sentences)


def basis_sentence(phases: ArmPhases) -> str:
    """State what the intervals rest on."""
    return (
        f"From {counted(phases.rounds, 'marked round')} in "
        f"{counted(phases.restarts, 'restart')}. The {phases.tested} phases and operators that "
        "hold 1 % of the step or more are compared; 95 % holds for all these intervals together."
    )


def unmarked_sentence(cell: CellPhases) -> str:
    """State why phases and operators of a cell are unknown."""
    return visible(f"Phases and operators were not measured: {sentence(cell.reason)}")


def difference_text(seconds: float | None) -> str:
    """Return a difference of times with its sign and unit, such as "+12.3 µs"."""
    if seconds is None:
        return "–"
    sign = "−" if seconds < 0 else "+"
    return f"{sign}{time_text(abs(seconds) * NS)}"


def split_sentences(run: RunComparison) -> tuple[str, ...]:
    """Split each difference into environment and software, the largest first."""
    labels = cell_labels(run)
    ordered = sorted(run.views.decompositions, key=lambda split: -abs(split.total.log_ratio))
    return tuple(visible(split_sentence(split, label=labels[split.cell])) for split in ordered)


def split_sentence(split: Decomposition, *, label: str) -> str:
    """Split one difference into environment and software."""
    return (
        f"{split.arm} against {split.base} in {label}, {signed_percent(split.total.log_ratio)}: "
        f"environment {estimate_text(split.environment)}, software {estimate_text(split.stack)}"
        f"{_conclusion(split)}; not widened."
    )


def _conclusion(split: Decomposition) -> str:
    """Name the parts that are shown to exist; empty if a part has no interval."""
    parts = {"environment": split.environment, "software": split.stack}
    if any(part.low is None or part.high is None for part in parts.values()):
        return ""
    clear = [name for name, part in parts.items() if excludes_zero(part.low, part.high)]
    match clear:
        case [name]:
            return f" (of the two parts only the {name}'s excludes 0)"
        case [_, _]:
            return " (both parts exclude 0)"
        case _:
            return " (neither part excludes 0)"


def ladder_sentences(run: RunComparison) -> tuple[str, ...]:
    """Name the rungs that change the time, the largest first, for each cell with a ladder."""
    labels, largest = cell_labels(run), dict[str, float]()
    for step in run.views.ladder:
        is_decided = step.step is not None and step.outcome in {"slower", "faster"}
        change = abs(step.step.log_ratio) if step.step is not None and is_decided else 0.0
        largest[step.cell] = max(largest.get(step.cell, 0.0), change)
    cells = sorted(largest, key=lambda cell: -largest[cell])
    return tuple(
        visible(_ladder_sentence(run, cell, label=labels.get(cell, cell))) for cell in cells
    )


def _ladder_sentence(run: RunComparison, cell: str, *, label: str) -> str:
    steps = [step for step in run.views.ladder if step.cell == cell and step.step is not None]
    decided_steps = ", ".join(
        f"{step.rung.removeprefix('+ ')} {estimate_text(step.step)}"
        for step in steps
        if step.step is not None and step.outcome in {"slower", "faster"}
    )
    equal, open_ = (
        sum(step.outcome == outcome for step in steps) for outcome in ("equivalent", "inconclusive")
    )
    rest = [f"{counted(equal, 'step')} equivalent"] * bool(equal)
    rest += [f"{counted(open_, 'step')} inconclusive"] * bool(open_)
    said = "; ".join((decided_steps, *rest) if decided_steps else rest) or "no step was measured"
    return f"Ladder, {label}, against the rung below: {said}."


def threads_text(run: RunComparison) -> str:
    """Return the number of computing threads in a few words; empty if only programs were timed."""
    if not has_steps(run):
        return ""
    return (
        "threads as-run"
        if run.settings.threads is None
        else counted(run.settings.threads, "thread")
    )


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
        f"{text}." if is_one else f"{text} ({listed(names, most=_MOST_NAMED_ARMS)})."
        for text, names in cells.items()
    )


def _of_cell(run: RunComparison, cell: CellSummary) -> Iterator[str]:
    ran = {thread.arm: thread for thread in cell.threads}
    arms = {arm.arm: arm for arm in run.arms if arm.host == cell.host}
    reference = run.reference_in(cell.id)
    if reference not in ran or reference not in arms:
        return
    usual = _ran(ran[reference], arms[reference])
    for name, threads in ran.items():
        if name == reference or name.endswith(CONTROL_SUFFIX) or name not in arms:
            continue
        stops = _stops(threads, arms[name])
        here = _ran(threads, arms[name])
        if stops or (run.settings.threads != 1 and here != usual):
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
    if not has_steps(run) or run.settings.threads is None:
        return ""
    said: dict[str, None] = {}
    for arm in run.arms:
        key = (arm.host, run.reference_of(arm.arm))
        usual = next((summary for summary in run.arms if (summary.host, summary.arm) == key), None)
        is_control = arm.arm.endswith(CONTROL_SUFFIX)
        if usual is not None and not is_control and _has_pool(arm, usual):
            said |= dict.fromkeys(_own_numbers(arm, usual)) | dict.fromkeys(
                _own_numbers(usual, arm)
            )
    if not said:
        return ""
    number = counted(run.settings.threads, "thread")
    return (
        f"{listed(list(said), most=_MOST_NAMED_ARMS)}; envcompare set {number} in every "
        "environment. `--threads as-run` measures each with its own number."
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


MIXED: Final = " ⚠ confounded"
_MOST_HOSTS: Final = 4
_UNPAIRED: Final = (
    "Times of different machines are not paired: a busy neighbour or a slow hour of one machine "
    "does not cancel."
)
_OVER_HOSTS: Final = (
    "Each interval comes from how hosts of a group differ, and holds for groups of hosts like "
    "these."
)
_LEVEL: Final = "The intervals of the times together hold at 95 %, and so do those of costs."
EFFECTS: Final = "How far the ratio of an environment to its reference differs between the groups."
_COSTS: Final = {"slower": "costs more", "faster": "costs less", "equivalent": "costs the same"}


def groups_title(run: RunComparison) -> str:
    """Return "Two groups of machines: metal and cloud"."""
    groups = [group.name for group in run.between_hosts.groups]
    count = {2: "Two", 3: "Three", 4: "Four"}.get(len(groups), str(len(groups)))
    names = listed(groups, most=_MOST_HOSTS)
    return visible(f"{count} groups of machines: {names}")


def group_names(run: RunComparison) -> tuple[str, ...]:
    """Name each group with its hosts."""
    return tuple(
        visible(f"{group.name}: {listed(group.hosts, most=_MOST_HOSTS)}")
        for group in run.between_hosts.groups
    )


def difference_texts(run: RunComparison) -> tuple[str, ...]:
    """State how machines differ: "processor: AMD EPYC in metal, Intel Xeon in cloud"."""
    groups = {group.name: group for group in run.between_hosts.groups}
    texts = []
    for one in machine_differences(run):
        names = one.reference_group, one.group
        values = "; ".join(f"{side_text(one, groups[name])} in {name}" for name in names)
        texts.append(f"{fact(one.key).name}: {visible(values)}")
    return tuple(texts)


def machine_differences(run: RunComparison) -> tuple[GroupDifference, ...]:
    """Return the properties of the machines in which groups differ.

    Those that separate all hosts come first; the long list of mitigations comes last.
    """
    machines = (one for one in run.between_hosts.group_differences if one.fact_class == "host")

    def rank(difference: GroupDifference) -> tuple[bool, bool]:
        return not difference.is_apart, difference.key.startswith("vulnerabilities.")

    return tuple(sorted(machines, key=rank))


def side_text(difference: GroupDifference, group: HostGroup) -> str:
    """Return the values of a group, each with its hosts if there are several."""
    hosts: dict[str, list[str]] = {}
    for host in group.hosts:
        if host in difference.values:
            value = difference.values[host]
            text = "not known" if value is None else value_text(difference.key, value)
            hosts.setdefault(text, []).append(host)
    if len(hosts) == 1:
        return next(iter(hosts))
    texts = (f"{value} on {listed(names, most=_MOST_HOSTS)}" for value, names in hosts.items())
    return ", ".join(texts)


def subject_text(estimate: GroupEstimate) -> str:
    """Name what is compared: an arm, or its cost against another."""
    return visible(
        f"{estimate.arm} against {estimate.against}" if estimate.against else estimate.arm
    )


def estimate_sentence(run: RunComparison, estimate: GroupEstimate) -> str:
    """Return "cnn in vm: cloud is 8.4 % slower than metal (8.0 to 8.7 %)."."""
    work = group_work(estimate)
    lead = f"{work}, {subject_text(estimate)}" if estimate.against else f"{work} in {estimate.arm}"
    if estimate.log_ratio is None:
        claim = f"not compared: {estimate.why_not}"
    else:
        claim = (_effect_claim if estimate.against else _time_claim)(run, estimate)
    return visible(f"{lead}: {claim}{MIXED * estimate.is_confounded}.")


def _sides(estimate: GroupEstimate) -> tuple[str, str]:
    """Name both sides, the first group last; a group with one host is named as that host."""
    sides = (estimate.group, estimate.values), (estimate.reference_group, estimate.reference_values)
    there, here = (
        f"{next(iter(hosts))} of {group}" if len(hosts) == 1 else group for group, hosts in sides
    )
    return there, here


def _time_claim(run: RunComparison, estimate: GroupEstimate) -> str:
    size = estimate.log_ratio or 0.0
    there, here = _sides(estimate)
    figures = unsigned_interval(estimate.low, estimate.high)
    match estimate.outcome:
        case "slower":
            said = f"{slower_text(size, here)} ({figures})"
        case "faster":
            said = f"faster: {unsigned_percent(size)} less time than {here} ({figures})"
        case "equivalent":
            within = f"within ±{margin_percent(run.settings.margin)}"
            said = f"equivalent to {here} {within} ({_signed(estimate)})"
        case _:
            said = f"not shown to be slower or faster than {here}: inconclusive "
            said += f"({_signed(estimate)})"
    return f"{there} is {said}"


def _signed(estimate: GroupEstimate) -> str:
    ends = signed_interval(estimate.low, estimate.high)
    return f"{signed_percent(estimate.log_ratio or 0.0)}, {ends}"


def _effect_claim(run: RunComparison, estimate: GroupEstimate) -> str:
    figures = _signed(estimate)
    counts = len(estimate.values), len(estimate.reference_values)
    there, here = (
        f"{'on' if count == 1 else 'in'} {side}"
        for side, count in zip(_sides(estimate), counts, strict=True)
    )
    match estimate.outcome:
        case "slower":
            return f"{estimate.arm} costs more {there} than {here} ({figures})"
        case "faster":
            return f"{estimate.arm} costs less {there} than {here} ({figures})"
        case "equivalent":
            margin = margin_percent(run.settings.margin)
            return f"the same {there} as {here} within ±{margin} ({figures})"
        case _:
            return f"not shown to cost more or less {there} than {here}: inconclusive ({figures})"


def cost_text(estimate: GroupEstimate) -> str:
    """State with a symbol whether an environment costs more in one group than in the other."""
    mixed = MIXED * estimate.is_confounded
    words = _COSTS.get(estimate.outcome, WORDS[estimate.outcome])
    return f"{SYMBOLS[estimate.outcome]} {words}{mixed}"


def basis_texts(run: RunComparison) -> tuple[str, ...]:
    """State what the intervals rest on and what they leave out."""
    known = [
        estimate for estimate in run.between_hosts.group_estimates if estimate.log_ratio is not None
    ]
    of_two = dict.fromkeys(
        (*estimate.reference_values, *estimate.values, estimate.reference_group, estimate.group)
        for estimate in known
        if estimate.unit == "restart"
    )
    over_hosts = [estimate for estimate in known if estimate.unit == "host"]
    single = dict.fromkeys(
        (name, next(iter(values)))
        for estimate in over_hosts
        for name, values in (
            (estimate.reference_group, estimate.reference_values),
            (estimate.group, estimate.values),
        )
        if len(values) == 1
    )
    said = [_UNPAIRED]
    said += (
        f"One host of each group was measured: each interval comes from restarts of {here} and "
        f"{there}, and says nothing about other hosts of {reference} and {group}."
        for here, there, reference, group in of_two
    )
    said += [_OVER_HOSTS] * bool(over_hosts)
    said += (
        f"One host of {group} was measured, {host}. Its intervals hold for further hosts of "
        f"{group} only if those scatter no more than the hosts of the other group, which is not "
        "shown here."
        for group, host in single
    )
    left_out = dict.fromkeys(host for estimate in known for host in estimate.left_out)
    if left_out:
        hosts = listed(tuple(left_out), most=_MOST_HOSTS)
        said.append(
            "These hosts have too few restarts to estimate their error, and were left out: "
            f"{hosts}."
        )
    failed = dict.fromkeys(
        host for estimate in run.between_hosts.group_estimates for host in estimate.failed_controls
    )
    if failed:
        hosts = listed(tuple(failed), most=_MOST_HOSTS)
        said.append(
            f"The A/A control failed on {hosts}: no smaller difference of costs is claimed."
        )
    confounded = dict.fromkeys(
        estimate.arm for estimate in run.between_hosts.group_estimates if estimate.is_confounded
    )
    if confounded:
        said.append(
            f"⚠ Besides the machines, software or a limit differs between the groups in "
            f"{listed(tuple(confounded))}: the data cannot separate their effects."
        )
    return tuple(map(visible, (*said, _LEVEL)))
