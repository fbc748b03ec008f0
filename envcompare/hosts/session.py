"""A host made ready: its connection, the arms that are usable there, staged files and data."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from envcompare import bundled
from envcompare.command import Command, CommandResult
from envcompare.config.experiment import Experiment
from envcompare.environments import Check, Gpu, Isolation, gpu, new_worker_mark
from envcompare.environments.registry import ENVIRONMENTS, environment
from envcompare.environments.running import run_wrapped
from envcompare.environments.software import inside
from envcompare.errors import (
    CommandTimeoutError,
    EnvcompareError,
    OutputLimitError,
    Problem,
    StackError,
    UnusableError,
)
from envcompare.fingerprint.identity import Identity
from envcompare.hosts import claims
from envcompare.profilers.tool import ProfilerRun
from envcompare.run_folder.foldernames import distinct_name
from envcompare.run_folder.records import (
    ArmRecord,
    FingerprintRecord,
    FingerprintValue,
    Scalar,
    Taken,
)
from envcompare.stack import Mount, Options, Prepared, Progress, Request
from envcompare.stack.cache import OPEN_FOLDERS
from envcompare.stack.engine import ImageStore
from envcompare.stack.proof import mismatch, tell_files_apart
from envcompare.stack.skeleton import give_back
from envcompare.stack.wheelhouse import chosen
from envcompare.transport import Process, Transport
from envcompare.transport.hosts import HostSpec
from envcompare.transport.operations import (
    FOLDER_S,
    make_folder,
    put_tree,
    read_json,
    shell,
)

_CLAIM_S = 10.0  # for a client that was just killed to be gone
_DATA_LIMIT_S = 600.0
# The folder of the run above it goes with the last of its hosts: several may share one home.
_REMOVE = (
    OPEN_FOLDERS
    + """
open_folders "$1" 2>/dev/null
rm -rf -- "$1" || exit
rmdir -- "${1%/*}" 2>/dev/null || :
"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """An arm that is usable on a host."""

    arm: ArmRecord
    prepared: Prepared
    check: Check
    mismatch: StackError | None = None  # what its proof is at odds with, where that is allowed

    @property
    def gpu(self) -> Gpu:
        """Return how the arm reaches the GPU, by the software it has."""
        return self.check.gpu.beside_host_files if self.arm.stack == "host" else self.check.gpu


class _Data(msgspec.Struct, frozen=True, kw_only=True):
    """What shows that data are the same; of those that were prepared the hash alone."""

    hash: str
    modified: str | None = None
    changed: str | None = None
    files: str | None = None

    def facts(self) -> Identity:
        """Return it as a run notes it, without what is not known."""
        times = {"modified": self.modified, "changed": self.changed, "files": self.files}
        return {"data": self.hash, **{f"data.{key}": one for key, one in times.items() if one}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Roads:
    """The ways to a host and to this machine; what is watched dies when the user insists."""

    watched: Transport
    bare: Transport  # what cleans up must run after everything else was killed
    local: Transport  # watched; wheels and image are made on this machine


@dataclass(slots=True)
class Site:
    """One host during a run; made by `open_site`, left by `close`."""

    host: HostSpec
    roads: Roads
    boot_id: str
    run_id: str
    cache: str
    uid: int
    gid: int
    has_gpu: bool
    seats: dict[str, Seat] = field(default_factory=dict)
    machine: Identity = field(default_factory=dict)
    identities: dict[str, Identity] = field(default_factory=dict)  # by arm; empty is the host
    workloads: str = ""
    mounts: tuple[Mount, ...] = ()  # of every cell
    _sent: set[str] = field(default_factory=set)
    _entered: set[str] = field(default_factory=set)  # environments that something was started in
    _keeper: Process | None = None  # holds the claim of this run
    _is_untouched: bool = False  # nothing of this client is there, another may be
    _privileged: set[str] = field(default_factory=set)  # arms that were given a capability
    _going_on: dict[str, str] = field(default_factory=dict)  # environments of workers not ended

    @property
    def transport(self) -> Transport:
        """Return the watched transport to the host."""
        return self.roads.watched

    @property
    def folder(self) -> str:
        """Return the folder of this run on the host; it goes when the site is closed."""
        return f"{self.cache}/runs/{self.run_id}/{distinct_name(self.host.label)}"

    def claim(self) -> tuple[str, ...]:
        """Remove what dead runs left on the host, then claim it for this run; say what there was.

        Raises UnusableError where another client is at this very run.
        """
        self._is_untouched = True
        bare, deadline = self.roads.bare, time.monotonic() + _CLAIM_S
        while True:
            held = next(filter(self._is_own, claims.survey(self.transport, self.cache)), None)
            if held is None:
                break
            if time.monotonic() > deadline:
                raise claims.refusal(held, self.host.label)
            time.sleep(0.5)
        left = claims.remove_dead(bare, self.cache)
        self._is_untouched = False
        self._keeper = claims.hold(bare, self.folder)
        return left.lines

    def add_arm(self, arm: ArmRecord, experiment: Experiment, progress: Progress) -> Seat:
        """Make an arm usable; raises UnusableError or StackError saying why it is not.

        A seat whose software is at odds with its proof, where that is allowed, says so.
        """
        where = environment(arm.environment)
        check = where.check(self.transport)
        if check.is_usable and self.has_gpu:
            check = replace(
                where.check_gpu(self.transport), engine=check.engine, version=check.version
            )
        self._require(check, arm)
        self._enter(arm.environment)
        prepared = where.prepare(self._request(arm, experiment, progress))
        built = {o.arm.id: o.prepared for o in self.seats.values() if not o.arm.reference}
        # an image of the user's is what it is, whatever it was made from
        host = self.host.label
        error = None if arm.reference else mismatch(arm.id, prepared, built, host=host)
        if error and not experiment.allow_mismatch:
            raise error
        if error:
            noted = ("mismatch", error.details)
            prepared = replace(prepared, identity=(*prepared.identity, noted))
        seat = Seat(arm=arm, prepared=prepared, check=check, mismatch=error)
        if seat.gpu.way != "none":
            self._require(self._check_gpu(seat), arm)
        self.seats[arm.id] = seat
        return seat

    def _is_own(self, claim: claims.Claim) -> bool:
        host = distinct_name(self.host.label)
        return (claim.run_id, claim.host, claim.state) == (self.run_id, host, "live")

    def _enter(self, name: str) -> None:
        """Note that something is going to be started in an environment, to be found again."""
        if name not in self._entered and self._keeper is not None:
            claims.note_use(self.transport, self.folder, name)
        self._entered.add(name)

    def _require(self, check: Check, arm: ArmRecord) -> None:
        if not check.is_usable:
            raise UnusableError(
                f"{arm.environment} is not usable on {self.host.label}",
                details=check.reason,
                hint=check.hint,
            )

    def _check_gpu(self, seat: Seat) -> Check:
        """Ask CUDA from inside the arm, before anything is staged for it."""
        where = environment(seat.arm.environment)
        interpreter = Command(argv=(seat.prepared.python,), env=seat.prepared.variables)
        return gpu.check_inside(self.transport, where, interpreter, self._isolation(seat))

    def _request(self, arm: ArmRecord, experiment: Experiment, progress: Progress) -> Request:
        variant = chosen(experiment.variant, has_gpu=self.has_gpu)
        return Request(
            transport=self.transport,
            progress=progress,
            options=replace(stack_options(experiment), variant=variant),
            is_host_stack=arm.stack == "host",
            reference=arm.reference,
            run_id=self.run_id,
            local=self.roads.local,
        )

    def identify(self, data: str | None) -> None:
        """Find out what a resumed run knows the host and its arms by, once they are staged.

        `data` is the user's, a file or a folder of the host.
        """
        if not self.seats:
            return  # nothing can be measured
        self.identities = {"": {**self.machine, **(self._data_facts(data) if data else {})}}
        for seat in self.seats.values():
            if not seat.arm.is_control:
                self.identities[seat.arm.id] = self._identify(seat)

    def _identify(self, seat: Seat) -> Identity:
        found: Identity = dict(seat.prepared.software)
        # a plain process has no engine but the kernel, which the host tells of
        if seat.check.version and seat.check.version != self.machine.get("kernel.release"):
            found[f"{seat.arm.environment}.version"] = seat.check.version
        return found

    def _data_facts(self, path: str) -> Identity:
        """Return the hash of the user's data, and the times of its files; empty if not read."""
        seat = self.nearest_seat
        command = Command(argv=(seat.prepared.interpreter, f"{self.workloads}/data.py", path))
        mounts = (*self.mounts, Mount(path=path))
        try:
            result = self.run_inside(seat, command, mounts=mounts, timeout_s=_DATA_LIMIT_S)
            said = read_json(result.stdout, _Data)
        except (CommandTimeoutError, OutputLimitError, msgspec.DecodeError):
            return {}  # a cell that cannot read it says so
        return said.facts()

    @property
    def nearest_seat(self) -> Seat:
        """Return the arm that is nearest to the host: a plain process, else one with a network."""

        def distance(seat: Seat) -> tuple[bool, bool]:
            traits = environment(seat.arm.environment).traits
            return not traits.is_plain, not traits.has_network

        return min(self.seats.values(), key=distance)

    @property
    def plain_interpreter(self) -> str:
        """Return the interpreter of an arm that the host has as well; else the host's `python3`."""
        plain = (
            seat.prepared.interpreter
            for seat in self.seats.values()
            if environment(seat.arm.environment).traits.is_plain
        )
        return next(plain, "python3")

    def add_control(self, control: str, reference: str) -> None:
        """Give the control arm what the reference has."""
        seat = self.seats[reference]
        arm = msgspec.structs.replace(seat.arm, id=control, is_reference=False, is_control=True)
        self.seats[control] = replace(seat, arm=arm)

    def stage(self) -> None:
        """Put the workloads on the host, in a folder named after their content."""
        source = bundled.workloads()
        self.workloads = f"{self.cache}/workloads-{bundled.tree_key(source)}"
        make_folder(self.transport, self.folder)
        if not shell(self.transport, 'test -e "$1/.complete"', self.workloads).succeeded:
            put_tree(self.transport, source, self.workloads)
            shell(self.transport, ': > "$1/.complete"', self.workloads)
        self.mounts = (Mount(path=self.workloads),)
        for arm in self.seats:
            make_folder(self.transport, self.scratch(arm))

    def tell_files_apart(self, progress: Progress) -> None:
        """Find the files in which the software of the arms differs, once all of them are usable."""
        arms = {
            arm: (
                inside(
                    environment(seat.arm.environment),
                    self.transport,
                    seat.prepared,
                    run_id=self.run_id,
                ),
                seat.prepared,
            )
            for arm, seat in self.seats.items()
        }
        for arm, prepared in tell_files_apart(arms, progress=progress).items():
            self.seats[arm] = replace(self.seats[arm], prepared=prepared)

    def send(self, path: Path, name: str) -> str:
        """Return the folder of the host that a user's file is in; it is sent once a run."""
        folder = f"{self.folder}/own-{name}"
        if folder not in self._sent:
            self.transport.put(path, f"{folder}/{path.name}")
            self._sent.add(folder)
        return folder

    def spawn(self, wrapped: Command) -> Process:
        """Start a command that `wrapped` has given.

        Who starts it ends it, with `end` and the mark of its worker. Raises StillRunningError
        where an earlier one goes on: nothing is measured beside it.
        """
        self._require_ended()
        return self.transport.spawn(wrapped)

    def run_inside(
        self, seat: Seat, command: Command, *, mounts: tuple[Mount, ...], timeout_s: float
    ) -> CommandResult:
        """Run the command in the environment of a seat to its end, as `spawn` starts it.

        Raises CommandTimeoutError after `timeout_s`, when nothing of it goes on.
        """
        self._require_ended()
        worker = new_worker_mark()
        wrapped = self.wrapped(seat, command, mounts=mounts, worker=worker)
        return run_wrapped(
            self.transport,
            wrapped,
            end=lambda: self.end(seat.arm.id, worker),
            timeout_s=timeout_s,
        )

    def end(self, arm: str, worker: str) -> None:
        """End what a start in an arm has left on the host, and see that it is gone.

        Raises StillRunningError where it cannot be shown, as every later start does until it is.
        """
        self._going_on[worker] = self.seats[arm].arm.environment
        self._sweep_worker(worker)

    def _require_ended(self) -> None:
        """See that nothing is measured beside a worker that was given up."""
        for worker in tuple(self._going_on):
            self._sweep_worker(worker)

    def _sweep_worker(self, worker: str) -> None:
        """Sweep what goes on of a worker, and forget it once it is shown to have ended."""
        name = self._going_on[worker]
        environment(name).sweep(self.roads.bare, self.run_id, worker=worker)
        del self._going_on[worker]

    def wrapped(
        self,
        seat: Seat,
        command: Command,
        *,
        mounts: tuple[Mount, ...],
        worker: str,
        profiler: ProfilerRun | None = None,
    ) -> Command:
        """Return the command as it runs in the environment of a seat, which sees these mounts.

        A profiler stands around the command, inside the environment. What is started with it is
        found again by the mark of the worker.
        """
        needed = profiler.mounts if profiler else ()
        isolation = replace(
            self._isolation(seat),
            worker=worker,
            mounts=tuple(dict.fromkeys((*seat.prepared.mounts, *mounts, *needed))),
            scratch=self.scratch(seat.arm.id),
            capabilities=profiler.capabilities if profiler else (),
        )
        if isolation.capabilities:
            self._privileged.add(seat.arm.id)
        command = profiler.wrap(command) if profiler else command
        command = replace(command, env=(*seat.prepared.variables, *command.env))
        return environment(seat.arm.environment).wrap(command, isolation)

    def _isolation(self, seat: Seat) -> Isolation:
        return Isolation(
            run_id=self.run_id,
            arm=seat.arm.id,
            reference=seat.prepared.reference,
            engine=seat.prepared.engine or seat.check.engine,
            uid=self.uid,
            gid=self.gid,
            gpu=seat.gpu,
            mounts=seat.prepared.mounts,
        )

    def fingerprint(
        self, arm: str, cell: str, found: dict[str, FingerprintValue], *, taken: Taken
    ) -> FingerprintRecord:
        """Return what a worker of an arm found around itself, with the proof of its stack."""
        seat = self.seats[arm]
        identity: dict[str, Scalar] = dict(seat.prepared.identity)
        if seat.check.version:
            identity[f"{seat.arm.environment}.version"] = seat.check.version
        return FingerprintRecord(
            host=self.host.label,
            arm=arm,
            cell=cell,
            facts={**found, **dict(seat.prepared.facts), **_installed(seat.prepared)},
            identity=identity,
            taken=taken,
        )

    def ask(self, script: str) -> CommandResult:
        """Run a fixed script of sh on the host itself, outside every environment."""
        return shell(self.transport, script)

    def explain(self, arm: str, exit_code: int, stderr: str) -> Problem | None:
        """Say why the engine of an arm could not start its worker; None when it did."""
        return environment(self.seats[arm].arm.environment).explain(exit_code, stderr)

    def sweep(self) -> tuple[str, ...]:
        """Remove every process and container of this run from the host; say what there was."""
        said: list[str] = []
        used = {seat.arm.environment for seat in self.seats.values()} | self._entered
        for name in sorted(used):
            try:
                count = ENVIRONMENTS[name].sweep(self.roads.bare, self.run_id)
            except EnvcompareError as error:
                self._going_on[""] = name
                said.append(f"{name} could not be swept: {error.brief}")
            else:
                said += [f"{name}: removed what was left of the run ({count})"] * bool(count)
        return tuple(said)

    def close(self) -> tuple[str, ...]:
        """Sweep, remove the run's folder from the host, end the connection; say what was left.

        Where not all could be ended the folder stays, by which a later run finds the rest.
        """
        said: tuple[str, ...] = ()
        if not self._is_untouched:
            said = self.sweep()
            said = said if "" in self._going_on else (*said, *self._remove_folder())
        if self._keeper is not None:
            self._keeper.kill()
        self.roads.bare.close()
        return said

    def _remove_folder(self) -> tuple[str, ...]:
        """Remove the run's folder; a counter pass that was killed leaves files of root in it."""
        try:
            removed = shell(self.roads.bare, _REMOVE, self.folder, timeout_s=FOLDER_S)
            if not removed.succeeded and self._privileged:
                self._take_back()
                removed = shell(self.roads.bare, _REMOVE, self.folder, timeout_s=FOLDER_S)
            why = "" if removed.succeeded else removed.tail(1) or "it gave no message"
        except EnvcompareError as error:
            why = error.brief
        remedy = f"remove it with: sudo rm -rf {shlex.quote(self.folder)}"
        return (f"{self.folder} could not be removed: {why}; {remedy}",) if why else ()

    def _take_back(self) -> None:
        """Give this login what root has left in a container; no program of an arm runs for it."""
        owner = f"{self.uid}:{self.gid}"
        for arm in sorted(self._privileged):
            engine = environment(self.seats[arm].arm.environment).engine
            if engine is not None:
                store = ImageStore(engine=engine, transport=self.roads.bare)
                give_back(store, self.scratch(arm), owner=owner)

    def taken(self, arm: str) -> str:
        """Return the folder for what an arm has left in its scratch; no arm is shown this one."""
        return f"{self.folder}/taken-{distinct_name(arm)}"

    def scratch(self, arm: str) -> str:
        """Return the folder of the host that an arm, and nothing else, may write to."""
        return f"{self.folder}/scratch-{distinct_name(arm)}"


def _installed(prepared: Prepared) -> dict[str, FingerprintValue]:
    """Return what is installed in parts, as far as it was hashed."""
    parts = {"site_packages.parts": prepared.parts, "site_packages.changed": prepared.changed}
    return {key: value for key, value in parts.items() if value}


def stack_options(experiment: Experiment) -> Options:
    """Return what the experiment asks of the software."""
    # what a workload of the user's own imports is known only once it runs
    is_bundled = any(w.path is None and w.program is None for w in experiment.workloads)
    return Options(
        python=experiment.python,
        base_image=experiment.base_image,
        variant=experiment.variant,
        sif_compression=experiment.sif_compression,
        vm_python=experiment.vm_python,
        host_python=experiment.host_python,
        host_imports=("torch",) if is_bundled else (),
    )
