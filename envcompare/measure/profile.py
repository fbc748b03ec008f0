"""The profile pass: after the timing each arm once more, under each profiler, in new workers."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from envcompare.environments.registry import environment
from envcompare.errors import (
    EnvcompareError,
    NothingTracedError,
    Problem,
    ProfileError,
    StillRunningError,
    TransportError,
    UnusableError,
    WorkloadError,
)
from envcompare.measure import Hello, Profiled, Values, shuffled
from envcompare.measure.cell import CellContext, failure_of, started, warmed_up
from envcompare.measure.limits import limit_s
from envcompare.measure.worker import Worker
from envcompare.profile_files.rawfiles import secret_in
from envcompare.profilers import (
    KEPT_BYTES,
    MOST_BYTES,
    READ_LOG,
    Answer,
    Pass,
    Profiler,
    ProfilerRun,
    Quarantine,
)
from envcompare.profilers.host import helper_quantities, list_helpers, used_ns
from envcompare.profilers.toolbox import WORKER_PROFILERS, Toolbox
from envcompare.profilers.torch import has_exchanges
from envcompare.run_folder.profiles import Lack, Lacking, PassName, Profile, ProfileRecord
from envcompare.run_folder.records import Failure
from envcompare.run_folder.results import RunFolder
from envcompare.transport import Transport, make_new_folder
from envcompare.transport.copies import RemoteFile

STEPS, COUNTER_STEPS = 5, 2
_STEPS_S: Final = 30.0  # that the steps of a profile may usually take; one is always run
# Steps that torch.profiler traces on a GPU, for an interval of the time of kernels, and how long
# they may take: 5 steps of 2.2 ms on an H200 left 91 KB, and a file may have 32 MiB.
TRACED_STEPS, _TRACED_S = 100, 1.0
_ENDING_LIMIT_S: Final = 300.0  # in which a tool writes its report
# A tool complains at the first kernel, and a line for each may follow: a short end shows nothing.
SAID_LINES: Final = 10_000
# nsys 2022.4 now and then loses its own semaphore as it starts ("sem_open: No such file or
# directory" in ProcessWaiter), or waits for its agent for ever: 2 and 1 of 66 starts of Debian's
# build on a busy machine, whatever it is to start.
TOOL_STARTS: Final = 3
INSIDE: Final[dict[PassName, tuple[str, Pass]]] = {
    kind.name: (name, kind)
    for name, profiler in WORKER_PROFILERS.items()
    for kind in profiler.passes
}
"""The passes in the worker itself, each with the name of its profiler, in their order."""

_TOO_LARGE: Final = Lacking(
    why="raw-not-kept",
    problem=Problem(brief=f"its raw file is larger than {KEPT_BYTES >> 20} MiB and was not kept"),
)
_NO_HELLO: Final = Lacking(
    why="failed", problem=Problem(brief="no worker started, so that its GPU is not known")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilingHost:
    """What the pass needs of a host, in addition to the context."""

    launch: Callable[[str, ProfilerRun | None], Worker]
    transport: Transport
    toolbox: Toolbox
    environments: dict[str, str]  # of each arm
    scratch: Callable[[str], str]  # the folder that an arm may write to
    taken: Callable[[str], str]  # a folder that no arm is shown, for what was left by one
    folder: RunFolder


@dataclass(slots=True)
class ProfilePass:
    """Profiles each arm; for the control, it only looks at the helper programs.

    A pass that is not possible is kept with its reason. Its times enter no comparison, and it takes
    nothing from the budget of the cell.
    """

    context: CellContext
    host: ProfilingHost
    prior: tuple[ProfileRecord, ...] = ()  # of this cell, before an interruption
    _kept: dict[tuple[str, PassName], ProfileRecord] = field(default_factory=dict)
    _hello: Hello | None = None  # of the reference: what GPU there is
    _steps: int = 0  # the same in all arms
    _traced: int = 0  # by torch.profiler on a GPU, likewise
    _step_s: float = 0.0

    def __post_init__(self) -> None:
        """Begin with what is there already; what failed is tried again."""
        self._kept = {(r.arm, r.kind): r for r in self.prior if not r.is_failure}
        steps = [(r.kind == "torch", r.steps) for r in self.prior if r.kind in INSIDE and r.steps]
        self._traced, self._steps = (
            next((count for is_traced, count in steps if is_traced == wanted), 0)
            for wanted in (True, False)
        )

    @property
    def kinds(self) -> tuple[PassName, ...]:
        """Return the passes, those in the worker first."""
        return (*INSIDE, *self.host.toolbox.passes)

    @property
    def arms(self) -> tuple[str, ...]:
        """Return the arms to profile, the reference first."""
        context = self.context
        others = tuple(a for a in context.arms if a not in {context.reference, context.control})
        return (
            context.reference,
            *shuffled(others, context.seed_of("profile")),
        )

    def measure(self) -> str:
        """Run what is missing, and say in a line what there is.

        Raises TransportError when the host is lost and InterruptedRunError when the user stops.
        """
        try:
            self._profile()
        except StillRunningError as error:
            self.decline(self.arms, failed(error))
        return summary(tuple(self._kept.values()), self.kinds)

    def _profile(self) -> None:
        """Run what is missing; raises StillRunningError if a worker could not be ended."""
        if any(self._is_missing(arm, kind) for arm in self.arms for kind in self.kinds):
            for arm in self.arms:
                # the reference is begun in any case: it tells the GPU, and how many steps fit
                if self._hello is None or any(self._is_missing(arm, kind) for kind in INSIDE):
                    self._look_inside(arm)
            # of the control only what helpers use, where chance alone differs from the reference
            control = self.context.control
            if self._helpers and control in self.context.arms and self._is_missing(control, "host"):
                self._look_inside(control, ("host",))
            for kind in self.host.toolbox.passes:
                for arm in self.arms:
                    if self._is_missing(arm, kind):
                        self._look_around(arm, kind)

    def decline(self, arms: tuple[str, ...], lacks: Lacking) -> None:
        """Keep for every pass of these arms, but those there are, why there will be none."""
        for arm in arms:
            for kind in self.kinds:
                if self._is_missing(arm, kind):
                    self._keep(self._missing(arm, kind, lacks))

    def _is_missing(self, arm: str, kind: PassName) -> bool:
        return (arm, kind) not in self._kept

    def _look_inside(self, arm: str, kinds: tuple[PassName, ...] = tuple(INSIDE)) -> None:
        with (
            self._surviving(arm, kinds),
            self._started(arm, None) as (worker, hello),
        ):
            self._begin(worker, hello)
            for kind in kinds:
                if self._is_missing(arm, kind):
                    self.context.check_interruption()
                    self._keep(self._seen_inside(worker, hello, kind))
            worker.quit()

    def _look_around(self, arm: str, kind: PassName) -> None:
        self.context.check_interruption()
        if self._hello is None:
            self._keep(self._missing(arm, kind, _NO_HELLO))
            return
        # of a name that is new: files of root, of a pass that was killed, could not be removed
        folder = f"{self.host.scratch(arm)}/{kind}-{secrets.token_hex(4)}"
        prepared = self.host.toolbox.prepare(
            kind,
            environment=self.host.environments[arm],
            compute_capability=self._hello.compute_capability,
            folder=folder,
        )
        if isinstance(prepared, Lacking):
            self._keep(self._missing(arm, kind, prepared))
            return
        with self._surviving(arm, (kind,), self._profiler(kind)):
            make_new_folder(self.host.transport, folder)
            self._keep(self._seen_around(arm, prepared))

    @contextmanager
    def _surviving(
        self, arm: str, kinds: tuple[PassName, ...], profiler: Profiler | None = None
    ) -> Iterator[None]:
        """Keep why an arm has no such profiles; what breaks the protocol is a failure of the arm.

        Any other profile that failed takes nothing from the run.
        """
        try:
            yield
        except (TransportError, StillRunningError):
            raise
        except (WorkloadError, ProfileError, UnusableError) as error:
            self.context.check_interruption()
            failure = None
            if isinstance(error, WorkloadError) and error.phase == "protocol":
                failure = failure_of(error)
            for kind in kinds:
                if self._is_missing(arm, kind):
                    self._keep(self._missing(arm, kind, failed(error, profiler)), failure)
                    # It is one failure, whatever it has cost.
                    failure = None

    @property
    def _helpers(self) -> tuple[str, ...]:
        places = (environment(self.host.environments[arm]) for arm in self.arms)
        return tuple(dict.fromkeys(name for place in places for name in place.traits.helpers))

    def _profiler(self, kind: PassName) -> Profiler:
        name, _ = self.host.toolbox.passes[kind]
        return self.host.toolbox.profilers[name]

    def _started(
        self, arm: str, profiler: ProfilerRun | None, *, starts: int = 1
    ) -> AbstractContextManager[tuple[Worker, Hello]]:
        def launch() -> Worker:
            # a worker that was killed for it must not be started again
            self.context.check_interruption()
            return self.host.launch(arm, profiler)

        return started(launch, self.context.untimed_spec(arm), starts=starts)

    def _begin(self, worker: Worker, hello: Hello) -> None:
        """Bring a worker to its first looked-at step; the first one settles how many there are."""
        step_s = warmed_up(self.context, worker)
        if self._hello is None:
            self._hello = hello
            self._step_s = step_s
            self._steps = self._steps or steps_that_fit(self._step_s)
            self._traced = self._traced or traced_steps(self._steps, self._step_s)

    def _seen_inside(self, worker: Worker, hello: Hello, kind: PassName) -> ProfileRecord:
        name, asked = INSIDE[kind]
        out = f"{self.host.scratch(worker.arm)}/{asked.file}" if asked.file else ""
        has_gpu = hello.device == "cuda"
        steps = self._traced if has_gpu and kind == "torch" else self._steps
        limit = limit_s(asked.limit_s, steps, self._step_s)
        # of all arms, in each of them: some work for others on the host all the time
        helpers = self._helpers if kind == "host" else ()
        before = list_helpers(self.host.transport, helpers)
        began_ns = time.monotonic_ns()
        reply = worker.profile(kind, steps, out=out, limit_s=limit)
        window_ns = time.monotonic_ns() - began_ns
        used = used_ns(helpers, before, list_helpers(self.host.transport, helpers))
        # The trace of a GPU is read for its kernels even where it is too large to be kept.
        most_bytes = MOST_BYTES if has_gpu else KEPT_BYTES
        raw: Path | None = None
        try:
            raw = self._written(worker.arm, asked.file, most_bytes) if reply.file else None
            is_read = raw and (has_gpu or has_exchanges(reply.values))
            answer = Answer(
                kind=asked,
                values=reply.values,
                steps=reply.k,
                reason=reply.reason,
                trace=raw if is_read else None,
            )
            profile = WORKER_PROFILERS[name].read(answer)
        except ProfileError as error:
            _remove(raw)
            return self._missing(worker.arm, kind, failed(error))
        if profile is None:
            _remove(raw)
            brief = reply.reason or "the profiler found nothing and gave no reason"
            why: Lack = "failed" if reply.has_failed else "not-measured"
            problem = Problem(brief=brief, hint=reply.hint)
            return self._missing(worker.arm, kind, Lacking(why=why, problem=problem))
        if raw and raw.stat().st_size > KEPT_BYTES:
            raw.unlink()
            raw = None
        usage = helper_quantities(used, steps=reply.k, window_ns=window_ns)
        profile = msgspec.structs.replace(profile, quantities=(*profile.quantities, *usage))
        raw, unkept = _without_secret(raw)
        record = self._record(worker.arm, kind, hello, profile, raw)
        lacks = unkept if reply.file and raw is None else _partial(reply)
        return msgspec.structs.replace(record, lacks=lacks)

    def _seen_around(self, arm: str, prepared: ProfilerRun) -> ProfileRecord:
        """Return the record of a pass; where the tool saw nothing, of its other way to look."""
        try:
            return self._seen_once(arm, prepared)
        except NothingTracedError:
            if not prepared.second:
                raise
        self.context.check_interruption()
        return self._seen_once(arm, replace(prepared, arguments=prepared.second, second=()))

    def _seen_once(self, arm: str, prepared: ProfilerRun) -> ProfileRecord:
        """Run the steps between the marks, and read what the tool leaves when they are over."""
        asked = prepared.kind
        steps = self._counted_steps(asked) if asked.is_counting else self._steps
        with self._started(arm, prepared, starts=TOOL_STARTS) as (worker, hello):
            self._begin(worker, hello)
            limit = limit_s(asked.limit_s, self._steps, self._step_s)
            reply = worker.profile("marks", steps, out="", limit_s=limit)
            worker.quit(_ENDING_LIMIT_S)
        if reply.reason and asked.needs_gpu:
            raise ProfileError("the steps could not be marked", details=reply.reason)
        profile, raw, unkept = self._exported(arm, prepared, worker.tail(SAID_LINES))
        profile = msgspec.structs.replace(profile, steps=steps)
        record = self._record(arm, asked.name, hello, profile, raw)
        record = msgspec.structs.replace(record, lacks=unkept)
        return cut_at(asked.most_launches, record)

    def _counted_steps(self, asked: Pass) -> int:
        """Return the steps of a counter pass, the same in all arms: the reference decides."""
        traces = (
            self._kept.get((self.context.reference, kind))
            for kind, (_, other) in self.host.toolbox.passes.items()
            if not other.is_counting
        )
        traced = next((record.profile for record in traces if record and record.profile), None)
        return counted_steps(self._steps, traced, most=asked.most_launches)

    def _exported(
        self, arm: str, prepared: ProfilerRun, said: str
    ) -> tuple[Profile, Path | None, Lacking | None]:
        """Return what a tool has left as a profile, and its raw file, or why that is not kept."""
        profiler = self._profiler(prepared.kind.name)
        with Quarantine.empty(self.host.transport, arm, self.host.taken(arm)) as taken:
            left = profiler.export(taken, prepared, log=said)
            name = f"{prepared.kind.name}-{left.report.name}"
            raw = self._kept_raw(taken, left.report, name, KEPT_BYTES)
            with tempfile.TemporaryDirectory(prefix="envcompare-profile-") as folder:
                target = Path(folder) / left.export.name
                try:
                    taken.fetch(left.export, target)
                    return profiler.read(prepared, target), *_without_secret(raw, target)
                except ProfileError as error:
                    _remove(raw)
                    if not isinstance(error, NothingTracedError):
                        raise
                    complaint = profiler.explain(said)  # what it said outside its report
                    if complaint is None:
                        raise
                    details = f"{error.details}; {complaint.details}"
                    raise NothingTracedError(
                        error.brief, details=details, hint=complaint.hint
                    ) from error

    def _written(self, arm: str, name: str, most_bytes: int) -> Path | None:
        with Quarantine.empty(self.host.transport, arm, self.host.taken(arm)) as taken:
            file = taken.take(self.host.scratch(arm), name)
            if file is None:
                raise ProfileError(f"the profiler in the worker wrote no {name}", hint=READ_LOG)
            return self._kept_raw(taken, file, name, most_bytes)

    def _kept_raw(
        self, taken: Quarantine, file: RemoteFile, name: str, most_bytes: int
    ) -> Path | None:
        """Bring a raw file of the host among the profiles of an arm, where it is not too large."""
        if file.size_bytes > most_bytes:
            return None
        target = self.host.folder.raw_path(self.context.cell, taken.arm, name)
        taken.fetch(file, target)
        return target

    def _record(
        self, arm: str, kind: PassName, hello: Hello, profile: Profile, raw: Path | None
    ) -> ProfileRecord:
        return msgspec.structs.replace(
            self._bare(arm, kind),
            steps=profile.steps,
            batch=hello.batch,
            code_hash=hello.code_hash,
            raw=(str(raw.relative_to(self.host.folder.path)),) if raw else (),
            profile=profile,
        )

    def _missing(self, arm: str, kind: PassName, lacks: Lacking) -> ProfileRecord:
        return msgspec.structs.replace(
            self._bare(arm, kind), state="missing", lacks=lacks, steps=self._steps or None
        )

    def _bare(self, arm: str, kind: PassName) -> ProfileRecord:
        """Return what every record of this cell says, whatever the profiler found."""
        context = self.context
        return ProfileRecord(host=context.host, cell=context.cell, arm=arm, kind=kind, name=kind)

    def _keep(self, record: ProfileRecord, failure: Failure | None = None) -> None:
        self.host.folder.write_profile(record)
        self._kept[record.arm, record.kind] = record
        text = f"{record.kind}: {record.lacks.problem.reason}" if record.lacks else record.kind
        values: Values = {"state": record.state}
        self.context.note("profiled", arm=record.arm, text=text, values=values, failure=failure)


def steps_that_fit(step_s: float) -> int:
    """Return how many steps are profiled in every arm: at least one, however long it takes."""
    return max(1, min(STEPS, int(_STEPS_S / max(step_s, 1e-9))))


def traced_steps(steps: int, step_s: float) -> int:
    """Return of how many steps torch.profiler traces a GPU: at least those of other profiles."""
    return max(steps, min(TRACED_STEPS, int(_TRACED_S / max(step_s, 1e-9))))


def counted_steps(steps: int, traced: Profile | None, *, most: int | None) -> int:
    """Return of how many steps kernels are counted: all launches of them, as far as a trace tells.

    A count of `most` launches would be cut, and say nothing of a step.
    """
    launches = sum(kernel.calls for kernel in traced.kernels) if traced else 0
    in_step = launches / (traced.steps or 1) if traced else 0
    fitting = int((most - 1) / in_step) if in_step and most else COUNTER_STEPS
    return max(1, min(steps, COUNTER_STEPS, fitting))


def cut_at(most: int | None, record: ProfileRecord) -> ProfileRecord:
    """Return the record without its steps where a tool stopped counting within them."""
    launches = sum(kernel.calls for kernel in record.profile.kernels) if record.profile else 0
    if most is None or launches < most or record.profile is None:
        return record
    brief = f"only the first {most} kernel launches were counted, not all of the steps"
    lacks = Lacking(why="launches-cut", problem=Problem(brief=brief))
    profile = msgspec.structs.replace(record.profile, steps=None)
    return msgspec.structs.replace(record, steps=None, lacks=lacks, profile=profile)


def summary(records: tuple[ProfileRecord, ...], kinds: tuple[PassName, ...]) -> str:
    """Return what there is of a cell, and once each reason for what is missing of which arms."""
    there = [k for k in kinds if any(r.kind == k and r.state == "ok" for r in records)]
    missing = [(r, r.lacks.problem) for r in records if r.state == "missing" and r.lacks]
    parts = [f"profiled by {', '.join(there) or 'nothing'}"]
    for problem in dict.fromkeys(problem for _, problem in missing):
        lacking = [record for record, other in missing if other == problem]
        names = [kind for kind in kinds if any(r.kind == kind for r in lacking)]
        arms = dict.fromkeys(r.arm for r in lacking)
        where = f" of {', '.join(arms)}" if set(names) & set(there) else ""
        parts.append(f"without {', '.join(names)}{where} ({problem.reason})")
    return "; ".join(parts)


def failed(error: EnvcompareError, profiler: Profiler | None = None) -> Lacking:
    """Return why a profile failed, and what to try.

    The details of a worker's end are its log, of which only what its profiler complained of counts.
    """
    problem = error.problem
    if isinstance(error, WorkloadError):
        complaint = profiler.explain(error.details) if profiler else None
        details = complaint.details if complaint else ""
        hint = complaint.hint if complaint and details else error.hint
        problem = Problem(brief=error.brief, details=details, hint=hint)
    return Lacking(why="failed", problem=problem)


def _remove(raw: Path | None) -> None:
    """Remove a raw file of which nothing was read: it is in no record, and may hold a secret."""
    if raw:
        raw.unlink()


def _without_secret(
    raw: Path | None, export: Path | None = None
) -> tuple[Path | None, Lacking | None]:
    """Return a raw file that may be kept, or why it is not: it is too large, or holds a secret."""
    # A raw file may hold all variables of the program, packed: an export of nsys shows them.
    looked = (raw, export) if raw else ()
    name = next((name for file in looked if file and (name := secret_in(file))), "")
    if raw is None or not name:
        return raw, None if raw else _TOO_LARGE
    raw.unlink()
    brief = f"its raw file holds {name}, which may be a secret, and was not kept"
    return None, Lacking(why="raw-not-kept", problem=Problem(brief=brief))


def _partial(reply: Profiled) -> Lacking | None:
    if not reply.reason and not reply.hint:
        return None
    brief = reply.reason or "some counters could not be read"
    return Lacking(why="partial", problem=Problem(brief=brief, hint=reply.hint))
