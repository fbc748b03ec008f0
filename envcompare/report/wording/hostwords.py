"""What a run was measured on, host by host, and what hosts differ in, in sentences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from envcompare.analysis.model.comparison import RunComparison
from envcompare.analysis.model.machines import (
    HostDifference,
    HostFact,
    HostsEstimate,
    HostSummary,
    TorchBuild,
)
from envcompare.report.format.numbers import (
    listed,
    margin_percent,
    signed_interval,
    signed_percent,
    unsigned_interval,
    unsigned_percent,
)
from envcompare.run_folder.records import FingerprintValue
from envcompare.text import assigned, one_line, shortened, visible

DIFFERENT_HOSTS: Final = "These cells are from hosts with different {}."
"""The caution beside a statement about several hosts."""
_LONGEST: Final = 80
_MOST_HOSTS: Final = 4
_LEAST_SPREAD = 0.0005  # less is shown as 0.0 %
_MOST_STATEMENTS: Final = 2
_DIGITS: Final = 8  # of a lock's digest


def device_sentences(run: RunComparison) -> tuple[str, ...]:
    """Say what the work ran on: hosts that have the same share a sentence."""
    hosts: dict[str, list[str]] = {}
    for host in run.hosts:
        if text := _device(host):
            hosts.setdefault(text, []).append(host.host)
    if len(run.hosts) == 1:
        return tuple(hosts)
    return tuple(visible(f"{_names(names)} {text}") for text, names in hosts.items())


def _device(host: HostSummary) -> str:
    """Return "on NVIDIA L4 (driver 570.86.10, torch 2.10.0 with CUDA 12.8)", or the processor."""
    on_gpu = [cell for cell, device in host.devices.items() if device != "cpu"]
    gpu = listed([_short(name) for name in host.gpus]) or "a GPU"
    known = [f"driver {_short(host.driver)}"] * bool(host.driver)
    known += [f"torch {_versions(host.torch)}"] * bool(host.torch)
    cpu = f"the CPU ({_short(host.processor)})" if host.processor else "the CPU"
    if on_gpu:
        cells = len(host.devices) - len(on_gpu)
        rest = f"; {cells} of {len(host.devices)} cells on {cpu}" * bool(cells)
        return f"on {_in_brackets(gpu, known)}{rest}"
    if host.gpus and not host.devices:  # whether a plain command uses it is its own business
        return f"with {_in_brackets(gpu, known)}"
    unused = _unused(host)
    return f"on {cpu}{unused}" if host.processor or host.devices or unused else ""


def _unused(host: HostSummary) -> str:
    if not host.unused_gpus:
        return ""
    driver = f", driver {_short(host.unused_driver)}" * bool(host.unused_driver)
    return f"; its GPU ({_short(host.unused_gpus)}{driver}) was not used (--device cpu)"


def _in_brackets(name: str, known: list[str]) -> str:
    return f"{name} ({', '.join(known)})" if known else name


def _versions(builds: Iterable[TorchBuild]) -> str:
    return listed(list(dict.fromkeys(map(_build, builds))), most=3)


def _build(build: TorchBuild) -> str:
    version = _short(build.version).partition("+")[0]
    return f"{version} with CUDA {_short(build.cuda)}" if build.cuda else f"{version} for the CPU"


def host_sentences(run: RunComparison) -> tuple[str, ...]:
    """Name the builds of PyTorch, or else the locks, in which the hosts of this run differ."""
    return difference_sentences(run.host_differences)


def difference_sentences(differences: Iterable[HostDifference]) -> tuple[str, ...]:
    """Say with the values of all hosts in which software they differ; arms share a sentence."""
    arms: dict[str, list[str]] = {}
    for arm, by_key in _by_arm(differences).items():
        arms.setdefault(f"{_what(by_key)}: {_values(by_key)}", []).append(arm)
    return tuple(
        visible(
            f"The hosts have different {text} ({_names(names)}). A difference between these "
            "hosts, and an average over them, may come from that."
        )
        for text, names in arms.items()
    )


def caution_of(run: RunComparison, arm: str, hosts: Iterable[str]) -> str:
    """Say that the cells of an arm are of hosts with different software; empty where not so."""
    shown = frozenset(hosts)
    by_key = {
        one.key: one.values
        for one in run.host_differences
        if one.arm in {arm, run.reference_of(arm)}
        and len({value for host, value in one.values.items() if host in shown}) > 1
    }
    return DIFFERENT_HOSTS.format(_what(by_key)) if by_key else ""


_ByKey = dict[HostFact, dict[str, FingerprintValue]]


def _by_arm(differences: Iterable[HostDifference]) -> dict[str, _ByKey]:
    arms: dict[str, _ByKey] = {}
    for difference in differences:
        arms.setdefault(difference.arm, {})[difference.key] = difference.values
    return arms


def _what(by_key: _ByKey) -> str:
    is_torch = "torch.version" in by_key or "torch.cuda" in by_key
    return "builds of PyTorch" if is_torch else "locked packages"


def _values(by_key: _ByKey) -> str:
    """Return each build with its hosts; the lock follows from it."""
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
    return "; ".join(f"{text} on {_names(names)}" for text, names in hosts.items())


def over_hosts_text(run: RunComparison, arm: str) -> str:
    """Say what all hosts together tell of an arm, workload by workload; empty for one host."""
    told = [one for one in run.over_hosts if one.arm == arm]
    # of many the first stands for all, so that the headlines stay on the first screen
    shown = told if len(told) <= _MOST_STATEMENTS else told[:1]
    sentences = [_over_hosts(one, run) for one in shown]
    if len(told) > len(shown):
        sentences.append(f"{len(told) - len(shown)} more statements are in the overview.")
    return visible(" ".join(sentences))


def _over_hosts(estimate: HostsEstimate, run: RunComparison) -> str:
    """Return "Over 20 hosts, cnn in docker is 4.1 % slower (3.0 to 5.2 %); …"."""
    match estimate.outcome:
        case "equivalent":
            claim = f"equivalent within ±{margin_percent(run.margin)}"
        case "inconclusive":
            claim = "inconclusive"
        case "slower":
            claim = f"{unsigned_percent(estimate.log_ratio)} slower"
        case "faster":
            claim = f"faster: {unsigned_percent(estimate.log_ratio)} less time"
    is_moved = estimate.outcome in {"slower", "faster"}
    ends = (estimate.low, estimate.high)
    mean = f"{signed_percent(estimate.log_ratio)}, {signed_interval(*ends)}"
    figures = unsigned_interval(*ends) if is_moved else mean
    odd = f"; far from the others: {names}" if (names := odd_names(estimate)) else ""
    spread = "no spread between hosts was seen"
    if estimate.tau >= _LEAST_SPREAD:
        spread = f"hosts differ by ±{unsigned_percent(estimate.tau)}"
    subject = f"{work_of(estimate)} in {estimate.arm}"
    of_group = f" of {estimate.group}" if estimate.group else ""
    return (
        f"Over {estimate.hosts} hosts{of_group}, {subject} is {claim} ({figures}); {spread}{odd}."
    )


def work_of(estimate: HostsEstimate) -> str:
    """Name a workload with its parameters."""
    return visible(" ".join((estimate.workload, *assigned(estimate.parameters))))


def odd_names(estimate: HostsEstimate) -> str:
    """Name the hosts far from the others."""
    return visible(_names(list(estimate.odd_hosts)))


def wheel_sentences(run: RunComparison) -> tuple[str, ...]:
    """Say of each host why its arms got the PyTorch that they have."""
    hosts: dict[str, list[str]] = {}
    for host in run.hosts:
        if host.wheels:
            hosts.setdefault(one_line(host.wheels), []).append(host.host)
    return tuple(
        visible(f"The PyTorch of {_names(names)} was chosen so: {text}.")
        for text, names in hosts.items()
    )


def _names(names: list[str]) -> str:
    return listed([_short(name) for name in names], most=_MOST_HOSTS)


def _short(value: FingerprintValue) -> str:
    return shortened(one_line(str(value)), most=_LONGEST)
