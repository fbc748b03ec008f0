"""Protocol 1 for a user's line: its script takes the steps, and waits between blocks.

A generation is one process of the line, whose gate (`harness/stepgate.py`) connects once PyTorch
has taken its first steps.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import time
from typing import Any, Callable, Dict, Optional

from harness.attempts import attempt
from harness.facts.cgroups import limits, read_text
from harness.facts.machine import machine
from harness.failures import (
    ExhaustedError,
    PhaseError,
    ProcessError,
    ProtocolError,
    failure_reply,
    phase,
)
from harness.output import Output
from harness.programs import CONTAINER, LINE, OF_A_PROCESS
from harness.stepgate import SEVERAL, STEP_FILE, short_path
from harness.tasks import adopt_orphans, end_offspring
from harness.watching import Container
from harness.wire import encode, ended, leave, parse_request, read_line, send

_PROBE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "probe")
_LOOK_S = 0.2
_DRAIN_S = 1.0
_END_S = 10.0  # for an engine to remove a container
_NO_STEP_HINT = (
    "name a function with --step, or leave --lockstep out: it needs at least 6 steps of an "
    "optimizer of PyTorch 2.0 or later (2.3 with torch.compile) in the main thread, and a Python "
    "that reads PYTHONPATH (no -I, -E or -S); with SELinux add --security-opt label=disable"
)
_NO_CALL_HINT = (
    "too few calls of {} were seen in the main thread: write __main__ for the script itself, and "
    "name a function that runs often, takes most of the time, and is looked up by its name"
)
_MORE_HINT = "train for more steps or epochs, or time whole processes: no --lockstep, no --step"
_WHOLE_HINT = "time whole processes: leave --lockstep and --step out"
_LOG_HINT = "see its output in the log"
_FAILED_HINT = "it failed by itself: see its output in the log"
_CHUNK_BYTES = 1 << 16
_MOST_BYTES = 16 << 20  # of an answer, with the times of all its steps


class Stepper:
    """Answers requests on stdin through `sink`."""

    def __init__(self, entry_ns: int, sink: int) -> None:
        self._entry_ns = entry_ns
        self._sink = sink
        adopt_orphans()  # what outlives its parent is still found, and ended
        self._line = os.environ.pop(LINE)
        self._folder = os.environ["ENVCOMPARE_GATE"]  # for the program, if it is on this host
        self._container = os.environ.pop(CONTAINER, "")
        own = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_PROBE, own)))
        self._step = ""
        self._generation: Optional[_Process] = None

    def serve(self) -> int:
        """Answer until `quit` or the end of the input; return the exit code."""
        while True:
            op = None
            try:
                with phase("protocol"):
                    line = read_line(0)
                    if line is None:
                        self._close()
                        leave(0)
                    request = parse_request(line)
                    op = request["op"]
                    reply = self._answer(request)
            except PhaseError as error:
                reply = failure_reply(op, error)
            send(self._sink, encode(reply))
            if op == "quit":
                return 0

    def _answer(self, request: Dict[str, Any]) -> Dict[str, Any]:
        ops: Dict[str, Callable[[Dict[str, Any]], Dict[str, Any]]] = {
            "import": self._import,
            "hello": self._hello,
            "gen": self._begin,
            "run": self._forward,
            "facts": self._facts,
            "end": self._end,
            "quit": self._quit,
        }
        op = request["op"]
        if op not in ops:
            raise ProtocolError(f"no operation {op!r} for a line; there are {', '.join(ops)}")
        return {"op": op, "ok": True, **ops[op](request)}

    def _head(self) -> Dict[str, Any]:
        return {
            "protocol": 1,
            "pid": os.getpid(),
            "entry_ns": self._entry_ns,
            "now_ns": time.monotonic_ns(),
            "import_ns": 0,
        }

    def _import(self, _request: Dict[str, Any]) -> Dict[str, Any]:
        return {**self._head(), "stays": False, "why_not": "each generation is a new process"}

    def _hello(self, request: Dict[str, Any]) -> Dict[str, Any]:
        with phase("setup"):
            os.chdir(request["cwd"])
        self._step = request.get("step", "")
        self._start()
        found: Optional[Dict[str, Any]] = None
        if request.get("fingerprint"):  # turns depend on the limits of the program
            found = self._outside()
        return {
            **self._head(),
            "data_ns": 0,
            "generation": "rebuild",
            "generation_reason": "each generation is a new process",
            "device": self._alive().device,
            "batch": 1,
            "code_hash": request["workload"],
            "params": self._alive().work,
            "fingerprint": found,
        }

    def _start(self) -> None:
        with phase("setup"):
            self._generation = _Process(self._line, self._folder, self._step)
            try:
                self._generation.wait_for_gate()
            except BaseException:
                self._close()
                raise

    def _begin(self, _request: Dict[str, Any]) -> Dict[str, Any]:
        process = self._alive()
        return {
            "pid": process.pid,
            "spawn_ns": 0,
            "build_ns": 0,  # it has begun with `hello`
            "first_step_ns": process.step_ns,
            "checksum": None,
        }

    def _alive(self) -> _Process:
        if self._generation is None:
            raise ProtocolError("no generation is alive; begin one with hello")
        return self._generation

    def _forward(self, request: Dict[str, Any]) -> Dict[str, Any]:
        with phase("step"):
            try:
                return self._alive().ask(request)
            except ProcessError:
                self._close()
                raise

    def _facts(self, request: Dict[str, Any]) -> Dict[str, Any]:
        process = self._alive()
        with phase("step"):
            answer = process.ask(request)
        known = {key: value for key, value in self._outside().items() if value is not None}
        found = {**answer["facts"], **known}
        found["script.start_ms"] = process.start_ns // 10**6
        path = str(found.pop("env.PYTHONPATH", ""))
        own = [one for one in path.split(os.pathsep) if one and not one.endswith("harness/probe")]
        if own:
            found["env.PYTHONPATH"] = os.pathsep.join(own)
        if self._container:
            container = Container(*self._container.split("\n"))
            container.ask()
            container.facts.pop("container.start_ms", None)
            found.update(container.facts)
        return {"steps": answer["steps"], "fingerprint": found}

    def _outside(self) -> Dict[str, Any]:
        """Return what is read without the rights of the program."""
        pid = self._alive().pid
        facts = {key: value for key, value in machine().items() if key not in OF_A_PROCESS}
        # 0, of another table of processes, would be this process
        cpus = attempt(lambda: sorted(os.sched_getaffinity(pid))) if pid else None
        return {**facts, **limits(str(pid)), "cpu.affinity": cpus}

    def _end(self, request: Dict[str, Any]) -> Dict[str, Any]:
        process = self._alive()
        peak = re.search(r"VmHWM:\s*(\d+) kB", read_text(f"/proc/{process.pid}/status") or "")
        with phase("step"):
            process.ask(request)
        self._close()
        return {"max_rss_bytes": int(peak[1]) * 1024 if peak else 0}

    def _quit(self, _request: Dict[str, Any]) -> Dict[str, Any]:
        self._close()
        return {"user_ns": 0, "sys_ns": 0, "max_rss_bytes": 0}

    def _close(self) -> None:
        if self._generation is not None:
            self._generation.close()
            self._generation = None


def _make_readable(folder: str) -> None:
    """Let every user read a folder: a container may run as another one."""
    for here, _, names in os.walk(folder):
        with contextlib.suppress(OSError):  # another user has already done it
            os.chmod(here, 0o755)  # noqa: S103
            for name in names:
                os.chmod(os.path.join(here, name), 0o644)


class _Process:
    """One process of the line, and the connection to its gate."""

    def __init__(self, line: str, folder: str, step: str) -> None:
        self.pid = 0
        self.step_ns = 0  # of the last step before its first turn
        self.start_ns = 0  # from the start of the line to this step
        self.device = "cpu"
        self.work: Dict[str, Any] = {}
        self._folder = folder
        self._step = step
        self._gate: Optional[socket.socket] = None
        self._pending = b""
        self._output = Output({}, log=2)
        self._output.start()
        _make_readable(os.path.dirname(_PROBE))
        self._listener = socket.socket(socket.AF_UNIX)
        os.chmod(folder, 0o711)  # noqa: S103  a program in a container may have another user
        with short_path(folder) as path:
            with contextlib.suppress(OSError):
                os.unlink(path)
            self._listener.bind(path)
            os.chmod(path, 0o666)  # noqa: S103
        self._listener.listen(64)
        with open(os.path.join(folder, STEP_FILE), "w", encoding="utf-8") as file:
            file.write(step)
        os.chmod(file.name, 0o644)
        self._began_ns = time.monotonic_ns()
        self._process = subprocess.Popen(
            ["sh", "-c", line],
            stdin=subprocess.DEVNULL,
            stdout=self._output.sink,
            stderr=self._output.sink,
            start_new_session=True,
        )

    def wait_for_gate(self) -> None:
        """Wait until the script has taken its first steps; raises ProcessError if it ends."""
        self._await(self._listener)
        self._gate, _ = self._listener.accept()
        self.start_ns = time.monotonic_ns() - self._began_ns
        size = struct.calcsize("3i")
        peer = self._gate.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        self.pid, _, _ = struct.unpack("3i", peer)
        self._send({"op": "taken"})
        first = self._receive()
        if not first["ok"]:
            other = "name another function, or " if self._step else ""
            raise ProcessError(first["why"], hint=f"{other}{_WHOLE_HINT}")
        self.step_ns, self.device, self.work = first["step_ns"], first["device"], first["work"]

    def ask(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Return the reply of the gate; raises ProcessError if the program ends."""
        self._send(request)
        return self._receive()

    def close(self) -> None:
        """Kill the process and all that it started on this host."""
        end_offspring()  # those in other sessions too
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_DRAIN_S)
        end_offspring()  # orphans of the shell, which are this process's to reap
        if self._gate is not None:
            self._gate.close()
        self._listener.close()
        with contextlib.suppress(OSError), short_path(self._folder) as path:
            os.unlink(path)
        self._output.finish(_DRAIN_S)

    def _send(self, request: Dict[str, Any]) -> None:
        assert self._gate is not None
        with contextlib.suppress(OSError):  # `_receive` reports the lost connection
            self._gate.sendall(encode(request))

    def _receive(self) -> Dict[str, Any]:
        assert self._gate is not None
        while b"\n" not in self._pending:
            self._await(self._gate)
            try:
                chunk = self._gate.recv(_CHUNK_BYTES)
            except ConnectionError:
                chunk = b""
            if not chunk:
                raise self._ended()
            self._pending += chunk
            if len(self._pending) > _MOST_BYTES:
                raise ProcessError("the script writes to its gate", hint=_LOG_HINT)
        line, _, self._pending = self._pending.partition(b"\n")
        reply: Dict[str, Any] = json.loads(line)
        if reply["op"] == "over":
            raise self._ended(is_fault=reply["is_fault"])
        return reply

    def _await(self, readable: socket.socket) -> None:
        """Wait until there is something to read; end with the client."""
        watched = [readable] if self._gate is None else [readable, self._listener]
        while not (ready := select.select(watched, [], [], _LOOK_S)[0]):
            if ended(0):
                self.close()
                leave(0)
            # its shell may end before the program; what was sent just before the end is read first
            is_over = self._process.poll() is not None and (
                self._gate is None or not os.path.exists(f"/proc/{self.pid}")
            )
            if is_over and not select.select([readable], [], [], 0)[0]:
                raise self._ended()
        if self._gate is not None and self._listener in ready:  # a second process takes steps
            self._listener.accept()[0].close()
            raise ProcessError(SEVERAL, hint=_WHOLE_HINT)

    def _ended(self, *, is_fault: bool = True) -> ProcessError:
        try:
            code = self._process.wait(_END_S)
            how = f"the line ended with exit code {code}"
        except subprocess.TimeoutExpired:
            code, how = 0, "the script ended, while the line goes on"
        if self._gate is None:
            none = _NO_CALL_HINT.format(self._step) if self._step else _NO_STEP_HINT
            hint = _FAILED_HINT if code else none
            return ProcessError(f"{how} before enough steps were seen", hint=hint)
        if code == 0 and not is_fault:
            return ExhaustedError(f"{how} before the measurement was over", hint=_MORE_HINT)
        return ProcessError(f"{how} while it was measured", hint=_LOG_HINT)
