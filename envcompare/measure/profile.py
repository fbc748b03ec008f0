"""The profile pass: after the timing each arm once more, under each profiler, in new workers."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from envcompare.config.plan import derive_seed, shuffled
from envcompare.errors import (
    EnvcompareError,
    ProfileError,
    StillRunningError,
    TransportError,
    UnusableError,
    WorkloadError,
)
from envcompare.measure.bench import Bench, Values, failure_of
from envcompare.measure.profilelimits import (
    BEGIN_LIMIT_S,
    ENDING_LIMIT_S,
    SAID_LINES,
    WARMUP_STEPS,
    counted_steps,
    cut_at,
    limit_s,
    steps_that_fit,
)
from envcompare.measure.profilerecords import AROUND, INSIDE, reason_and_hint, summary
from envcompare.measure.profilestarts import TOOL_STARTS, started
from envcompare.measure.protocol import Hello
from envcompare.measure.worker import LaunchSpec, Worker
from envcompare.profile_files.reading import read
from envcompare.profilers.choosing import Pass, Toolbox
from envcompare.profilers.collecting import KEPT_BYTES, MOST_BYTES, READ_LOG, Shelf, export, shelf
from envcompare.profilers.inside import WITH_FILE, Inside, hint_of, profile_of
from envcompare.profilers.wrapping import CONTROLS, MOST_LAUNCHES, Profiler
from envcompare.run_folder.profilefiles import raw_path, write_profile
from envcompare.run_folder.profiles import PassName, Profile, ProfileRecord
from envcompare.run_folder.records import Failure
from envcompare.run_folder.results import RunFolder
from envcompare.transport import Transport
from envcompare.transport.copies import RemoteFile
from envcompare.transport.operations import make_new_folder

_TOO_LARGE = f"its raw file is larger than {KEPT_BYTES >> 20} MiB and was not kept"
_UNKNOWN = "no worker came as far as telling which GPU it uses"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """What the pass needs of a host beside the bench."""

    launch: Callable[[str, Profiler | None], Worker]
    transport: Transport
    toolbox: Toolbox
    environments: dict[str, str]  # of each arm
    scratch: Callable[[str], str]  # the folder that an arm may write to
    taken: Callable[[str], str]  # a folder that no arm is shown, for what was left by one
    folder: RunFolder


@dataclass(slots=True)
class ProfilePass:
    """Profiles each arm but the control; what cannot be done is kept with its reason.

    No time of it enters a comparison, and none is taken from the budget of the cell.
    """

    bench: Bench
    stand: Stand
    prior: tuple[ProfileRecord, ...] = ()  # of this cell, before an interruption
    _kept: dict[tuple[str, PassName], ProfileRecord] = field(default_factory=dict)
    _hello: Hello | None = None  # of the reference: what GPU there is
    _steps: int = 0  # the same in all arms
    _step_s: float = 0.0

    def __post_init__(self) -> None:
        """Begin with what is there already; what failed is tried again."""
        self._kept = {(one.arm, one.kind): one for one in self.prior if not one.is_failure}
        self._steps = next((r.steps for r in self.prior if r.kind in INSIDE and r.steps), 0)

    @property
    def arms(self) -> tuple[str, ...]:
        """Return the arms to profile, the reference first."""
        bench = self.bench
        others = tuple(a for a in bench.arms if a not in {bench.reference, bench.control})
        return (bench.reference, *shuffled(others, derive_seed(bench.seed, "profile", bench.cell)))

    def measure(self) -> str:
        """Run what is missing, and say in a line what there is.

        Raises TransportError when the host is lost and InterruptedRunError when the user stops.
        """
        try:
            self._profile()
        except StillRunningError as error:
            self.decline(self.arms, *reason_and_hint(error), is_failure=True)
        return summary(tuple(self._kept.values()))

    def _profile(self) -> None:
        """Run what is missing; raises StillRunningError where a worker goes on beside the rest."""
        if any(self._is_missing(arm, kind) for arm in self.arms for kind in (*INSIDE, *AROUND)):
            for arm in self.arms:
                # the reference is begun in any case: it tells the GPU, and how many steps fit
                if self._hello is None or any(self._is_missing(arm, kind) for kind in INSIDE):
                    self._look_inside(arm)
            for kind in AROUND:
                for arm in self.arms:
                    if self._is_missing(arm, kind):
                        self._look_around(arm, kind)

    def decline(
        self, arms: tuple[str, ...], reason: str, hint: str, *, is_failure: bool = False
    ) -> None:
        """Keep for every pass of these arms, but those there are, why there will be none."""
        for arm in arms:
            for kind in (*INSIDE, *AROUND):
                if self._is_missing(arm, kind):
                    self._keep(self._lacking(arm, kind, reason, hint, is_failure=is_failure))

    def _is_missing(self, arm: str, kind: PassName) -> bool:
        return (arm, kind) not in self._kept

    def _look_inside(self, arm: str) -> None:
        """Let one worker run its steps under each profiler that lives inside it."""
        try:
            with started(lambda: self._launch(arm, None), self._spec) as (worker, hello):
                self._begin(worker, hello)
                for kind in INSIDE:
                    if self._is_missing(arm, kind):
                        self.bench.check_interruption()
                        self._keep(self._seen_inside(worker, hello, kind))
                worker.quit()
        except (TransportError, StillRunningError):
            raise
        except (WorkloadError, UnusableError) as error:
            self.bench.check_interruption()
            missing = tuple(kind for kind in INSIDE if self._is_missing(arm, kind))
            self._fail(arm, missing, error)

    def _look_around(self, arm: str, kind: Pass) -> None:
        """Let a new worker run its steps with a profiler around it."""
        self.bench.check_interruption()
        if self._hello is None:
            self._keep(self._lacking(arm, kind, _UNKNOWN, "", is_failure=True))
            return
        # of a name that is new: files of root, of a pass that was killed, could not be removed
        folder = f"{self.stand.scratch(arm)}/{kind}-{secrets.token_hex(4)}"
        found = self.stand.toolbox.profiler(
            kind,
            environment=self.stand.environments[arm],
            compute_capability=self._hello.compute_capability,
            folder=folder,
        )
        if not isinstance(found, Profiler):
            self._keep(self._lacking(arm, kind, found.reason, found.hint))
            return
        try:
            make_new_folder(self.stand.transport, folder)
            self._keep(self._seen_around(arm, kind, found))
        except (TransportError, StillRunningError):
            raise
        except (WorkloadError, ProfileError, UnusableError) as error:
            self.bench.check_interruption()
            self._fail(arm, (kind,), error)

    @property
    def _spec(self) -> LaunchSpec:
        return msgspec.structs.replace(self.bench.spec, generation="rebuild", fingerprint=False)

    def _launch(self, arm: str, profiler: Profiler | None) -> Worker:
        self.bench.check_interruption()  # a worker that was killed for it must not be started again
        return self.stand.launch(arm, profiler)

    def _begin(self, worker: Worker, hello: Hello) -> None:
        """Bring a worker to its first looked-at step; the first one settles how many there are."""
        bench = self.bench
        worker.send_begin(derive_seed(bench.seed, "profile model", bench.cell) % 2**31, 0)
        begun = worker.await_begin(BEGIN_LIMIT_S)
        ran = worker.run(WARMUP_STEPS, limit_s("torch", WARMUP_STEPS, begun.first_step_ns / 1e9))
        if self._hello is None:
            self._hello = hello
            self._step_s = sum(ran.wall_ns) / len(ran.wall_ns) / 1e9
            self._steps = self._steps or steps_that_fit(self._step_s)

    def _seen_inside(self, worker: Worker, hello: Hello, kind: Inside) -> ProfileRecord:
        name = f"{kind}.json.gz"
        out = f"{self.stand.scratch(worker.arm)}/{name}" if kind in WITH_FILE else ""
        reply = worker.profile(
            kind, self._steps, out=out, limit_s=limit_s(kind, self._steps, self._step_s)
        )
        has_gpu = hello.device == "cuda"
        most_bytes = MOST_BYTES if has_gpu else KEPT_BYTES  # only a trace of a GPU is read
        try:
            raw = self._written(worker.arm, name, most_bytes) if reply.file else None
            profile = profile_of(
                kind,
                reply.values,
                steps=reply.k,
                reason=reply.reason,
                trace=raw if has_gpu else None,
            )
        except ProfileError as error:
            return self._failed(worker.arm, kind, error)
        if profile is None:
            return self._lacking(
                worker.arm, kind, reply.reason, reply.hint, is_failure=reply.has_failed
            )
        if raw and raw.stat().st_size > KEPT_BYTES:
            raw.unlink()
            raw = None
        record = self._record(worker.arm, kind, hello, profile, raw)
        reason = _TOO_LARGE if reply.file and raw is None else reply.reason
        hint = reply.hint or hint_of(kind, reply.values)
        return msgspec.structs.replace(record, reason=reason, hint=hint)

    def _seen_around(self, arm: str, kind: Pass, profiler: Profiler) -> ProfileRecord:
        """Run the steps between the marks, and read what the tool leaves when they are over."""
        steps = self._steps if kind == "nsys" else self._counted_steps()
        with started(
            lambda: self._launch(arm, profiler),
            self._spec,
            starts=TOOL_STARTS,
        ) as (worker, hello):
            self._begin(worker, hello)
            reply = worker.profile(
                "marks", steps, out="", limit_s=limit_s(kind, self._steps, self._step_s)
            )
            worker.quit(ENDING_LIMIT_S)
        if reply.reason:
            raise ProfileError("the steps could not be marked", details=reply.reason)
        with self._shelf(arm) as own:
            profile, raw = self._exported(own, kind, profiler, said=worker.tail(SAID_LINES))
        profile = msgspec.structs.replace(
            profile,
            steps=steps,
            has_time=profile.has_time and kind != "ncu-flops",
        )
        record = self._record(arm, kind, hello, profile, raw)
        record = msgspec.structs.replace(record, reason="" if raw else _TOO_LARGE)
        return cut_at(MOST_LAUNCHES, record)

    def _counted_steps(self) -> int:
        """Return the steps of a counter pass, the same in all arms: the reference decides."""
        traced = self._kept.get((self.bench.reference, "nsys"))
        profile = traced.profile if traced else None
        return counted_steps(self._steps, profile, most=MOST_LAUNCHES)

    def _exported(
        self, own: Shelf, kind: Pass, profiler: Profiler, *, said: str
    ) -> tuple[Profile, Path | None]:
        """Return what a tool has left as a profile, and its raw file where that is kept."""
        tool, found = profiler.tool, export(own, profiler, said=said)
        raw = self._kept_raw(own, found.report, f"{kind}-{found.report.name}", KEPT_BYTES)
        with tempfile.TemporaryDirectory(prefix="envcompare-profile-") as folder:
            target = Path(folder) / found.export.name
            own.fetch(found.export, target)
            return read(tool.name, (target,), version=tool.version, controls=CONTROLS), raw

    def _written(self, arm: str, name: str, most_bytes: int) -> Path | None:
        """Bring the file that a worker wrote here, where it is not too large."""
        with self._shelf(arm) as own:
            taken = own.take(self.stand.scratch(arm), name)
            if taken is None:
                raise ProfileError(f"the profiler in the worker wrote no {name}", hint=READ_LOG)
            return self._kept_raw(own, taken, name, most_bytes)

    def _shelf(self, arm: str) -> AbstractContextManager[Shelf]:
        return shelf(self.stand.transport, arm, self.stand.taken(arm))

    def _kept_raw(self, own: Shelf, taken: RemoteFile, name: str, most_bytes: int) -> Path | None:
        """Bring a raw file of the host among the profiles of an arm, where it is not too large."""
        if taken.size_bytes > most_bytes:
            return None
        target = raw_path(self.stand.folder, self.bench.cell, own.arm, name)
        own.fetch(taken, target)
        return target

    def _record(
        self, arm: str, kind: PassName, hello: Hello, profile: Profile, raw: Path | None
    ) -> ProfileRecord:
        return msgspec.structs.replace(
            self._bare(arm, kind),
            steps=profile.steps,
            batch=hello.batch,
            code_hash=hello.code_hash,
            raw=(str(raw.relative_to(self.stand.folder.path)),) if raw else (),
            profile=profile,
        )

    def _failed(self, arm: str, kind: PassName, error: EnvcompareError) -> ProfileRecord:
        return self._lacking(arm, kind, *reason_and_hint(error), is_failure=True)

    def _lacking(
        self, arm: str, kind: PassName, reason: str, hint: str, *, is_failure: bool = False
    ) -> ProfileRecord:
        return msgspec.structs.replace(
            self._bare(arm, kind),
            state="missing",
            reason=reason or "nothing was found, and no reason given",
            hint=hint,
            steps=self._steps or None,
            is_failure=is_failure,
        )

    def _bare(self, arm: str, kind: PassName) -> ProfileRecord:
        """Return what every record of this cell says, whatever the profiler found."""
        bench = self.bench
        return ProfileRecord(host=bench.host, cell=bench.cell, arm=arm, kind=kind, name=kind)

    def _fail(self, arm: str, kinds: tuple[PassName, ...], error: EnvcompareError) -> None:
        """Keep why an arm has no such profiles; what breaks the protocol is a failure of the arm.

        Any other profile that failed takes nothing from the run.
        """
        failure = None
        if isinstance(error, WorkloadError) and error.phase == "protocol":
            failure = failure_of(error)
        for kind in kinds:
            self._keep(self._failed(arm, kind, error), failure)
            failure = None  # it is one, whatever it has cost

    def _keep(self, record: ProfileRecord, failure: Failure | None = None) -> None:
        write_profile(self.stand.folder, record)
        self._kept[record.arm, record.kind] = record
        text = f"{record.kind}: {record.reason}" if record.reason else record.kind
        values: Values = {"state": record.state}
        self.bench.note("profiled", arm=record.arm, text=text, values=values, failure=failure)
