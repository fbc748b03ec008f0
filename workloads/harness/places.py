"""Where a generation runs: in a fork that is reached over a socket, or in the worker itself."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import time
import traceback
from typing import Any, Callable, NoReturn, Set

from harness import torchparts
from harness.failures import HintedError, PhaseError, ProcessError, failure_reply
from harness.generation import Generation, Job
from harness.tasks import (
    Tasks,
    adopt_orphans,
    end_offspring,
    has_started_any,
    offspring,
    wake_with_parent,
)
from harness.wire import (
    encode,
    ended,
    exit_when_ended,
    flush_prints,
    leave,
    parse_request,
    read_line,
    send,
)

GRACE_S = 2.0
_LOOK_MS = 1000  # how often to check that a silent child is still alive
_OUT_OF_MEMORY = (
    "out of memory is the usual cause: reduce its work, such as by a smaller batch, or raise the "
    "limit"
)


def unsafe_to_fork(device: str) -> str | None:
    """Return why a generation must not be a fork of this process, or None.

    A fork copies only the calling thread, so locks held by other threads stay locked for ever, and
    CUDA does not survive a fork at all (CUDA C++ Programming Guide; torch.multiprocessing).
    Processes that this process has started are not children of the fork, which could not stop them.
    """
    if device == "cuda" and torchparts.is_gpu_in_use():
        return "CUDA is in use in the template"
    try:
        threads = len(os.listdir("/proc/self/task"))
    except OSError:
        return "the threads of the template cannot be counted"
    if threads != 1:
        return f"{threads} threads live in the template"
    return "the template has started a process that lives" if has_started_any(os.getpid()) else None


def is_last(reply: dict[str, Any]) -> bool:
    """Return whether a generation is over with this reply."""
    return reply["op"] == "end" or not reply["ok"]


def in_fork(compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Compute in a fork of this process, so that threads and CUDA contexts do not stay here.

    Raises ProcessError with the message of the failure, or with how the fork ended.
    """
    flush_prints()
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(source)
        try:
            reply: dict[str, Any] = {"found": compute()}
        except HintedError as error:
            reply = {"failed": str(error), "hint": error.hint}
        except BaseException as error:  # noqa: BLE001  a fork must never go on as this process
            traceback.print_exc()
            reply = {"failed": f"{type(error).__name__}: {error}", "hint": ""}
        with os.fdopen(sink, "wb") as pipe:
            pipe.write(encode(reply))
        leave(0)
    os.close(sink)
    with os.fdopen(source, "rb") as pipe:
        line = pipe.read()
    _, status = os.waitpid(child, 0)
    if not line:
        raise ProcessError(f"a fork of the worker {_ending(status)}")
    result: dict[str, Any] = json.loads(line)
    if "failed" in result:
        raise ProcessError(result["failed"], hint=result["hint"])
    found: dict[str, Any] = result["found"]
    return found


class Rebuilt:
    """A generation in the worker's own process."""

    def __init__(self, job: Job, source: int) -> None:
        self._source = source
        self._tasks = Tasks(os.getpid(), ranks=job.workload.processes, pipe=source)
        self._generation = Generation(job)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the reply; end the process if the input ends meanwhile."""
        with exit_when_ended(self._source):
            reply = _in_turn(self._tasks, request, lambda: self._generation.answer(request))
        if request["op"] == "gen":
            reply["spawn_ns"] = 0
        return reply

    def close(self) -> None:
        """Drop what the generation holds."""
        self._tasks.resume()
        self._generation.discard()


class Forked:
    """A child of this process that answers requests over its own socket.

    The child never holds the worker's stdin and stdout. This process waits while the child computes
    and kills it if the worker's input ends meanwhile. If `ranks` is given, the number of processes
    that the workload declares, the child is watched between its turns and can be stopped there.
    """

    def __init__(  # noqa: PLR0913 — what it does, how it ends, and over which descriptors
        self,
        serve: Callable[[int, int], None],
        *,
        what: str,
        is_last: Callable[[dict[str, Any]], bool],
        source: int,
        sink: int,
        ranks: int | None = None,
    ) -> None:
        """Fork; the child calls `serve` with its socket and the time before the fork, in ns."""
        self._source = source
        self._what = what
        self._is_last = is_last
        self._others = offspring(os.getpid())
        here, there = socket.socketpair()
        # Without the freeze the child's collector would touch, and so copy, every page it shares.
        gc.collect()
        gc.freeze()
        flush_prints()
        forked_ns = time.monotonic_ns()
        self._child = os.fork()
        if self._child == 0:
            unneeded = {here.detach(), source, sink}  # one end may be both
            _live(lambda: serve(there.detach(), forked_ns), closing=unneeded)
        there.close()
        self._socket = here
        self._tasks = None if ranks is None else Tasks(self._child, ranks=ranks)

    @property
    def is_over(self) -> bool:
        """Return whether the child has ended and was reaped."""
        return self._child == 0

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the child's reply, or the one that says how it died.

        A finished child is reaped before the reply is sent: freeing its memory must not slow a
        block of another arm.
        """
        if self._tasks is None:
            return self._exchange(request)
        return _in_turn(self._tasks, request, lambda: self._exchange(request))

    def _exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        with contextlib.suppress(OSError):
            self._socket.sendall(encode(request))
        self._wait_for_reply()
        line = self._receive_line()
        if line:
            reply: dict[str, Any] = json.loads(line)
            if self._is_last(reply):
                self._reap()
            return reply
        error = PhaseError("process")
        status = self._reap()
        is_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        error.__cause__ = ProcessError(
            f"the process of the {self._what} {_ending(status)}", hint=_OUT_OF_MEMORY * is_killed
        )
        return failure_reply(request["op"], error)

    def close(self) -> None:
        """Wait for the child to end, kill it if it does not, and reap it."""
        if self._child and self._tasks is not None:
            self._tasks.resume()
        self._socket.close()
        limit_s = time.monotonic() + GRACE_S
        while self._child and time.monotonic() < limit_s:
            if self._has_ended():
                self._reap()
            time.sleep(0.001)
        if self._child:
            os.kill(self._child, signal.SIGKILL)
            self._reap()

    def _has_ended(self) -> bool:
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._child, how) is not None

    def _wait_for_reply(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._source, select.POLLRDHUP)
        while self._socket.fileno() not in (ready := dict(poll.poll(_LOOK_MS))):
            if ended(self._source):
                leave(0)
            if ready:
                # The input is closed, but requests in it must still be answered.
                poll.unregister(self._source)
            elif self._has_ended():
                # its descendants may hold its end of the socket
                end_offspring(keeping=(*self._others, self._child))

    def _receive_line(self) -> bytes:
        """Return the child's line, or nothing if it died before the line was complete."""
        line = b""
        with contextlib.suppress(ConnectionError):
            while not line.endswith(b"\n"):
                chunk = self._socket.recv(1 << 16)
                if not chunk:
                    return b""
                line += chunk
        return line

    def _reap(self) -> int:
        """Wait for the child to end, and kill what it left running."""
        _, status = os.waitpid(self._child, 0)
        self._child = 0
        end_offspring(keeping=self._others)
        return status


def _live(serve: Callable[[], None], *, closing: Set[int]) -> NoReturn:
    """Serve, then exit: a child must never continue as a second parent."""
    try:
        adopt_orphans()
        wake_with_parent()  # it then sees the closed socket and exits
        for fd in closing:
            os.close(fd)
        serve()
    except BaseException:  # noqa: BLE001  as above
        traceback.print_exc()
        leave(1)
    leave(0)


def serve_generation(job: Job, fd: int, forked_ns: int) -> None:
    """Answer over `fd` until the generation is over or the template is gone."""
    spawn_ns = time.monotonic_ns() - forked_ns
    generation = Generation(job)
    over = False
    while not over:
        line = read_line(fd)
        if line is None:
            break
        with exit_when_ended(fd):
            reply = generation.answer(parse_request(line))
        if reply["op"] == "gen":
            reply["spawn_ns"] = spawn_ns
        over = is_last(reply)
        send(fd, encode(reply))


def _in_turn(
    tasks: Tasks, request: dict[str, Any], answer: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Continue what was stopped, and return the reply to a request.

    For a block, also report what runs besides the steps; if the request has `stops`, stop all
    processes afterwards.
    """
    is_block = request["op"] == "run"
    outside: dict[str, Any] = {"is_stopped": tasks.is_stopped}
    if is_block:
        outside.update(tasks.begin())
    tasks.resume()
    reply = answer()
    if not reply["ok"]:
        return reply
    if request.get("stops") is True:
        tasks.stop()
    if is_block:
        reply.update(**outside, **tasks.end(reply.pop("python")))
    return reply


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"was killed by signal {number} ({signal.Signals(number).name})"
    return f"ended with exit code {os.WEXITSTATUS(status)}"
