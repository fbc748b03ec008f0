"""Levers: how a line is changed so that one of its properties takes another line's value."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, Literal

from msgspec.structs import replace

from envcompare.config.workloads import VARIABLE_SETTING
from envcompare.environments.line import (
    FAR,
    PATH,
    EngineCall,
    before_path,
    engine_call,
    given_options,
    option_texts,
)
from envcompare.fingerprint import READ, holds_for
from envcompare.fingerprint.sentences import describe
from envcompare.proof.words import SIF, differing_words, words_or_text
from envcompare.run_folder.records import FactDifference, FingerprintValue
from envcompare.text import is_masked, visible

Kind = Literal["options", "software", "isolation", "settings"]
_CACHE: Final = "/envcompare-pycache"
_PREFIX, _WRITES_NONE = "PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE"
_BYTE_CODE: Final = "python.uncompiled"
SOFTWARE: Final = "software"  # all of it
START: Final = "container.entrypoint"
# Where a machine has the programs, libraries and packages of its distribution.
_SYSTEM: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/etc/alternatives"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/python3"),
)
_VARIABLES: Final = {
    "threads.omp": "OMP_NUM_THREADS",
    "threads.mkl": "MKL_NUM_THREADS",
    "threads.openblas": "OPENBLAS_NUM_THREADS",
    "allocator.ld_preload": "LD_PRELOAD",
    "allocator.tunables": "GLIBC_TUNABLES",
}
# Variables that a line sets at its beginning: names, and values without substitutions.
_SETTINGS: Final = re.compile(
    r"(?:[A-Za-z_]\w*=(?:'[^']*'|\"[^\"$`\\]*\"|[^\s'\"$`;&|()\\]*)[ \t]+)*(?![\s;&|)])"
)
_WORD: Final = re.compile(r"""(?:[^\s'"\\]|\\.|'[^']*'|"(?:\\.|[^"\\])*")+""", re.DOTALL)
_OF_SHELL: Final = re.compile(r"[;&|()<>`\n]|\$\(|^#")
_LAUNCHES: Final = re.compile(
    r"(?:\S*/)?(?:python[\d.]*|apptainer|singularity|torchrun|accelerate|(?:uv|conda) run)(?:\s|$)"
)
# A file or folder, but for SIFs, which are only read; a number is none.
_IS_PLACE: Final = re.compile(r"^(?!.*\.(?:sif|simg)['\"]?$)(?:.*/|.*\.[A-Za-z]\w*['\"]?$)")
_PYTHON: Final = r"[^\s;&|()<>'\"$`]*python[\d.]*"
_PYTHON_OF_LINE: Final = re.compile(rf"({_SETTINGS.pattern})({_PYTHON})(?=\s)")
_SETTING: Final = re.compile(r"([A-Za-z_]\w*)=('[^']*'|\"[^\"]*\"|\S*)")
# Options that may be repeated: their values are told apart by a name, or by where they are mounted.
_BY_NAME: Final = frozenset({"e", "ulimit", "security-opt", "label", "sysctl", "add-host"})
_BY_TARGET: Final = frozenset({"v", "p"})
_BY_VALUE: Final = frozenset({"tmpfs", "cap-add", "cap-drop", "mount", "device", "group-add"})
_SHORT: Final = {
    "env": "e",
    "volume": "v",
    "publish": "p",
    "net": "network",
    "m": "memory",
    "u": "user",
    "c": "cpu-shares",
    "h": "hostname",
    "l": "label",
    "w": "workdir",
}
# What options cost in safety if they are added, and if they are left out.
_COSTS: Final = (
    (r"seccomp[=:]unconfined", "the container may make every system call"),
    (r"apparmor[=:]unconfined|label[=:]disable", "no security module confines the container"),
    (r"systempaths=unconfined|unmask=", "the container reaches all of the host's /proc and /sys"),
    (r"--cap-add|--privileged", "the container has more of the rights of root on the host"),
    (r"--net(?:work)?[ =]host", "the container reaches every port of the host"),
    (r"--ipc[ =]host", "the container shares memory with the processes of the host"),
    (r"--pid[ =]host", "the container sees the processes of the host"),
    (r"--userns[ =]host", "root in the container is root on the host"),
    (r"--uts[ =]host", "the container shares the name of the host"),
    (r"--cgroupns[ =]host", "the container sees the control groups of the host"),
    (r"--device(?:-cgroup-rule)?[ =]", "the container reaches a device of the host"),
)
_PROTECTIONS: Final = (
    r"--cap-drop|no-new-privileges|--read-only|--user(?!ns[ =]host)|(?:^|\s)-u"
    r"|--net(?:work)?[ =]none|--pids-limit|--security-opt(?!.*(?:unconfined|disable|unmask))"
    r"|--(?:ipc|pid|cgroupns)[ =](?:none|private)|--runtime[ =]\S*(?:runsc|kata)"
)
# Its Python ignores variables: of a command, in the options before a script or module.
_IGNORES: Final = re.compile(
    rf"{_PYTHON}(?:\s+(?:-[WX]\s*[^\s-]\S*|-[bBdiOPqsSuvx]+|--\S+))*\s+-[bBdiOPqsSuvx]*[EI]"
)


@dataclass(frozen=True, slots=True)
class _Lever:
    """An option of `run` for facts below a key, and how it is written for a value."""

    key: str
    kind: Kind
    options: Callable[[str, FingerprintValue], tuple[str, ...]]  # none if a value has no option


def _or(value: FingerprintValue, otherwise: int | str) -> str:
    """Return a number; for no limit, what the option takes for it."""
    return str(value if isinstance(value, int | float) else otherwise)


def _listed(value: FingerprintValue) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else ""


def _scratch(value: FingerprintValue) -> tuple[str, ...]:
    return ("--tmpfs", "/tmp:exec") if str(value).startswith("tmpfs") else ()  # noqa: S108 — inside


def _rights(value: FingerprintValue) -> tuple[str, ...]:
    # Linux 5.8 and older have 38 capabilities, newer ones three more
    is_all = isinstance(value, str) and int(value, 16).bit_count() >= 38
    return ("--cap-add", "ALL") if is_all else ()


def _unconfined(what: str) -> Callable[[str, FingerprintValue], tuple[str, ...]]:
    options = ("--security-opt", f"{what}=unconfined")
    return lambda _, value: options if value in {0, None, "unconfined"} else ()


_LEVERS: Final = (
    _Lever("limits", "settings", lambda key, want: ("--ulimit", f"{key[7:]}={_or(want, -1)}")),
    _Lever("cgroup.cpu_quota", "settings", lambda _, want: ("--cpus", _or(want, 0))),
    _Lever("cgroup.memory", "settings", lambda _, want: ("--memory", _or(want, 0))),
    _Lever("cgroup.pids_limit", "settings", lambda _, want: ("--pids-limit", _or(want, -1))),
    _Lever("cpu.affinity", "settings", lambda _, want: ("--cpuset-cpus", _listed(want))),
    _Lever("shm.bytes", "settings", lambda _, want: ("--shm-size", f"{_or(want, 0)}b")),
    _Lever("mount.scratch", "settings", lambda _, want: _scratch(want)),
    _Lever("seccomp", "isolation", _unconfined("seccomp")),
    _Lever("lsm", "isolation", _unconfined("apparmor")),
    _Lever("capabilities", "isolation", lambda _, want: _rights(want)),
    _Lever("container.network", "isolation", lambda _, want: ("--network", str(want or "host"))),
    _Lever("network.interfaces", "isolation", lambda *_: ("--network", "host")),
    _Lever(
        *("container.log_driver", "isolation"),
        lambda _, want: ("--log-driver", str(want or "none")),
    ),
    _Lever(
        *("container.runtime", "isolation"),
        lambda _, want: ("--runtime", str(want)) if want else (),
    ),
)
"""Every lever on a container; variables, byte code and the image are changed for any line."""
_READ_BACK: Final = (
    *("limits", "cgroup.cpu_quota", "cpu.affinity", "seccomp", "threads", "env", "allocator"),
    "capabilities",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Changes of one line, applied together."""

    options: tuple[str, ...] = ()  # of `run`, after those of the line
    commands: tuple[str, ...] = ()  # of the shell, before a line that calls no engine
    variables: tuple[tuple[str, str | None], ...] = ()  # None: it is not set
    image: str = ""  # instead of the line's
    python: str = ""  # instead of that of a line that calls no engine
    paths: tuple[str, ...] = ()  # folders that such a line's Python searches first
    files: tuple[str, ...] = ()  # of its image, which become those of the fast line's
    is_remade: bool = False  # its image is rebuilt even if no file of it is changed
    removed: tuple[str, ...] = ()  # options of `run`, as they are written
    added: tuple[str, ...] = ()  # likewise
    words: tuple[tuple[int, int, str], ...] = ()  # places in the line, and what comes there

    def __add__(self, other: Edit) -> Edit:
        """Return both changes."""
        values: dict[str, Any] = {}
        for one in fields(self):
            mine, others = getattr(self, one.name), getattr(other, one.name)
            values[one.name] = mine + others if isinstance(mine, tuple) else mine or others
        return Edit(**values)


PLACEBO: Final = Edit(variables=(("ENVCOMPARE_PLACEBO", "1"),))
"""A change that no program notices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One property of the slow line, and the change that gives it the fast line's value."""

    key: str
    what: str  # "the limit nofile 20000 → 1024"
    edit: Edit
    want: FingerprintValue = None
    fix: str = ""  # if the line itself cannot be changed like this

    @property
    def kind(self) -> Kind:
        """Return the kind of property; the search looks for the kind first."""
        edit = self.edit
        if edit.image or edit.files or edit.paths or self.key in {SOFTWARE, _BYTE_CODE}:
            return "software"
        if edit.removed or edit.added or edit.words:
            return "options"
        return next((lever.kind for lever in _LEVERS if holds_for(lever.key, self.key)), "settings")

    @property
    def is_whole(self) -> bool:
        """Return whether it changes all software, whatever of it is the cause."""
        return bool(self.edit.image) or self.key == SOFTWARE

    @property
    def cost(self) -> str:
        """Return what the change costs in safety; empty if nothing."""
        text = " ".join((*self.edit.added, *self.edit.options))
        costs = [cost for pattern, cost in _COSTS if re.search(pattern, text)]
        if re.search(_PROTECTIONS, " ".join(self.edit.removed)) and not costs:
            costs = ["the container loses a protection that the line gives it"]
        return ", and ".join(costs)

    def can_be_read(self, line: str) -> bool:
        """Return whether the Python of a line reads the variables that lead it to this change."""
        is_of_python = bool(self.edit.paths) or self.key == _BYTE_CODE
        return not (is_of_python and _IGNORES.search(line))

    def is_without_effect(self, facts: Mapping[str, FingerprintValue]) -> bool:
        """Return whether the facts of the changed line show another value than was wanted."""
        is_read = facts.get(READ) is not None
        if self.key == _BYTE_CODE:
            is_kept = facts.get(f"env.{_PREFIX}") and not facts.get(f"env.{_WRITES_NONE}")
            return is_read and not is_kept
        is_shown = is_read and any(holds_for(one, self.key) for one in _READ_BACK)
        return is_shown and facts.get(self.key) != self.want

    def mend(self, line: str, *, manual: str) -> str:
        """Return how to change the line, or the image, for this change alone."""
        edit, call = self.edit, engine_call(line)
        if self.fix or self.key == _BYTE_CODE:
            compiling = "python -m compileall -q FOLDERS; of an image, as RUN in its Dockerfile"
            return self.fix or compiling
        if edit.image:
            return f"use the image {edit.image}"
        if edit.removed:
            old = " ".join(edit.removed)
            return f"replace {old} by {' '.join(edit.added)}" if edit.added else f"leave {old} out"
        if call is None:
            return _fix_of_plain_line(line, edit)
        new = " ".join((*edit.added, *map(shlex.quote, (*edit.options, *_environment(edit)))))
        given = option_texts(line, call, manual)
        old = next((one for one in given if _role(one) in _roles(edit)), "")
        unset = [name for name, value in edit.variables if value is None]
        if unset and len(unset) == len(edit.variables) and not edit.options:
            return f"leave {old or 'ENV ' + ' '.join(unset) + ' of the image'} out"
        return f"replace {old} by {new}" if old else f"{' '.join(call.client)} run {new} …"


def _fix_of_plain_line(line: str, edit: Edit) -> str:
    # In the shell, a variable would not change what the line itself sets.
    names, (settings, _) = dict(edit.variables), _settings_of(line)
    old = " ".join(text for name, text in settings.items() if name in names)
    if not old:
        return "; ".join((*edit.commands, *_exports(edit)))
    given = ((name, value) for name, value in names.items() if value is not None)
    new = " ".join(f"{name}={shlex.quote(value)}" for name, value in given)
    return f"replace {old} by {new}" if new else f"leave {old} out"


def edited(line: str, edit: Edit, *, manual: str) -> str:
    """Return a line with changes: options for a call of an engine, else commands before it.

    `manual` is what `run --help` of the engine prints.
    """
    # From the end of the line, so that earlier places stay valid.
    for begin, end, text in sorted(edit.words, reverse=True):
        line = line[:begin] + text + line[end:]
    call = engine_call(line)
    if call is None:
        first = (*(f"{command} || exit 125" for command in edit.commands), *_exports(edit))
        before = "".join(f"{one}; " for one in first)
        return before + _with_software(_without_settings(line, edit), edit)
    start, end = call.spans[given_options(call.words, manual)[1]]
    before, image, after = line[:start], edit.image or line[start:end], line[end:]
    unset = " ".join(f"--unset={name}" for name in _passed_on(line, call, edit))
    before = before[: call.client_at] + f"env {unset} " * bool(unset) + before[call.client_at :]
    roles = _roles(edit)
    own = [one for one in option_texts(line, call, manual) if _role(one) in roles]
    for text in (*edit.removed, *own):
        before = re.sub(rf"(?<=\s){re.escape(text)}(?=\s|$)", "", before, count=1)
    words = shlex.join((*edit.options, *_environment(edit)))
    return " ".join(filter(None, (before.rstrip(), *edit.added, words, image))) + after


def _passed_on(line: str, call: EngineCall, edit: Edit) -> list[str]:
    """Return the variables without a value that the client of a call has.

    `--env NAME` takes that value; `sudo` leaves it out itself.
    """
    before = line[: call.client_at]
    removed = (name for name, value in edit.variables if value is None)
    return [
        name
        for name in removed
        if (name in os.environ or f"{name}=" in before)
        and not f"{name}=".startswith(FAR)
        and len(call.client) == 1
    ]


def _settings_of(line: str) -> tuple[dict[str, str], str]:
    """Return the variables that a line sets at its beginning, as it writes them, and the rest."""
    match = _SETTINGS.match(line)
    end = match.end() if match else 0
    return {setting[1]: setting[0] for setting in _SETTING.finditer(line[:end])}, line[end:]


def _without_settings(line: str, edit: Edit) -> str:
    """Return a line that does not set these variables itself, at its beginning."""
    settings, rest = _settings_of(line)
    names = dict(edit.variables)
    return "".join(f"{text} " for name, text in settings.items() if name not in names) + rest


def variable_changes(fast: str, slow: str) -> list[Change]:
    """Return the variables that two lines without an engine set differently, each as a change.

    One that would make the slow line the fast one is left out.
    """
    if engine_call(fast) or engine_call(slow):
        return []
    (wanted, fast_rest), (given, slow_rest) = map(_settings_of, (fast, slow))
    names = [name for name in given | wanted if given.get(name) != wanted.get(name)]
    if words_or_text(fast_rest) == words_or_text(slow_rest) and len(names) < 2:
        return []
    changed = []
    for name in names:
        before, after = given.get(name, ""), wanted.get(name, "")
        value = shlex.split(after)[0].partition("=")[2] if after else None
        what, fix = _what_and_fix(before, after)
        edit = Edit(variables=((name, value),))
        changed.append(Change(key="words", what=what, edit=edit, fix=fix))
    return changed


def _what_and_fix(before: str, after: str) -> tuple[str, str]:
    """Return what a change does to words of a line, and how to do the same; empty: no words."""
    if not before:
        return f"{after} is added", f"add {after}"
    if not after:
        return f"{before} is removed", f"leave {before} out"
    return f"{before} → {after}", f"replace {before} by {after}"


def sif_of(line: str) -> tuple[str, tuple[int, int]] | None:
    """Return the program that runs a SIF, and where the line names that; None for other lines.

    The line is one call of the program, with options alone before the SIF.
    """
    words = list(_WORD.finditer(line))
    texts = [word[0] for word in words]
    first = sum(1 for _ in takewhile(VARIABLE_SETTING.fullmatch, texts))
    at = next((at for at, text in enumerate(texts) if SIF.search(text)), 0)
    between = zip(texts[first + 1 :], texts[first + 2 : at], strict=False)
    runs_sif = re.compile(r"(?:\S*/)?(?:apptainer|singularity)")
    if not (at > first and runs_sif.fullmatch(texts[first]) and _may_be_mixed(texts)):
        return None
    # With more than one SIF, one of them may be an overlay.
    if sum(map(bool, map(SIF.search, texts))) > 1:
        return None
    if any(word[0] != "-" and before[0] != "-" for before, word in between):
        return None
    return shlex.split(texts[first])[0], words[at].span()


def sif_change(fast: str, slow: str) -> list[Change]:
    """Return the change of one SIF to another."""
    named = [line[slice(*sif[1])] for line in (slow, fast) if (sif := sif_of(line))]
    if len(set(named)) < 2:
        return []
    old, new = named
    return [Change(key="image.id", what=f"the image {old} → {new}", edit=Edit(image=new))]


def _with_software(line: str, edit: Edit) -> str:
    """Return a line without an engine that uses another Python, or other packages first."""
    if edit.image and (sif := sif_of(line)):
        begin, end = sif[1]
        line = f"{line[:begin]}{edit.image}{line[end:]}"
    if edit.python and (named := _PYTHON_OF_LINE.match(line)):
        line = f"{named[1]}{edit.python}{line[named.end() :]}"
    if not edit.paths:
        return line
    first = shlex.quote(os.pathsep.join(edit.paths))
    return f"export {PATH}={first}${{{PATH}:+:${PATH}}}; {before_path(line, first)}"


def own_python(fast: str, slow: str) -> list[Change]:
    """Return the change of one named Python to another, for two lines that call no engine."""
    if engine_call(fast) or engine_call(slow):
        return []
    named = [_PYTHON_OF_LINE.match(line) for line in (slow, fast)]
    old, new = ("" if one is None else one[2] for one in named)
    # where the slow line names its Python twice, a part of it would keep its own
    if old == new or not (old and new) or _WORD.findall(slow).count(old) > 1:
        return []
    edit = Edit(python=new)
    return [Change(key=SOFTWARE, what=f"{old} → {new}", edit=edit, fix=f"use {new}")]


def changes(differences: Iterable[FactDifference], *, cache: str, is_engine: bool) -> list[Change]:
    """Return the levers for differences, whose `reference` is the fast line's value, in order.

    `cache` is a folder for byte code. What the slow line cannot be given is left out.
    """
    levers: dict[Edit, Change] = {}
    for one in differences:
        edit = _edit(one.key, one.reference, cache=cache, is_engine=is_engine)
        if edit is not None:
            what = describe(replace(one, reference=one.value, value=one.reference))
            change = Change(key=one.key, what=what, edit=edit, want=one.reference)
            levers.setdefault(edit, change)
    return list(levers.values())


def line_changes(fast: str, slow: str, *, manual: str) -> list[Change]:
    """Return the image and the options in which two calls of an engine differ, each as a change."""
    pairs = [(line, call) for line in (fast, slow) if (call := engine_call(line)) is not None]
    if len(pairs) < 2:
        return []
    places = [call.spans[given_options(call.words, manual)[1]] for _, call in pairs]
    images = [line[begin:end] for (line, _), (begin, end) in zip(pairs, places, strict=True)]
    changed: list[Change] = []
    if images[0] != images[1]:
        what = f"the image {images[1]} → {images[0]}"
        changed.append(Change(key="image.id", what=what, edit=Edit(image=images[0])))
    wanted, given = (list(option_texts(line, call, manual)) for line, call in pairs)
    for text in [one for one in wanted if one in given]:
        wanted.remove(text)
        given.remove(text)
    for text in given:
        same = next((one for one in wanted if _role(one) == _role(text)), None)
        if same is not None:
            wanted.remove(same)
        edit = Edit(removed=(text,), added=() if same is None else (same,))
        what = f"{text} is removed" if same is None else f"{text} → {same}"
        changed.append(Change(key=f"option.{_role(text)[0]}", what=what, edit=edit))
    changed += _last_pairs(wanted, changed)
    for text in wanted:
        key = f"option.{_role(text)[0]}"
        changed.append(Change(key=key, what=f"{text} is added", edit=Edit(added=(text,))))
    return changed


def word_changes(fast: str, slow: str, *, manual: str) -> list[Change]:
    """Return the words in which two lines differ, or what their containers run, each as a change.

    Lines are mixed only if each is one call of Python or of a launcher, and if they name the same
    paths but for SIFs: else a mixture might do harm, such as write over the results of another
    line. A change that would make the slow line the fast one is left out, as are the Python of a
    line and variables that it sets, which are changes of their own.
    """
    spans = [_words(line, manual) for line in (slow, fast)]
    old, new = (
        [line[begin:end] for begin, end in each]
        for line, each in zip((slow, fast), spans, strict=True)
    )
    if not all(map(_may_be_mixed, (old, new))):
        return []
    counts = [_words_before_arguments(words) for words in (old, new)]
    if counts[0][1] != counts[1][1]:  # only one of them names its Python first
        return []
    for words, places, count in zip((old, new), spans, map(sum, counts), strict=True):
        del words[:count], places[:count]
    changed: list[Change] = []
    for a, b, c, d in differing_words(old, new):
        parts = (" ".join(old[a:b]), " ".join(new[c:d]))
        if all(map(SIF.search, parts)) and (b - a, d - c) == (1, 1) and sif_change(fast, slow):
            # The image is changed by its files.
            continue
        if any(map(_IS_PLACE.search, old[a:b] + new[c:d])):
            return []
        # what is added comes before the next word, or at the end of the line
        last = spans[0][-1][1] if spans[0] else len(slow.rstrip())
        begin = spans[0][a][0] if a < len(spans[0]) else last
        end = spans[0][b - 1][1] if b > a else begin
        text = parts[1] if b > a else f"{parts[1]} " if a < len(spans[0]) else f" {parts[1]}"
        edit = Edit(words=((begin, end, text),))
        option = old[a - 1] if a and old[a - 1].startswith("-") and all(parts) else ""
        before, after = (f"{option} {part}".strip() for part in parts)
        what, fix = _what_and_fix(before, after)
        changed.append(Change(key="words", what=what, edit=edit, fix=fix))
    wanted = words_or_text(fast)
    return [
        change
        for change in changed
        if words_or_text(edited(slow, change.edit, manual=manual)) != wanted
    ]


def _may_be_mixed(words: list[str]) -> bool:
    """Return whether words are one call of Python or a launcher, without the shell's own signs."""
    call = " ".join(word for word in words if not VARIABLE_SETTING.fullmatch(word))
    return bool(_LAUNCHES.match(call)) and not any(_OF_SHELL.search(word) for word in words)


def _words_before_arguments(words: list[str]) -> tuple[int, int]:
    """Return how many words set variables, and then how many name the Python of a line."""
    count = sum(1 for _ in takewhile(VARIABLE_SETTING.fullmatch, words))
    return count, int(re.fullmatch(_PYTHON, words[count]) is not None)


def _words(line: str, manual: str) -> list[tuple[int, int]]:
    """Return where the words of a line are; of a call of an engine, those after the image."""
    call = engine_call(line)
    start = 0 if call is None else call.spans[given_options(call.words, manual)[1]][1]
    return [word.span() for word in _WORD.finditer(line, start)]


def own_software(fast: str, slow: str, *, folder: Path, search_path: str) -> list[Change]:
    """Return the change that shows this machine's software to a container in place of the image's.

    It is for a fast line without an engine, run in a folder with this PATH: the container gets the
    folders of the distribution, and those of other Pythons on PATH or in the line.
    """
    if engine_call(fast) is not None or engine_call(slow) is None:
        return []
    words = fast.split()
    settings = list(takewhile(VARIABLE_SETTING.fullmatch, words))
    for name, _, value in (setting.partition("=") for setting in settings):
        if name == "PATH":
            before, own_path = search_path, value.strip("'\"")
            search_path = own_path.replace("${PATH}", before).replace("$PATH", before)
    program = "".join(words[len(settings) : len(settings) + 1])
    own = [str((folder / program).parent)] if "/" in program else []
    paths = [*own, *filter(os.path.isabs, search_path.split(os.pathsep))]
    pythons = (one for path in paths if not _is_system(path) for one in _prefixes(Path(path)))
    shown = [path for path in (*_SYSTEM, *dict.fromkeys(pythons)) if Path(path).exists()]
    return [
        Change(
            key=SOFTWARE,
            what="the software of the image → that of this machine",
            edit=Edit(
                options=tuple(word for path in shown for word in ("-v", f"{path}:{path}:ro")),
                variables=(("PATH", os.pathsep.join(paths)),),
            ),
            fix="build the image with the versions of this machine",
        )
    ]


def own_start(fast: str, slow: str, *, entrypoint: Sequence[str]) -> list[Change]:
    """Return the change that starts a container without an entrypoint, as a plain line does."""
    if engine_call(fast) is not None or engine_call(slow) is None or not entrypoint:
        return []
    what = f"ENTRYPOINT {visible(json.dumps(list(entrypoint)))} is left out"
    return [Change(key=START, what=what, edit=Edit(options=("--entrypoint", "")))]


def _is_system(path: str) -> bool:
    return Path(path).parts[:2] in {Path(each).parts for each in _SYSTEM}


def _prefixes(programs: Path) -> Iterator[str]:
    """Yield the installations of Python in a folder `bin`: a virtual one, and what it is made from.

    Nothing else is shown to a container, such as a home with a script called python.
    """
    if programs.name != "bin":
        return
    for python in sorted(programs.glob("python3*")):
        if not os.access(python, os.X_OK):
            continue
        for prefix in (python.parent.parent, python.resolve().parent.parent):
            is_python = (prefix / "pyvenv.cfg").is_file() or any(prefix.glob("lib/python3*"))
            holds_home = Path.home().is_relative_to(prefix)
            if is_python and not _is_system(str(prefix)) and not holds_home:
                yield str(prefix)


def _last_pairs(wanted: list[str], changed: list[Change]) -> list[Change]:
    """Pair what is left of ports and mounts, if one line has one of a kind in place of another."""
    pairs: list[Change] = []
    for change in [one for one in changed if one.edit.removed and not one.edit.added]:
        (old,) = change.edit.removed
        name = _role(old)[0]
        others = [one for one in wanted if _role(one)[0] == name]
        if name in _BY_TARGET and len(others) == 1:
            (new,) = others
            wanted.remove(new)
            changed.remove(change)
            edit = Edit(removed=(old,), added=(new,))
            pairs.append(Change(key=change.key, what=f"{old} → {new}", edit=edit))
    return pairs


def replaces(option: Change, other: Change) -> bool:
    """Return whether an option in which lines differ says what another change would do."""
    roles = {_role(one) for one in (*option.edit.removed, *option.edit.added)}
    return not roles.isdisjoint(_roles(other.edit))


def _roles(edit: Edit) -> set[tuple[str, str]]:
    """Return the roles of the options with which a container gets a change."""
    pairs = zip(edit.options[::2], edit.options[1::2], strict=True)
    return {_role(" ".join(pair)) for pair in pairs} | {("e", name) for name, _ in edit.variables}


def _role(text: str) -> tuple[str, str]:
    """Return the name of an option, and which of several of that name it is."""
    # A value may directly follow a letter.
    word = re.match(r"-([acehlmpuvw])([^\s=].*)$", text, re.DOTALL) or re.match(
        r"--?([\w-]+?)(?:[\s=]+(.*))?$", text, re.DOTALL
    )
    if word is None:
        return text, ""
    name, value = _SHORT.get(word[1], word[1]), (word[2] or "").strip("'\"")
    if name in _BY_NAME:
        return name, value.partition("=")[0]
    if name in _BY_TARGET:
        parts = value.split(":")
        return name, parts[1] if len(parts) > 1 else parts[0]
    return name, value.partition(":")[0] if name in _BY_VALUE else ""


def _edit(key: str, want: FingerprintValue, *, cache: str, is_engine: bool) -> Edit | None:
    """Return what gives the slow line a value of a fact; None if nothing can."""
    if is_masked(str(want)):
        return None
    name = _VARIABLES.get(key) or (key[4:] if holds_for("env", key) else "")
    # The value of such a variable is not kept.
    if name and want != "set":
        return Edit(variables=((name, None if want is None else str(want)),))
    if key == _BYTE_CODE:
        return Edit(
            options=("--volume", f"{cache}:{_CACHE}") if is_engine else (),
            variables=((_PREFIX, _CACHE if is_engine else cache), (_WRITES_NONE, "")),
        )
    if not is_engine:
        # how `ulimit` of the shell names a limit, and in what unit it takes a size
        letters = {"nofile": ("n", 1), "stack": ("s", 1024), "core": ("c", 512)}
        letter, unit = letters.get(key.removeprefix("limits."), ("", 1))
        if not letter or not holds_for("limits", key):
            return None
        size = want // unit if isinstance(want, int) else want
        return Edit(commands=(f"ulimit -S{letter} {size}",))
    lever = next((one for one in _LEVERS if holds_for(one.key, key)), None)
    options = lever.options(key, want) if lever is not None else ()
    return Edit(options=options) if options else None


def _environment(edit: Edit) -> list[str]:
    """Return the options that set variables in a container; one without a value is removed."""
    return [
        word
        for name, value in edit.variables
        for word in ("--env", name if value is None else f"{name}={value}")
    ]


def _exports(edit: Edit) -> list[str]:
    return [
        f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}"
        for name, value in edit.variables
    ]
