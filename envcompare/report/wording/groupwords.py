"""Sentences about groups of hosts: differences, times, costs, and what they rest on."""

from __future__ import annotations

from typing import Final

from envcompare.analysis.model.comparison import RunComparison
from envcompare.analysis.model.machines import GroupDifference, GroupEstimate
from envcompare.fingerprint import fact
from envcompare.fingerprint.sentences import value_text
from envcompare.report.numbers import (
    listed,
    margin_percent,
    signed_interval,
    signed_percent,
    slower_text,
    unsigned_interval,
    unsigned_percent,
)
from envcompare.report.wording.labels import group_work
from envcompare.report.wording.verdicts import SYMBOLS, WORDS
from envcompare.run_folder.records import FingerprintValue, HostGroup
from envcompare.text import visible

MACHINES_ALIKE: Final = "The machines do not differ in anything that envcompare records."
MIXED: Final = " ⚠ confounded"
_MOST_HOSTS: Final = 4
_UNPAIRED: Final = (
    "Times of different machines are not paired: a busy neighbor or a slow hour of one machine "
    "does not cancel."
)
_OVER_HOSTS: Final = (
    "Each interval comes from how hosts of a group differ, and holds for groups of hosts like "
    "these."
)
_NO_SPREAD: Final = (
    "One host of {} was measured, {}. Its intervals hold for further hosts of {} only if those "
    "scatter no more than the hosts of the other group, which is not shown here."
)
_TWO_MACHINES: Final = (
    "One host of each group was measured: each interval comes from restarts of {} and {}, and says "
    "nothing about other hosts of {} and {}."
)
_LEFT_OUT: Final = (
    "These hosts have too few restarts to estimate their error, and were left out: {}."
)
_FAILED: Final = "The A/A control failed on {}: no smaller difference of costs is claimed."
_LEVEL: Final = "The intervals of the times together hold at 95 %, and so do those of costs."
EFFECTS: Final = "How far the ratio of an environment to its reference differs between the groups."
_COSTS: Final = {"slower": "costs more", "faster": "costs less", "equivalent": "costs the same"}


def groups_title(run: RunComparison) -> str:
    """Return "Two groups of machines: metal and cloud"."""
    count = {2: "Two", 3: "Three", 4: "Four"}.get(len(run.groups), str(len(run.groups)))
    names = listed([group.name for group in run.groups], most=_MOST_HOSTS)
    return visible(f"{count} groups of machines: {names}")


def group_names(run: RunComparison) -> tuple[str, ...]:
    """Name each group with its hosts."""
    return tuple(
        visible(f"{group.name}: {listed(group.hosts, most=_MOST_HOSTS)}") for group in run.groups
    )


def _group(run: RunComparison, name: str) -> HostGroup:
    return next(group for group in run.groups if group.name == name)


def difference_texts(run: RunComparison) -> tuple[str, ...]:
    """State how the machines of the groups differ."""
    machines = machine_differences(run)
    return tuple(f"{fact(one.key).name}: {_values_text(run, one)}" for one in machines)


def machine_differences(run: RunComparison) -> tuple[GroupDifference, ...]:
    """Return the properties of the machines in which groups differ.

    Those that separate all hosts come first; the long list of mitigations comes last.
    """
    machines = (one for one in run.group_differences if one.fact_class == "host")

    def rank(difference: GroupDifference) -> tuple[bool, bool]:
        return not difference.is_apart, difference.key.startswith("vulnerabilities.")

    return tuple(sorted(machines, key=rank))


def _values_text(run: RunComparison, difference: GroupDifference) -> str:
    """Return the values of both groups: "AMD EPYC in metal, Intel Xeon in cloud"."""
    names = difference.reference_group, difference.group
    return visible(
        "; ".join(f"{side_text(difference, _group(run, name))} in {name}" for name in names)
    )


def side_text(difference: GroupDifference, group: HostGroup) -> str:
    """Return the values of a group, each with its hosts if there are several."""
    hosts: dict[str, list[str]] = {}
    for host in group.hosts:
        if host in difference.values:
            hosts.setdefault(_value(difference.key, difference.values[host]), []).append(host)
    if len(hosts) == 1:
        return next(iter(hosts))
    texts = (f"{value} on {listed(names, most=_MOST_HOSTS)}" for value, names in hosts.items())
    return ", ".join(texts)


def _value(key: str, value: FingerprintValue) -> str:
    return "not known" if value is None else value_text(key, value)


def subject_text(estimate: GroupEstimate) -> str:
    """Name what is compared: an arm, or its cost against another."""
    return visible(
        f"{estimate.arm} against {estimate.against}" if estimate.against else estimate.arm
    )


def estimate_sentence(run: RunComparison, estimate: GroupEstimate) -> str:
    """Return "cnn in vm: cloud is 8.4 % slower than metal (8.0 to 8.7 %)."."""
    work = group_work(estimate)
    lead = f"{work}, {subject_text(estimate)}" if estimate.against else f"{work} in {estimate.arm}"
    return visible(f"{lead}: {_claim(run, estimate)}{MIXED * estimate.is_confounded}.")


def _claim(run: RunComparison, estimate: GroupEstimate) -> str:
    """State how the group compares with the first one."""
    if estimate.log_ratio is None:
        return f"not compared: {estimate.why_not}"
    if estimate.against:
        return _effect_claim(run, estimate)
    return _time_claim(run, estimate)


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
        case _:
            said = _undecided(run, estimate, here)
    return f"{there} is {said}"


def _signed(estimate: GroupEstimate) -> str:
    ends = signed_interval(estimate.low, estimate.high)
    return f"{signed_percent(estimate.log_ratio or 0.0)}, {ends}"


def _undecided(run: RunComparison, estimate: GroupEstimate, here: str) -> str:
    interval = _signed(estimate)
    if estimate.outcome == "equivalent":
        return f"equivalent to {here} within ±{margin_percent(run.margin)} ({interval})"
    return f"not shown to be slower or faster than {here}: inconclusive ({interval})"


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
            return f"the same {there} as {here} within ±{margin_percent(run.margin)} ({figures})"
        case _:
            return f"not shown to cost more or less {there} than {here}: inconclusive ({figures})"


def cost_text(estimate: GroupEstimate) -> str:
    """State with a symbol whether an environment costs more in one group than in the other."""
    mixed = MIXED * estimate.is_confounded
    words = _COSTS.get(estimate.outcome, WORDS[estimate.outcome])
    return f"{SYMBOLS[estimate.outcome]} {words}{mixed}"


def basis_texts(run: RunComparison) -> tuple[str, ...]:
    """State what the intervals rest on and what they leave out."""
    known = [one for one in run.group_estimates if one.log_ratio is not None]
    of_two = dict.fromkeys(
        (*one.reference_values, *one.values, one.reference_group, one.group)
        for one in known
        if one.unit == "restart"
    )
    over_hosts = [one for one in known if one.unit == "host"]
    single = dict.fromkeys(
        (name, next(iter(values)), name)
        for one in over_hosts
        for name, values in ((one.reference_group, one.reference_values), (one.group, one.values))
        if len(values) == 1
    )
    said = [_UNPAIRED, *(_TWO_MACHINES.format(*pair) for pair in of_two)]
    said += [_OVER_HOSTS] * bool(over_hosts)
    said += (_NO_SPREAD.format(*each) for each in single)
    left_out = dict.fromkeys(host for one in known for host in one.left_out)
    if left_out:
        said.append(_LEFT_OUT.format(listed(tuple(left_out), most=_MOST_HOSTS)))
    failed = dict.fromkeys(host for one in run.group_estimates for host in one.failed_controls)
    if failed:
        said.append(_FAILED.format(listed(tuple(failed), most=_MOST_HOSTS)))
    confounded = dict.fromkeys(one.arm for one in run.group_estimates if one.is_confounded)
    if confounded:
        said.append(
            f"⚠ Besides the machines, software or a limit differs between the groups in "
            f"{listed(tuple(confounded))}: the data cannot separate their effects."
        )
    return tuple(map(visible, (*said, _LEVEL)))
