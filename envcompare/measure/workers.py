"""The workers of one launch, and how they serve the cells of a host one after another.

A cell asks them one at a time, and drops those that fail. Where its launches are timed, each goes
engine call → process entry → imports → data → first step → short training → exit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from envcompare.errors import TransportError, WorkloadError
from envcompare.measure import MOST_CPUS, Facts, Found, Generated, Hello, LaunchSpec, Values
from envcompare.measure.cell import CellContext, Roster, failure_of
from envcompare.measure.limits import block_limit_s, too_long
from envcompare.measure.worker import Worker
from envcompare.run_folder.records import Design, Failure, Startup, Taken

_T = TypeVar("_T")
_LAUNCHES_SHARE = 0.2  # of the budget of a cell
_LEAST_REPETITIONS, MAX_REPETITIONS = 2, 5  # of restarts; and of each kind, warm and cold
_TRAIN_S = 0.3  # at most
_PARTS = ("engine", "import", "data", "build", "first_step", "train", "exit")
# Summing in another order may change the first loss by this share.
_TOLERANCE = 1e-4
# With TF32, bf16 and fp16, factors are rounded before they are multiplied.
_LOOSE_TOLERANCE = 1e-2
_PRECISIONS = ("fp32", "tf32", "bf16", "fp16")  # what a workload may declare as its `precision`
_ANSWERING = ("import", "data", "setup", "step")  # phases that a worker outlives
_OUTLIVED = frozenset({*_ANSWERING, "checksum"})
_PARTS_OF_WORK = ("batch", "device", "code_hash", "data_hash", "params")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launched:
    """How long the launch of a worker took, in ns: alone where the launches are timed."""

    engine_ns: int
    import_ns: int
    is_first: bool  # of its arm: what the page cache held is not known


@dataclass(slots=True, kw_only=True)
class WorkerPool:
    """The workers of a restart, at most one an arm; a cell takes them and gives them back.

    Each imports the workload of `spec` ahead and serves a cell from a fork, so that a launch is
    paid once for all cells. A worker that cannot stay serves one cell.
    """

    spec: LaunchSpec
    restart: int
    cells: int  # that share what the launches cost
    known: set[str]  # arms that were launched before; it grows
    is_timed: bool = False  # the launches of it are samples of some cell
    launch_s: float = 0.0  # of all workers
    shared_s: float = 0.0  # of those that stay for other cells
    launched: dict[str, _Launched] = field(default_factory=dict)
    exits_ns: dict[str, int] = field(default_factory=dict)
    served: set[str] = field(default_factory=set)  # arms whose worker has served a cell
    _workers: dict[str, Worker] = field(default_factory=dict)
    _charged_ns: int = 0  # until when launches are in `launch_s`

    @property
    def share_s(self) -> float:
        """Return what the launches of the workers that stay cost each cell."""
        return self.shared_s / self.cells

    def take(self, arm: str, context: CellContext) -> Worker:
        """Return the worker of an arm, launched now where none is there.

        The caller has it, and no other cell may use it until it is given back. It may still have to
        import: `is_up` tells.
        """
        if arm not in self._workers:
            with context.budget.counting(on=False):
                return context.launch(arm, context.variables(self.restart))
        # This may raise, which must not happen once the worker has left the pool.
        log, log_name = context.log_of(arm)
        worker = self._workers.pop(arm)
        worker.serve(log, log_name)
        return worker

    def is_up(self, arm: str, worker: Worker) -> bool:
        """Tell whether a worker that was taken has been launched before."""
        return worker.stays and arm in self.launched

    def send_import(self, worker: Worker) -> None:
        """Let a new worker start and import, while others do."""
        worker.send_import(self.spec)

    def await_import(self, arm: str, context: CellContext, worker: Worker) -> _Launched:
        """Wait until a new worker is up; its launch is charged to no cell alone.

        What it shares with launches before it is charged once. Raises WorkloadError where it does
        not come up.
        """
        began_ns = worker.spawned_ns
        # It was launched together with one that was charged until then: only the time since is new.
        if began_ns < self._charged_ns:
            began_ns = time.monotonic_ns()
        with context.budget.counting(on=False):
            try:
                imported = worker.await_import(context.begin_limit_s)
            finally:
                now_ns = time.monotonic_ns()
                took_ns = now_ns - worker.spawned_ns
                charged_s = (now_ns - began_ns) / 1e9
                self.launch_s += charged_s
                self._charged_ns = now_ns
        if worker.stays:
            self.shared_s += charged_s
        inside_ns = imported.now_ns - imported.entry_ns
        launched = _Launched(
            engine_ns=max(0, took_ns - inside_ns),
            import_ns=imported.import_ns,
            is_first=arm not in self.known,
        )
        self.known.add(arm)
        self.launched[arm] = launched
        self.served.discard(arm)
        return launched

    def give_back(self, arm: str, worker: Worker) -> None:
        """Take a worker back from the cell that it has served.

        Raises WorkloadError where it does not end that work.
        """
        if worker.stays:
            worker.leave()
            self.served.add(arm)
            self._workers[arm] = worker
        else:
            self._end(arm, worker)

    def dismiss(self, context: CellContext) -> None:
        """Let every worker quit, one after the other if that is timed, and end what it leaves.

        One that does not quit by itself is noted in `context`, since it has served all cells.
        """
        for worker in () if self.is_timed else tuple(self._workers.values()):
            worker.send_quit()
        for arm in tuple(self._workers):
            worker = self._workers.pop(arm)
            try:
                self._end(arm, worker, is_asked=not self.is_timed)
            except WorkloadError as error:
                context.note("caution", arm=arm, text=error.brief)

    def _end(self, arm: str, worker: Worker, *, is_asked: bool = False) -> None:
        began_ns = time.monotonic_ns()
        try:
            if not is_asked:
                worker.send_quit()
            worker.await_quit()
            self.exits_ns[arm] = time.monotonic_ns() - began_ns
        finally:
            worker.kill()

    def kill(self) -> None:
        """Kill what is still alive, all of it whatever one of them raises; safe to repeat."""
        _kill(self._workers)


@dataclass(slots=True)
class CellWorkers:
    """The workers of a launch while they serve one cell."""

    roster: Roster
    pool: WorkerPool
    _workers: dict[str, Worker] = field(default_factory=dict)

    @property
    def context(self) -> CellContext:
        """Return the cell that is measured."""
        return self.roster.context

    @property
    def arms(self) -> tuple[str, ...]:
        """Return the arms whose worker is alive, in the order of the plan."""
        return tuple(arm for arm in self.context.arms if arm in self._workers)

    def begin(self, order: tuple[str, ...], *, is_alone: bool) -> dict[str, Hello]:
        """Take the worker of each arm, in this order, and let it load the data of the cell.

        With `is_alone` a worker is launched and loads its data while no other computes, else all do
        that at the same time. Return what they say. Raises TransportError when the host is lost.
        """
        context = self.context
        hellos: dict[str, Hello] = {}
        for together in [(arm,) for arm in order] if is_alone else [order]:
            self._take_up(together)
            taken = tuple(arm for arm in together if arm in self._workers)
            for arm in taken:
                self.tell(arm, partial(Worker.send_hello, spec=self._spec(arm)))
            hellos |= self.collect(
                taken,
                lambda worker: worker.await_hello(
                    context.begin_limit_s,
                    script=context.check_interruption if context.is_line else None,
                ),
            )
        for arm, hello in hellos.items():
            self._take_hello(arm, hello)
        if len({self.roster.hellos[arm].generation for arm in self.arms}) > 1:
            return self._rebuild_all(order, is_alone=is_alone)
        self._check_same()
        return hellos

    def _take_up(self, arms: tuple[str, ...]) -> None:
        """Take the worker of each arm, all that must be launched at the same time."""
        new = []
        for arm in arms:
            self.context.check_interruption()
            worker = self._workers[arm] = self.pool.take(arm, self.context)
            if not self.pool.is_up(arm, worker):
                self.tell(arm, self.pool.send_import)
                new.append(arm)
        for arm in new:
            self.ask(arm, partial(self.pool.await_import, arm, self.context))

    def _spec(self, arm: str) -> LaunchSpec:
        """Return the spec of a worker; a fingerprint is taken once for each arm."""
        spec = self.context.spec_of(arm)
        return replace(
            spec,
            fingerprint=arm not in self.roster.hellos,
            generation=self.roster.generation or spec.generation,
        )

    def _rebuild_all(self, order: tuple[str, ...], *, is_alone: bool) -> dict[str, Hello]:
        """Begin again where some arms would fork and others not: all must begin alike."""
        hellos = self.roster.hellos
        unable = next(arm for arm in self.arms if hellos[arm].generation == "rebuild")
        text = f"all arms rebuild, since {unable} cannot fork: {hellos[unable].generation_reason}"
        self.context.note("caution", text=text)
        self.roster.generation = "rebuild"
        self.give_back()
        left = tuple(arm for arm in order if arm not in self.roster.failed)
        return self.begin(left, is_alone=is_alone)

    def ask(self, arm: str, question: Callable[[Worker], _T]) -> _T | None:
        """Ask one worker; a fault drops its arm and gives None.

        A script that has no more steps, and had enough before, only ends this generation.
        """
        context = self.context
        context.check_interruption()
        try:
            return question(self._workers[arm])
        except WorkloadError as error:
            # A worker also fails when the user stops the run, which is no failure of its arm.
            context.check_interruption()
            if error.is_exhausted and arm in self.roster.looked_after_steps:
                self._workers.pop(arm).kill()
                if arm not in self.roster.exhausted:
                    self.roster.exhausted.add(arm)
                    context.note("caution", arm=arm, text=f"{error.brief}: {error.hint}")
                return None
            if arm not in self.roster.hellos and error.phase in _ANSWERING:
                # What is around a worker that has failed and still answers may say why.
                worker = self._workers[arm]
                worker.send_facts()
                with suppress(WorkloadError):
                    facts = worker.await_facts().fingerprint
                    context.recorder.fingerprint(worker.arm, facts, taken="start")
            self.drop(arm, failure_of(error))
            return None

    def collect(self, arms: tuple[str, ...], question: Callable[[Worker], _T]) -> dict[str, _T]:
        """Ask several workers for what they were sent; who fails is dropped and left out."""
        answers = {arm: self.ask(arm, question) for arm in arms}
        return {arm: answer for arm, answer in answers.items() if answer is not None}

    def tell(self, arm: str, message: Callable[[Worker], None]) -> None:
        """Send one worker something to do, without waiting for it."""
        message(self._workers[arm])

    def drop(self, arm: str, failure: Failure) -> None:
        """Record why an arm is out; its worker serves other cells, where it still answers."""
        worker = self._workers.pop(arm)
        self.roster.fail(arm, failure)
        if failure.phase in _OUTLIVED and worker.stays:
            # A worker that does not end its work for this cell serves no other one, and is killed.
            with suppress(WorkloadError):
                self.pool.give_back(arm, worker)
                return
        worker.kill()

    def look_around(self, *, is_last: bool = False) -> None:
        """Once an arm, ask the process that has run steps what is loaded and set by now.

        Nothing is timed meanwhile, and the generation ends next; the last look is at workers that
        the user has stopped, of which some may not answer any more.
        """
        arms = tuple(arm for arm in self.arms if arm not in self.roster.looked_after_steps)
        for arm in arms:
            self.tell(arm, Worker.send_facts)
        answers: dict[str, Found] = {} if is_last else self.collect(arms, Worker.await_facts)
        for arm in arms if is_last else ():
            with suppress(WorkloadError, TransportError):
                answers[arm] = self._workers[arm].await_facts()
        for arm, answer in answers.items():
            hello = replace(self.roster.hellos[arm], fingerprint=answer.fingerprint)
            self.roster.hellos[arm] = hello
            self.roster.looked_after_steps.add(arm)
            self._keep(arm, answer.fingerprint, taken="step")

    def give_back(self) -> None:
        """Let every worker end its work for this cell, and give it back."""
        for arm in self.arms:
            if self.ask(arm, partial(self._give_back, arm)):
                del self._workers[arm]

    def _give_back(self, arm: str, worker: Worker) -> bool:
        self.pool.give_back(arm, worker)
        return True

    def kill(self) -> None:
        """Kill what is still alive, all of it whatever one of them raises; safe to repeat."""
        _kill(self._workers)

    def _take_hello(self, arm: str, hello: Hello) -> None:
        context, known = self.context, self.roster.hellos.get(arm)
        self.roster.hellos[arm] = hello
        self._workers[arm].cpus = _cpus_of(known or hello)
        if known is None:
            context.note("note", arm=arm, values=_work_of(hello))
            self._keep(arm, hello.fingerprint or {}, taken="start")
            if arm not in self._workers:
                return
            context.note(
                "arm-ready",
                arm=arm,
                text=f"generations by {hello.generation}: {hello.generation_reason}",
                values={"generation": hello.generation, "why": hello.generation_reason},
            )
            cpus = (hello.fingerprint or {}).get("cpu.affinity")
            if arm == context.reference and isinstance(cpus, tuple) and len(cpus) == 1:
                text = (
                    f"all arms run on the one CPU {cpus[0]}, with the system and envcompare: give "
                    "--pin two CPUs or more"
                )
                context.note("caution", text=text)
            if arm == context.reference and arm in context.values:
                names = ", ".join(context.values[arm])
                text = f"the arms compare values of {names}: their losses are not checked"
                context.note("caution", text=f"{text} against each other")
        else:
            self.roster.hellos[arm] = replace(hello, fingerprint=known.fingerprint)

    def _keep(self, arm: str, facts: Facts, *, taken: Taken) -> None:
        """Keep what a worker found; one with other software than before an interruption ends."""
        changed = self.context.recorder.fingerprint(arm, facts, taken=taken)
        failure = self.roster.refused(arm, changed)
        if failure is not None:
            self.drop(arm, failure)

    def _check_same(self) -> None:
        """Drop an arm that would not do the same work as the reference, or as before."""
        for arm in self.arms:
            failure = self.roster.changed(arm, _work_of(self.roster.hellos[arm]))
            if failure is not None:
                self.drop(arm, failure)
        reference = self.roster.hellos.get(self.context.reference)
        if reference is None:
            return
        for arm in self.arms:
            hello = self._as_compared(arm, self.roster.hellos[arm])
            expected = self._as_compared(arm, reference)
            if self.context.is_line:
                steps, others = hello.params, expected.params
                names = [name for name in others if name in steps and steps[name] != others[name]]
                if names:
                    details = "; ".join(
                        f"{name}: {steps[name]}, not {others[name]}" for name in names
                    )
                    hint = (
                        "let both scripts train the same model with the same batch sizes, or time "
                        "whole processes: leave --lockstep out"
                    )
                    failure = _other_work(arm, f"{' and '.join(names)} differ", details)
                    self.drop(arm, replace(failure, hint=hint))
                continue
            for key in _PARTS_OF_WORK:
                here, there = getattr(hello, key), getattr(expected, key)
                if here != there:
                    self.drop(arm, _other_work(arm, f"{key} differs", f"{here!r}, not {there!r}"))
                    break

    def _as_compared(self, arm: str, hello: Hello) -> Hello:
        own = self.context.values.get(arm, {})
        params = {name: value for name, value in hello.params.items() if name not in own}
        return replace(hello, params=params)

    def compare_checksums(self, losses: dict[str, float | None]) -> None:
        """Drop an arm whose first loss is another than the reference's (relative tolerance)."""
        if self.context.reference not in losses:
            # The reference gave no answer, so nothing speaks against the others.
            return
        expected = losses[self.context.reference]
        alike = [arm for arm in self.roster.hellos if self.context.is_same_work(arm)]
        is_loose = any(_is_rounded(self.roster.hellos[arm]) for arm in alike)
        tolerance = _LOOSE_TOLERANCE if is_loose else _TOLERANCE
        if not self.roster.is_unchecked and all(value is None for value in losses.values()):
            self.roster.is_unchecked = True
            text = "no arm has a finite first loss, so equal work cannot be checked"
            if self.context.is_line:
                text = (
                    "envcompare does not read the losses of a script: make sure that all lines do "
                    "the same work in a step"
                )
            self.context.note("caution", text=text)
        for arm in self.arms:
            value = losses.get(arm)
            if self.context.is_same_work(arm) and not _agree(value, expected, tolerance):
                details = f"{value!r}, not {expected!r} (relative tolerance {tolerance:g})"
                hint = (
                    "seed what `load` and `setup` draw, and read no file that an earlier start "
                    "left, as in /tmp of vm; else give both arms the same device, data and library "
                    "versions"
                )
                failure = _other_work(arm, "its first loss differs", details)
                self.drop(arm, replace(failure, hint=hint))


@dataclass(slots=True)
class Launches:
    """The timed launches of a cell; cells that share one share its engine, imports and exit."""

    roster: Roster
    kept: list[Startup]  # those before an interruption too
    arms: set[str] = field(default_factory=set)  # launched since then
    sharing: int = 1  # cells that are served by a launch, and pay for it
    _running: dict[str, Startup] = field(default_factory=dict)  # by arm, until the workers end

    @property
    def context(self) -> CellContext:
        """Return the cell that is measured."""
        return self.roster.context

    @property
    def are_due(self) -> bool:
        """Tell whether the launches of the next restart are timed, one arm after the other.

        More than enough would say nothing more, and what they take is not measured in blocks: after
        two restarts no more are timed than would be in a pass of their own.
        """
        design = self.context.design
        warm = [startup for startup in self.kept if startup.page_cache != "cold"]
        repetitions = len({startup.repetition for startup in warm})
        spent_s = sum(startup.real_ns for startup in warm) / 1e9
        # The control is launched as well, but its launches are not kept.
        spent_s *= len(self.context.arms) / max(1, len({startup.arm for startup in warm}))
        is_cheap = is_launch_due(repetitions, spent_s, design=design, cells=self.sharing)
        return design.has_startup and (repetitions < _LEAST_REPETITIONS or is_cheap)

    def train(
        self, workers: CellWorkers, arm: str, hello: Hello, *, repetition: int, order: int
    ) -> Generated | None:
        """Wait for the generation that was asked for, and run the short training after it.

        Return the generation, None where it failed.
        """
        limit_s = self.context.begin_limit_s
        generated = workers.ask(arm, lambda worker: worker.await_begin(limit_s))
        if generated is None:
            return None
        if (failure := too_long(arm, generated, self.context.design)) is not None:
            workers.drop(arm, failure)
            return None
        step_s = generated.first_step_ns / 1e9
        # the same steps in all launches of a cell
        known = next(
            (startup.train_steps for startup in (*self.kept, *self._running.values())), None
        )
        steps = known or _training_steps(hello, step_s, design=self.context.design)
        sent_ns = time.monotonic_ns()
        ran = workers.ask(arm, lambda worker: worker.run(steps, block_limit_s(steps * step_s)))
        if ran is None:
            return None
        round_trip_ns = max(0, time.monotonic_ns() - sent_ns - sum(ran.wall_ns))
        launched = workers.pool.launched[arm]
        self._running[arm] = Startup(
            cell=self.context.cell,
            arm=arm,
            repetition=repetition,
            order=order,
            # the request to import and its answer have travelled as well
            engine_ns=max(0, launched.engine_ns - round_trip_ns // 2),
            import_ns=launched.import_ns + hello.import_ns,
            data_ns=hello.data_ns,
            build_ns=generated.build_ns,
            first_step_ns=generated.first_step_ns,
            train_ns=sum(ran.wall_ns),
            exit_ns=0,  # still to come
            real_ns=0,
            train_steps=steps,
            # Before the first launch of an arm it is not known what the page cache held.
            page_cache="unknown" if launched.is_first else "warm",
        )
        return generated

    def end(self, exits_ns: dict[str, int], *, is_cold: bool = False) -> None:
        """Record the launches whose workers have ended by themselves; `exits_ns` is by arm."""
        for arm, start in self._running.items():
            if arm in exits_ns and arm != self.context.control:
                whole = replace(start, exit_ns=exits_ns[arm])
                real_ns = sum(getattr(whole, f"{part}_ns") for part in _PARTS)
                page_cache = "cold" if is_cold else start.page_cache
                whole = replace(whole, real_ns=real_ns, page_cache=page_cache)
                self.kept.append(whole)
                self.arms.add(arm)
                self.context.recorder.sample(whole)
        self._running = {}


def is_launch_due(repetitions: int, spent_s: float, *, design: Design, cells: int) -> bool:
    """Tell whether another repetition of a kind is to come, for the seconds of all the budgets.

    The first always, others where they fit.
    """
    limit_s = _LAUNCHES_SHARE * design.budget_s * cells / (2 if design.cold_start else 1)
    fits = repetitions == 0 or spent_s * (repetitions + 1) / repetitions <= limit_s
    return fits and repetitions < MAX_REPETITIONS


def _training_steps(hello: Hello, step_s: float, *, design: Design) -> int:
    """Return the steps of a short training: at least one, and no more than the epochs asked for."""
    steps = max(1, min(design.train_steps, int(_TRAIN_S / max(step_s, 1e-9))))
    epochs = hello.params.get("epochs")
    if hello.steps_per_epoch is None or not isinstance(epochs, int):
        return steps
    # The first step of the epochs is done already.
    return max(1, min(steps, hello.steps_per_epoch * epochs - 1))


def _kill(workers: dict[str, Worker]) -> None:
    with ExitStack() as killing:
        for worker in workers.values():
            killing.callback(worker.kill)
        workers.clear()


def _work_of(hello: Hello) -> Values:
    return {
        "batch": hello.batch,
        "device": hello.device,
        "code": hello.code_hash,
        "data": hello.data_hash,
    }


def _cpus_of(hello: Hello) -> frozenset[int]:
    """Return the CPUs that a worker has seen: those it may run on, and as many as there are."""
    facts = hello.fingerprint or {}
    count, may_use = facts.get("cpu.count"), facts.get("cpu.affinity")
    numbered = range(min(count, MOST_CPUS)) if isinstance(count, int) else ()
    listed = may_use if isinstance(may_use, tuple) else ()
    return frozenset(numbered) | {one for one in listed if isinstance(one, int)}


def _is_rounded(hello: Hello) -> bool:
    """Tell whether factors are rounded before they are multiplied: a workload may say so itself."""
    precision = hello.params.get("precision")
    if precision in _PRECISIONS:
        return precision != "fp32"
    facts = hello.fingerprint or {}
    keys = ("torch.tf32_matmul", "torch.tf32_cudnn")
    return hello.device == "cuda" and any(facts.get(key) is True for key in keys)


def _agree(value: float | None, expected: float | None, tolerance: float) -> bool:
    """Tell whether two losses are the same; None is a loss that is not a finite number."""
    if value is None or expected is None:
        return value is expected
    return abs(value - expected) <= tolerance * abs(expected)


def _other_work(arm: str, what: str, details: str) -> Failure:
    return Failure(
        phase="checksum",
        brief=f"{arm}: does not do the same work as the reference, {what}",
        details=details,
        hint="give both arms the same device, data, parameters and library versions",
    )
