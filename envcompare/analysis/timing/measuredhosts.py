"""What each host measured on, in which software hosts differ, and what they say together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, get_args

from msgspec.structs import replace

from envcompare.analysis.model.comparison import Comparison, HostsEstimate
from envcompare.analysis.model.machines import HostDifference, HostFact, HostSummary, TorchBuild
from envcompare.analysis.timing.judge import Key, Primary
from envcompare.analysis.timing.runfiles import RunFiles
from envcompare.run_folder.records import Event, FingerprintRecord, FingerprintValue, HostGroup
from envcompare.stats.intervals import ALPHA
from envcompare.stats.overhosts import MIN_HOSTS, odd_hosts, over_hosts
from envcompare.stats.verdicts import verdict

_KEYS: Final[tuple[HostFact, ...]] = get_args(HostFact)
_MEASURED: Final = frozenset({"slower", "faster", "equivalent", "inconclusive"})
_Place = tuple[str, str, str, str]  # workload, parameters, arm, group of hosts


def summarise_hosts(read: RunFiles) -> tuple[HostSummary, ...]:
    """Return what the work ran on, host by host, in the order of the plan."""
    timed = {arm.id for arm in read.run.arms if arm.is_timed}
    hosts = dict.fromkeys(cell.host for cell in read.run.cells) if timed else {}
    return tuple(
        _summary(
            host,
            [one for one in read.fingerprints if one.host == host and one.arm in timed],
            [one for one in read.events if one.host == host],
        )
        for host in hosts
    )


def host_differences(read: RunFiles) -> tuple[HostDifference, ...]:
    """Return the software of each arm that is not the same on all hosts; the control is left out.

    A host that nothing is known of is left out; of a build for the CPU it is known to have no CUDA.
    """
    return tuple(
        difference
        for arm in read.run.arms
        if arm.is_timed and not arm.is_control
        for difference in _of_arm(arm.id, read.fingerprints)
    )


def _of_arm(arm: str, fingerprints: Iterable[FingerprintRecord]) -> Iterator[HostDifference]:
    # what was inspected with torch imported tells of it; the first cell of a host will do
    known: dict[HostFact, dict[str, FingerprintValue]] = {key: {} for key in _KEYS}
    for record in fingerprints:
        if record.arm != arm:
            continue
        for key in _KEYS:
            has_torch = key == "torch.cuda" and record.facts.get("torch.version") is not None
            value = record.facts.get(key)
            if value is not None or has_torch:
                known[key].setdefault(record.host, value)
    for key, values in known.items():
        if len(set(values.values())) > 1:
            yield HostDifference(arm=arm, key=key, values=values)


def _summary(host: str, records: list[FingerprintRecord], events: list[Event]) -> HostSummary:
    noted = [one.values for one in events if one.what == "host-ready"]
    unused = noted[-1] if noted else {}
    wheels = [one.text for one in events if one.what == "wheels"]
    return HostSummary(
        host=host,
        devices={
            one.cell: device
            for one in events
            if one.what == "note" and isinstance(device := one.values.get("device"), str)
        },
        processor=next(_texts(records, "cpu.model"), ""),
        gpus=tuple(dict.fromkeys(_texts(records, "gpu.name"))),
        driver=next(_texts(records, "gpu.driver"), ""),
        torch=tuple(dict.fromkeys(_builds(records))),
        unused_gpus=_text(unused.get("gpu.unused")),
        unused_driver=_text(unused.get("gpu.driver")),
        wheels=wheels[-1] if wheels else "",
    )


def _builds(records: Iterable[FingerprintRecord]) -> Iterator[TorchBuild]:
    for record in records:
        if version := _text(record.facts.get("torch.version")):
            yield TorchBuild(version=version, cuda=_text(record.facts.get("torch.cuda")))


def _texts(records: Iterable[FingerprintRecord], key: str) -> Iterator[str]:
    return filter(None, (_text(record.facts.get(key)) for record in records))


def _text(value: FingerprintValue) -> str:
    return "" if value is None else str(value)


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
