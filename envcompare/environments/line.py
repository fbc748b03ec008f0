"""A command line of the user's own, run by the login's shell as it is written.

`docker run` and `podman run` get a label and a file for the ID of their container, by which it is
found and removed; nothing else is added to a line.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import PurePosixPath
from typing import ClassVar

from envcompare.config import Traits
from envcompare.environments import Check, Isolation, ask, kill_marked, marks, unusable
from envcompare.environments.oci import RUN_LABEL, WORKER_LABEL, remove_labelled
from envcompare.errors import Problem, UnusableError
from envcompare.stack import Prepared, Request
from envcompare.stack.venv import find_python
from envcompare.text import Command, spoken
from envcompare.transport import Transport, run

ENGINES = ("docker", "podman")
_LINE, _CONTAINER = "ENVCOMPARE_LINE", "ENVCOMPARE_CONTAINER"  # also read by the harness
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_OPERATORS = re.compile(r"[();|&]+")  # a redirection is none
# Options of the clients themselves, before `run`, that take a value as the next word.
_CLIENT_VALUES = frozenset({
    "-c", "--connection", "--context", "--config", "-H", "--host", "-l", "--log-level",
    "--tlscacert", "--tlscert", "--tlskey", "--url", "--identity", "--root", "--runroot",
    "--runtime", "--storage-driver", "--storage-opt", "--cgroup-manager",
})  # fmt: skip
_PLAIN = Traits(reference="line", is_isolated=False, software="venv")
_OPTION = re.compile(r"^\s+(?:-(\w), )?--([\w-]+)(?: (\S+))?(?:\s{2}|$)", re.MULTILINE)
_ANSWER_S = 60.0


@dataclass(frozen=True, slots=True)
class EngineCall:
    """A line that is one call of `docker run` or `podman run`."""

    program: str
    position: int  # in the line, where further options of `run` may be inserted
    words: tuple[str, ...]  # after `run`


def engine_call(line: str) -> EngineCall | None:
    """Return the call of an engine that a line consists of; None for any other line.

    Variables may be set before it, and its output redirected. Variables in its words are not
    expanded.
    """
    # the shell joins lines that end with a backslash; spaces keep the positions
    text = StringIO(line.replace("\\\n", "  "))
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.commenters, lexer.whitespace_split = "", True
    words: list[str] = []
    at: int | None = None
    try:
        while (word := lexer.get_token()) is not None:
            words.append(word)
            if at is None and _leads_to_run(words):
                at, first = text.tell(), len(words)
    except ValueError:  # an open quote: the shell reports it
        return None
    if at is None or any(_OPERATORS.fullmatch(word) for word in words) or len(words) == first:
        return None
    program = next(word for word in words if not _ASSIGNED.fullmatch(word))
    return EngineCall(PurePosixPath(program).name, at, tuple(words[first:]))


def _leads_to_run(words: list[str]) -> bool:
    """Return whether words are variables, an engine's client, its own options, and `run`."""
    rest = [word for word in words if not _ASSIGNED.fullmatch(word)]
    if words[-1] != "run" or PurePosixPath(rest[0]).name not in ENGINES:
        return False
    between = rest[1:-1]
    if between[-1:] == ["container"]:
        between = between[:-1]
    pairs = zip(["", *between], between, strict=False)
    return all(word.startswith("-") or before in _CLIENT_VALUES for before, word in pairs)


def given_options(words: tuple[str, ...], manual: str) -> tuple[tuple[str, ...], str]:
    """Return the names of the options of `run`, and the image that follows them.

    `manual` is what `run --help` prints: an option with a type takes a value.
    """
    found = list(_OPTION.findall(manual))
    valued = {f"--{name}" for _, name, kind in found if kind}
    valued |= {f"-{letter}" for letter, _, kind in found if letter and kind}
    names: list[str] = []
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            return tuple(names), word
        name, is_joined, _ = word.partition("=")
        if word.startswith("--"):
            names.append(name)
            if not is_joined and name in valued:
                next(rest, "")
            continue
        for place, letter in enumerate(name[1:], start=2):
            names.append(f"-{letter}")
            if f"-{letter}" in valued:
                if place == len(word):
                    next(rest, "")
                break
    return tuple(names), ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Runs a line as a plain process of the login, whatever it starts."""

    name: str = "line"
    traits: Traits = _PLAIN
    engine: ClassVar[None] = None

    def wrap(self, command: Command, isolation: Isolation) -> Command:
        """Return the launcher with the line, and with no variable but the run's marks."""
        line = (_LINE, self.completed(isolation))
        return replace(command, env=(*marks(self.name, isolation), line))

    def completed(self, isolation: Isolation) -> str:
        """Return the line as the shell gets it."""
        return isolation.reference

    def engine_options(self, isolation: Isolation) -> tuple[str, ...]:  # noqa: ARG002 — no engine
        """Return nothing: the options are part of the line."""
        return ()

    def check(self, transport: Transport) -> Check:
        """Check whether the host has a shell; the line itself is tried by running it."""
        result = ask(
            transport,
            Command(argv=("uname", "-r")),
            what="the host",
            hint="log in there and see what keeps it busy",
        )
        return result if isinstance(result, Check) else Check(version=result.stdout.strip())

    def check_gpu(self, transport: Transport, driver: Check) -> Check:  # noqa: ARG002 — the line reaches it
        """Return that nothing has to be done: the line reaches the GPU by itself, or not."""
        return Check()

    def prepare(self, request: Request) -> Prepared:
        """Return the line, and the interpreter of its launcher; raises UnusableError."""
        python = find_python(request.transport, python=request.options.host_python, imports=())
        return Prepared(interpreter=python.path, reference=request.reference)

    def explain(self, exit_code: int, stderr: str) -> Problem | None:
        """Return that the launcher cannot be started."""
        if exit_code not in {126, 127}:
            return None
        line = (stderr.strip().splitlines() or ["no message"])[-1]
        return Problem(brief=f"the launcher of the line cannot be started: {line}")

    def sweep(self, transport: Transport, run_id: str, *, worker: str = "") -> int:
        """Kill this user's processes that a run or a worker left."""
        return kill_marked(transport, self.name, run_id=run_id, worker=worker)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLine(Line):
    """Runs a line that is one call of `docker run` or `podman run`."""

    program: str

    @classmethod
    def of(cls, program: str) -> EngineLine:
        """Return the environment of lines that call this client."""
        traits = Traits(reference="line", software="venv", programs=(program,))
        return cls(name=f"{program}-line", traits=traits, program=program)

    def completed(self, isolation: Isolation) -> str:
        """Return the line with labels and a file for the container's ID, directly after `run`."""
        line = isolation.reference
        call = engine_call(line)
        assert call is not None  # as `prepare` has found
        added = (
            *("--label", f"{RUN_LABEL}={isolation.run_id}"),
            *("--label", f"{WORKER_LABEL}={isolation.worker}"),
            *("--cidfile", container_file(isolation)),
        )
        return f"{line[: call.position]} {shlex.join(added)} {line[call.position :]}"

    def wrap(self, command: Command, isolation: Isolation) -> Command:
        """Return the launcher with the line, and with where the ID of its container will be."""
        wrapped = Line.wrap(self, command, isolation)
        container = (_CONTAINER, f"{self.program} {container_file(isolation)}")
        return replace(wrapped, env=(*wrapped.env, container))

    def check(self, transport: Transport) -> Check:
        """Check whether the engine answers."""
        words = (self.program, "version", "--format", "{{.Client.Version}}")
        hint = f"see what {self.program} version says there"
        result = ask(transport, Command(argv=words), what=self.program, hint=hint)
        if isinstance(result, Check):
            return result
        if not result.succeeded:
            return unusable(f"{self.program} does not answer: {spoken(result.tail(1))}", hint)
        return Check(version=result.stdout.strip())

    def prepare(self, request: Request) -> Prepared:
        """Return the line as `Line` does; raises UnusableError if it cannot be timed."""
        call = engine_call(request.reference)
        if call is None or call.program != self.program:
            raise UnusableError(
                f"the line is not one call of {self.program} run",
                details=request.reference,
                hint="write it as one simple command",
            )
        manual = run(
            request.transport,
            Command(argv=(self.program, "run", "--help")),
            timeout_s=_ANSWER_S,
        ).stdout
        names, _ = given_options(call.words, manual)
        _require_timed(self.program, names)
        return Line.prepare(self, request)

    def sweep(self, transport: Transport, run_id: str, *, worker: str = "") -> int:
        """Remove the containers of a run or a worker, and kill what is left of their clients."""
        count = remove_labelled(transport, self.program, run_id=run_id, worker=worker)
        return count + kill_marked(transport, self.name, run_id=run_id, worker=worker)


def container_file(isolation: Isolation) -> str:
    """Return the file to which the engine writes the ID of a container; it must not exist yet."""
    return f"{isolation.scratch}/container-{isolation.worker}"


def _require_timed(program: str, names: tuple[str, ...]) -> None:
    """Raise UnusableError for options with which the time of the line is not that of the work."""
    given = frozenset(names)
    if given & {"-d", "--detach"}:
        raise UnusableError(
            f"`{program} run --detach` returns before its container ends",
            details="its time would be the time to start a container",
            hint="leave -d out",
        )
    if given & {"-t", "--tty"} and given & {"-i", "--interactive"}:
        raise UnusableError(
            f"`{program} run -it` needs a terminal, which a measured line does not have",
            hint="leave -t out",
        )
    if "--cidfile" in given:
        raise UnusableError(
            f"`{program} run --cidfile` cannot be given twice, and envcompare gives it",
            hint="leave --cidfile out",
        )
