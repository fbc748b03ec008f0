"""Protocol 1 over stdin and stdout.

The requests are `hello`, `gen`, `run`, `evaluate`, `profile`, `facts`, `end` and `quit`.
After `import` the worker stays: from `hello` to `quit` a fork of it answers, and there may be many.
"""

from __future__ import annotations

import functools
import os
import resource
import signal
import time
from typing import Any, Callable, Optional, Union

from harness.failures import PhaseError, ProtocolError, failure_reply, phase
from harness.generation import Job, peak_rss_bytes, used_times_ns
from harness.greeting import greet, import_ahead, take_fingerprint
from harness.places import Forked, Rebuilt, is_last, serve_generation
from harness.tasks import adopt_orphans, end_offspring, wake_with_parent
from harness.wire import encode, exit_when_ended, leave, parse_request, read_line, send

_CLOSED = -1


def serve(entry_ns: int, sink: int) -> int:
    """Answer the requests on stdin through the descriptor `sink`; return the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the controller ends a worker, by its stdin
    adopt_orphans()  # before the import of a workload, which may start some
    source = os.dup(0)
    # The workload, and what it starts, must not read requests.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return Server(entry_ns, source=source, sink=sink).serve()


class Server:
    """Holds the settings from `hello`, and the live generation or fork."""

    def __init__(self, entry_ns: int, *, source: int, sink: int) -> None:
        self._entry_ns = entry_ns
        self._source = source
        self._sink = sink
        self._job: Job | None = None
        self._forks = False
        self._place: Union[Rebuilt, Forked, None] = None
        self._stays = False
        self._fork: Optional[Forked] = None  # that answers from `hello` to `quit`

    def serve(self) -> int:
        """Answer requests until `quit` or the end of the input."""
        while True:
            op, is_for_fork = None, False
            try:
                with phase("protocol"):
                    line = read_line(self._source)
                    if line is None:
                        self._close()
                        leave(0)
                    request = parse_request(line)
                    op = request["op"]
                    is_for_fork = self._fork is not None
                    reply = self._answer(request)
            except PhaseError as error:
                reply = failure_reply(op, error)
            send(self._sink, encode(reply))
            if op == "quit" and not is_for_fork:
                break
        self._close()
        end_offspring()
        return 0

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._fork is not None:
            return self._ask_fork(request)
        ops: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "import": self._import,
            "hello": self._hello,
            "gen": self._gen,
            "run": self._forward,
            "evaluate": self._forward,
            "profile": self._forward,
            "facts": self._facts,
            "end": self._forward,
            "quit": self._quit,
        }
        op = request["op"]
        if op not in ops:
            raise ProtocolError(f"no operation {op!r}; there are {', '.join(ops)}")
        return ops[op](request)

    def _import(self, request: dict[str, Any]) -> dict[str, Any]:
        """Import what all cells need; stay if this process can be forked safely."""
        if self._job is not None or self._stays:
            raise ProtocolError("import must be the first request")
        with exit_when_ended(self._source):
            found = import_ahead(request)
        self._stays = found["stays"]
        return {**self._head("import"), **found}

    def _ask_fork(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._fork is not None
        reply = self._fork.ask(request)
        if self._fork.is_over:
            self._fork.close()
            self._fork = None
        return reply

    def _hello(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._job is not None:
            raise ProtocolError("hello was said already")
        if self._stays:
            self._fork = Forked(
                _serve_fork, what="worker", is_last=_is_quit, source=self._source, sink=self._sink
            )
            return self._ask_fork(request)
        with exit_when_ended(self._source):
            job, fields = greet(request)
        self._job, self._forks = job, fields["generation"] == "fork"
        if not self._forks:
            os.register_at_fork(after_in_child=self._let_go)
        return {**self._head("hello"), **fields}

    def _let_go(self) -> None:
        """Close the pipes of the protocol in a fork that the workload makes.

        Else the client would not see the end of this process, and a stopped fork would stay so.
        """
        wake_with_parent()
        for fd in dict.fromkeys((self._sink, self._source)):  # the source last: see Tasks
            if fd != _CLOSED:
                os.close(fd)
        self._source = self._sink = _CLOSED  # a fork of the fork may use their numbers otherwise

    def _head(self, op: str) -> dict[str, Any]:
        """Return the fields of the first reply of a new process: its ID and its clock."""
        head = {"op": op, "ok": True, "protocol": 1, "pid": os.getpid()}
        return {**head, "entry_ns": self._entry_ns, "now_ns": time.monotonic_ns()}

    def _gen(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._job is None:
            raise ProtocolError("the first request must be hello")
        if self._place is not None:
            raise ProtocolError("a generation is alive; end it first")
        with phase("process"):
            if self._forks:
                self._place = Forked(
                    functools.partial(serve_generation, self._job),
                    what="generation",
                    is_last=is_last,
                    source=self._source,
                    sink=self._sink,
                    ranks=self._job.workload.processes,
                )
            else:
                self._place = Rebuilt(self._job, self._source)
        return self._forward(request)

    def _forward(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._place is None:
            raise ProtocolError("no generation is alive; begin one with gen")
        reply = self._place.ask(request)
        if is_last(reply):
            self._close()
        return reply

    def _facts(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer from the process that has run steps; from this one where none is alive."""
        if self._place is not None:
            return self._forward(request)
        with exit_when_ended(self._source):
            found = take_fingerprint(self._job)
        return {"op": "facts", "ok": True, "steps": 0, "fingerprint": found}

    def _quit(self, _request: dict[str, Any]) -> dict[str, Any]:
        self._close()
        own = used_times_ns(resource.RUSAGE_SELF)
        children = used_times_ns(resource.RUSAGE_CHILDREN)
        return {
            "op": "quit",
            "ok": True,
            "user_ns": own[0] + children[0],
            "sys_ns": own[1] + children[1],
            "max_rss_bytes": max(
                map(peak_rss_bytes, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
            ),
        }

    def _close(self) -> None:
        if self._place is not None:
            self._place.close()
            self._place = None
        if self._fork is not None:
            self._fork.close()
            self._fork = None


def _serve_fork(fd: int, forked_ns: int) -> None:
    Server(forked_ns, source=fd, sink=fd).serve()


def _is_quit(reply: dict[str, Any]) -> bool:
    return bool(reply["op"] == "quit")
