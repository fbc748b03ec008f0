"""Hosts: get, open and hold each for a run.

This file has the session with a host: its connection, ready arms, staged files and data.
"""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from envcompare import bundled
from envcompare.config import Arm, Place, SoftwareKind
from envcompare.config.experiment import Experiment
from envcompare.config.workloads import Workload, imported_from
from envcompare.environments import (
    Check,
    Gpu,
    HoldsData,
    Isolation,
    gpu,
    new_worker_mark,
    run_wrapped,
)
from envcompare.environments.registry import ALL_ENVIRONMENTS, IMAGE_BUILDER, environment
from envcompare.environments.software import mismatch
from envcompare.errors import EnvcompareError, Interruption, Problem, StackError, UnusableError
from envcompare.fingerprint.comparing import Identity
from envcompare.gpu import HostGpus
from envcompare.hosts import keeper
from envcompare.profilers import ProfilerRun
from envcompare.run_folder import distinct_name
from envcompare.run_folder.records import (
    ArmRecord,
    FingerprintRecord,
    FingerprintValue,
    Scalar,
    Taken,
)
from envcompare.stack import CPU, Choice, Mount, Options, Prepared, Progress, Request, choose
from envcompare.stack.storage import OPEN_FOLDERS, ImageStore, host_temporary
from envcompare.stack.venv import give_back
from envcompare.stack.wheelhouse import is_filled
from envcompare.text import Command, CommandResult, masked
from envcompare.transport import FOLDER_S, Process, Transport, make_folder, put_tree, shell
from envcompare.transport.hosts import HostSpec, InterruptibleTransport

# A client that was just killed takes some seconds to disappear.
_CLAIM_S = 10.0
_SCRATCH = "ENVCOMPARE_SCRATCH"  # also read by the harness
# The enclosing folder of the run goes with its last host: several hosts may share one home.
_REMOVE = (
    OPEN_FOLDERS
    + """
open_folders "$1" 2>/dev/null
rm -rf -- "$1" || exit
rmdir -- "${1%/*}" 2>/dev/null || :
"""
)
# In a folder such as /tmp, another user may have made a link or a folder of that name.
_MAKE_PRIVATE = """
[ -e "$1" ] || [ -L "$1" ] || mkdir -m 700 -- "$1" || exit
[ -d "$1" ] && [ ! -L "$1" ] && [ "$(stat -c %u "$1")" = "$(id -u)" ] && chmod 700 "$1"
"""
# The path of a socket has up to 107 bytes, of which multiprocessing needs 32 below its TMPDIR.
_LONGEST_TEMPORARY = 75


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyArm:
    """An arm that is usable on a host."""

    arm: ArmRecord
    prepared: Prepared
    check: Check
    mismatch: StackError | None = None  # how it contradicts its proof, if that is allowed
    has_pipes: bool | None = None  # of the host, instead of stdin; None: not tried, or not needed

    @property
    def gpu(self) -> Gpu:
        """Return how the arm's software reaches the GPU."""
        return self.check.gpu.with_host_files if self.arm.stack == "host" else self.check.gpu

    @property
    def engine_version(self) -> dict[str, Scalar]:
        """Return `ENVIRONMENT.version`, of what isolates the arm; empty if unknown."""
        version = self.check.version
        return {f"{self.arm.environment}.version": version} if version else {}

    @property
    def installed(self) -> dict[str, FingerprintValue]:
        """Return what is installed in parts, as far as it was hashed."""
        parts = {
            "site_packages.parts": self.prepared.parts,
            "site_packages.changed": self.prepared.changed,
        }
        return {key: value for key, value in parts.items() if value}


def kinds_of_software(experiment: Experiment) -> tuple[SoftwareKind, ...]:
    """Return the kinds of software that the stack `image` is built as, each once."""
    made = (arm for arm in experiment.arms if _is_of_wheels(arm))
    return tuple(dict.fromkeys(arm.traits.software for arm in made))


def _is_of_wheels(arm: Arm | ArmRecord) -> bool:
    """Return whether the software of an arm is built from the wheels chosen for its host."""
    return arm.stack == "image" and not arm.reference


def stack_options(experiment: Experiment) -> Options:
    """Return what the experiment asks of the software."""
    # What the user's own workload imports is known only once it runs.
    is_bundled = any(w.path is None and w.program is None for w in experiment.workloads)
    return Options(
        python=experiment.python or "",
        base_image=experiment.base_image,
        variant=experiment.variant,
        sif_compression=experiment.sif_compression,
        vm_python=experiment.vm_python,
        host_python=experiment.host_python,
        host_imports=("torch",) if is_bundled else (),
        lockstep=any(w.program is not None and w.program.lockstep for w in experiment.workloads),
    )


@dataclass(slots=True)
class HostSession:
    """One host during a run; opened by `open_session`, closed by `close`."""

    host: HostSpec
    transport: Transport  # an insistent interruption kills its commands, except for clean-up
    local: Transport  # interruptible; wheels and image are built on this machine
    boot_id: str
    run_id: str
    cache: str
    uid: int
    gid: int
    python: str  # the minor version that wheels are for, such as "3.11"
    gpus: HostGpus | None  # None if none is to be used
    unused_gpus: HostGpus | None = None  # present, but not to be used
    arms: dict[str, ReadyArm] = field(default_factory=dict)
    machine: Identity = field(default_factory=dict)
    identities: dict[str, Identity] = field(default_factory=dict)  # by arm; empty is the host
    workloads: str = ""
    mounts: tuple[Mount, ...] = ()  # of every cell
    on_gpu: set[str] = field(default_factory=set)  # arms in which a worker has used the GPU
    _sent: set[str] = field(default_factory=set)
    _entered: set[str] = field(default_factory=set)  # environments in which something was started
    _keeper: Process | None = None  # holds the claim of this run
    _is_untouched: bool = True  # by this client; existing files belong to another
    _privileged: set[str] = field(default_factory=set)  # arms that were given a capability
    _going_on: dict[str, str] = field(default_factory=dict)  # environments of unfinished workers
    # images with data in them, by engine, image and data
    _held: dict[tuple[str, str, str], str] = field(default_factory=dict)
    _temporary: dict[str, str] = field(default_factory=dict)  # the TMPDIR of each arm
    _said: set[str] = field(default_factory=set)  # messages on the host, not on one of its arms
    _driver: Check | None = None  # with its files, once a GPU is needed
    _wheels: Choice | None = None  # once an arm is built from them

    @property
    def has_gpu(self) -> bool:
        """Return whether there is a GPU to use, so that nothing may run on the CPU instead."""
        return self.gpus is not None and self.gpus.is_expected

    @property
    def wheels(self) -> Choice | None:
        """Return the wheels that the arms were built from; None if no arm was."""
        is_used = any(_is_of_wheels(ready.arm) for ready in self.arms.values())
        return self._wheels if is_used else None

    @property
    def folder(self) -> str:
        """Return the folder of this run on the host; closing the session removes it."""
        return f"{self.cache}/runs/{self.run_id}/{distinct_name(self.host.label)}"

    def claim(self, *, is_regained: bool = False) -> tuple[str, ...]:
        """Remove what dead runs left on the host, then claim it; return what there was.

        With `is_regained`, end a claim of this run, which belongs to the client's lost connection.
        Raises UnusableError if another client holds this run.
        """
        if is_regained:
            for own in filter(self._is_own, keeper.survey(self.transport, self.cache)):
                keeper.end_claim(self.transport, own)
        deadline = time.monotonic() + _CLAIM_S
        while True:
            held = next(filter(self._is_own, keeper.survey(self.transport, self.cache)), None)
            if held is None:
                break
            if time.monotonic() > deadline:
                raise keeper.refusal(held, self.host.label)
            time.sleep(0.5)
        # The bare transport lets the removal end even if the user insists on stopping.
        left = keeper.remove_dead(self.transport.bare, self.cache, environments=ALL_ENVIRONMENTS)
        self._is_untouched = False
        self._keeper = keeper.hold(self.transport.bare, self.folder)
        return left.lines

    def add_arm(self, arm: ArmRecord, experiment: Experiment, progress: Progress) -> ReadyArm:
        """Make an arm usable; raises UnusableError or StackError with the reason if it is not.

        An arm whose software contradicts its proof says so, if that is allowed.
        """
        where = environment(arm.environment)
        check = where.check(self.transport)
        if check.is_usable and self.has_gpu:
            reached = where.check_gpu(self.transport, self._ask_driver())
            check = replace(reached, engine=check.engine, version=check.version)
        self._require(check, arm)
        self._require_setup(arm, progress)
        self._enter(arm.environment)
        prepared = where.prepare(self._request(arm, experiment, progress))
        built = {o.arm.id: o.prepared for o in self.arms.values() if not o.arm.reference}
        # The user's image is accepted as it is, whatever it was built from.
        host = self.host.label
        error = None if arm.reference else mismatch(arm.id, prepared, built, host=host)
        if error and not experiment.allow_mismatch:
            raise error
        if error:
            prepared = replace(prepared, identity=(*prepared.identity, ("mismatch", error.details)))
        ready = ReadyArm(arm=arm, prepared=prepared, check=check, mismatch=error)
        # A GPU that cannot be reached is found out before anything is staged for the arm.
        if ready.gpu.way != "none":
            interpreter = Command(argv=(prepared.python,), env=prepared.variables)
            isolation = self._isolation(ready)
            self._require(gpu.check_inside(self.transport, where, interpreter, isolation), arm)
        self.arms[arm.id] = ready
        return ready

    def _is_own(self, claim: keeper.Claim) -> bool:
        host = distinct_name(self.host.label)
        return (claim.run_id, claim.host, claim.state) == (self.run_id, host, "live")

    def _enter(self, name: str) -> None:
        """Record that something will be started in an environment, so that it can be found."""
        self._is_untouched = False
        # The removal of what this run leaves sweeps the environments that its claim names.
        if name not in self._entered and self._keeper is not None:
            keeper.note_use(self.transport, self.folder, name)
        self._entered.add(name)

    def _require(self, check: Check, arm: ArmRecord) -> None:
        if not check.is_usable:
            raise UnusableError(
                f"{arm.environment} is not usable on {self.host.label}",
                details=check.reason,
                hint=check.hint,
            )

    def _require_setup(self, arm: ArmRecord, progress: Progress) -> None:
        """Refuse a GPU that only one arm could use, and report which of several is measured."""
        if self.gpus is None:
            return
        self._require(gpu.check_setup(self.gpus), arm)
        if (choice := gpu.check_choice(self.gpus)) is not None:
            self._say_once(progress, f"measuring on {choice.version}; {choice.hint}")

    def _say_once(self, progress: Progress, text: str) -> None:
        """Report what holds for the host with the first arm that it concerns."""
        if text not in self._said:
            self._said.add(text)
            progress.say(text)

    def _ask_driver(self) -> Check:
        """Check whether the driver of the host works, and which files it has; once."""
        if self._driver is None:
            self._driver = gpu.find(self.transport, gpu.check_driver(self.transport))
        return self._driver

    def _choose_wheels(self, experiment: Experiment, progress: Progress) -> Choice:
        """Return the wheels for the host, chosen once; report them if that is news."""
        if self._wheels is None:
            name = self.transport.name
            self._wheels = choose(experiment.variant, self.gpus, python=self.python, host=name)
        is_news = progress.may_make and not is_filled(self._wheels, python=self.python)
        if is_news or progress.is_before_run:
            self._say_once(progress, self._wheels.sentence)
        return self._wheels

    def _request(self, arm: ArmRecord, experiment: Experiment, progress: Progress) -> Request:
        return Request(
            transport=self.transport,
            progress=progress,
            builder=IMAGE_BUILDER.engine,
            options=replace(stack_options(experiment), python=self.python),
            wheels=self._choose_wheels(experiment, progress) if _is_of_wheels(arm) else CPU,
            is_host_stack=arm.stack == "host",
            reference=arm.reference,
            kinds=kinds_of_software(experiment),
            run_id=self.run_id,
            local=self.local,
            is_for_others=len(experiment.hosts) > 1,
        )

    @property
    def nearest_arms(self) -> list[ReadyArm]:
        """Return the arms nearest to the host first: a plain process, then those with a network."""

        def distance(ready: ReadyArm) -> tuple[bool, bool]:
            traits = environment(ready.arm.environment).traits
            return traits.is_isolated, not traits.has_network

        own = (ready for ready in self.arms.values() if not ready.arm.is_control)
        return sorted(own, key=distance)

    def add_control(self, control: str, reference: str) -> None:
        """Give the control arm what the reference has."""
        ready = self.arms[reference]
        arm = msgspec.structs.replace(ready.arm, id=control, is_reference=False, is_control=True)
        self.arms[control] = replace(ready, arm=arm)

    def stage(self) -> None:
        """Copy the workloads to the host, into a folder named after their content."""
        source = bundled.workloads()
        self.workloads = f"{self.cache}/workloads-{bundled.tree_key(source)}"
        self._is_untouched = False
        make_folder(self.transport, self.folder)
        # A copy that was cut short has no mark, and is made again.
        if not shell(self.transport, 'test -e "$1/.complete"', self.workloads).succeeded:
            put_tree(self.transport, source, self.workloads)
            shell(self.transport, ': > "$1/.complete"', self.workloads)
        self.mounts = (Mount(path=self.workloads),)
        for arm, ready in self.arms.items():
            make_folder(self.transport, self.scratch(arm))
            if name := environment(ready.arm.environment).traits.temporary:
                self._make_temporary(arm, name.format(run=self.run_id))

    def _make_temporary(self, arm: str, name: str) -> None:
        """Give an arm its own TMPDIR inside the login's, unless that path is too long."""
        folder = f"{host_temporary(self.transport)}/{name}"
        own = f"{folder}/{distinct_name(arm)}"
        if len(own) <= _LONGEST_TEMPORARY:
            self.make_private(folder)
            # a later login may have another TMPDIR
            shell(self.transport, 'ln -sfn -- "$1" "$2/.temporary"', folder, self.folder)
            make_folder(self.transport, own)
            self._temporary[arm] = own

    def make_private(self, folder: str) -> None:
        """Create a folder that only this login may enter, unless it exists.

        Raises UnusableError if another user has created it.
        """
        made = shell(self.transport, _MAKE_PRIVATE, folder)
        if not made.succeeded:
            raise UnusableError(
                f"a private folder {folder} cannot be created on {self.host.label}",
                details=made.tail(1) or "another user owns it, or it is not a folder",
                hint="start a new run, whose folder has another name",
            )

    def send(self, workload: Workload, path: Path) -> str:
        """Send a user's file and its others once; return their folder on the host."""
        folder = f"{self.folder}/own-{workload.name}"
        if folder not in self._sent:
            source, name = imported_from(path)
            put_tree(self.transport, source, folder, names=workload.files or (name,))
            self._sent.add(folder)
        return folder

    def spawn(self, wrapped: Command) -> Process:
        """Start a command that `wrapped` returned.

        The caller ends it with `end` and the mark of its worker. Raises StillRunningError if an
        earlier one is still running, since nothing may run during a measurement.
        """
        self._require_ended()
        return self.transport.spawn(wrapped)

    def run_inside(
        self,
        ready: ReadyArm,
        command: Command,
        *,
        mounts: tuple[Mount, ...],
        timeout_s: float,
        interruption: Interruption | None = None,
    ) -> CommandResult:
        """Run the command in the environment of an arm to its end, as `spawn` starts it.

        Nothing that it started survives. The first request of an `interruption` kills it. Raises
        CommandTimeoutError after `timeout_s`.
        """
        self._require_ended()
        worker = new_worker_mark()
        wrapped = self.wrapped(ready, command, mounts=mounts, worker=worker)
        transport: Transport = self.transport
        if interruption is not None:
            transport = InterruptibleTransport(transport, interruption, ends_at_once=True)
        return run_wrapped(
            transport, wrapped, end=lambda: self.end(ready.arm.id, worker), timeout_s=timeout_s
        )

    def end(self, arm: str, worker: str) -> None:
        """End what a start in an arm left on the host, and verify that it is gone.

        Raises StillRunningError if that cannot be proven; later starts raise it until it can.
        """
        self._going_on[worker] = self.arms[arm].arm.environment
        self._sweep_worker(worker)

    def _require_ended(self) -> None:
        """Ensure that nothing is measured next to an abandoned worker."""
        for worker in tuple(self._going_on):
            self._sweep_worker(worker)

    def _sweep_worker(self, worker: str) -> None:
        """Sweep the processes of a worker, and forget it once it is proven to have ended."""
        name = self._going_on[worker]
        environment(name).sweep(self.transport.bare, self.run_id, worker=worker)
        del self._going_on[worker]

    def wrapped(  # noqa: PLR0913 — all that tells one start from another
        self,
        ready: ReadyArm,
        command: Command,
        *,
        mounts: tuple[Mount, ...],
        worker: str,
        profiler: ProfilerRun | None = None,
        is_timed: bool = False,
        place: Place | None = None,
        reference: str = "",
    ) -> Command:
        """Return the command as it runs in the environment of an arm, which sees these mounts.

        A profiler wraps the command inside the environment. All it starts carries the mark of the
        worker. A `reference` names an image with the data in it.
        """
        needed = profiler.mounts if profiler else ()
        scratch = self.scratch(ready.arm.id)
        isolation = replace(
            self._isolation(ready),
            worker=worker,
            mounts=tuple(dict.fromkeys((*ready.prepared.mounts, *mounts, *needed))),
            scratch=scratch,
            capabilities=profiler.capabilities if profiler else (),
            is_timed=is_timed,
            place=place,
        )
        if reference:
            isolation = replace(isolation, reference=reference)
        if isolation.capabilities:
            self._privileged.add(ready.arm.id)
        command = profiler.wrap(command) if profiler else command
        own = (_SCRATCH, scratch)  # HOME is this folder in a container, otherwise the login's
        command = replace(command, env=(*ready.prepared.variables, own, *command.env))
        return environment(ready.arm.environment).wrap(command, isolation)

    def hold(self, arm: str, data: str, experiment: Experiment) -> str:
        """Return the reference of an image of an arm with the data in it, if possible.

        It is built once for all arms with the same image of an engine. Raises StackError or
        UnusableError if it cannot be built.
        """
        where = environment(self.arms[arm].arm.environment)
        if not isinstance(where, HoldsData):
            raise UnusableError(
                f"{where.name} has no image for the data", hint="leave --place data=image out"
            )
        isolation = replace(self._isolation(self.arms[arm]), scratch=self.scratch(arm))
        engine = where.engine.program if where.engine else where.name
        key = (engine, isolation.reference, data)
        if key not in self._held:
            compression = experiment.sif_compression
            held = where.hold(self.transport, isolation, data, compression=compression)
            self._held[key] = held
        return self._held[key]

    def _isolation(self, ready: ReadyArm) -> Isolation:
        return Isolation(
            run_id=self.run_id,
            arm=ready.arm.id,
            reference=ready.prepared.reference,
            engine=ready.prepared.engine or ready.check.engine,
            uid=self.uid,
            gid=self.gid,
            gpu=ready.gpu,
            mounts=ready.prepared.mounts,
            options=ready.arm.options,
            layers=ready.prepared.layers,
            temporary=self._temporary.get(ready.arm.id, ""),
        )

    def fingerprint(
        self, arm: str, cell: str, facts: dict[str, FingerprintValue], *, taken: Taken
    ) -> FingerprintRecord:
        """Return the fingerprint from a worker of an arm, with the proof of its stack."""
        ready = self.arms[arm]
        identity: Identity = {**dict(ready.prepared.identity), **ready.engine_version}
        requests = {"engine.requests": "through its client"} if ready.has_pipes is False else {}
        # The options in which the start of a timed worker differs from the engine's defaults.
        isolation = replace(self._isolation(ready), is_timed=True)
        options = environment(ready.arm.environment).engine_options(isolation)
        return FingerprintRecord(
            host=self.host.label,
            arm=arm,
            cell=cell,
            facts={
                **facts,
                **dict(ready.prepared.facts),
                **ready.installed,
                **({"engine.options": masked(shlex.join(options))} if options else {}),
                **requests,
            },
            identity=identity,
            taken=taken,
        )

    def ask(self, script: str) -> CommandResult:
        """Run a fixed sh script on the host itself, outside every environment."""
        return shell(self.transport, script)

    def explain(self, arm: str, exit_code: int, stderr: str) -> Problem | None:
        """Return why the engine of an arm could not start its worker; None if it did."""
        return environment(self.arms[arm].arm.environment).explain(exit_code, stderr)

    def sweep(self) -> tuple[str, ...]:
        """Remove every process and container of this run from the host; return what there was."""
        said: list[str] = []
        used = {ready.arm.environment for ready in self.arms.values()} | self._entered
        for name in sorted(used):
            try:
                count = ALL_ENVIRONMENTS[name].sweep(self.transport.bare, self.run_id)
            except EnvcompareError as error:
                # `close` keeps the folder of the run then, so that a later run finds what is left.
                self._going_on[""] = name
                said.append(f"{name} could not be swept: {error.brief}")
            else:
                said += [f"{name}: removed what was left of the run ({count})"] * bool(count)
        return tuple(said)

    def close(self) -> tuple[str, ...]:
        """Sweep, remove the run's folder from the host, end the connection; return what was left.

        If not everything could be ended, the folder stays, so that a later run finds the rest.
        """
        said: tuple[str, ...] = ()
        if not self._is_untouched:
            said = self.sweep()
            said = said if "" in self._going_on else (*said, *self._remove_folder())
        # The claim is held to the end: without it, another client would take the run for dead.
        if self._keeper is not None:
            self._keeper.kill()
        self.transport.bare.close()
        return said

    def abandon(self) -> None:
        """Close a lost connection; a later session removes what it left on the host."""
        self.transport.bare.close()

    def _remove_folder(self) -> tuple[str, ...]:
        """Remove the run's folder; a killed counter pass leaves files of root in it."""
        try:
            removed = shell(self.transport.bare, _REMOVE, self.folder, timeout_s=FOLDER_S)
            if not removed.succeeded and self._privileged:
                self._take_back()
                removed = shell(self.transport.bare, _REMOVE, self.folder, timeout_s=FOLDER_S)
            why = "" if removed.succeeded else removed.tail(1) or "no message"
        except EnvcompareError as error:
            why = error.brief
        remedy = f"remove it with: sudo rm -rf {shlex.quote(self.folder)}"
        return (f"{self.folder} could not be removed: {why}; {remedy}",) if why else ()

    def _take_back(self) -> None:
        """Give this login the files of root, by a container that runs no program of an arm."""
        owner = f"{self.uid}:{self.gid}"
        for arm in sorted(self._privileged):
            engine = environment(self.arms[arm].arm.environment).engine
            if engine is not None:
                store = ImageStore(engine=engine, transport=self.transport.bare)
                give_back(store, self.scratch(arm), owner=owner)

    def taken(self, arm: str) -> str:
        """Return the folder for what an arm left in its scratch; no arm sees this one."""
        return f"{self.folder}/taken-{distinct_name(arm)}"

    def scratch(self, arm: str) -> str:
        """Return the folder of the host that only an arm may write to."""
        return f"{self.folder}/scratch-{distinct_name(arm)}"
