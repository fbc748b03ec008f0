"""Where work is done: in a fork that is asked over a socket, or in the worker itself."""

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
from harness.blockclock import span_turn
from harness.failures import HintedError, PhaseError, ProcessError, failure_reply
from harness.generation import Generation, Job
from harness.wire import (
    before_leaving,
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
_OUT_OF_MEMORY = (
    "out of memory is the usual cause: reduce its work, such as by a smaller batch, or raise the "
    "limit"
)


def unsafe_to_fork(device: str) -> str | None:
    """Return why a generation must not be a fork of this process, or None.

    A fork copies only the calling thread, so that locks of the others stay locked for ever, and
    CUDA does not survive it at all (CUDA C++ Programming Guide; torch.multiprocessing).
    """
    if device == "cuda" and torchparts.is_gpu_in_use():
        return "CUDA is in use in the template"
    try:
        threads = len(os.listdir("/proc/self/task"))
    except OSError:
        return "the threads of the template cannot be counted"
    return None if threads == 1 else f"{threads} threads live in the template"


def is_last(reply: dict[str, Any]) -> bool:
    """Return whether a generation is over with this reply."""
    return reply["op"] == "end" or not reply["ok"]


def in_fork(compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what a fork of this process computes, so that what it starts does not stay here.

    Raises ProcessError with the words of what failed there, or how the fork ended.
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
    told: dict[str, Any] = json.loads(line)
    if "failed" in told:
        raise ProcessError(told["failed"], hint=told["hint"])
    found: dict[str, Any] = told["found"]
    return found


class Rebuilt:
    """A generation in the worker's own process."""

    def __init__(self, job: Job, source: int) -> None:
        self._source = source
        self._generation = Generation(job)
        before_leaving.append(self._generation.resume)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the reply; end the process where the input ends meanwhile."""
        began_ns = time.monotonic_ns()
        with exit_when_ended(self._source):
            reply = self._generation.answer(request)
        if request["op"] == "gen":
            reply["spawn_ns"] = 0
        if _stops(request):
            span_turn(reply, began_ns, time.monotonic_ns())
        return reply

    def close(self) -> None:
        """Drop what the generation holds."""
        self._generation.discard()


class Forked:
    """A child of this process that answers requests, reached over a socket of its own.

    The child never holds the worker's stdin and stdout. This process waits while it computes, and
    kills it where the worker's input ends meanwhile. One that `halts` stops the child as a whole
    after each block that asks for it: no thread of it works while other arms have their turns.
    """

    def __init__(  # noqa: PLR0913 — what it does, how it ends, and over which descriptors
        self,
        serve: Callable[[int, int], None],
        *,
        what: str,
        is_last: Callable[[dict[str, Any]], bool],
        source: int,
        sink: int,
        halts: bool = False,
    ) -> None:
        """Fork; the child calls `serve` with its socket and the time before the fork, in ns."""
        self._source = source
        self._what = what
        self._is_last = is_last
        self._halts = halts
        self._is_halted = False
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

    @property
    def is_over(self) -> bool:
        """Return whether the child has ended and was reaped."""
        return self._child == 0

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the child's reply, or the one that says how it died.

        A child that is over is reaped before the reply is handed on, so that the freeing of its
        memory falls into nobody's block.
        """
        began_ns = time.monotonic_ns()
        if self._is_halted:
            request = {**request, "is_halted": True}
            self._resume()
        with contextlib.suppress(OSError):
            self._socket.sendall(encode(request))
        self._wait_for_reply()
        line = self._receive_line()
        if line:
            reply: dict[str, Any] = json.loads(line)
            if self._is_last(reply):
                self._reap()
            elif self._halts and _stops(request):
                self._halt()
                span_turn(reply, began_ns, time.monotonic_ns())
            return reply
        error = PhaseError("process")
        status = self._reap()
        is_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        error.__cause__ = ProcessError(
            f"the process of the {self._what} {_ending(status)}", hint=_OUT_OF_MEMORY * is_killed
        )
        return failure_reply(request["op"], error)

    def close(self) -> None:
        """Let the child end, kill it where it does not, and reap it."""
        self._resume()
        self._socket.close()
        limit_s = time.monotonic() + GRACE_S
        while self._child and time.monotonic() < limit_s:
            if os.waitpid(self._child, os.WNOHANG)[0]:
                self._child = 0
            time.sleep(0.001)
        if self._child:
            os.kill(self._child, signal.SIGKILL)
            self._reap()

    def _halt(self) -> None:
        """Stop the child, and wait until all its threads stand or it has ended."""
        os.kill(self._child, signal.SIGSTOP)
        os.waitid(os.P_PID, self._child, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self._is_halted = True

    def _resume(self) -> None:
        if self._is_halted and self._child:
            os.kill(self._child, signal.SIGCONT)
        self._is_halted = False

    def _wait_for_reply(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._source, select.POLLRDHUP)
        while all(fd != self._socket.fileno() for fd, _ in poll.poll()):
            if ended(self._source):
                os.kill(self._child, signal.SIGKILL)
                leave(0)
            # Closed, but with requests still to be read: they are answered first.
            poll.unregister(self._source)

    def _receive_line(self) -> bytes:
        """Return the child's line, or nothing where it died before the line was whole."""
        line = b""
        with contextlib.suppress(ConnectionError):
            while not line.endswith(b"\n"):
                chunk = self._socket.recv(1 << 16)
                if not chunk:
                    return b""
                line += chunk
        return line

    def _reap(self) -> int:
        _, status = os.waitpid(self._child, 0)
        self._child = 0
        return status


def _live(serve: Callable[[], None], *, closing: Set[int]) -> NoReturn:
    """Serve and end: a child must never go on as a second parent."""
    try:
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
    before_leaving.append(generation.resume)  # also where its reply finds nobody any more
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


def _stops(request: dict[str, Any]) -> bool:
    return request["op"] == "run" and request.get("stops") is True


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"was killed by signal {number} ({signal.Signals(number).name})"
    return f"ended with exit code {os.WEXITSTATUS(status)}"
