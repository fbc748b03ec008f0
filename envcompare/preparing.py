"""Make ready without measuring: what `envcompare build` and `envcompare clean` do on each host."""

from __future__ import annotations

from dataclasses import dataclass, field

from envcompare.console import Display
from envcompare.errors import EnvcompareError
from envcompare.experiment import Experiment
from envcompare.interrupt import Interruption
from envcompare.plan import planned_arms
from envcompare.sites import Site, open_site
from envcompare.stack.cache import clean
from envcompare.transport.hosts import HostSpec

_RUN = "build"


@dataclass(slots=True)
class Outcome:
    """What was made where, and which errors there were."""

    lines: list[str] = field(default_factory=list)
    errors: list[EnvcompareError] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """Return 0, or the smallest exit code of the errors."""
        return min((error.exit_code for error in self.errors), default=0)


def build_everywhere(
    experiment: Experiment, hosts: tuple[HostSpec, ...], display: Display
) -> Outcome:
    """Make every arm usable on every host, going on after an error."""
    outcome = Outcome()
    for host in hosts:
        site = _open(host, experiment, display, outcome)
        if site is None:
            continue
        try:
            _build(site, experiment, display, outcome)
        finally:
            site.close()
    return outcome


def clean_everywhere(
    experiment: Experiment, hosts: tuple[HostSpec, ...], display: Display
) -> Outcome:
    """Remove the cache of envcompare from every host."""
    outcome = Outcome()
    for host in hosts:
        site = _open(host, experiment, display, outcome)
        if site is None:
            continue
        try:
            clean(site.transport)
            outcome.lines.append(f"{host.label}: removed {site.cache}")
        except EnvcompareError as error:
            _keep(error, display, outcome)
        finally:
            site.close()
    return outcome


def _open(
    host: HostSpec, experiment: Experiment, display: Display, outcome: Outcome
) -> Site | None:
    try:
        return open_site(host, experiment, _RUN, Interruption())
    except EnvcompareError as error:
        _keep(error, display, outcome)
        return None


def _build(site: Site, experiment: Experiment, display: Display, outcome: Outcome) -> None:
    for arm in planned_arms(experiment):
        label = f"{site.host.label} {arm.id}"
        if arm.is_control:
            continue
        try:
            seat = site.add_arm(arm, experiment, display.saying(label))
        except EnvcompareError as error:
            _keep(error, display, outcome)
        else:
            where = seat.prepared.reference or seat.prepared.interpreter
            outcome.lines.append(f"{label}: {where}")


def _keep(error: EnvcompareError, display: Display, outcome: Outcome) -> None:
    display.error(error)
    outcome.errors.append(error)
