"""A user's command line, run by `sh -c` as it is typed.

`docker run` and `podman run` get two labels and a file for the ID of their container, by which it
is found and removed. With `--lockstep`, PYTHONPATH leads to a probe, and a container gets two
mounts for it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import PurePosixPath
from typing import ClassVar

from envcompare.config import Traits
from envcompare.config.workloads import VARIABLE_SETTING
from envcompare.environments import GATE, Check, Isolation, ask, kill_marked, marks, unusable
from envcompare.environments.oci import RUN_LABEL, SYMPTOMS, WORKER_LABEL, remove_labelled
from envcompare.errors import Problem, UnusableError
from envcompare.run_folder.records import CAPTURED
from envcompare.stack import Prepared, Request, last_line, recognise
from envcompare.stack.venv import find_python
from envcompare.text import Command, spoken
from envcompare.transport import Transport, run

_ENGINES = ("docker", "podman")
# also read by the harness
_LINE, _CONTAINER = "ENVCOMPARE_LINE", "ENVCOMPARE_CONTAINER"
_CAPTURED = "ENVCOMPARE_CAPTURED"
# Variables that lead a client to another engine or store.
FAR = ("DOCKER_", "CONTAINER", "STORAGE_", "XDG_", "HOME=", "PATH=")
_OPERATORS = re.compile(r"[();|&\n]+")  # a redirection is none
_SUBSTITUTION = re.compile(r"\$\([^()]*\)")
PATH = "PYTHONPATH"
# In a container: every user can enter these, which is not so of folders below /root.
_INSIDE, _TURN = "/envcompare-gate/harness", "/envcompare-gate/turn"
_PLAIN = Traits(reference="line", is_isolated=False, software="venv")
_STARTERS = frozenset({"command", "env", "exec", "nice", "nohup", "sudo", "time"})
# Options that neither clear all variables nor name a user, and the number of `nice -n 5`.
_OF_STARTER = re.compile(r"-[npv]\d*|--|\d+|--unset=\w+")
_UNSET = "--unset="  # of `env`
# A measured line has no terminal for a password.
_SUDO = ("sudo", "-n")
# No manual of Docker lists these.
_HIDDEN = frozenset({"--net", "--net-alias", "--dns-opt"})
IMAGE_NAME = re.compile(r"[\w./:@-]+")  # without a variable or substitution of the shell
_OPTION = re.compile(r"^\s+(?:-(\w), )?--([\w-]+)(?: (\S+))?(?:\s{2}|$)", re.MULTILINE)
# Options that no two containers can have at once.
_ALONE = frozenset({"--name", "-p", "--publish", "--ip", "--ip6", "--mac-address"})
_ANSWER_S = 60.0
_PULL_S = 3600.0
_DESCRIPTION = "{{.Id}}{{println}}{{range .Config.Env}}{{println .}}{{end}}"


@dataclass(frozen=True, slots=True)
class EngineCall:
    """A line that is one call of `docker run` or `podman run`."""

    client: tuple[str, ...]  # how envcompare calls the same engine
    client_at: int  # in the line
    position: int  # in the line, where further options of `run` may be inserted
    words: tuple[str, ...]  # after `run`
    spans: tuple[tuple[int, int], ...]  # where each of them begins and ends in the line


def engine_call(line: str) -> EngineCall | None:
    """Return the call of an engine that a line consists of; None for any other line.

    Variables may be set before it, programs such as `sudo` or `time` may start it, and its output
    may be redirected. Its words are not expanded. A client with options before `run` is excluded,
    since it may call another engine.
    """
    # Replacements keep the positions: the shell joins lines that end with a backslash. No name of
    # an image, option or program has a `$`, so a substitution is taken for none of them.
    plain = line.replace("\\\n", "  ").rstrip()
    text = StringIO(_SUBSTITUTION.sub(lambda found: "$" * len(found[0]), plain))
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();<>|&\n")
    lexer.commenters, lexer.whitespace, lexer.whitespace_split = "", " \t\r", True
    words: list[str] = []
    spans: list[tuple[int, int]] = []
    at: int | None = None
    end = 0
    try:
        while (word := lexer.get_token()) is not None:
            words.append(word)
            begin = end + len(plain[end:]) - len(plain[end:].lstrip(" \t\r"))
            # the character after a word was read, unless the line ends with it
            end = text.tell() - (text.tell() < len(plain) or plain[-1] in "();<>|&")
            spans.append((begin, end))
            if at is None and _leads_to_run(words):
                at, first = end, len(words)
    except ValueError:  # an open quote: the shell reports it
        return None
    if at is None or any(_OPERATORS.fullmatch(word) for word in words) or len(words) == first:
        return None
    place = _client_at(words)
    program = PurePosixPath(words[place]).name
    starters = (word for word in words[:first] if not VARIABLE_SETTING.fullmatch(word))
    is_root = any(PurePosixPath(word).name == _SUDO[0] for word in starters)
    client = (*_SUDO * is_root, program)
    return EngineCall(client, spans[place][0], at, tuple(words[first:]), tuple(spans[first:]))


def _leads_to_run(words: list[str]) -> bool:
    """Return whether words are variables, what starts a client, an engine's client, and `run`."""
    at = _client_at(words)
    variables = (f"{word.removeprefix(_UNSET)}=" if _UNSET in word else word for word in words[:at])
    is_far = any(word.startswith(FAR) for word in variables)
    return words[at + 1 :] in (["run"], ["container", "run"]) and not is_far


def _client_at(words: list[str]) -> int:
    """Return the position of an engine's client; -1 if other programs come first."""
    for place, word in enumerate(words):
        if VARIABLE_SETTING.fullmatch(word):
            continue
        name = PurePosixPath(word).name
        if name in _ENGINES:
            return place
        if name not in _STARTERS and not _OF_STARTER.fullmatch(word):
            break
    return -1


def given_options(words: tuple[str, ...], manual: str) -> tuple[tuple[str, ...], int]:
    """Return the names of the options of `run`, and the place of the image that follows them.

    `manual` is what `run --help` prints: an option with a type takes a value.
    """
    names: tuple[str, ...] = ()
    place = 0
    for more, _, end in _options(words, manual):
        names, place = names + more, end
    return names, place


def option_texts(line: str, call: EngineCall, manual: str) -> tuple[str, ...]:
    """Return the options of `run` as they are written, each with its value."""
    spans = ((begin, end) for _, begin, end in _options(call.words, manual))
    return tuple(line[call.spans[a][0] : call.spans[b - 1][1]] for a, b in spans)


def _options(words: tuple[str, ...], manual: str) -> Iterator[tuple[tuple[str, ...], int, int]]:
    """Yield the names in each option, and where it begins and ends among the words."""
    found = list(_OPTION.findall(manual))
    valued = {f"--{name}" for _, name, kind in found if kind} | _HIDDEN
    valued |= {f"-{letter}" for letter, _, kind in found if letter and kind}
    at = 0
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        name, is_joined, _ = word.partition("=")
        if word.startswith("--"):
            names = [name]
            takes_next = not is_joined and name in valued
        else:
            letters = [f"-{letter}" for letter in name[1:]]
            first = next((n for n, one in enumerate(letters, 1) if one in valued), None)
            names, takes_next = letters[:first], first is not None and first + 1 == len(word)
        end = min(len(words), at + 1 + takes_next)
        yield tuple(names), at, end
        at = end


def name_of(client: tuple[str, ...]) -> str:
    """Return the name of the environment of lines that call this client."""
    return f"{'-'.join(word for word in client if word[0] != '-')}-line"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Runs a line as a plain process of the login, whatever it starts."""

    name: str = "line"
    traits: Traits = _PLAIN
    engine: ClassVar[None] = None

    def wrap(self, command: Command, isolation: Isolation) -> Command:
        """Return the launcher with the line, and with no variable but the run's marks.

        If steps are measured, the program also gets the folder of its gate.
        """
        gate = tuple(pair for pair in command.env if pair[0] == GATE)
        line = (_LINE, self.completed(command, isolation))
        return replace(command, env=(*marks(self.name, isolation), *gate, line))

    def completed(self, command: Command, isolation: Isolation) -> str:
        """Return the line as the shell gets it, with the probe wherever it sets PYTHONPATH."""
        if GATE not in dict(command.env):
            return isolation.reference
        return _with_probe(isolation.reference, _harness(command))

    def engine_options(self, isolation: Isolation) -> tuple[str, ...]:  # noqa: ARG002 — no engine
        """Return nothing: the options are part of the line."""
        return ()

    def check(self, transport: Transport) -> Check:
        """Check whether the host answers; running the line tests the line."""
        hint = "log in there and see what keeps it busy"
        result = ask(transport, Command(argv=("uname", "-r")), what="the host", hint=hint)
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
        return Problem(brief=f"the launcher of the line cannot be started: {last_line(stderr)}")

    def sweep(self, transport: Transport, run_id: str, *, worker: str = "") -> int:
        """Kill this user's processes that a run or a worker left."""
        return kill_marked(transport, self.name, run_id=run_id, worker=worker)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedLine(Line):
    """Replays what a file of `envcompare capture` holds; its reference is the path."""

    name: str = CAPTURED

    def wrap(self, command: Command, isolation: Isolation) -> Command:
        """Return the launcher, with a variable that says that its line is a capture."""
        wrapped = Line.wrap(self, command, isolation)
        return replace(wrapped, env=(*wrapped.env, (_CAPTURED, "1")))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLine(Line):
    """Runs a line that is one call of `docker run` or `podman run`."""

    client: tuple[str, ...]

    @classmethod
    def of(cls, client: tuple[str, ...]) -> EngineLine:
        """Return the environment of lines that call this client."""
        traits = Traits(
            reference="line",
            software="venv",
            programs=(client[-1],),
            limit_command=f"{client[-1]} run",
        )
        return cls(name=name_of(client), traits=traits, client=client)

    @property
    def called(self) -> str:
        """Return the client as a person would call it."""
        return " ".join(self.client)

    def completed(self, command: Command, isolation: Isolation) -> str:
        """Return the line with labels and a file for the container's ID, directly after `run`.

        If steps are measured, also with the probe and the folder of its gate, both read-only.
        """
        line = isolation.reference
        call = engine_call(line)
        assert call is not None  # as `prepare` has found
        added = (
            *("--label", f"{RUN_LABEL}={isolation.run_id}"),
            *("--label", f"{WORKER_LABEL}={isolation.worker}"),
            *("--cidfile", container_file(isolation)),
            *_probe_options(command),
        )
        rest = line[call.position :]
        if GATE in dict(command.env):
            # The last value of a variable counts, so one that the line sets needs the probe too.
            rest = _with_probe(rest, _INSIDE)
        return f"{line[: call.position]} {shlex.join(added)}{rest}"

    def wrap(self, command: Command, isolation: Isolation) -> Command:
        """Return the launcher with the line, and with where the ID of its container will be."""
        wrapped = Line.wrap(self, command, isolation)
        container = (_CONTAINER, f"{self.called}\n{container_file(isolation)}")
        return replace(wrapped, env=(*wrapped.env, container))

    def check(self, transport: Transport) -> Check:
        """Check whether the engine answers."""
        words = (*self.client, "version", "--format", "{{.Client.Version}}")
        hint = f"see what {self.called} version says there"
        result = ask(transport, Command(argv=words), what=self.called, hint=hint)
        if isinstance(result, Check):
            return result
        if not result.succeeded:
            if known := recognise(SYMPTOMS, result.stderr):
                return Check(problem=known)
            if self.client[0] in _SUDO:
                hint += "; sudo must work without a password, or use an engine without root"
            return unusable(f"{self.called} does not answer: {spoken(result.tail(1))}", hint)
        return Check(version=result.stdout.strip())

    def prepare(self, request: Request) -> Prepared:
        """Return the line as `Line` does; raises UnusableError if it cannot be timed."""
        call = engine_call(request.reference)
        if call is None or call.client != self.client:
            raise UnusableError(
                f"the line is not one call of {self.called} run",
                details=request.reference,
                hint="write it as one simple command",
            )
        ask = Command(argv=(*self.client, "run", "--help"))
        manual = run(request.transport, ask, timeout_s=_ANSWER_S).stdout
        names, place = given_options(call.words, manual)
        image = "".join(call.words[place : place + 1])
        _require_timed(self.client[-1], names)
        is_known = IMAGE_NAME.fullmatch(image) is not None
        if request.options.lockstep:
            _require_together(names)
            _require_path(names, call.words[:place], is_known=is_known)
        prepared = Line.prepare(self, request)
        if not is_known or "--pull" in names:
            return prepared
        identity, *variables = self._describe(request, image)
        given = dict(each.partition("=")[::2] for each in variables)
        return replace(
            prepared,
            software=(("image.id", identity),),
            variables=((PATH, given[PATH]),) if PATH in given else (),
        )

    def _describe(self, request: Request, image: str) -> list[str]:
        """Return the ID and the variables of an image; a missing one is pulled first, untimed."""
        words = (*self.client, "image", "inspect", "--format", _DESCRIPTION, image)
        inspect = Command(argv=words)
        found = run(request.transport, inspect, timeout_s=_ANSWER_S)
        if not found.succeeded:
            request.progress.say(f"{self.called} pull {image}")
            pull = Command(argv=(*self.client, "pull", "--quiet", image))
            pulled = run(request.transport, pull, timeout_s=_PULL_S)
            if not pulled.succeeded:
                raise UnusableError(
                    f"the image {image} is not here and cannot be pulled",
                    details=pulled.tail(1),
                    hint=f"see what {self.called} pull {image} says",
                )
            found = run(request.transport, inspect, timeout_s=_ANSWER_S)
        return found.stdout.splitlines() or [""]

    def sweep(self, transport: Transport, run_id: str, *, worker: str = "") -> int:
        """Remove the containers of a run or a worker, and kill what is left of their clients."""
        # the clients first: one may be about to create its container
        count = kill_marked(transport, self.name, run_id=run_id, worker=worker)
        return count + remove_labelled(transport, self.client, run_id=run_id, worker=worker)


def _probe_options(command: Command) -> tuple[str, ...]:
    given = dict(command.env)
    if GATE not in given:
        return ()
    shown = ((_harness(command), _INSIDE), (given[GATE], _TURN))
    path = ":".join(filter(None, (f"{_INSIDE}/probe", given.get(PATH))))
    mounts = (f"type=bind,source={source},target={target},readonly" for source, target in shown)
    return (
        *(word for mount in mounts for word in ("--mount", mount)),
        *("--env", f"{GATE}={_TURN}", "--env", f"{PATH}={path}"),
    )


def _harness(command: Command) -> str:
    return str(PurePosixPath(command.argv[-1]).parent)


def _with_probe(line: str, harness: str) -> str:
    return before_path(line, shlex.quote(f"{harness}/probe"))


def before_path(line: str, folders: str) -> str:
    """Return a line with folders first wherever it sets PYTHONPATH."""
    return re.sub(
        # An empty entry of PYTHONPATH would be the current folder.
        rf"(?:\b|(?<=-e)){PATH}=(\s|$)?",
        lambda found: f"{PATH}={folders}" + (":" if found[1] is None else found[1]),
        line,
    )


# Options of `cp` and `commit` that keep what an image has (podman-cp(1), podman-commit(1)).
KEEP_OWNERS = {"podman": ("--archive=false",)}
KEEP_SETTINGS = {"podman": ("--format", "docker")}
CLIENTS = (*((one,) for one in _ENGINES), *((*_SUDO, engine) for engine in _ENGINES))
"""How the engines of lines are called."""


def container_file(isolation: Isolation) -> str:
    """Return the file to which the engine writes the ID of a container; it must not exist yet."""
    return f"{isolation.scratch}/container-{isolation.worker}"


def _require_together(names: tuple[str, ...]) -> None:
    if taken := next((name for name in names if name in _ALONE), ""):
        raise UnusableError(
            f"--lockstep runs each line several times at once, which {taken} does not allow",
            hint=f"leave {taken} out",
        )


def _require_path(names: tuple[str, ...], words: tuple[str, ...], *, is_known: bool) -> None:
    """Raise UnusableError if it is not known what PYTHONPATH the program would have."""
    is_inherited = not {PATH, f"-e{PATH}", f"--env={PATH}"}.isdisjoint(words)
    if is_inherited or "--env-file" in names or "--pull" in names or not is_known:
        raise UnusableError(
            f"with --lockstep, {PATH} of the container must be known before it starts",
            hint=f"name the image, write -e {PATH}=VALUE, and leave --env-file and --pull out",
        )


def _require_timed(program: str, names: tuple[str, ...]) -> None:
    """Raise UnusableError for options with which the time of the line is not that of the work."""
    given = frozenset(names)
    if given & {"-d", "--detach"}:
        raise UnusableError(
            f"`{program} run --detach` returns before its container ends",
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
