"""What several hosts say together of an environment, each having compared for itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from envcompare.analysis.model.comparison import Comparison, HostsEstimate
from envcompare.analysis.timing.judge import Key, Primary
from envcompare.run_folder.records import HostGroup
from envcompare.stats.intervals import ALPHA
from envcompare.stats.overhosts import MIN_HOSTS, odd_hosts, over_hosts
from envcompare.stats.verdicts import verdict

_MEASURED: Final = frozenset({"slower", "faster", "equivalent", "inconclusive"})
_Place = tuple[str, str, str, str]  # workload, parameters, arm, group of hosts


def hosts_estimates(
    comparisons: Iterable[Comparison],
    settled: Mapping[Key, Primary],
    *,
    margin: float,
    of_hosts: Iterable[HostGroup] = (),
) -> tuple[HostsEstimate, ...]:
    """Return a statement for each workload and arm that two hosts or more of a group have compared.

    All of them together err in 5 % of the runs at most, by Bonferroni.
    """
    of_host = {host: group.name for group in of_hosts for host in group.hosts}
    groups: dict[_Place, list[Comparison]] = {}
    for comparison in comparisons:
        known = settled.get((comparison.cell, comparison.arm))
        if known is None or known.error is None or comparison.outcome not in _MEASURED:
            continue
        parameters = str(sorted(comparison.parameters.items()))
        place = comparison.workload, parameters, comparison.arm, of_host.get(comparison.host, "")
        groups.setdefault(place, []).append(comparison)
    several = {place: group for place, group in groups.items() if len(group) >= MIN_HOSTS}
    level = 1 - ALPHA / max(1, len(several))
    made = (
        (place[-1], _estimate(group, settled, level=level, margin=margin))
        for place, group in several.items()
    )
    return tuple(replace(one, group=name) for name, one in made if one)


def _estimate(
    group: list[Comparison], settled: Mapping[Key, Primary], *, level: float, margin: float
) -> HostsEstimate | None:
    known = [settled[one.cell, one.arm] for one in group]
    values = [one.interval.mean for one in known]
    errors = [one.error or 0.0 for one in known]
    together = over_hosts(values, errors, level=level)
    if together is None:
        return None
    return HostsEstimate(
        workload=group[0].workload,
        parameters=group[0].parameters,
        arm=group[0].arm,
        hosts=together.hosts,
        log_ratio=together.mean,
        low=together.low,
        high=together.high,
        tau=together.tau,
        level=level,
        outcome=verdict(together.low, together.high, margin=margin),
        odd_hosts=tuple(group[place].host for place in odd_hosts(values, errors)),
    )
