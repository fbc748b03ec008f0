"""Make ready without measuring: what `envcompare build` and `envcompare clean` do on each host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from envcompare.console import Display
from envcompare.errors import EnvcompareError, InterruptedRunError
from envcompare.experiment import Experiment
from envcompare.interrupt import Interruption, handling_signals
from envcompare.opening import open_site
from envcompare.plan import planned_arms
from envcompare.sites import Site
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
    return _everywhere(experiment, hosts, display, _build)


def clean_everywhere(
    experiment: Experiment, hosts: tuple[HostSpec, ...], display: Display
) -> Outcome:
    """Remove the cache of envcompare from every host."""
    return _everywhere(experiment, hosts, display, _clean)


Action = Callable[[Site, Experiment, Display, Outcome], None]


def _everywhere(
    experiment: Experiment, hosts: tuple[HostSpec, ...], display: Display, action: Action
) -> Outcome:
    outcome = Outcome()
    interruption = Interruption()
    with handling_signals(interruption, display.say):
        for host in hosts:
            if interruption.is_requested:
                raise InterruptedRunError("interrupted", hint="the same command goes on from here")
            try:
                site = open_site(host, experiment, _RUN, interruption)
            except EnvcompareError as error:
                _keep(error, display, outcome)
                continue
            try:
                action(site, experiment, display, outcome)
            finally:
                site.close()
    return outcome


def _clean(site: Site, _experiment: Experiment, display: Display, outcome: Outcome) -> None:
    try:
        clean(site.transport)
    except EnvcompareError as error:
        _keep(error, display, outcome)
    else:
        outcome.lines.append(f"{site.host.label}: removed {site.cache}")


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
