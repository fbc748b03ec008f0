"""Measure on the nodes of a scheduler's job: as hosts from here, or by a client inside the job.

Nodes of Slurm are hosts of a run: waited for, called, and kept as long as the client lives. What
Slurm says of a job starts nothing and ends nothing by itself: nodes are there when they answer, and
the job is over when none does and it is not listed as living.

Where a scheduler gives no way to a node from outside, a client inside the job works on a copy of
the run folder on a file system that both share. What arrives in the copy is brought here as it
comes, and nothing else counts: how a job ended is known by the exit code that it left, never by its
state. Each side sees by a number that the other keeps changing whether it is still alive.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from envcompare.command import Command
from envcompare.config.scheduling import INSIDE
from envcompare.config.settings import Settings, settings_toml
from envcompare.errors import (
    CommandTimeoutError,
    ConfigError,
    EnvcompareError,
    InterruptedRunError,
    RunFolderError,
    TransportError,
    UnusableError,
)
from envcompare.hosts.allocation import (
    FIRST_PAUSE_S,
    PATIENCE_S,
    AnyJob,
    Request,
    Watch,
    check_stop,
    pause,
    state_of,
    submitted,
)
from envcompare.run_folder.disk import replace_file
from envcompare.run_folder.results import RunFolder
from envcompare.transport import Drain, Process, not_copied, run, shell
from envcompare.transport.hosts import HostSpec, InterruptibleTransport
from envcompare.transport.jobs import STARTED, GridEngineJob, SlurmJob, SrunTransport
from envcompare.transport.local import LOCAL

# A client that is gone before it has taken the nodes must not hold them until their time is over.
_PILOT: Final = """sleep {patience}
if [ -e {kept}"$SLURM_JOB_ID" ]; then exec sleep 2147483647; fi
echo "the nodes did not answer in time: nothing took them within {patience} s" >&2"""
# The step ends with the client, however that ends, and then the job with it.
_KEEP: Final = ': >"$1" || exit; echo kept; cat >/dev/null; exec scancel "$SLURM_JOB_ID"'
_NAMES: Final = 'printf "%s\\n" "$SLURMD_NODENAME"'
# What a job left as its last words, and what its scheduler says of it
_WHY: Final = 'cat -- "$1"/*.stderr 2>/dev/null | tail -n 1\n'
_SAID_BY: Final = {
    SlurmJob.scheduler: r"""
scontrol --oneliner show job "$2" 2>/dev/null | grep -o 'JobState=[A-Z_]* Reason=[^ ]*'
""",
    GridEngineJob.scheduler: r"""
qstat -j "$2" 2>/dev/null | sed -n 's/^error reason *[0-9]*: *//p'
""",
}
_LONGEST_PAUSE_S: Final = 30.0
_TICK_S: Final = 0.2  # in which Ctrl-C is noticed
_SHARED_S: Final = 30.0  # a network file system may show a new file late
_SHOWN_S: Final = 60.0  # and the files of a job that has just begun
_LATE_S: Final = 5.0  # and an exit code after its job has gone
_ANSWER_S: Final = 60.0
_JOURNALS: Final = ("events.jsonl", "samples.jsonl")  # read in this order, written in the other
_KEPT_HERE: Final = frozenset({*_JOURNALS, "run.json", "comparison.json", "report.html"})
_TURN_S: Final = 2
# Turns without a sign of life: a count of them, not a time, so that a file system that hangs and
# comes back costs neither side the other.
_CLIENT_TURNS, _KILL_TURNS, _NODE_TURNS = 30, 90, 45
# What waits beside the measured work starts no process: `read` waits for what never comes.
_SCRIPT: Final = f"""room={{room}}
exec 3<> <(:)
{{command}} >"$room/said" 2>&1 </dev/null 3<&- &
inner=$! turn=0 quiet=0 last= asked=0
while kill -0 "$inner" 2>/dev/null; do
  turn=$((turn + 1))
  echo "$turn" >"$room/node"
  seen= stops=0
  read -r seen stops <"$room/client"
  if [ "$seen" = "$last" ]; then quiet=$((quiet + 1)); else quiet=0 last=$seen; fi
  if [ "$quiet" -ge {_CLIENT_TURNS} ] && [ "$asked" = 0 ]; then stops=1; fi
  if [ "$quiet" -ge {_KILL_TURNS} ]; then kill -KILL "$inner"; fi
  if [ "${{{{stops:-0}}}}" -gt "$asked" ]; then asked=$((asked + 1)); kill -TERM "$inner"; fi
  read -r -t {_TURN_S} -u 3 || [ "$?" -gt 128 ] || sleep {_TURN_S}
done
wait "$inner"
echo "$?" >"$room/exit.part" && mv "$room/exit.part" "$room/exit"
"""
_FORCED_S: Final = 30.0  # in which a client that is killed cleans up
_ENDS: Final = frozenset({0, 3, 4})  # exit codes of a run that came to its end
_SIGNALLED: Final = 128
_SEE: Final = "see its message above"
_SILENT: Final = "it left no message"


@contextmanager
def granted(request: Request, hosts: tuple[HostSpec, ...]) -> Iterator[tuple[HostSpec, ...]]:
    """Give the hosts as nodes of a job, and the job back to the scheduler at the end.

    Raises UnusableError where it is not granted, and InterruptedRunError when the user stops
    meanwhile.
    """
    if request.allocation.job:
        yield _placed(hosts, *_around(request, len(hosts)), request)
        return
    keeper: Process | None = None
    with submitted(request, _slurm_pilot) as job:
        assert isinstance(job, SlurmJob)
        try:
            nodes = _await_nodes(job, request)
            keeper = _keep(job, nodes[0], request)
            yield _placed(hosts, job, nodes, request)
        finally:
            _end_keeper(keeper)


def _around(request: Request, count: int) -> tuple[AnyJob, tuple[str, ...]]:
    """Return the job that this process runs in, and its nodes."""
    job = request.job(request.allocation.job)
    if isinstance(job, GridEngineJob):
        return job, (platform.node(),)
    return job, _roll_call(job, count, request)


def _slurm_pilot(request: Request) -> str:
    return _PILOT.format(patience=PATIENCE_S, kept=shlex.quote(request.kept()))


def _await_nodes(job: SlurmJob, request: Request) -> tuple[str, ...]:
    """Wait in the queue until all nodes answer, and return their names.

    Raises UnusableError where the job is gone, and InterruptedRunError when the user stops.
    """
    watch, pause_s = Watch(job), FIRST_PAUSE_S
    while True:
        pause(request, pause_s)
        pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)
        state = watch.ask()
        if state in STARTED:
            with suppress(TransportError, CommandTimeoutError):
                return _roll_call(job, request.allocation.nodes, request)
        if state is not None and watch.is_gone:
            raise _not_granted(job, request)
        watch.tell(request)


def _comes_true(condition: Callable[[], bool], request: Request, within_s: float) -> bool:
    """Tell whether it comes true in time; raises InterruptedRunError when the user stops."""
    until = time.monotonic() + within_s
    while not (is_true := condition()) and time.monotonic() < until:
        pause(request, _TICK_S)
    return is_true


def _not_granted(job: SlurmJob, request: Request) -> UnusableError:
    return UnusableError(
        f"job {job.id} ended before its nodes could be used",
        details=_why(job, request) or "Slurm does not know it any more, and it left no message",
        hint=f"if nobody cancelled it, check that {request.script_dir} is on a file system that "
        "the nodes share, or choose one with the key script-dir",
    )


def _why(job: AnyJob, request: Request) -> str:
    """Return what the job and its scheduler say; empty where that is nothing."""
    said = shell(LOCAL, _WHY + _SAID_BY[job.scheduler], request.script_dir, job.id).stdout
    return "; ".join(line.strip() for line in said.split("\n") if line.strip())


def _roll_call(job: SlurmJob, count: int, request: Request) -> tuple[str, ...]:
    """Return the names of the nodes of a job as each of them says.

    Raises TransportError where not all answer, CommandTimeoutError where that takes too long, and
    InterruptedRunError when the user stops meanwhile.
    """
    asked = InterruptibleTransport(LOCAL, request.interruption, ends_at_once=True)
    answer = run(asked, job.step("/bin/sh", "-c", _NAMES, nodes=count))
    check_stop(request)  # what was killed while it was asked has said nothing
    names = sorted(answer.stdout.split())
    if not answer.succeeded or len(names) != count:
        raise TransportError(
            f"of {count} nodes of job {job.id}, {len(names)} answer",
            details=answer.tail(1) or "the others gave no message",
            hint=f"see `scontrol show job {job.id}`",
        )
    return tuple(names)


def _keep(job: SlurmJob, node: str, request: Request) -> Process:
    """Let the job live as long as this client does.

    Raises UnusableError where it cannot, TransportError where the node does not answer, and
    InterruptedRunError when the user stops meanwhile.
    """
    kept = request.kept(job.id)
    step = Command(argv=("/bin/sh", "-c", _KEEP, "sh", kept))
    transport = SrunTransport(node, job, node)
    keeper = transport.spawn(step)
    said, errors = Drain(keeper.stdout), Drain(keeper.stderr)
    try:
        ends = _comes_true(lambda: bool(said.text() or not said.is_alive()), request, _ANSWER_S)
        if said.text() and _comes_true(Path(kept).exists, request, _SHARED_S):
            return keeper
    except BaseException:
        keeper.kill()
        raise
    keeper.kill()
    state, complaint = state_of(job), errors.last_line()
    if state is not None and state not in STARTED:  # it ended after the node gave its name
        raise _not_granted(job, request)
    if not said.text() and kept not in complaint:
        if ends:
            transport.require_alive("the step that keeps the job")
        raise TransportError(
            f"{node} of job {job.id} " + ("gave no answer" if ends else "did not answer in time"),
            details=complaint or "it gave its name just before",
            hint=f"see `scontrol show job {job.id}`, and start the run again",
        )
    raise UnusableError(
        f"{request.script_dir} is not shared between this machine and {node}",
        details=complaint or "what the node writes there is not seen here",
        hint="name a folder on a file system that all of them share with the key script-dir",
    )


def _placed(
    hosts: tuple[HostSpec, ...], job: AnyJob, nodes: tuple[str, ...], request: Request
) -> tuple[HostSpec, ...]:
    """Return the hosts of the plan as nodes, each as before where the run was begun before.

    Raises ConfigError where the job has other nodes than that run: a cell is of one machine.
    """
    if request.nodes and set(request.nodes) != set(nodes):
        before = ",".join(request.nodes)
        raise ConfigError(
            f"job {job.id} has other nodes than the run was begun on",
            details=f"the run was begun on {before}, and the job has {','.join(nodes)}",
            hint="ask for the same nodes, or start a new run",
        )
    pairs = tuple(zip(hosts, request.nodes or nodes, strict=True))
    request.say(", ".join(f"{host.label} is {node}" for host, node in pairs) + f" of job {job.id}")
    return tuple(replace(host, job=job, node=node) for host, node in pairs)


def _end_keeper(keeper: Process | None) -> None:
    """Let the step end that keeps the job, and the job by it: a second way beside `scancel`."""
    if keeper is not None:
        with suppress(OSError):
            keeper.stdin.close()


@dataclass(slots=True, kw_only=True)
class Mirror:
    """The folder that both clients see, with the copy of the run folder, and what is here of it."""

    folder: RunFolder
    room: Path  # of this job alone: one that was given up may come back to life
    words: tuple[str, ...] = ()  # further options of the client there
    _taken: dict[str, int] = field(default_factory=dict)  # bytes of each journal
    _stamps: dict[str, tuple[int, int]] = field(default_factory=dict)  # of files as they were taken
    _said: int = 0
    _turn: int = 0

    @property
    def copy(self) -> Path:
        """Return the copy of the run folder."""
        return self.room / "run"

    def begin(self, settings: Settings) -> str:
        """Copy the run folder, and return the script by which a job goes on with the copy.

        Raises CopyError where the folder that the nodes share does not take it.
        """
        try:
            self._copy(settings)
        except OSError as error:
            raise not_copied(str(self.folder.path), str(self.copy), str(error)) from error
        self.show(0)
        command = (sys.executable, "-m", "envcompare", "run", "--resume", str(self.copy))
        words = (*command, "--measure-only", *self.words)
        return _SCRIPT.format(room=shlex.quote(str(self.room)), command=shlex.join(words))

    def _copy(self, settings: Settings) -> None:
        """Copy what a client needs to go on: inside a job it asks for no allocation."""
        hidden = shutil.ignore_patterns(".*", "comparison.json", "report.html")
        shutil.copytree(self.folder.path, self.copy, ignore=hidden)
        inside = settings_toml(msgspec.structs.replace(settings, allocation=INSIDE))
        record = msgspec.structs.replace(self.folder.read_run(), configuration=inside)
        copied = RunFolder(self.copy)
        copied.write_json("run.json", record)
        self._stamps = {name: self._stamp(name) for name in copied.file_names()}
        self._taken = {name: len(self._read(name, 0)) for name in _JOURNALS}

    def show(self, stops: int) -> None:
        """Show the job that this client lives, and how often it was asked to stop.

        Where that cannot be written, the job ends as if this client were gone.
        """
        self._turn += 1
        with suppress(OSError):
            replace_file(self.room / "client", f"{self._turn} {stops}\n".encode())

    def read(self, name: str) -> str:
        """Return what the job wrote to a file, empty where it is not there.

        The folder is listed first, by which a network file system looks for files anew.
        """
        try:
            is_there = name in os.listdir(self.room)  # noqa: PTH208 — names are enough
            return (self.room / name).read_text().strip() if is_there else ""
        except OSError:
            return ""

    def said(self) -> Iterator[str]:
        """Yield the lines that the client there has printed since the last time."""
        try:
            with (self.room / "said").open("rb") as file:
                file.seek(self._said)
                lines = file.read()
        except OSError:
            return
        whole = lines[: lines.rfind(b"\n") + 1]
        self._said += len(whole)
        yield from whole.decode(errors="replace").splitlines()

    def fetch(self, *, is_last: bool = False) -> bool:
        """Bring here what is new in the copy; False where that cannot be read now.

        An event stands for samples and files that were there before it: it is read first, and
        written last. Files that no event follows come with the last call.
        """
        try:
            news = {name: self._read(name, self._taken[name]) for name in _JOURNALS}
            if is_last or news["events.jsonl"]:
                self._fetch_files()
        except OSError:  # of a network file system: the next turn reads it again
            return False
        for name in reversed(_JOURNALS):
            self.folder.append_journal(name, news[name])
            self._taken[name] += len(news[name])
        return True

    def _read(self, name: str, begin: int) -> bytes:
        """Return the whole lines of a journal in the copy from a byte on."""
        path = self.copy / name
        if not path.exists():
            return b""
        with path.open("rb") as file:
            file.seek(begin)
            lines = file.read()
        return lines[: lines.rfind(b"\n") + 1]

    def _fetch_files(self) -> None:
        for name in RunFolder(self.copy).file_names():
            stamp = self._stamp(name)
            if name not in _KEPT_HERE and stamp != self._stamps.get(name):
                self.folder.write_bytes(name, (self.copy / name).read_bytes())
                self._stamps[name] = stamp

    def _stamp(self, name: str) -> tuple[int, int]:
        status = (self.copy / name).stat()
        return status.st_size, status.st_mtime_ns


def measured(request: Request, mirror: Mirror, settings: Settings) -> int | None:
    """Measure in a job, and return the exit code of the client there; None where it was lost.

    Raises UnusableError where the job does not begin or the client there ends early, and
    InterruptedRunError when the user stops before it begins.
    """
    with submitted(request, lambda _: mirror.begin(settings)) as job:
        watch = Watch(job)
        _await_begin(watch, mirror, request)
        code = _follow(watch, mirror, request)
    if code is None or code in _ENDS or request.interruption.is_requested:
        return code
    raise _ended_early(code, job)


def _await_begin(watch: Watch, mirror: Mirror, request: Request) -> None:
    """Wait in the queue until the job shows that it lives."""
    while not (mirror.read("node") or mirror.read("exit")):
        mirror.show(0)
        pause(request, _TURN_S)
        watch.look()
        if watch.is_gone or "E" in (watch.state or ""):
            raise _not_begun(watch.job, request)
        if watch.lasts_s("r") > _SHOWN_S:
            raise UnusableError(
                f"job {watch.job.id} runs, and nothing of it is seen in {request.script_dir}",
                details=_why(watch.job, request) or _SILENT,
                hint="name a folder on a file system that all nodes share with the key script-dir",
            )
        watch.tell(request)


def _follow(watch: Watch, mirror: Mirror, request: Request) -> int | None:
    """Fetch what the job writes until it has ended; None where the client there was lost."""
    pulse, forced_s = _Pulse(), 0.0
    while True:
        code = mirror.read("exit")
        is_whole = mirror.fetch(is_last=bool(code))
        for line in mirror.said():
            request.say(line)
        if code and is_whole:
            return _judged(int(code), request)
        watch.look()
        if why := _loss(watch, pulse, mirror):
            request.lose(why)
            return None
        stopping = request.interruption
        request.keep_claim()
        mirror.show(stopping.is_requested + stopping.is_forced)
        time.sleep(_TURN_S)
        forced_s += _TURN_S * stopping.is_forced
        if forced_s > _FORCED_S:
            return None


def _judged(code: int, request: Request) -> int | None:
    """Return the exit code of the client in a job, None where it was killed.

    One that ended as interrupted recorded that itself.
    """
    if code <= _SIGNALLED:
        return code
    if not request.interruption.is_requested:
        request.lose(f"envcompare was ended in the job, with exit code {code}")
    return code if code == InterruptedRunError.exit_code else None


def _loss(watch: Watch, pulse: _Pulse, mirror: Mirror) -> str:
    """Say why the job is lost; empty where it goes on."""
    if pulse.missed(mirror.read("node")) > _NODE_TURNS:
        listed = f"; its state is {watch.state}" if watch.state else ""
        return f"its node has shown no sign of life for a while{listed}"
    if watch.is_gone and watch.lasts_s("") > _LATE_S:
        return f"job {watch.job.id} is not listed any more, and left no exit code"
    return ""


@dataclass(slots=True)
class _Pulse:
    """How often in turn a number was read that should have changed."""

    last: str = ""
    count: int = 0

    def missed(self, now: str) -> int:
        """Return how often the number has not changed, this time included."""
        self.count = self.count + 1 if now == self.last else 0
        self.last = now
        return self.count


def _not_begun(job: AnyJob, request: Request) -> UnusableError:
    return UnusableError(
        f"job {job.id} ended before anything was measured",
        details=_why(job, request) or _SILENT,
        hint=f"if nobody cancelled it, check that {request.script_dir} and the folder that "
        "envcompare was started in are on file systems that the nodes share",
    )


def _ended_early(code: int, job: AnyJob) -> EnvcompareError:
    brief = f"envcompare ended in job {job.id} with exit code {code}"
    kinds = {kind.exit_code: kind for kind in (ConfigError, RunFolderError, EnvcompareError)}
    if kind := kinds.get(code):
        return kind(brief, details=_SEE)
    return UnusableError(
        brief,
        details=_SEE,
        hint="fix the cause; if envcompare was not found or does not start there, check that its "
        f"Python, {sys.executable}, is on a file system that the nodes share",
    )
