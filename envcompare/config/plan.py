"""Turn an experiment into cells, arms and seeded orders; pure, runs nothing."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from envcompare.config import Arm, Place
from envcompare.config.experiment import Experiment
from envcompare.config.workloads import Workload
from envcompare.errors import ConfigError
from envcompare.run_folder.records import (
    CONTROL_SUFFIX,
    PLACE_OF_DATA,
    ArmRecord,
    CellRecord,
    Design,
    HostGroup,
    Scalar,
)
from envcompare.run_folder.results import arms_within, count_comparisons

# With the default budget, so many cells take 33 hours.
_MOST_CELLS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Host × workload × parameters × place of the data; all arms are compared inside it.

    If values are compared within several arms of `--envs`, each of these has its own cells.
    """

    id: str
    host: str
    workload: Workload
    parameters: tuple[tuple[str, Scalar], ...]
    within: str = ""
    hosts: tuple[str, ...] = ()  # over which its ranks are spread
    place: Place | None = None  # of the data; None if --place was not given

    def record(self) -> CellRecord:
        """Return the cell as run.json keeps it."""
        return CellRecord(
            id=self.id,
            host=self.host,
            workload=self.workload.name,
            parameters=dict(_named_parameters(self.parameters, self.place)),
            is_program=self.workload.whole is not None,
            within=self.within,
            hosts=self.hosts,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What will run: cells in order, arms with the controls last, and the design."""

    cells: tuple[Cell, ...]
    arms: tuple[ArmRecord, ...]
    design: Design
    seed: int
    groups: tuple[HostGroup, ...] = ()  # of hosts that are compared

    def of(self, cell: Cell) -> Plan:
        """Return the plan with only the arms that are compared in a cell."""
        return replace(self, arms=arms_within(self.arms, cell.within))

    def in_session(self, number: int) -> Plan:
        """Return the plan of a session, counted from 1, with an equal part of the budget.

        Restarts are those of all sessions so far, since they are counted over the whole run.
        """
        design = self.design
        part = number / design.sessions
        session = msgspec.structs.replace(
            design,
            budget_s=design.budget_s / design.sessions,
            min_restarts=math.ceil(design.min_restarts * part),
            gpu_restarts=math.ceil(design.gpu_restarts * part),
            restarts=None if design.restarts is None else math.ceil(design.restarts * part),
        )
        return replace(self, design=session)

    @property
    def controls(self) -> dict[str, str]:
        """Return the reference of each control arm; several if values are compared."""
        references = {arm.within: arm.id for arm in self.arms if arm.is_reference}
        return {arm.id: references[arm.within] for arm in self.arms if arm.is_control}

    @property
    def reference(self) -> str:
        """Return the id of the reference arm, the first if a plan has several."""
        return next(arm.id for arm in self.arms if arm.is_reference)

    @property
    def comparisons(self) -> int:
        """Return m, the number of comparisons for which the intervals are widened."""
        return count_comparisons(self.arms, len(self.cells))

    def duration(self, cells: int) -> str:
        """Return how long so many cells take, one after the other, without profiles and waiting."""
        whole_s = cells * self.design.budget_s
        return f"about {whole_s / 60:.0f} min" if whole_s >= 90 else f"about {whole_s:.0f} s"

    @property
    def control(self) -> str:
        """Return the id of the control arm, the first if a plan has several."""
        return next(arm.id for arm in self.arms if arm.is_control)


def make_plan(experiment: Experiment, hosts: tuple[str, ...], *, accept_many: bool) -> Plan:
    """Return the plan for these host labels; of ranks spread over them the first is measured.

    Raises ConfigError above 200 cells unless `accept_many`.
    """
    cells = tuple(_cells(experiment, hosts))
    if len(cells) > _MOST_CELLS and not accept_many:
        raise ConfigError(
            f"the plan has {len(cells)} cells",
            details=f"each takes up to {experiment.budget_s:.0f} s",
            hint=f"give fewer values to --set, or add --yes to accept more than {_MOST_CELLS}",
        )
    arms = planned_arms(experiment)
    design = msgspec.convert(experiment, Design, from_attributes=True)
    return Plan(cells=cells, arms=arms, design=design, seed=experiment.seed)


def _cells(experiment: Experiment, hosts: tuple[str, ...]) -> list[Cell]:
    cells: list[Cell] = []
    withins = tuple(dict.fromkeys(arm.within for arm in experiment.arms))
    spread = hosts if experiment.rendezvous else ()
    measured = hosts[:1] if spread else hosts
    for host, workload, within in itertools.product(measured, experiment.workloads, withins):
        names = tuple(name for name, _ in workload.parameters)
        given = itertools.product(*(values for _, values in workload.parameters))
        for values, place in itertools.product(given, experiment.places or (None,)):
            parameters = tuple(zip(names, values, strict=True))
            named = _named_parameters(parameters, place)
            text = ",".join(f"{name}={value}" for name, value in named) or "default"
            name = f"{workload.name}@{within}" if within else workload.name
            cell = Cell(
                id=f"{host}/{name}/{text}",
                host=host,
                workload=workload,
                parameters=parameters,
                within=within,
                hosts=spread,
                place=place,
            )
            cells.append(cell)
    return cells


def _named_parameters(
    parameters: tuple[tuple[str, Scalar], ...], place: Place | None
) -> tuple[tuple[str, Scalar], ...]:
    """Return the parameters that name a cell, including the place of the data."""
    placed = () if place is None else ((PLACE_OF_DATA, place),)
    return tuple(sorted((*parameters, *placed)))


def not_placed(experiment: Experiment, place: Place | None) -> dict[str, str]:
    """Return the arms that cannot hold data at a place, each with the reason."""
    if place is None:
        return {}
    reasons = {arm.id: arm.traits.placing(place).refusal for arm in experiment.arms}
    return {arm: reason for arm, reason in reasons.items() if reason}


def _stack_of(arm: Arm) -> Literal["image", "host", "line"]:
    if arm.traits.reference == "line":
        return "line"
    return "host" if arm.stack == "host" else "image"


def planned_arms(experiment: Experiment) -> tuple[ArmRecord, ...]:
    """Return the arms as run.json keeps them, the A/A controls last.

    If values are compared within several arms, the reference of each has the same value.
    """
    chosen = next(arm for arm in experiment.arms if arm.id == experiment.reference)
    planned = [
        ArmRecord(
            id=arm.id,
            environment=arm.environment,
            stack=_stack_of(arm),
            reference=arm.reference,
            is_plain=not arm.traits.is_isolated,
            limit_command=arm.traits.limit_command,
            takes_options=arm.traits.fixed_options is not None,
            options=arm.options,
            parameters=dict(arm.parameters),
            rung=arm.rung,
            within=arm.within,
            is_reference=arm == chosen or bool(arm.within and arm.parameters == chosen.parameters),
        )
        for arm in experiment.arms
    ]
    controls = (
        msgspec.structs.replace(
            arm, id=f"{arm.id}{CONTROL_SUFFIX}", rung="", is_reference=False, is_control=True
        )
        for arm in planned
        if arm.is_reference
    )
    return (*planned, *controls)
