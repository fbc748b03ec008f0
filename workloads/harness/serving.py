"""Protocol 1 over stdin and stdout: `hello`, `gen`, `run`, `profile`, `facts`, `end`, `quit`."""

from __future__ import annotations

import os
import resource
import signal
import time
from typing import Any, Callable, Union

from harness.failures import PhaseError, ProtocolError, failure_reply, phase
from harness.generation import Job, peak_rss_bytes, used_times_ns
from harness.greeting import greet, take_fingerprint
from harness.places import Forked, Rebuilt, is_last
from harness.wire import encode, exit_when_ended, parse_request, read_line, send


def serve(entry_ns: int, sink: int) -> int:
    """Answer the requests on stdin through the descriptor `sink`; return the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the controller ends a worker, by its stdin
    source = os.dup(0)
    # The workload, and what it starts, must not read requests.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return Server(entry_ns, source=source, sink=sink).serve()


class Server:
    """Holds what was settled in `hello`, and the generation that is alive."""

    def __init__(self, entry_ns: int, *, source: int, sink: int) -> None:
        self._entry_ns = entry_ns
        self._source = source
        self._sink = sink
        self._job: Job | None = None
        self._forks = False
        self._place: Union[Rebuilt, Forked, None] = None

    def serve(self) -> int:
        """Answer requests until `quit` or the end of the input."""
        while True:
            op = None
            try:
                with phase("protocol"):
                    line = read_line(self._source)
                    if line is None:
                        break
                    request = parse_request(line)
                    op = request["op"]
                    reply = self._answer(request)
            except PhaseError as error:
                reply = failure_reply(op, error)
            send(self._sink, encode(reply))
            if op == "quit":
                break
        self._close()
        return 0

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        ops: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "hello": self._hello,
            "gen": self._gen,
            "run": self._forward,
            "profile": self._forward,
            "facts": self._facts,
            "end": self._forward,
            "quit": self._quit,
        }
        op = request["op"]
        if op not in ops:
            raise ProtocolError(f"no operation {op!r}; there are {', '.join(ops)}")
        return ops[op](request)

    def _hello(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._job is not None:
            raise ProtocolError("hello was said already")
        with exit_when_ended(self._source):
            job, fields = greet(request)
        self._job, self._forks = job, fields["generation"] == "fork"
        head = {"op": "hello", "ok": True, "protocol": 1, "pid": os.getpid()}
        clocks = {"entry_ns": self._entry_ns, "now_ns": time.monotonic_ns()}
        return {**head, **clocks, **fields}

    def _gen(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._job is None:
            raise ProtocolError("the first request must be hello")
        if self._place is not None:
            raise ProtocolError("a generation is alive; end it first")
        with phase("process"):
            if self._forks:
                self._place = Forked(self._job, source=self._source, sink=self._sink)
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
