"""Provide what the arms of a cell see of a host: the workloads, the cell's files and its data.

For ranks on several hosts, start the peers of each worker of the first host on the others.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from envcompare.config import Arm, Place
from envcompare.config.experiment import Experiment
from envcompare.config.workloads import Workload, imported_from
from envcompare.environments import GATE, UPPER, new_worker_mark, run_wrapped
from envcompare.environments.registry import environment
from envcompare.errors import CommandTimeoutError, StackError, UnusableError, WorkloadError
from envcompare.hosts import HostSession, ReadyArm
from envcompare.measure import LaunchSpec, Placed, Variables, fault_in
from envcompare.measure.worker import Worker
from envcompare.profilers import ProfilerRun
from envcompare.run_folder import distinct_name
from envcompare.run_folder.records import Scalar
from envcompare.stack import Mount, Progress
from envcompare.text import Command, CommandResult, masked
from envcompare.transport import make_folder, run, shell

_PREPARE_LIMIT_S = 3600.0
# Named pipes replace stdin and stdout. Opening one blocks until its other end is opened: descriptor
# 4 has both ends of the replies, so that their reader starts at once, and sees the end even if the
# worker never opens them.
# A client that fails may leave a container behind, whose worker keeps them open.
_RELAY = r"""
folder=$1
shift
mkdir -m 700 -- "$folder" && mkfifo -m 600 -- "$folder/requests" "$folder/replies" || exit
exec 3<&0 </dev/null 4<>"$folder/replies" 5<"$folder/replies"
cat <&5 3<&- 4<&- 5<&- &
reader=$!
cat <&3 3<&- 4<&- 5<&- >"$folder/requests" &
writer=$!
exec 5<&-
"$@" >&2 3<&- 4<&-
code=$?
exec 3<&- 4<&-
kill "$writer" 2>/dev/null
[ "$code" = 0 ] || { sleep 1; kill "$reader"; } >/dev/null 2>&1 &
wait "$reader"
rm -rf -- "$folder"
exit "$code"
"""
_PIPES_LIMIT_S = 60.0
_NO_PIPES_CODE = 76  # of the worker
_NO_PIPES = "requests pass through the engine's client, which can slow steps of a few milliseconds"
_CHANNEL = "ENVCOMPARE_CHANNEL"  # the folder of these pipes, which the worker opens
WORKER = "harness/worker.py"
# of a plain command, which finds the image's Python by itself
LAUNCHER = "harness/measuring.py"
STEPPER = "harness/stepping.py"  # of a line whose script takes the steps
PROGRAM: Final = "ddp.py"
# Ports below Linux's ephemeral ones, of which any may be taken at any time.
_FIRST_PORT, _PORTS = 20_000, 12_000
# The address by which the client reached the host, else the host's first.
_ADDRESS: Final = """set -- $SSH_CONNECTION
if [ -n "$3" ]; then printf '%s' "$3"; else set -- $(hostname -I); printf '%s' "$1"; fi
"""
_SECRET_BYTES: Final = 32
_WRITE: Final = 'umask 077; cat > "$1"'
Log = Callable[[str, str], tuple[Path, str]]
"""Of a host and an arm: the file, and its name in the run folder."""


def program_of(workload: Workload) -> str:
    """Return the program of the harness that serves a workload."""
    if workload.program is None:
        return WORKER
    return STEPPER if workload.program.lockstep else LAUNCHER


def relayed(command: Command, folder: str) -> Command:
    """Return a command that communicates over named pipes in a folder that it makes and removes.

    The clients of Docker and Podman carry stdin in Go, whose runtime polls for work every 20 µs for
    a while after each message (Go: runtime/proc.go, sysmon): 50 times in a block of 20 ms, possibly
    on the CPU of the worker. The pipes bypass them.
    """
    return replace(command, argv=("sh", "-c", _RELAY, "sh", folder, *command.argv))


def find_pipes(session: HostSession, progress: Progress) -> None:
    """Find out in which arms workers can open these pipes, and record it in the session's arms.

    They cannot under a kernel other than the host's: in gVisor, or if the engine runs in a virtual
    machine. Arms that differ only in their ID are tried once. Raises TransportError and
    StillRunningError.
    """
    known: dict[object, bool] = {}
    for arm, ready in session.arms.items():
        record = ready.arm
        if not environment(record.environment).traits.has_client:
            continue
        kind = (record.environment, record.options, ready.prepared.reference)
        if kind not in known:
            why = _why_no_pipes(session, arm)
            known[kind] = not why
            if why:
                progress.say(f"{arm}: {_NO_PIPES} ({why})")
        session.arms[arm] = replace(ready, has_pipes=known[kind])


def _why_no_pipes(session: HostSession, arm: str) -> str:
    """Return why a worker cannot open them; any other problem shows at its launch."""
    ready, mark = session.arms[arm], new_worker_mark()
    channel = _channel(session, arm, mark)
    command = Command(
        argv=(ready.prepared.python, f"{session.workloads}/{WORKER}"), env=((_CHANNEL, channel),)
    )
    wrapped = session.wrapped(ready, command, mounts=session.mounts, worker=mark, is_timed=True)
    try:
        done = run_wrapped(
            session.transport,
            # No request comes, so the worker only opens the pipes and ends.
            relayed(wrapped, channel),
            end=partial(session.end, arm, mark),
            timeout_s=_PIPES_LIMIT_S,
        )
    except CommandTimeoutError:
        return ""
    return done.tail(1) if done.exit_code == _NO_PIPES_CODE else ""


def _channel(session: HostSession, arm: str, mark: str) -> str:
    return f"{session.scratch(arm)}/channel-{mark}"


@dataclass(slots=True, kw_only=True)
class CellFolders:
    """The folders of a host that a cell sees, with those of cells that share its launches."""

    session: HostSession
    shown: tuple[Mount, ...] = ()  # in addition to those of every cell
    place: Place | None = None  # of the data
    held: dict[str, str] = field(default_factory=dict)  # images with the data in them, by arm

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """Return the mounts of every cell, then those of this one."""
        return (*self.session.mounts, *self.shown)

    def name_of(self, workload: Workload) -> str:
        """Return a workload's name in `hello`; a user's files are sent to the host first."""
        if workload.path is None:
            return workload.name
        folder = self.session.send(workload, workload.path)
        self._show(folder)
        return f"{folder}/{imported_from(workload.path)[1]}:{workload.class_name}"

    def prepare_data(
        self, workload: Workload, parameters: dict[str, Scalar], experiment: Experiment
    ) -> str:
        """Return the folder of a workload's data on the host, made or downloaded if needed.

        Raises WorkloadError of the phase `data` if that fails.
        """
        if experiment.data is not None:
            self._require_readable(experiment.data)
            self._show(experiment.data)
            return experiment.data
        kind = "real" if experiment.download else "made"
        base = f"{self.session.cache if workload.path is None else self.session.folder}/data"
        # An arm makes the data and may write to the enclosing folder: nothing else is in it.
        around = f"{base}/{workload.name}-{kind}"
        folder = f"{around}/data"
        name = self.name_of(workload)
        make_folder(self.session.transport, around)
        self._make_data(folder, name, parameters, is_downloaded=experiment.download)
        self._require_folder(folder)
        self._show(folder)
        return folder

    def show_command(self, folder: str, data: str | None) -> str:
        """Mount the folder of a plain command and its data; return the data's folder.

        Raises WorkloadError if the host lacks either.
        """
        if not shell(self.session.transport, 'test -d "$1"', folder).succeeded:
            raise WorkloadError(
                f"the folder {folder} of the command is not on {self.session.host.label}",
                hint="copy it there, or give its path with --command-dir",
                phase="data",
            )
        self._show(folder)
        if data is not None:
            self._require_readable(data)
            self._show(data)
        return data or ""

    def place_data(
        self, arm: Arm, data: str, experiment: Experiment, *, control: str = ""
    ) -> Placed | None:
        """Return where an arm has the data, and put them into its image if that is the place.

        A control starts from the image of its arm. None if no place was given. Raises StackError or
        UnusableError if the place cannot be provided.
        """
        if self.place is None:
            return None
        placing = arm.traits.placing(self.place)
        if placing.refusal:
            raise UnusableError(
                f"no data at `{self.place}` in {arm.environment}: {placing.refusal}",
                hint="leave the place or the arm out",
            )
        name = control or arm.id
        make_folder(self.session.transport, f"{self.session.scratch(name)}/{UPPER}")
        if placing.private:
            self.session.make_private(placing.private.format(run=self.session.run_id))
        if placing.is_held:
            self.held[name] = self.session.hold(arm.id, data, experiment)
        folder = placing.folder.format(run=self.session.run_id, arm=distinct_name(name))
        return Placed(name=self.place, folder=folder, is_held=placing.is_held)

    def spec(
        self, workload: Workload, parameters: dict[str, Scalar], data: str, experiment: Experiment
    ) -> LaunchSpec:
        """Return the specification of a worker's work, with the data in a folder of the host."""
        program = None if workload.whole else workload.program
        # An existing GPU is never silently skipped.
        must_use_gpu = experiment.device == "auto" and self.session.has_gpu
        return LaunchSpec(
            workload=self.name_of(workload),
            files=workload.files,
            params=parameters,
            data=data,
            threads=experiment.threads,
            cpus=experiment.pin,
            generation=experiment.generation,
            device="expected" if must_use_gpu else experiment.device,
            cwd=program.cwd if program else "",
            step=program.step if program else "",
        )

    def launch(  # noqa: PLR0913 — what is started, and where it writes
        self,
        arm: str,
        program: str = WORKER,
        *,
        log: Path,
        log_name: str,
        variables: Variables = (),
        profiler: ProfilerRun | None = None,
        is_timed: bool = True,
    ) -> Worker:
        """Start a worker of the arm, or another program of the workloads with its protocol."""
        mark = new_worker_mark()
        ready = self.session.arms[arm]
        is_of_command = program in {LAUNCHER, STEPPER}
        python = ready.prepared.interpreter if is_of_command else ready.prepared.python
        has_pipes = is_timed and program == WORKER and ready.has_pipes
        channel = _channel(self.session, arm, mark) if has_pipes else ""
        variables += ((_CHANNEL, channel),) if channel else ()
        variables += ((GATE, self.session.scratch(arm)),) if program == STEPPER else ()
        command = Command(argv=(python, f"{self.session.workloads}/{program}"), env=variables)
        wrapped = self.session.wrapped(
            ready,
            command,
            mounts=self.mounts,
            worker=mark,
            profiler=profiler,
            is_timed=is_timed,
            place=self.place,
            reference=self.held.get(arm, ""),
        )
        started = relayed(wrapped, channel) if channel else wrapped
        return Worker(
            lambda: self.session.spawn(started),
            arm=arm,
            log=log,
            log_name=log_name,
            explain=lambda code, text: self.session.explain(arm, code, text),
            end=lambda: self.session.end(arm, mark),
            on_gpu=self.session.on_gpu,
        )

    def _show(self, folder: str) -> None:
        mount = Mount(path=folder)
        if mount not in self.shown:
            self.shown = (*self.shown, mount)

    def _require_folder(self, folder: str) -> None:
        """Refuse a link in place of the data: every arm would see its target."""
        if not shell(self.session.transport, '[ -d "$1" ] && [ ! -L "$1" ]', folder).succeeded:
            raise WorkloadError(
                f"the data in {folder} on {self.session.host.label} is not a folder",
                hint="remove it there, and check the images for sitecustomize.py and .pth files",
                phase="data",
            )

    def _require_readable(self, path: str) -> None:
        if not shell(self.session.transport, 'test -r "$1"', path).succeeded:
            raise WorkloadError(
                f"the data {path} cannot be read on {self.session.host.label}",
                hint="give an absolute path on the host with --data",
                phase="data",
            )

    def _make_data(
        self, folder: str, name: str, parameters: dict[str, Scalar], *, is_downloaded: bool
    ) -> None:
        """Make the data in the nearest arm that can import the workload."""
        error = WorkloadError(f"no arm is left to make the data of {name}", phase="data")
        mounts = (*self.mounts, Mount(path=folder.rpartition("/")[0], is_read_only=False))
        for ready in self.session.nearest_arms:
            argv = (
                *(ready.prepared.python, f"{self.session.workloads}/{WORKER}"),
                *("--prepare", folder, "--workload", name, "--params", json.dumps(parameters)),
                *(("--download",) if is_downloaded else ()),
            )
            command = Command(argv=argv)
            result = self.session.run_inside(
                ready, command, mounts=mounts, timeout_s=_PREPARE_LIMIT_S
            )
            if result.succeeded:
                return
            error = _data_error(name, ready, result)
            # Another arm would fail alike, unless this one only lacks a module.
            if error.phase != "import":
                break
        raise error


def _data_error(name: str, ready: ReadyArm, result: CommandResult) -> WorkloadError:
    """Return why a program that makes data failed, distinguishing a failed import."""
    fault, work = fault_in(result.stdout), name.rpartition("/")[2]
    brief, hint = f"the data of {work} cannot be made", "give your own with --data"
    is_import = fault is not None and fault.phase == "import"
    if fault and is_import:
        where = ready.prepared.reference or ready.prepared.python
        brief, hint = f"{work} cannot be imported in {ready.arm.id} ({where})", fault.hint
    return WorkloadError(
        brief + (f": {masked(fault.brief)}" if fault else ""),
        details=masked(fault.traceback) if fault else result.tail(),
        hint=hint or "fix the file at the place that the traceback names",
        phase="import" if is_import else "data",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTeam:
    """The host of the first rank, its address for the other hosts, and those hosts.

    Each has a file with a secret of the run, by which the ranks recognise each other. It is sent
    over the transport, since every user of a host can read a command line.
    """

    leader: HostSession
    others: tuple[HostSession, ...]
    address: str

    @classmethod
    def of(cls, leader: HostSession, others: tuple[HostSession, ...]) -> HostTeam:
        """Find the address of the leader, and send a secret to all hosts.

        Raises UnusableError if the leader has no IPv4 address that others can reach, or if a secret
        cannot be written.
        """
        address = shell(leader.transport, _ADDRESS).stdout.strip()
        unfit = "an IPv6 address" if ":" in address else "a loopback address"
        if ":" in address or address.startswith("127."):
            raise UnusableError(
                f"the ranks of other hosts cannot join at {address}: it is {unfit}",
                hint=f"give {leader.host.label} by an IPv4 address that the others reach",
            )
        if not address:
            raise UnusableError(
                f"{leader.host.label} has no address that others could reach",
                hint="give it by an address that the others reach",
            )
        secret = secrets.token_hex(_SECRET_BYTES).encode()
        for session in (leader, *others):
            _hand(secret, session)
        return cls(leader=leader, others=others, address=address)

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the names of the hosts, the one of the first rank first."""
        return tuple(session.host.label for session in (self.leader, *self.others))

    def lacks(self, arm: str) -> UnusableError | None:
        """Return why an arm of the leader cannot have ranks on the others; None if it can."""
        own = dict(self.leader.arms[arm].prepared.software)
        for other in self.others:
            label = other.host.label
            if arm not in other.arms:
                return UnusableError(
                    f"{arm} is not usable on {label}, where it needs ranks",
                    hint=f"see what failed on {label}, or leave {arm} out of --envs",
                )
            theirs = dict(other.arms[arm].prepared.software)
            unlike = sorted(key for key in own.keys() | theirs if own.get(key) != theirs.get(key))
            if unlike:
                return StackError(
                    f"{arm} has other software on {label} than on {self.leader.host.label}",
                    details=f"they differ in {', '.join(unlike)}",
                    hint="give both hosts the same, or --allow-mismatch to continue anyway",
                )
        return None

    def launch(
        self,
        arm: str,
        start: Callable[[Variables], Worker],
        *,
        ranks: int,
        variables: Variables,
        log_of: Log,
    ) -> Worker:
        """Start the peers on the other hosts, then the leader's worker; they end with it.

        Hosts beyond the number of ranks are not used. The ranks find each other by torchrun's
        variables.
        """
        others = self.others[: ranks - 1]
        if not others:
            return start(variables)
        port = _FIRST_PORT + secrets.randbelow(_PORTS)
        shared = (
            *variables,
            ("MASTER_ADDR", self.address),
            ("MASTER_PORT", str(port)),
            ("GROUP_WORLD_SIZE", str(1 + len(others))),
            ("ENVCOMPARE_TEAM_HOSTS", ",".join(self.labels[: 1 + len(others)])),
        )
        # If one of them does not start, those before it must not go on.
        with ExitStack() as undoing:
            peers: list[Worker] = []
            for number, other in enumerate(others, start=1):
                log, log_name = log_of(other.host.label, arm)
                own = (*shared, *_place_of(other, number))
                folders = CellFolders(session=other)
                worker = folders.launch(arm, PROGRAM, variables=own, log=log, log_name=log_name)
                undoing.callback(worker.kill)
                peers.append(worker)
            first = start((*shared, *_place_of(self.leader, 0)))
            first.peers = tuple(peers)
            undoing.pop_all()
        return first


def _place_of(session: HostSession, number: int) -> Variables:
    return (("GROUP_RANK", str(number)), ("ENVCOMPARE_TEAM", f"{_folder(session)}/secret"))


def _folder(session: HostSession) -> str:
    return f"{session.folder}/team"


def _hand(secret: bytes, session: HostSession) -> None:
    """Write the secret to a file that only its owner can read, and show it to all arms."""
    folder = _folder(session)
    make_folder(session.transport, folder)
    write = Command(argv=("sh", "-c", _WRITE, "sh", f"{folder}/secret"))
    written = run(session.transport, write, stdin=secret)
    if not written.succeeded:
        raise UnusableError(
            f"the secret of this run cannot be written on {session.host.label}",
            details=written.tail(1) or f"{folder}/secret",
            hint="check that the cache there has room and is writable",
        )
    session.mounts = (*session.mounts, Mount(path=folder))
