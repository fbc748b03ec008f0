"""Levers: how a line is changed so that one of its properties takes another line's value."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from msgspec.structs import replace

from envcompare.environments.line import engine_call, given_options, option_texts
from envcompare.fingerprint import holds_for
from envcompare.fingerprint.sentences import describe
from envcompare.run_folder.records import FactDifference, FingerprintValue

Kind = Literal["options", "software", "isolation", "settings"]
_CACHE: Final = "/envcompare-pycache"
_SET: Final = "set"  # of a variable whose value is not kept
_MARK: Final = "ENVCOMPARE_PLACEBO"
# How `ulimit` of the shell names a limit, and in what unit it takes a size.
_LETTERS: Final = {"nofile": ("n", 1), "stack": ("s", 1024), "core": ("c", 512)}
_VARIABLES: Final = {
    "threads.omp": "OMP_NUM_THREADS",
    "threads.mkl": "MKL_NUM_THREADS",
    "threads.openblas": "OPENBLAS_NUM_THREADS",
    "allocator.ld_preload": "LD_PRELOAD",
    "allocator.tunables": "GLIBC_TUNABLES",
}
_COMPILE: Final = "RUN python -m compileall -q FOLDERS, in the Dockerfile"


@dataclass(frozen=True, slots=True)
class Lever:
    """An option of `run` for facts below a key, and how it is written for a value."""

    key: str
    kind: Kind
    options: Callable[[str, FingerprintValue], tuple[str, ...]]  # none if a value has no option


def _or(value: FingerprintValue, otherwise: int | str) -> str:
    """Return a number; for no limit, what the option takes for it."""
    return str(value if isinstance(value, int | float) else otherwise)


def _scratch(value: FingerprintValue) -> tuple[str, ...]:
    return ("--tmpfs", "/tmp:exec") if str(value).startswith("tmpfs") else ()  # noqa: S108


_UNFILTERED: Final = ("--security-opt", "seccomp=unconfined")
# What options cost in safety.
_COSTS: Final = (
    (r"seccomp=unconfined", "the container may make every system call"),
    (r"apparmor=unconfined", "no security module confines the container"),
    (r"--cap-add|--privileged", "the container has more of the rights of root on the host"),
    (r"--net(?:work)?[ =]host", "the container reaches every port of the host"),
)
_LEVERS: Final = (
    Lever("limits", "settings", lambda key, want: ("--ulimit", f"{key[7:]}={_or(want, -1)}")),
    Lever("cgroup.cpu_quota", "settings", lambda _, want: ("--cpus", _or(want, 0))),
    Lever("cgroup.memory", "settings", lambda _, want: ("--memory", _or(want, 0))),
    Lever("cgroup.pids_limit", "settings", lambda _, want: ("--pids-limit", _or(want, -1))),
    Lever("cpu.affinity", "settings", lambda _, want: ("--cpuset-cpus", _listed(want))),
    Lever("shm.bytes", "settings", lambda _, want: ("--shm-size", f"{_or(want, 0)}b")),
    Lever("mount.scratch", "settings", lambda _, want: _scratch(want)),
    Lever("seccomp", "isolation", lambda *_: _UNFILTERED),
    Lever("speculation", "isolation", lambda *_: _UNFILTERED),
    Lever("lsm", "isolation", lambda *_: ("--security-opt", "apparmor=unconfined")),
    Lever("capabilities", "isolation", lambda *_: ("--cap-add", "ALL")),
    Lever("container.network", "isolation", lambda _, want: ("--network", str(want or "host"))),
    Lever("network.interfaces", "isolation", lambda *_: ("--network", "host")),
    Lever(
        *("container.log_driver", "isolation"),
        lambda _, want: ("--log-driver", str(want or "none")),
    ),
    Lever(
        *("container.runtime", "isolation"),
        lambda _, want: ("--runtime", str(want)) if want else (),
    ),
)
"""Every lever on a container; variables, byte code and the image are changed for any line."""


def _listed(value: FingerprintValue) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Changes of one line, applied together."""

    options: tuple[str, ...] = ()  # of `run`, after those of the line
    commands: tuple[str, ...] = ()  # of the shell, before a line that calls no engine
    variables: tuple[tuple[str, str | None], ...] = ()  # None: it is not set
    image: str = ""  # instead of the line's
    removed: tuple[str, ...] = ()  # options of `run`, as they are written
    added: tuple[str, ...] = ()  # likewise

    def __add__(self, other: Edit) -> Edit:
        """Return both changes."""
        return Edit(
            options=self.options + other.options,
            commands=self.commands + other.commands,
            variables=self.variables + other.variables,
            image=self.image or other.image,
            removed=self.removed + other.removed,
            added=self.added + other.added,
        )


PLACEBO: Final = Edit(variables=((_MARK, "1"),))
"""A change that no program notices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One property of the slow line, and the change that gives it the fast line's value."""

    key: str
    what: str  # "the limit nofile 20000 → 1024"
    edit: Edit

    @property
    def kind(self) -> Kind:
        """Return the kind of property; the search looks for the kind first."""
        if self.edit.image or self.key == "python.uncompiled":
            return "software"
        if self.edit.removed or self.edit.added:
            return "options"
        return next((one.kind for one in _LEVERS if holds_for(one.key, self.key)), "settings")

    @property
    def cost(self) -> str:
        """Return what the change costs in safety; empty if nothing."""
        text = " ".join((*self.edit.added, *self.edit.options))
        return next((cost for pattern, cost in _COSTS if re.search(pattern, text)), "")

    def mend(self, client: str) -> str:
        """Return what to type, or to write into the image, for this change alone."""
        if self.key == "python.uncompiled":
            return _COMPILE
        words = (*self.edit.options, *(_environment(self.edit) if client else ()))
        if self.edit.image:
            return f"{client} run … {self.edit.image} …"
        if self.edit.removed and not self.edit.added:
            return f"leave {' '.join(self.edit.removed)} out"
        if client:
            return f"{client} run {' '.join((*self.edit.added, *map(shlex.quote, words)))} …"
        return "; ".join((*self.edit.commands, *_exports(self.edit)))


def edited(line: str, edit: Edit, *, manual: str) -> str:
    """Return a line with changes: options for a call of an engine, else commands before it.

    `manual` is what `run --help` of the engine prints.
    """
    for name, value in edit.variables:  # where the line sets it itself
        new = f"{_MARK}_{name}=" if value is None else f"{name}={shlex.quote(value)}"
        line = re.sub(rf"\b{name}=[^\s'\";&|]*", lambda _, new=new: new, line)  # type: ignore[misc]
    call = engine_call(line)
    if call is None:
        return "".join(f"{one}; " for one in (*edit.commands, *_exports(edit))) + line
    start, end = call.spans[given_options(call.words, manual)[1]]
    before, image, after = line[:start], edit.image or line[start:end], line[end:]
    for text in edit.removed:
        before = re.sub(rf"(?<=\s){re.escape(text)}(?=\s|$)", "", before, count=1)
    words = shlex.join((*edit.options, *_environment(edit)))
    return " ".join(filter(None, (before.rstrip(), *edit.added, words, image))) + after


def changes(differences: Iterable[FactDifference], *, cache: str, is_engine: bool) -> list[Change]:
    """Return the levers for differences, whose `reference` is the fast line's value, in order.

    `cache` is a folder for byte code. What the slow line cannot be given is left out.
    """
    found: dict[Edit, Change] = {}
    for one in differences:
        edit = _edit(one.key, one.reference, cache=cache, is_engine=is_engine)
        if edit is not None:
            turned = replace(one, reference=one.value, value=one.reference)
            found.setdefault(edit, Change(key=one.key, what=describe(turned), edit=edit))
    return list(found.values())


def option_changes(fast: str, slow: str, *, manual: str) -> list[Change]:
    """Return the options in which two calls of an engine differ, each as a change."""
    calls = engine_call(fast), engine_call(slow)
    if calls[0] is None or calls[1] is None:
        return []
    wanted, given = (
        list(option_texts(line, call, manual))
        for line, call in zip((fast, slow), calls, strict=True)
        if call is not None
    )
    for text in [one for one in wanted if one in given]:
        wanted.remove(text)
        given.remove(text)
    found: list[Change] = []
    for text in given:
        name = re.split(r"[\s=]", text)[0]
        same = next((one for one in wanted if re.split(r"[\s=]", one)[0] == name), None)
        if same is not None:
            wanted.remove(same)
        edit = Edit(removed=(text,), added=() if same is None else (same,))
        what = f"{text} is removed" if same is None else f"{text} → {same}"
        found.append(Change(key=f"option.{name.lstrip('-')}", what=what, edit=edit))
    for text in wanted:
        name = re.split(r"[\s=]", text)[0].lstrip("-")
        found.append(
            Change(key=f"option.{name}", what=f"{text} is added", edit=Edit(added=(text,)))
        )
    return found


def image_change(fast: str, slow: str) -> Change:
    """Return the change of one image to another."""
    edit = Edit(image=fast)
    return Change(key="image.id", what=f"the image {slow} → {fast}", edit=edit)


def _edit(key: str, want: FingerprintValue, *, cache: str, is_engine: bool) -> Edit | None:
    """Return what gives the slow line a value of a fact; None if nothing can."""
    name = _VARIABLES.get(key) or (key[4:] if holds_for("env", key) else "")
    if name and want != _SET:
        return Edit(variables=((name, None if want is None else str(want)),))
    if key == "python.uncompiled":
        return _with_byte_code(cache, is_engine=is_engine)
    if not is_engine:
        return _shell_limit(key, want)
    lever = next((one for one in _LEVERS if holds_for(one.key, key)), None)
    options = lever.options(key, want) if lever is not None else ()
    return Edit(options=options) if options else None


def _with_byte_code(cache: str, *, is_engine: bool) -> Edit:
    folder = _CACHE if is_engine else cache
    return Edit(
        options=("--volume", f"{cache}:{_CACHE}") if is_engine else (),
        variables=(("PYTHONPYCACHEPREFIX", folder), ("PYTHONDONTWRITEBYTECODE", None)),
    )


def _shell_limit(key: str, want: FingerprintValue) -> Edit | None:
    letter, unit = _LETTERS.get(key.removeprefix("limits."), ("", 1))
    if not letter or not holds_for("limits", key):
        return None
    size = want // unit if isinstance(want, int) else want
    return Edit(commands=(f"ulimit -S{letter} {size}",))


def _environment(edit: Edit) -> list[str]:
    """Return the options that set variables in a container; one without a value is removed."""
    pairs = ((name, value) for name, value in edit.variables)
    return [
        word
        for name, value in pairs
        for word in ("--env", name if value is None else f"{name}={value}")
    ]


def _exports(edit: Edit) -> list[str]:
    """Return the commands of the shell that set variables."""
    return [
        f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}"
        for name, value in edit.variables
    ]
