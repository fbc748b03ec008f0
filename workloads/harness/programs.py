"""One program, run to its end: its times, its resources, and the numbers in its output."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from harness.failures import (
    DataError,
    PhaseError,
    ProcessError,
    ProtocolError,
    failure_reply,
    phase,
)
from harness.output import Output
from harness.pinning import OWN_PYTHON, pin
from harness.wire import encode, leave, parse_request, read_line, send

if TYPE_CHECKING:
    from harness.watching import Watch

_LEAST_AROUND_S = 60.0  # for --prepare and --conclude, which may start and stop a server
_DRAIN_S = 1.0  # for a program's output once the program has ended
_SETTLE_S = 0.2  # for processes that end by themselves right after, as multiprocessing's tracker
_LOOK_EVERY_S = 0.01
_RSS_ERROR_KIB = 2048  # the kernel counts pages in batches for each thread
_ENDED = (b"Z", b"X")  # states of proc_pid_stat(5)
_HASHED_BYTES = 64 << 20  # of a file that the command names
_ENGINES = re.compile(r"\b(?:docker|podman)\b")
OF_A_PROCESS = ("cpu.affinity", "os.release", "shm.bytes")
_TICK_S = 0.01  # at most, by which times of files are behind the clock (CONFIG_HZ 100)
_WALK_LIMIT_S = 1.0
_MOST_WRITTEN = 3  # are named
PYTHONS = ("python", "python3")
# also written by envcompare
LINE, CONTAINER = "ENVCOMPARE_LINE", "ENVCOMPARE_CONTAINER"
CAPTURED = "ENVCOMPARE_CAPTURED"
_FIND_HINT = "install it there, or name it by the path it has in each environment"


def answer(sink: int) -> int:
    """Answer one request on stdin through the descriptor `sink`."""
    op = None
    try:
        with phase("protocol"):
            message = read_line(0)
            if message is None:
                return 0
            request = parse_request(message)
            op = request["op"]
            if op not in ("look", "command"):
                raise ProtocolError(f"no operation {op!r}; there are look and command")
            line = os.environ.pop(LINE, None)
            is_line = line is not None
            if line is not None and os.environ.get(CAPTURED):
                from harness.replaying import replayed  # noqa: PLC0415  of few launches

                send(sink, encode({"op": op, "ok": True, **replayed(line, request)}))
                return 0
            if is_line:
                request["argv"] = [*request["argv"], line]
            _enter(request, is_line=is_line)
            if op == "look":
                reply = _look(request, is_line=is_line)
            else:
                reply = Run(request, is_line=is_line).reply()
    except PhaseError as error:
        reply = failure_reply(op, error)
    send(sink, encode({"op": op, "ok": True, **reply}))
    return 0


def _enter(request: Dict[str, Any], *, is_line: bool) -> None:
    """Take the folder and the CPUs of the command; put this interpreter first in PATH.

    An image of the user's has its own Python on its PATH, maybe with a wrapper around it. A line
    runs with the PATH of the login.
    """
    with phase("setup"):
        try:
            os.chdir(request["cwd"])
        except OSError as error:
            raise DataError(
                f"cannot run in {request['cwd']}: {error.strerror}",
                hint="give --command-dir a folder that every environment of the host can enter",
            ) from error
        pin(request.get("cpus"))
    if not is_line and not os.environ.get(OWN_PYTHON):
        here = os.path.dirname(sys.executable)
        os.environ["PATH"] = os.pathsep.join((here, os.environ.get("PATH", os.defpath)))


def _look(request: Dict[str, Any], *, is_line: bool) -> Dict[str, Any]:
    """Return where the program is, the hash of the files it names, and the fingerprint.

    Of a line only the machine is known before it runs.
    """
    # a launch that measures does without
    from harness.facts.inside import OF_ONE_PROCESS, fingerprint  # noqa: PLC0415
    from harness.facts.machine import machine  # noqa: PLC0415

    if is_line:
        # these may be others in a container, and are read there
        found = {key: value for key, value in machine().items() if key not in OF_A_PROCESS}
    else:
        found = fingerprint(threads=None, device="cpu", data=request["cwd"], is_launcher=True)
    return {
        "program": find(request["argv"][0]),
        "programs": _programs_hashes(request["argv"]),
        "code_hash": _files_hash(request["argv"]),
        "fingerprint": {**found, **dict.fromkeys(OF_ONE_PROCESS)},
    }


def find(name: str) -> str:
    """Return the path of a program; `python` is the interpreter of the arm."""
    if name in PYTHONS:
        own = os.environ.get(OWN_PYTHON, "")
        return shutil.which(name) or shutil.which(own) or sys.executable if own else sys.executable
    found = shutil.which(name)
    if found is not None:
        return found
    with phase("setup"):
        if os.path.exists(name):
            raise ProcessError(f"{name} is not executable there (exit 126)", hint=_FIND_HINT)
        raise ProcessError(f"{name} is not found there (exit 127)", hint=_FIND_HINT)


def _programs_hashes(argv: List[str]) -> Dict[str, Optional[str]]:
    """Return the hash of every program that a word names: `env` and `nice` start another."""
    # a launch that measures does without
    from harness.facts.libraries import whole_hash  # noqa: PLC0415

    words = [argv[0], *(word for word in argv[1:] if not word.startswith("-"))]
    paths = {word: find(word) if word in PYTHONS else shutil.which(word) for word in words}
    return {word: whole_hash(os.path.realpath(path)) for word, path in paths.items() if path}


def _files_hash(argv: List[str]) -> str:
    """Return a hash of the command and of the files among its words, the program itself left out.

    The program may well differ between environments; what it is given to do should not.
    """
    digest = hashlib.sha256("\0".join(argv).encode(errors="surrogateescape"))
    words = argv[1:]
    if tuple(argv[:2]) == ("sh", "-c"):
        with contextlib.suppress(ValueError):  # an open quote
            words = shlex.split(argv[-1])
    for word in words:
        with contextlib.suppress(OSError, ValueError):
            if os.path.isfile(word):
                with open(word, "rb") as file:
                    digest.update(file.read(_HASHED_BYTES))
    return digest.hexdigest()


class Run:
    """One process of a program, which ends with it, with its time, or with the connection."""

    def __init__(self, request: Dict[str, Any], *, is_line: bool = False) -> None:
        patterns = {name: re.compile(text.encode()) for name, text in request["patterns"].items()}
        self._argv: List[str] = request["argv"]
        self._limit_s: float = request["limit_s"]
        self._output = Output(patterns, log=2)
        self._is_line = is_line
        self._prepare: str = request.get("prepare") or ""
        self._conclude: str = request.get("conclude") or ""
        self._around_ns = 0  # taken by these two
        self._written: List[str] = []
        self._container = os.environ.pop(CONTAINER, "")  # its engine, and a file with its ID
        self._is_client = is_line and bool(_ENGINES.search(self._argv[-1]))
        self._watch = self._make_watch() if request.get("watch") else None
        self._is_late = False
        self._is_leaving = False
        self._settling_ns = 0
        self._pid = 0
        self._floor_kib = 0
        self._has_started = threading.Event()
        self._reaping = threading.Lock()
        self._is_reaped = False

    def reply(self) -> Dict[str, Any]:
        """Run it and return its times and resources."""
        path = find(self._argv[0])
        self._run_around("--prepare", self._prepare)
        began_s = time.time() - _TICK_S
        (start_ns, end_ns), status, used = self._run(path)
        has_ended = self._output.finish(_DRAIN_S)
        seen, seeing_ns = self._seen(began_s)
        self._run_around("--conclude", self._conclude)
        code = os.waitstatus_to_exitcode(status)
        return {
            "t0_ns": start_ns,
            "wall_ns": end_ns - start_ns,
            # a container is no child of the client that starts it
            "user_ns": None if self._is_client else round(used.ru_utime * 1e9),
            "sys_ns": None if self._is_client else round(used.ru_stime * 1e9),
            "max_rss_bytes": None
            if self._is_client or used.ru_maxrss <= self._floor_kib
            else used.ru_maxrss * 1024,
            "exit_code": code if code >= 0 else 128 - code,
            "signal": signal.Signals(-code).name if code < 0 else None,
            "is_late": self._is_late,
            "left_processes": self._is_leaving or not has_ended,
            "settling_ns": self._settling_ns
            + self._output.searching_ns
            + seeing_ns
            + self._around_ns,
            "values": self._output.values,
            "slow_measures": self._output.slow,
            "fingerprint": seen,
            "written": self._written,
        }

    def _run_around(self, option: str, line: str) -> None:
        """Run a line of the shell before or after the program, outside its time."""
        if not line:
            return
        start_ns = time.monotonic_ns()
        limit_s = max(_LEAST_AROUND_S, self._limit_s)  # at the end of a budget, the latter is short
        with phase("setup"):
            words = ["sh", "-c", line]
            try:
                done = subprocess.run(
                    words, stdin=subprocess.DEVNULL, stdout=2, timeout=limit_s, check=False
                )
            except subprocess.TimeoutExpired as error:
                raise ProcessError(
                    f"the line of {option} did not end within {limit_s:.0f} s"
                ) from error
            if done.returncode:
                raise ProcessError(
                    f"the line of {option} ended with exit code {done.returncode}",
                    hint=f"run it by hand: {line}",
                )
        self._around_ns += time.monotonic_ns() - start_ns

    def _seen(self, began_s: float) -> Tuple[Dict[str, Any], int]:
        """Return the facts from the watch, and how long reading them took; note written files."""
        start_ns = time.monotonic_ns()
        found = self._watch.facts() if self._watch else {}
        if self._watch and self._is_line:
            self._written = _written_since(began_s)
        return found, time.monotonic_ns() - start_ns

    def _run(self, path: str) -> Tuple[Tuple[int, int], int, resource.struct_rusage]:
        if not self._is_line:
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # as the launcher itself keeps none
        # Threads are there before the clock starts: their start would disturb a short program.
        timer = threading.Timer(self._limit_s, self._end_late)
        timer.daemon = True  # else it would keep a launcher whose program cannot be started
        threads = [timer, self._output, threading.Thread(target=self._end_with_input, daemon=True)]
        for thread in (*threads, *([self._watch] if self._watch else [])):
            thread.start()
        start_ns = time.monotonic_ns()
        with phase("setup"):
            process = subprocess.Popen(
                _words(self._argv, path),
                executable=path,
                stdin=subprocess.DEVNULL,
                stdout=self._output.sink,
                stderr=self._output.sink,
                start_new_session=True,
            )
        self._pid = process.pid
        self._has_started.set()
        if self._watch:
            self._watch.begin(self._pid)
        # exec keeps the peak of the process it replaces, here this launcher (getrusage(2))
        self._floor_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + _RSS_ERROR_KIB
        # `leave` may reap it meanwhile, and this process then ends while it waits for the lock
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
        end_ns = time.monotonic_ns()
        timer.cancel()
        self._is_leaving = not _settles(self._pid)
        self._settling_ns = time.monotonic_ns() - end_ns
        # What is left would disturb the next process. Its ID is not reused before it is reaped.
        self._kill()
        with self._reaping:
            _, status, used = os.wait4(self._pid, 0)
            self._is_reaped = True
        process.returncode = status  # keeps Popen from waiting for it again
        return (start_ns, end_ns), status, used

    def _make_watch(self) -> Watch:
        # a launch that measures does without
        from harness.watching import Container, Watch  # noqa: PLC0415

        container = Container(*self._container.split("\n")) if self._container else None
        return Watch(container, is_line=self._is_line)

    def _end_with_input(self) -> None:
        while os.read(0, 4096):
            pass
        self._has_started.wait()
        with self._reaping:  # held until the end, so that no answer follows
            self._kill_unreaped()
            leave(0)

    def _end_late(self) -> None:
        self._has_started.wait()
        self._is_late = True
        self._kill()

    def _kill(self) -> None:
        with self._reaping:
            self._kill_unreaped()

    def _kill_unreaped(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if not self._is_reaped:  # else another process may have the number
                os.killpg(self._pid, signal.SIGKILL)


def _written_since(began_s: float) -> List[str]:
    """Return a few files below the current folder that were written since a time.

    Skips byte code, hidden folders and run folders, and stops after a second.
    """
    found: List[str] = []
    until_s, ended_s = time.monotonic() + _WALK_LIMIT_S, time.time()
    for folder, below, names in os.walk("."):
        if "run.json" in names:
            below.clear()
            continue
        below[:] = [one for one in below if one != "__pycache__" and one[0] != "."]
        for name in names:
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                if began_s <= os.lstat(path).st_mtime <= ended_s:
                    found.append(path[2:])
        if len(found) >= _MOST_WRITTEN or time.monotonic() > until_s:
            break
    return sorted(found)[:_MOST_WRITTEN]


def _words(argv: List[str], path: str) -> List[str]:
    """Return the program's argv; for the arm's Python, argv[0] is its path.

    From the bare name it would search PATH, where `python` may be another one or missing.
    """
    return [path, *argv[1:]] if argv[0] in PYTHONS else argv


def _settles(group: int) -> bool:
    """Return whether all processes of a group end within moments."""
    until_s = time.monotonic() + _SETTLE_S
    while _is_alive(group):
        if time.monotonic() >= until_s:
            return False
        time.sleep(_LOOK_EVERY_S)
    return True


def _is_alive(group: int) -> bool:
    """Tell whether a process of the group runs; in a container nobody may reap those that ended."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                state, _, number = file.read().rpartition(b")")[2].split()[:3]
                if int(number) == group and state not in _ENDED:
                    return True
    return False
