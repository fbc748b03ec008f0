"""What each host measured on, and in which software hosts differ whose cells are told together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, get_args

from envcompare.analysis.model.comparison import (
    HostDifference,
    HostFact,
    HostSummary,
    TorchBuild,
)
from envcompare.analysis.timing.runfiles import RunFiles
from envcompare.run_folder.records import Event, FingerprintRecord, FingerprintValue

_KEYS: Final[tuple[HostFact, ...]] = get_args(HostFact)


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
