"""The client end of worker protocol 1: a worker that is launched and asked.

One request is in flight, and every wait is bounded.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from envcompare.errors import (
    DISTRUST,
    CommandTimeoutError,
    EnvcompareError,
    Phase,
    Problem,
    TransportError,
    WorkloadError,
)
from envcompare.gpu import lost_hint
from envcompare.measure import (
    PROTOCOL,
    Ended,
    Evaluated,
    Found,
    Generated,
    Hello,
    Imported,
    LaunchSpec,
    Profiled,
    Quit,
    Ran,
    WorkerFault,
)
from envcompare.run_folder import open_private
from envcompare.text import LineMask, counted, masked, shortened, visible
from envcompare.transport import Process, read_json

_T = TypeVar("_T")
HELLO_LIMIT_S = 300.0
OWN_CPU = -1  # that a worker is on when it is asked
_GENERATION_LIMIT_S = 300.0
_QUIT_LIMIT_S = 30.0
_FACTS_LIMIT_S = 60.0
_LOG_LIMIT_S = 5.0
_CHECK_S = 1.0
LOG_LIMIT_BYTES = 64 << 20  # of one worker; of the file too, before another writes to it
_KEPT_LOG_BYTES = 1 << 20  # of a file that is full
_TAIL_BYTES = 1 << 16
# The longest answer, a fingerprint that names many libraries, has some hundred kilobytes.
LINE_LIMIT_BYTES = 16 << 20
ANSWERS_LIMIT_BYTES = 64 << 20  # of one worker for a cell, but for those that have a time a step
# One request is in flight, and each has one line for an answer: further lines are no answers.
_MOST_WAITING = 8
_CHUNK_BYTES = 1 << 16
_LATE = {
    "import": "its start, with imports, took longer than",
    "hello": "its start, with imports and data, took longer than",
    "gen": "setup or the first step took longer than",
}
_BREAKS = "a program that writes to the worker's stdout breaks the protocol"
_END = b""
_TOO_MANY = b"too many lines"
_LOG_FULL = b"log full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """How the turn of an arm begins and ends."""

    run_in: int = 0  # untimed steps before the block
    stops: bool = False  # after it, what the workload has started, until the next request

    @property
    def fields(self) -> dict[str, int]:
        """Return the fields of a request."""
        fields = {"run_in": self.run_in, "stops": self.stops}
        return {name: value for name, value in fields.items() if value}


PLAIN_TURN = Turn()


class Worker:
    """One live worker in an arm; raises WorkloadError for its faults, TransportError when lost.

    Who launches it kills it, however it ended: only then is it shown that nothing of it goes on.
    """

    def __init__(  # noqa: PLR0913 — what it is, where it writes, and how it is explained and ended
        self,
        spawn: Callable[[], Process],
        *,
        arm: str,
        log: Path,
        log_name: str,
        explain: Callable[[int, str], Problem | None],
        end: Callable[[], object] = lambda: None,
        on_gpu: set[str] | None = None,
    ) -> None:
        self.arm = arm
        self.spawned_ns = time.monotonic_ns()
        self._use_log(log, log_name)
        self._process = spawn()
        self._explain = explain
        self._end = end
        self._has_ended = False
        self._log_left_bytes = LOG_LIMIT_BYTES  # for the cell that it serves
        self._answers_left_bytes = ANSWERS_LIMIT_BYTES
        self.cpus = frozenset[int]()  # of its host, if its arm has reported them
        self.stays = False  # for several cells, each served by a fork
        self.peers: tuple[Worker, ...] = ()  # ranks on other hosts, which end with it
        # arms of the host whose workers have said that they use a GPU
        self._on_gpu = set[str]() if on_gpu is None else on_gpu
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._dies = threading.Event()
        # A thread that waits at a pipe must not keep the program from ending.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._logger = threading.Thread(target=self._keep_log, daemon=True)
        self._reader.start()
        self._logger.start()

    def send_import(self, spec: LaunchSpec) -> None:
        """Let the worker import a workload, whatever cells it will serve; do not wait for it."""
        self._send(
            "import", {"workload": spec.workload, "threads": spec.threads, "cpus": spec.cpus}
        )

    def await_import(self, limit_s: float = HELLO_LIMIT_S) -> Imported:
        """Wait until the worker is up and has imported."""
        imported = self._receive("import", Imported, limit_s)
        self._require_protocol(imported.protocol)
        self.stays = imported.stays
        return imported

    def serve(self, log: Path, log_name: str) -> None:
        """Keep what is written from now on in the log of another cell."""
        if log != self.log:
            self._use_log(log, log_name)
            self._log_left_bytes = LOG_LIMIT_BYTES
            self._answers_left_bytes = ANSWERS_LIMIT_BYTES

    def _use_log(self, log: Path, log_name: str) -> None:
        self.log, self.log_name = log, log_name
        # A log that is full keeps only its end: each restart writes to the same one.
        with suppress(OSError):
            with open(log, "ab", opener=open_private) as stream:
                size_bytes = stream.tell()
            if size_bytes > LOG_LIMIT_BYTES:
                with log.open("rb") as stream:
                    stream.seek(-_KEPT_LOG_BYTES, os.SEEK_END)
                    kept = stream.read()
                left_out = size_bytes - len(kept)
                log.write_bytes(b"... %d bytes of earlier workers are left out\n" % left_out + kept)
        # Each restart writes to the same file, and `tail` is to show no lines of an earlier worker.
        self._log_start = log.stat().st_size if log.exists() else 0

    def send_hello(self, spec: LaunchSpec) -> None:
        """Send `hello` without waiting, so that several workers can start at once."""
        self._send("hello", msgspec.to_builtins(spec))

    def await_hello(
        self, limit_s: float = HELLO_LIMIT_S, *, script: Callable[[], None] | None = None
    ) -> Hello:
        """Wait until the worker is up.

        That of a script may take long; `script` is called every second meanwhile, and may raise.
        """
        hello = self._receive("hello", Hello, limit_s, script)
        if hello.device == "cuda":
            self._on_gpu.add(self.arm)
        self._require_protocol(hello.protocol)
        return hello

    def _require_protocol(self, spoken: int) -> None:
        if spoken != PROTOCOL:
            raise self._fault("protocol", f"the worker speaks protocol {spoken}, not {PROTOCOL}")

    def send_begin(self, seed: int, pad: int) -> None:
        """Ask for a generation (fork or rebuild, model, first step) without waiting.

        `pad` bytes are allocated before the model.
        """
        self._send("gen", {"seed": seed, "pad": pad})

    def await_begin(self, limit_s: float = _GENERATION_LIMIT_S) -> Generated:
        """Wait until the generation has begun."""
        return self._receive("gen", Generated, limit_s)

    def run(
        self, steps: int, limit_s: float, *, cpu: int | None = None, turn: Turn = PLAIN_TURN
    ) -> Ran:
        """Run a block of `steps` steps within `limit_s` seconds.

        It is held on a CPU, which `OWN_CPU` leaves to the scheduler; with None it may move.
        """
        self._send("run", {"k": steps, "cpu": cpu, **turn.fields})
        ran = self._receive("run", Ran, limit_s)
        for times in (ran.wall_ns, ran.cpu_ns, ran.gpu_ns):
            if times is not None:
                self._refuse_other_steps("run", len(times), steps)
        self._refuse_other_cpu(ran.cpu)
        return ran

    def evaluate(self, limit_s: float) -> Evaluated:
        """Ask the workload how well it does on data that it does not train on."""
        self._send("evaluate", {})
        return self._receive("evaluate", Evaluated, limit_s)

    def profile(  # noqa: PLR0913 — what is profiled, and how the turn is kept
        self,
        kind: str,
        steps: int,
        *,
        out: str,
        limit_s: float,
        cpu: int | None = None,
        turn: Turn = PLAIN_TURN,
    ) -> Profiled:
        """Run `steps` steps for one kind of profile, whose file goes to `out` on the host.

        What runs in the arm does not say which file of the host is read: the answer names `out`,
        or none. `cpu` and `turn` are those of `run`.
        """
        fields = {"kind": kind, "k": steps, "out": out, "cpu": cpu}
        self._send("profile", {**fields, **turn.fields})
        reply = self._receive("profile", Profiled, limit_s)
        self._refuse_other_steps("profile", reply.k, steps)
        self._refuse_other_cpu(reply.cpu)
        if reply.file not in ("", out):
            raise self._fault(
                "protocol",
                "the worker named a file that envcompare had not asked for; it was not read",
                details=f"it named {shortened(reply.file, most=200)!r}, not {out!r}",
                hint=DISTRUST,
            )
        return reply

    def send_facts(self) -> None:
        """Ask what is around the worker without waiting."""
        self._send("facts", {})

    def await_facts(self) -> Found:
        """Wait for what the worker has found around itself."""
        return self._receive("facts", Found, _FACTS_LIMIT_S)

    def end(self) -> Ended:
        """End the generation."""
        self.send_end()
        return self.await_end()

    def send_end(self) -> None:
        """Ask for the end of the generation without waiting."""
        self._send("end", {})

    def await_end(self) -> Ended:
        """Wait until the generation has ended."""
        return self._receive("end", Ended, _GENERATION_LIMIT_S)

    def leave(self) -> None:
        """End the work for one cell; the worker stays for the next."""
        self._send("quit", {})
        self._receive("quit", Quit, _QUIT_LIMIT_S)

    def quit(self, ending_s: float = _QUIT_LIMIT_S) -> Quit:
        """End the worker and wait until its process, and what is around it, is gone."""
        self.send_quit()
        return self.await_quit(ending_s)

    def send_quit(self) -> None:
        """Ask the worker to end without waiting."""
        self._send("quit", {})

    def await_quit(self, ending_s: float = _QUIT_LIMIT_S) -> Quit:
        """Wait until the worker is gone, and `ending_s` at most for what is around it."""
        return self._await_last("quit", Quit, _QUIT_LIMIT_S, ending_s=ending_s)

    def ask_once(self, op: str, fields: dict[str, object], *, kind: type[_T], limit_s: float) -> _T:
        """Ask what answers one request and ends; wait until it and what contains it are gone."""
        self._send(op, fields)
        return self._await_last(op, kind, limit_s)

    def _await_last(
        self, op: str, kind: type[_T], limit_s: float, *, ending_s: float = _QUIT_LIMIT_S
    ) -> _T:
        reply = self._receive(op, kind, limit_s)
        self._close_stdin()
        try:
            self._process.wait(ending_s)
        except CommandTimeoutError as error:
            raise self._fault(
                "process",
                f"it did not end within {ending_s:.0f} s after its worker had quit",
                hint="look at the load of the host and of its container engine",
            ) from error
        self._logger.join(_LOG_LIMIT_S)
        return reply

    def kill(self) -> None:
        """Kill the worker and all that it started; safe to repeat.

        Killing the client of an engine does not end what runs inside. Raises StillRunningError
        where it cannot be shown to have ended.
        """
        # An exit stack calls every callback, whatever another one raises: no peer may be left over.
        with ExitStack() as killing:
            for worker in (self, *self.peers):
                killing.callback(worker._kill)  # noqa: SLF001 — of the same class

    def _kill(self) -> None:
        self._close_stdin()
        self._dies.set()
        try:
            # first: what has lost its parent is found less surely
            if not self._has_ended:
                self._end()
                self._has_ended = True
        finally:
            self._process.kill()

    def tail(self, lines: int = 10) -> str:
        """Return the last lines of what this worker wrote to its log."""
        with suppress(OSError), self.log.open("rb") as stream:
            stream.seek(max(self._log_start, stream.seek(0, os.SEEK_END) - _TAIL_BYTES))
            # The part that is read may begin within a character.
            text = stream.read(_TAIL_BYTES).decode(errors="replace")
            return "\n".join(text.splitlines()[-lines:])
        return ""

    def _send(self, op: str, fields: dict[str, object]) -> None:
        line = msgspec.json.encode({"op": op, **fields}) + b"\n"
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except (OSError, ValueError):
            # the end of stdout says why it is gone, with the exit code
            return

    def _receive(
        self,
        op: str,
        kind: type[_T],
        limit_s: float,
        script: Callable[[], None] | None = None,
    ) -> _T:
        line = self._next_line(limit_s, script)
        if line is None:
            hint = f"it hangs or waits for something: read {self.log_name} in the run folder"
            if script:
                hint += "; if it takes no such steps, name a function with --step"
            raise self._fault(
                "process",
                f"{_LATE.get(op, f'no answer to `{op}` within')} {limit_s:.0f} s",
                hint=f"{hint}; if it needs that long, raise --budget" if op in _LATE else hint,
            )
        if line not in {_END, _TOO_MANY, _LOG_FULL} and len(line) <= LINE_LIMIT_BYTES:
            self._bound(op, line)
            return self._decode(op, kind, line)
        # Nothing is read after it, and the next call must not wait.
        self._lines.put(line)
        raise self._ended(op) if line == _END else self._flood(op, line)

    def _next_line(self, limit_s: float, check: Callable[[], None] | None) -> bytes | None:
        until = time.monotonic() + limit_s
        while True:
            left_s = max(0.0, until - time.monotonic())
            try:
                return self._lines.get(timeout=min(left_s, _CHECK_S) if check else left_s)
            except queue.Empty:
                if time.monotonic() >= until:
                    return None
                if check:
                    check()

    def _bound(self, op: str, line: bytes) -> None:
        # It has as many numbers as steps were asked for, and what else it holds is not kept.
        if op == "run":
            return
        self._answers_left_bytes -= len(line)
        if self._answers_left_bytes < 0:
            raise self._fault(
                "protocol",
                f"its answers have more than {ANSWERS_LIMIT_BYTES >> 20} MiB in all",
                details="what `finish` returns is the usual cause",
                hint="return a few numbers from `finish`, and write files for the rest",
            )

    def _refuse_other_steps(self, op: str, answered: int, asked: int) -> None:
        if answered != asked:
            raise self._fault(
                "protocol",
                f"the answer to `{op}` is about {counted(answered, 'step')}, not {asked}",
                hint=DISTRUST,
            )

    def _refuse_other_cpu(self, cpu: int | None) -> None:
        if cpu is not None and self.cpus and cpu not in self.cpus:
            count = counted(len(self.cpus), "CPU")
            raise self._fault(
                "protocol",
                f"it says that it ran on CPU {cpu}, and its host has {count}",
                hint=DISTRUST,
            )

    def _flood(self, op: str, line: bytes) -> WorkloadError:
        if line == _LOG_FULL:
            return self._fault(
                "process",
                f"it wrote more than {LOG_LIMIT_BYTES >> 20} MiB to its log during `{op}`",
                hint=f"read {self.log_name} in the run folder, and print less in each step",
            )
        most = f"a line of more than {LINE_LIMIT_BYTES >> 20} MiB"
        what = "lines that nobody asked for" if line == _TOO_MANY else most
        return self._fault(
            "protocol",
            f"it wrote {what} during `{op}`",
            hint=_BREAKS,
        )

    def _decode(self, op: str, kind: type[_T], line: bytes) -> _T:
        """Return the reply to `op`; raise the fault that it tells of or shows by itself."""
        try:
            reply = read_json(line, dict[str, msgspec.Raw])
            if read_json(reply.get("op", b"null"), object) != op:
                raise msgspec.ValidationError("the reply belongs to another request")
            if read_json(reply.get("ok", b"false"), object) is True:
                return self._bounded(op, kind, line)
            fault = read_json(reply["error"], WorkerFault)
        except (msgspec.MsgspecError, KeyError) as error:
            raise self._fault(
                "protocol",
                f"the answer to `{op}` is not understood: {error}",
                details=line[:200].decode(errors="replace"),
                hint=_BREAKS,
            ) from error
        failure = self._fault(
            fault.phase,
            masked(fault.brief) + ("" if fault.step is None else f" (step {fault.step})"),
            details=masked(fault.traceback),
            hint=(self.arm in self._on_gpu and lost_hint(fault.brief))
            or fault.hint
            or f"read {self.log_name} in the run folder; then fix the workload or its data",
        )
        failure.is_exhausted = fault.is_exhausted
        raise failure

    def _bounded(self, op: str, kind: type[_T], line: bytes) -> _T:
        """Return a reply of the worker; raise WorkloadError for values that none can have."""
        try:
            return read_json(line, kind)
        except msgspec.ValidationError as error:
            raise self._fault(
                "protocol",
                f"the answer to `{op}` cannot be true: {error}",
                details=line[:200].decode(errors="replace"),
                hint=DISTRUST,
            ) from error

    def _ended(self, op: str) -> EnvcompareError:
        """Say why the worker is gone: its engine, a signal, or the connection."""
        try:
            code = self._process.wait(_QUIT_LIMIT_S)
        except CommandTimeoutError:
            return self._fault("process", f"it closed its output during `{op}` and does not end")
        except TransportError as error:
            return error
        # The last lines of the log are the best explanation, so it is read to its end first.
        self._logger.join(_LOG_LIMIT_S)
        tail = self.tail()
        problem = self._explain(code, tail)
        if problem is not None:
            phase: Phase = "environment" if problem.passes else "launch"
            return self._fault(
                phase, problem.brief, details=tail, hint=problem.hint, exit_code=code
            )
        return self._fault(
            "process",
            f"the worker ended during `{op}` with exit code {code}"
            + (" (killed; out of memory is the usual cause)" if code == 137 else ""),
            details=tail,
            hint="read its log; if memory ran out, reduce its work, such as by a smaller batch",
            exit_code=code,
        )

    def _fault(
        self,
        phase: Phase,
        brief: str,
        *,
        details: str = "",
        hint: str = "",
        exit_code: int | None = None,
    ) -> WorkloadError:
        return WorkloadError(
            f"{self.arm}: {brief}",
            details=details,
            hint=hint,
            phase=phase,
            log=self.log_name,
            worker_exit_code=exit_code,
        )

    def _read(self) -> None:
        with suppress(OSError, ValueError):
            # One byte more than the limit tells a line that is too long from one that just fits.
            while line := self._process.stdout.readline(LINE_LIMIT_BYTES + 1):
                if not line.endswith(b"\n") and len(line) <= LINE_LIMIT_BYTES:
                    # Half a line is no answer: the worker was killed while it wrote.
                    break
                is_flood = self._lines.qsize() >= _MOST_WAITING
                self._lines.put(_TOO_MANY if is_flood else line)
                if is_flood or len(line) > LINE_LIMIT_BYTES:
                    # What follows stays in the pipe until the worker is killed, and fills no memory
                    # here.
                    self._dies.wait()
                    # docker does not remove a container while what it writes waits for its client
                    while self._process.stdout.read(_CHUNK_BYTES):
                        pass
                    return
        self._lines.put(_END)

    def _keep_log(self) -> None:
        """Read to the end, whatever can be kept: a pipe that is full would stop the worker."""
        mask = LineMask()
        with suppress(OSError, ValueError):
            while chunk := self._process.stderr.read(_CHUNK_BYTES):
                left = self._log_left_bytes
                # The limit may end with a chunk: at 0 the end of the log is still to be written.
                if left >= 0:
                    # More may be written than was read: hidden characters are written out.
                    left -= max(len(chunk), self._append(mask.feed(chunk[:left])))
                    if left < 0:
                        self._append(mask.end() + b"\n... the log ends here: too long\n")
                        self._lines.put(_LOG_FULL)
                self._log_left_bytes = left
        self._append(mask.end())

    def _append(self, content: bytes) -> int:
        """Write lines that no terminal obeys to the log; return how many bytes they have."""
        # Bytes that are no UTF-8 become lone surrogates, which `visible` writes out.
        text = content.decode("utf-8", "surrogateescape")
        shown = visible(text.replace("\r\n", "\n").replace("\r", "\n")).encode()
        if shown:
            with suppress(OSError), open(self.log, "ab", opener=open_private) as stream:
                stream.write(shown)
        return len(shown)

    def _close_stdin(self) -> None:
        with suppress(OSError, ValueError):
            self._process.stdin.close()
