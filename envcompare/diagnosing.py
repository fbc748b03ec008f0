"""What `envcompare doctor` does: ask every host, and say it in lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from envcompare.doctor import Finding, diagnose
from envcompare.errors import EnvcompareError
from envcompare.experiment import Experiment
from envcompare.opening import ssh_options
from envcompare.sites import stack_options
from envcompare.transport.hosts import HostSpec, connect


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """What one host lacks; `is_usable` where nothing that was asked for is missing."""

    lines: tuple[str, ...]
    is_usable: bool


def examine(experiment: Experiment, hosts: tuple[HostSpec, ...]) -> Iterator[HostReport]:
    """Give a report for each host as soon as it is known, whether it can be reached or not."""
    arms = tuple(dict.fromkeys((arm.environment, arm.stack) for arm in experiment.arms))
    for host in hosts:
        try:
            transport = connect(host, options=ssh_options(experiment))
            try:
                found = diagnose(transport, arms, options=stack_options(experiment))
            finally:
                transport.close()
        except EnvcompareError as error:
            yield HostReport(lines=(f"{host.label}:", *_indented(error.lines())), is_usable=False)
        else:
            lines = (f"{host.label}:", *(line for one in found for line in _lines(one)))
            is_usable = all(one.is_usable for one in found if one.is_needed)
            yield HostReport(lines=lines, is_usable=is_usable)


def _lines(finding: Finding) -> tuple[str, ...]:
    if finding.is_usable:
        text = f"  ✓ {finding.subject}: {finding.version or 'usable'}"
    else:
        mark = "✕" if finding.is_needed else "–"
        text = f"  {mark} {finding.subject}: {finding.reason}"
    hint = (f"      try: {finding.hint}",) if finding.hint else ()
    return (text, *hint)


def _indented(lines: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"  ✕ {line}" if line.startswith("error") else f"  {line}" for line in lines)
