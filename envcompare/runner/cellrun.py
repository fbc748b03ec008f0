"""One cell from its data to its end, and the cells of a host that share launches.

Cells that share launches are started together, measured in turns, and ended one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from envcompare.config import IN_IMAGE, Arm
from envcompare.config.plan import Cell, Plan, not_placed
from envcompare.config.workloads import Program, catalogue
from envcompare.environments.registry import environment
from envcompare.errors import (
    CopyError,
    EnvcompareError,
    InterruptedRunError,
    Phase,
    Problem,
    StillRunningError,
    TransportError,
    UnusableError,
    as_known,
    phase_of,
)
from envcompare.hosts import HostSession
from envcompare.hosts.folders import CellFolders, HostTeam, program_of
from envcompare.measure import Placed, Variables
from envcompare.measure.cell import (
    Budget,
    CellContext,
    QuietGate,
    Roster,
    failed_for_good,
    failure_of,
)
from envcompare.measure.hostreadings import (
    ROOFS_LIMIT_S,
    AccuracyPass,
    EnergyPass,
    measure_roofs,
    recall,
    remember,
    roofs_command,
    sampler_command,
    sampling,
)
from envcompare.measure.limits import REASONS, CellEnd
from envcompare.measure.lockstep import Lockstep, PlannedRestarts, Turns
from envcompare.measure.profile import ProfilePass, ProfilingHost
from envcompare.measure.startup import ProcessPass, StartupPass
from envcompare.measure.worker import Worker
from envcompare.measure.workers import WorkerPool
from envcompare.profilers import ProfilerRun
from envcompare.profilers.toolbox import Toolbox
from envcompare.run_folder import (
    EXPECTED_SPREAD,
    arm_events,
    last_calibration,
    since_retry,
    waited_s,
)
from envcompare.run_folder.profiles import Lacking
from envcompare.run_folder.records import (
    CellState,
    EnergyBlock,
    Epoch,
    Event,
    FingerprintRecord,
    ProcessRun,
    Sample,
    event_now,
)
from envcompare.runner import CellRecorder, Job, SizeCheck, live_text
from envcompare.stats.typical import Spread, prior_of

_NO_STEPS = Lacking(
    why="no-steps",
    problem=Problem(
        brief="a plain command has no steps that could be marked",
        hint="profile it by hand and give the file to envcompare import",
    ),
)
# Two restarts, with one degree of freedom, cannot reveal an odd worker.
_ENOUGH_TO_LEARN = 2
_T = TypeVar("_T")


@dataclass(slots=True)
class CellRun:
    """Measures one cell on a session that is ready."""

    cell: Cell
    session: HostSession
    job: Job
    prior: tuple[Sample, ...] = ()  # from the part measured before an interruption
    prior_events: tuple[Event, ...] = ()
    session_events: tuple[Event, ...] = ()  # of these, since the session began
    is_retried: bool = False  # it ended before, and has its whole budget again
    team: HostTeam | None = None  # hosts with its ranks
    plan: Plan = field(init=False)  # with only the arms of this cell
    folders: CellFolders = field(init=False)
    _recorder: CellRecorder = field(init=False)
    _context: CellContext | None = None
    _roster: Roster | None = None
    _lockstep: Lockstep | None = None
    _why_skipped: str = ""
    _has_arm_events: bool = False  # in this part of the run

    def __post_init__(self) -> None:
        """Start with the common inputs of cells, and the results of an earlier part of the run."""
        self.plan = self.job.plan.of(self.cell)
        self.folders = CellFolders(session=self.session, place=self.cell.place)
        self._recorder = CellRecorder.of(
            self.job, self.cell, self.session, prior_events=self.prior_events
        )

    @property
    def is_whole(self) -> bool:
        """Tell whether a design of a fixed size is complete.

        An arm that failed in it is measured again only on request.
        """
        design = self.plan.design
        arms = {arm.id for arm in self.plan.arms} & self.session.arms.keys()
        if not self.is_retried:
            arms -= {e.arm for e in arm_events(self.prior_events) if e.what == "arm-failed"}
        arms -= not_placed(self.job.experiment, self.cell.place).keys()
        restarts = PlannedRestarts.of(design, self.prior)
        return design.restarts is None or restarts.are_done(arms)

    def prepare(self) -> Lockstep | None:
        """Prepare the cell; return what is measured in turns with other cells, if anything.

        Raises TransportError if the host is lost, WorkloadError if the data cannot be made, and
        InterruptedRunError if the user stops.
        """
        if self._unusable:
            return None
        context = self._context = self._make_context()
        # In reverse, so that what an arm noted first takes the place of later notes.
        noted = (event for event in reversed(self.prior_events) if "code" in event.values)
        roster = self._roster = Roster(
            context,
            before={event.arm: event.values for event in noted},
            allow_mismatch=self.job.experiment.allow_mismatch,
        )
        if self.cell.workload.whole is not None:
            return None
        if (search := self.job.experiment.search) is not None:
            check = SizeCheck(
                search=search,
                cell=self.cell,
                plan=self.job.plan,
                folder=self.job.folder,
                session=self.session,
                mounts=self.folders.mounts,
            )
            self._why_skipped = check.why_not(context)
            if self._why_skipped:
                return None
        self._lockstep = Lockstep(context, roster, self.prior, last_calibration(self.prior_events))
        # each part of a run notes them; only the last note is valid
        context.note("calibrated", values={EXPECTED_SPREAD: math.sqrt(context.noise.variance)})
        if (stopped_by := self._stopped_by()) and self.is_whole:
            # it takes no turn and leaves its remaining budget to the others
            self._lockstep.stopped_by = stopped_by
            self._note_again(context)
            context.note("stopped", text=stopped_by)
            return self._lockstep
        if context.design.has_startup and context.design.cold_start:
            with context.budget.counting():
                StartupPass([self._lockstep.launches]).measure_cold()
        return self._lockstep

    def run_restart(self, lockstep: Lockstep, pool: WorkerPool) -> None:
        """Take the turn of this cell in a restart; raises as `Lockstep.run_restart`."""
        self._has_arm_events = True
        with self._sampling(lockstep.context):
            lockstep.run_restart(pool)

    def finish(self) -> tuple[CellState, str]:
        """Run the passes that a cell runs alone; return its final state and the reason.

        Raises as `prepare`.
        """
        if self._unusable:
            return "failed", self._unusable
        if self._why_skipped:
            return "skipped", self._why_skipped
        context, roster = self._context, self._roster
        assert context is not None
        assert roster is not None
        with context.budget.counting():
            if (program := self.cell.workload.whole) is not None:
                return self._run_program(context, roster, program)
            assert self._lockstep is not None
            return self._finish_steps(context, roster, self._lockstep)

    def _finish_steps(
        self, context: CellContext, roster: Roster, lockstep: Lockstep
    ) -> tuple[CellState, str]:
        # Where the budget had no room for a restart, nothing has noted the arms in this part.
        if not self._has_arm_events:
            self._note_again(context)
        context = replace(context, design=lockstep.design)
        # The host has learnt already from a cell that had stopped before this part of the run.
        if not self._stopped_by():
            self._learn(lockstep)
        if lockstep.stopped_by == "failure":
            return "failed", _why_failed(roster)
        self._train(context, roster)
        self._profile(context, roster)
        return "ok", f"stopped: {lockstep.stopped_by}; {live_text(lockstep.intervals())}"

    def close(self) -> None:
        """Note the lost samples of this cell, which has ended."""
        if self._context is not None:
            self._recorder.note_lost(self._context)

    @property
    def _unusable(self) -> str:
        """Return why nothing can be compared on this host; empty if it can."""
        if self.plan.reference not in self.session.arms:
            return f"the reference {self.plan.reference} is not usable here"
        planned = {arm.id for arm in self.plan.arms if not (arm.is_reference or arm.is_control)}
        if planned and not planned & self.session.arms.keys():
            return "no arm to compare with the reference is usable here"
        return ""

    def _expected(self) -> Spread:
        """Return the expected variation of restarts on this host, the same after a resumption."""
        if EXPECTED_SPREAD in last_calibration(self.prior_events):
            return prior_of(last_calibration(self.prior_events)[EXPECTED_SPREAD])
        if not self.plan.design.noise_memory:
            return Spread()
        return recall(self.session.transport, self.session.cache).spread

    def _learn(self, lockstep: Lockstep) -> None:
        noise = lockstep.noise()
        design = self.plan.design
        # a later session also has the restarts of earlier ones
        is_new = design.noise_memory and design.sessions == 1 and not self.cell.workload.program
        if is_new and noise.own_df >= _ENOUGH_TO_LEARN:
            known = recall(self.session.transport, self.session.cache)
            remember(self.session.transport, self.session.cache, known.with_cell(noise))

    def _run_program(
        self, context: CellContext, roster: Roster, program: Program
    ) -> tuple[CellState, str]:
        runs = [sample for sample in self.prior if isinstance(sample, ProcessRun)]
        processes = ProcessPass(context, roster, program, runs)
        with self._sampling(context):
            processes.measure()
        if processes.is_timeout:
            return "timeout", _why_failed(roster)
        if processes.stopped_by == "failure":
            return "failed", _why_failed(roster)
        self._profile(context, roster)
        return "ok", f"stopped: {processes.stopped_by}; {live_text(processes.intervals())}"

    @contextmanager
    def _sampling(self, context: CellContext) -> Iterator[None]:
        """Read power and clocks of the host's GPUs during a pass; without a GPU nothing runs."""
        command = None
        if self.session.has_gpu:
            plain = (  # the interpreter of an arm that the host has too
                ready.prepared.interpreter
                for ready in self.session.arms.values()
                if environment(ready.arm.environment).traits.software == "venv"
            )
            command = sampler_command(next(plain, "python3"), self.session.workloads)
        with sampling(
            self.session.transport, command, cell=self.cell.id, keep=self._recorder.sample
        ) as sampled:
            yield
        if command and sampled.reason:
            context.note("note", text=sampled.reason)

    def _note_again(self, context: CellContext) -> None:
        """Record the events of the arms again: only those since the last start of a cell count."""
        self._has_arm_events = True
        # Arms whose data cannot be at the place are noted in every part.
        left_out = not_placed(self.job.experiment, self.cell.place).keys()
        for event in arm_events(self.prior_events):
            if event.arm not in left_out:
                context.note(
                    event.what,
                    arm=event.arm,
                    text=event.text,
                    failure=event.failure,
                    values=event.values,
                )

    def _stopped_by(self) -> CellEnd | None:
        since = since_retry(self.session_events)
        stops = [event.text for event in since if event.what == "stopped"]
        ends: tuple[CellEnd, ...] = (*REASONS, "budget")
        if self.is_retried or not stops:
            return None
        return next((end for end in ends if end == stops[-1]), None)

    def _train(self, context: CellContext, roster: Roster) -> None:
        goal = self.plan.design.until
        if goal is None:
            return
        failed = roster.failed.keys() | self._failed_before()
        training = AccuracyPass(
            context=context,
            goal=goal,
            arms=tuple(arm for arm in context.arms if arm not in failed),
            launch=lambda arm: self._launch(arm, context.variables(0)),
            prior=[sample for sample in self.prior if isinstance(sample, Epoch)],
        )
        if training.missing <= 0:
            return
        self.job.display.say(f"  {self.cell.id}: training (outside the budget)")
        self.job.display.say(f"  {self.cell.id}: {training.measure()}")

    def _failed_before(self) -> set[str]:
        """Return the arms that an earlier part of the run gave up, without those to be retried."""
        if self.is_retried:
            return set()
        failed = {e.arm for e in self.prior_events if e.what == "training-failed"}
        # If the cell went on, these arms have been measured again.
        if self._stopped_by() and self.is_whole:
            failed |= failed_for_good(arm_events(self.prior_events))
        return failed

    def _profile(self, context: CellContext, roster: Roster) -> None:
        choice = self.plan.design.profile
        if choice == "none":
            return
        host = ProfilingHost(
            launch=lambda arm, profiler: self._launch(
                arm, context.variables(0), profiler, is_timed=False
            ),
            transport=self.session.transport,
            toolbox=Toolbox(transport=self.session.transport, choice=choice),
            environments={arm: self.session.arms[arm].arm.environment for arm in context.arms},
            scratch=self.session.scratch,
            taken=self.session.taken,
            folder=self.job.folder,
        )
        profiles = ProfilePass(context, host, self.job.folder.read_profiles(self.cell.id))
        if self.cell.workload.program is not None:
            profiles.decline(profiles.arms, _NO_STEPS)
            return
        for arm, failure in roster.failed.items():
            problem = Problem(brief=failure.brief, hint=failure.hint)
            profiles.decline((arm,), Lacking(why="arm-failed", problem=problem))
        self.job.display.say(f"  {self.cell.id}: profiling (outside the budget)")
        self.job.display.say(f"  {self.cell.id}: {profiles.measure()}")
        if context.has_gpu:
            energy = EnergyPass(
                context=context,
                arms=tuple(arm for arm in profiles.arms if arm not in roster.failed),
                launch=lambda arm: self._launch(arm, context.variables(0)),
                sampling=lambda: self._sampling(context),
                prior=[sample for sample in self.prior if isinstance(sample, EnergyBlock)],
            )
            self.job.display.say(f"  {self.cell.id}: {energy.measure()}")
        roofs = self.job.folder.read_roofs()
        if not any(roof.host == self.cell.host and roof.is_measured for roof in roofs):
            context.check_interruption()
            self._measure_roofs(context)

    def _measure_roofs(self, context: CellContext) -> None:
        empty = FingerprintRecord(host=self.cell.host, arm=context.reference, facts={})
        records = self.job.folder.read_fingerprints()
        place = (self.cell.id, context.reference)
        reference = next((r for r in records if (r.cell, r.arm) == place), empty)
        ready = self.session.arms[context.reference]
        device = "cuda" if reference.facts.get("gpu.name") else "cpu"
        command = roofs_command(
            ready.prepared.interpreter,
            self.session.workloads,
            device=device,
            threads=context.design.threads,
            cpus=self.job.experiment.pin,
        )
        roofs = measure_roofs(
            self.session.transport,
            command,
            reference,
            cache=self.session.cache,
            run_inside=partial(
                self.session.run_inside, ready, mounts=self.session.mounts, timeout_s=ROOFS_LIMIT_S
            ),
            busy=QuietGate(context).busy if device == "cpu" else str,
        )
        self.job.folder.write_roofs(roofs)
        if roofs.reason:
            self.job.display.say(f"  {self.cell.id}: {roofs.reason}")

    def _make_context(self) -> CellContext:
        parameters = dict(self.cell.parameters)
        design = self.plan.design
        workload = self.cell.workload
        spent = () if self.is_retried else since_retry(self.session_events)
        if workload.program is not None:
            data = self.folders.show_command(workload.program.cwd, self.job.experiment.data)
        else:
            data = self.folders.prepare_data(workload, parameters, self.job.experiment)
        placed = self._place(data)
        usable = (arm.id for arm in self.plan.arms if arm.id in self.session.arms)
        return CellContext(
            cell=self.cell.id,
            host=self.cell.host,
            arms=tuple(arm for arm in usable if arm in placed or self.cell.place is None),
            reference=self.plan.reference,
            control=self.plan.control,
            launch=self._launch,
            log_of=self._log_of,
            spec=self.folders.spec(workload, parameters, data, self.job.experiment),
            design=design,
            seed=self.plan.seed,
            comparisons=self.plan.comparisons,
            recorder=self._recorder,
            on_host=self.session.ask,
            interruption=self.job.interruption,
            budget=Budget.of(design.budget_s, spent),
            waited_s=waited_s(spent),
            has_gpu=self.session.has_gpu and self.job.experiment.device != "cpu",
            values={arm.id: arm.parameters for arm in self.plan.arms if arm.parameters},
            placed=placed,
            noise=Spread() if workload.program is not None else self._expected(),
        )

    def _place(self, data: str) -> dict[str, Placed]:
        """Put the data at the cell's place, in every arm that can have them there.

        Raises what stops the reference, and UnusableError if no arm is left to compare with it.
        """
        reference, control = self.plan.reference, self.plan.control
        planned = {arm.id for arm in self.plan.arms} & self.session.arms.keys()
        arms = [arm for arm in self.job.experiment.arms if arm.id in planned]
        placed = {arm.id: place for arm in arms if (place := self._place_in(arm, data))}
        first = next(arm for arm in arms if arm.id == reference)
        again = self.folders.place_data(first, data, self.job.experiment, control=control)
        if again is None:
            return placed
        placed[control] = again
        if len(arms) > 1 and placed.keys() == {reference, control}:
            raise UnusableError(
                f"no arm to compare with {reference} can have its data at `{self.cell.place}`",
                hint="name another place with --place, or other arms with --envs",
            )
        return placed

    def _place_in(self, arm: Arm, data: str) -> Placed | None:
        place = self.cell.place
        if place and arm.traits.placing(place).is_held:
            self.job.display.say(f"  {self.cell.id}: putting the data into the image of {arm.id}")
        try:
            return self.folders.place_data(arm, data, self.job.experiment)
        except TransportError:
            raise
        except UnusableError as error:
            if arm.id == self.plan.reference:
                raise
            is_planned = arm.id in not_placed(self.job.experiment, place)
            phase: Phase = "plan" if is_planned else "environment"
            failure = failure_of(error, phase)
            failed = event_now(
                "arm-failed",
                host=self.cell.host,
                cell=self.cell.id,
                arm=arm.id,
                text=failure.brief,
                failure=failure,
            )
            self._recorder.event(failed)
            return None

    def _launch(
        self,
        arm: str,
        variables: Variables = (),
        profiler: ProfilerRun | None = None,
        *,
        is_timed: bool = True,
    ) -> Worker:
        log, log_name = self._log_of(arm)
        program = program_of(self.cell.workload)

        def start(variables: Variables) -> Worker:
            return self.folders.launch(
                arm,
                program,
                variables=variables,
                profiler=profiler,
                is_timed=is_timed,
                log=log,
                log_name=log_name,
            )

        if self.team is None:
            return start(variables)
        ranks = self._ranks_of(arm)
        return self.team.launch(arm, start, ranks=ranks, variables=variables, log_of=self._log_on)

    def _ranks_of(self, arm: str) -> int:
        """Return the ranks of a bundled workload in an arm: its default unless set."""
        own = next(record.parameters for record in self.plan.arms if record.id == arm)
        values = {**dict(self.cell.parameters), **own}
        if "ranks" not in values:
            values = catalogue()[self.cell.workload.name].parameters
        return int(str(values["ranks"]))

    def _log_of(self, arm: str) -> tuple[Path, str]:
        return self._log_on(self.cell.host, arm)

    def _log_on(self, host: str, arm: str) -> tuple[Path, str]:
        log = self.job.folder.log_path(host, self.cell.id, arm)
        return log, str(log.relative_to(self.job.folder.path))


def _why_failed(roster: Roster) -> str:
    reasons = (failure.brief for failure in roster.failed.values())
    return next(reasons, "no arm could be compared with the reference")


def sharing(cells: Iterable[Cell]) -> list[tuple[Cell, ...]]:
    """Return the cells of a host in groups that share launches, in the order of the plan.

    Cells of a group have the same arms, and their data at the same place. In an image, data belong
    to a single workload, since all data have the same path there.

    A user's file is imported alone, since its settings must not affect others. A plain command is
    launched for each process, and a worker with ranks on other hosts for the ranks of its cell.
    """
    groups: dict[object, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(_shared(cell), []).append(cell)
    return [tuple(group) for group in groups.values()]


def _shared(cell: Cell) -> object:
    """Return the common key of cells that share launches."""
    workload = cell.workload
    if workload.program is not None or cell.hosts:
        return cell.id
    held = workload.name if cell.place in IN_IMAGE else ""
    return workload.path, cell.within, cell.place, held


def run_cells(job: Job, runs: Iterable[CellRun], *, ended: set[str]) -> None:
    """Measure the cells of a group; the failure of one does not end the others.

    Adds the ID of each ended cell to `ended`, whatever happens to the others. Raises TransportError
    if the host is lost, InterruptedRunError if the user stops, even as the cause of another error,
    and StillRunningError if something keeps computing there.
    """
    group = _Group(job=job, runs=tuple(runs), ended=ended)
    try:
        group.measure()
    except (InterruptedRunError, TransportError) as error:
        for run in group.unended:
            run.close()
            job.note("interrupted", host=run.cell.host, cell=run.cell.id, text=error.brief)
        raise


@dataclass(slots=True, kw_only=True)
class _Group:
    job: Job
    runs: tuple[CellRun, ...]
    ended: set[str]

    @property
    def unended(self) -> tuple[CellRun, ...]:
        return tuple(run for run in self.runs if run.cell.id not in self.ended)

    def measure(self) -> None:
        for run in self.runs:
            self.job.note("cell-started", host=run.cell.host, cell=run.cell.id)
            self._wait_for_turn(run)
        timed = [(run, lockstep) for run in self.runs if (lockstep := self._prepare(run))]
        # a worker serves all these cells, so it sees the folders of all
        shown = tuple(dict.fromkeys(mount for run in self.unended for mount in run.folders.shown))
        for run in self.unended:
            run.folders.shown = shown
        left = self._measure_in_turns(timed)
        for run in self.unended:
            ending = self._survives(run, run.finish)
            if ending is not None:
                self._end(run, *ending)
        if left is not None:
            raise left

    def _prepare(self, run: CellRun) -> Lockstep | None:
        lockstep = self._survives(run, run.prepare)
        self._wait_for_turn(run)
        return lockstep

    def _wait_for_turn(self, run: CellRun) -> None:
        """Stop a cell's clock, since its budget pays only for its own turns."""
        if run.cell.workload.whole is None:
            self.job.note("turn", host=run.cell.host, cell=run.cell.id, text="waits for its turn")

    def _measure_in_turns(self, timed: list[tuple[CellRun, Lockstep]]) -> StillRunningError | None:
        """Measure all cells; return the error if something keeps computing on the host.

        An error that is not of one cell ends all undecided cells.
        """
        runs = {lockstep.context.cell: run for run, lockstep in timed}

        def take_turn(lockstep: Lockstep, pool: WorkerPool) -> None:
            run = runs[lockstep.context.cell]
            self._survives(run, lambda: run.run_restart(lockstep, pool))
            if run.cell.id in self.ended:
                lockstep.stopped_by = "failure"

        cells = [lockstep for _, lockstep in timed]
        try:
            Turns(cells, turn=take_turn).measure()
            # again for cells that were decided after too few restarts
            decided = [cell.launches for cell in cells if cell.stopped_by in REASONS]
            if decided and decided[0].context.design.has_startup:
                StartupPass(decided).measure_warm()
        except InterruptedRunError:
            raise
        except EnvcompareError as error:
            self._refuse_lost(error)
            undecided = [run for run, lockstep in timed if lockstep.stopped_by is None]
            for run in undecided:
                self._fail(run, error)
            if not undecided:
                first = self.runs[0].cell
                text = f"{error.brief}; start-up was measured less often"
                self.job.note("caution", host=first.host, cell=first.id, text=text)
            return error if isinstance(error, StillRunningError) else None
        return None

    def _refuse_lost(self, error: Exception) -> None:
        """Raise if the user stops, or if the error is that the host is lost."""
        self.job.interruption.check()
        # A copy may fail on a host that is fine.
        if isinstance(error, TransportError) and not isinstance(error, CopyError):
            raise error

    def _survives(self, run: CellRun, act: Callable[[], _T]) -> _T | None:
        """Act for a cell; record an error that ends the cell."""
        try:
            return act()
        except InterruptedRunError:
            raise
        except Exception as error:  # noqa: BLE001 — recorded; the failure of one cell ends no other
            self._refuse_lost(error)
            self._fail(run, error)
            return None

    def _fail(self, run: CellRun, error: Exception) -> None:
        known = as_known(error)
        phase = phase_of(error, "environment" if isinstance(error, UnusableError) else "data")
        host, cell = run.cell.host, run.cell.id
        self.job.fail("cell-failed", known, phase=phase, host=host, cell=cell)
        self._end(run, "unreachable" if isinstance(error, CopyError) else "failed", known.brief)

    def _end(self, run: CellRun, state: CellState, text: str) -> None:
        run.close()
        self.job.end_cell(run.cell, state, text)
        self.ended.add(run.cell.id)
