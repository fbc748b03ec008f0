"""Choose the workloads that run, with their parameter values: bundled, a class, or a command.

A workload's declarations are read from its source, which is not imported. With a user's file the
other files of its folder are sent, if it needs them. Git, if available, decides which files count.
Hidden files, byte code, virtual environments and run folders are never sent.
"""

from __future__ import annotations

import ast
import math
import os
import re
import shlex
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, Final

from envcompare import bundled
from envcompare.config import Traits
from envcompare.config.settings import LONGEST_S, Settings, WorkloadTable
from envcompare.errors import CommandTimeoutError, ConfigError, OutputLimitError, plain
from envcompare.files import read_text
from envcompare.run_folder.records import Scalar
from envcompare.text import Command, closest, listed
from envcompare.transport import LOCAL, run

MOST_BYTES: Final = 32 << 20
MOST_FILES: Final = 2000
_SHOWN: Final = 3
_LISTING_S: Final = 60.0
_MODULES: Final = frozenset({".py", ".pyc", ".so"})
_UNNEEDED: Final = frozenset({"__pycache__", "node_modules"})
_MARKS: Final = frozenset({"pyvenv.cfg", "samples.jsonl"})
"""A folder with one of these files is a virtual environment or a run folder."""
_FINDS_FILES: Final = frozenset({"__file__", "__import__", "importlib", "pkgutil", "runpy"})
"""Names by which a file may reach neighbouring files without an `import` statement."""
# A Git hook that starts envcompare sets these to its own repository.
_GIT: Final = ("env", "-u", "GIT_DIR", "-u", "GIT_WORK_TREE", "-u", "GIT_INDEX_FILE", "git")
_LIST: Final = ("ls-files", "-z", "--others", "--exclude-standard")
COMMAND_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
VARIABLE_SETTING = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
SHELL: Final = ("sh", "-c")
"""The command that runs a user's line; each arm adds its line."""
_SHELL_WORDS = frozenset({"|", "||", "&&", "&", ";", ">", ">>", "<", "2>", "2>&1"})
_Given = dict[str, Scalar | tuple[Scalar, ...]]
# Mounting one of these from the host would hide the container's own files.
_SYSTEM_FOLDERS = frozenset({
    "/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/opt", "/proc", "/run", "/sbin",
    "/sys", "/tmp", "/usr", "/usr/local", "/var",  # noqa: S108 — nothing is written there
})  # fmt: skip
Range = tuple[float | None, float | None] | tuple[str, ...] | tuple[bool, ...]
"""Least and most of a number, None for no limit; or the choices of a text or a bool."""


def imported_from(path: Path) -> tuple[Path, str]:
    """Return the folder from which a file is imported, and its name there.

    That is its own folder, or the one around the packages that it is in.
    """
    folder = path.parent
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        folder = folder.parent
    return folder, path.relative_to(folder).as_posix()


def travelling(path: Path) -> tuple[str, ...]:
    """Return the files sent with a workload file, relative to where it is imported from.

    Of a file in a package, that package is sent, and nothing around it. Only the file itself is
    sent if it needs no other, or if it may only read others and the folder is too large. Raises
    ConfigError if it imports from a folder that is too large.
    """
    try:
        imports, may_read = _needs_of(path)
    except OSError as error:
        raise _unlisted(path, error) from error
    if imports or may_read:
        try:
            return _files_of_folder(path)
        except ConfigError:
            if imports:
                raise
    return (imported_from(path)[1],)


def left_behind(path: Path) -> str:
    """Return why the folder of a file that may read others of it does not travel; empty if so."""
    try:
        if any(_needs_of(path)):
            _files_of_folder(path)
    except ConfigError as error:
        return error.details
    except OSError as error:
        return str(error)
    return ""


def _files_of_folder(path: Path) -> tuple[str, ...]:
    folder, own = imported_from(path)
    package = own.partition("/")[0] + "/" if "/" in own else ""
    inner = _below(folder / package, frozenset(), needed=own.removeprefix(package))
    try:
        # One file more than allowed shows that there are too many, without listing all.
        found = islice((f"{package}{name}" for name in inner), MOST_FILES + 1)
        names = tuple(sorted({own, *found}))
        sizes = {name: (folder / name).stat().st_size for name in names}
    except (CommandTimeoutError, OutputLimitError) as error:
        raise _too_large(path, f"its files cannot be listed: {error}") from error
    except OSError as error:
        raise _unlisted(path, error) from error
    if len(names) > MOST_FILES:
        crowded = _largest(dict.fromkeys(names, 1))[0][0]
        raise _too_large(path, f"it holds more than {MOST_FILES} files, most of them in {crowded}")
    if sum(sizes.values()) > MOST_BYTES:
        largest = ", ".join(f"{name} ({_size(amount)})" for name, amount in _largest(sizes))
        raise _too_large(path, f"{_size(sum(sizes.values()))} in all, most of it in {largest}")
    return names


def _needs_of(path: Path) -> tuple[bool, bool]:
    """Return whether a file imports its neighbours, and whether it may reach them otherwise."""
    if "/" in imported_from(path)[1]:
        # Importing the file also imports the package around it.
        return True, True
    neighbours = {
        entry.name.partition(".")[0]
        for entry in path.parent.iterdir()
        if entry.name != path.name and (entry.is_dir() or entry.suffix in _MODULES)
    }
    used: set[str] = set()
    for node in ast.walk(ast.parse(read_text(path))):
        if isinstance(node, ast.Import):
            used |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            used.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.Name | ast.Attribute):
            used |= {node.id if isinstance(node, ast.Name) else node.attr} & _FINDS_FILES
    return bool((used - {""}) & neighbours), bool(used & _FINDS_FILES)


def _below(folder: Path, above: frozenset[Path], *, needed: str = "") -> Iterator[str]:
    """Yield the names of regular files in a folder, including those behind links and submodules."""
    here = above | {folder.resolve()}
    for name in _listed(folder, needed):
        path = folder / name
        if any(part.startswith(".") or part in _UNNEEDED for part in PurePosixPath(name).parts):
            continue
        if path.is_file():
            yield name
        # A link to a folder around it would have no end.
        elif path.is_dir() and path.resolve() not in here:
            yield from (f"{name.rstrip('/')}/{inner}" for inner in _below(path, here))


def _listed(folder: Path, needed: str) -> Iterator[str]:
    """Yield what Git has or would add, without virtual environments and run folders.

    If a repository ignores the needed file, the folder is searched as if outside it; without Git
    everything is yielded.
    """
    names = _asked("-C", str(folder), *_LIST, "--cached")
    if names is None or (needed and needed not in names):
        # Git applies ignore files only in a repository, so an empty one is made elsewhere.
        with tempfile.TemporaryDirectory() as empty:
            _asked("init", "-q", "--bare", empty)
            words = (f"--git-dir={empty}", f"--work-tree={folder}", "-C", str(folder))
            names = _asked(*words, *_LIST)
    if names is None:
        yield from _walked(folder)
        return
    paths = [PurePosixPath(name) for name in names]
    marked = {path.parent for path in paths if path.name in _MARKS} - {PurePosixPath()}
    yield from (str(path) for path in paths if marked.isdisjoint(path.parents))


def _asked(*words: str) -> list[str] | None:
    """Return the lines Git prints; None if it fails or is not installed."""
    done = run(LOCAL, Command(argv=(*_GIT, *words)), timeout_s=_LISTING_S)
    return list(filter(None, done.stdout.split("\0"))) if done.succeeded else None


def _walked(folder: Path) -> Iterator[str]:
    for place, folders, files in os.walk(folder):
        if not _MARKS.isdisjoint(files) and Path(place) != folder:
            folders.clear()
            continue
        # os.walk lists a link to a folder among the folders, and does not follow it.
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        folders[:] = [name for name in folders if name not in _UNNEEDED and name[0] != "."]
        for name in (*files, *links):
            yield str((Path(place) / name).relative_to(folder))


def _largest(amounts: dict[str, int]) -> list[tuple[str, int]]:
    """Return the largest files and folders directly below a folder."""
    tops: Counter[str] = Counter()
    for name, amount in amounts.items():
        top, slash, _ = name.partition("/")
        tops[top + slash] += amount
    return tops.most_common(_SHOWN)


def _size(size_bytes: int) -> str:
    large, unit = (2**30, "GiB") if size_bytes >= 2**30 else (2**20, "MiB")
    return f"{size_bytes / large:.1f} {unit}"


def _unlisted(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"{path.name} needs the files in {path.parent}, which cannot be listed",
        details=plain(error, has_file=True),
        hint="make them readable, or move the file and its imports",
    )


def _too_large(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{path.name} needs other files of its folder, and {path.parent} is too large to send",
        details=f"{why}; at most {_size(MOST_BYTES)} and {MOST_FILES} files are sent",
        hint="list large files in a .gitignore there, or give data with --data",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadInfo:
    """A workload as its class declares it; a parameter without a range accepts any value."""

    name: str
    summary: str
    parameters: dict[str, Scalar]
    ranges: dict[str, Range] = field(default_factory=dict)
    bottleneck: str = ""  # where most of its time is spent
    metrics: tuple[str, ...] = ()  # that its `evaluate` returns
    loads_data: bool = True
    spreads_ranks: bool = False  # which may be on several hosts
    writing: dict[str, tuple[Scalar, ...]] = field(default_factory=dict)
    """Parameter values with which, all together, it writes to the folder of its data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What runs in every arm, where, its time limit, and what is read from its output."""

    argv: tuple[str, ...]
    cwd: str  # on the host; mounted read-only in containers at the same path
    measures: tuple[tuple[str, str], ...] = ()  # name, regular expression with one group
    timeout_s: float | None = None
    prepare: str = ""  # shell line before each process, not timed
    conclude: str = ""  # after each process
    lockstep: bool = False  # its steps are timed, instead of whole processes
    most_rounds: int | None = None  # of processes; a capture holds no more
    step: str = ""  # MODULE:FUNCTION, each call of which is a step; empty: optimizers' are


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A workload and its parameter values; each value of a parameter makes a cell."""

    name: str
    path: Path | None = None  # of the user's own file
    class_name: str = ""
    files: tuple[str, ...] = ()  # of the folder of that file, sent with it
    program: Program | None = None  # a plain command
    parameters: tuple[tuple[str, tuple[Scalar, ...]], ...] = ()

    @property
    def whole(self) -> Program | None:
        """Return the program whose whole processes are timed; None if steps are."""
        return None if self.program is None or self.program.lockstep else self.program


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The names an experiment may use: environments, and workloads with their declarations."""

    environments: Mapping[str, Traits]
    workloads: dict[str, WorkloadInfo]


def catalogue() -> dict[str, WorkloadInfo]:
    """Return the bundled workloads by name: each file with a class that has a method `step`."""
    shared = _shared_classes()
    return {
        path.stem: _workload_info(lineage, name=path.stem)
        for path in sorted(bundled.workloads().glob("*.py"))
        for node in _classes(path).values()
        if _has_method(lineage := _lineage(node, shared), "step")
    }


def _classes(path: Path) -> dict[str, ast.ClassDef]:
    """Return the top-level classes of a file by name.

    Raises OSError, ValueError and SyntaxError for a file that is not Python.
    """
    try:
        body = ast.parse(read_text(path), filename=str(path)).body
    except (RecursionError, MemoryError) as error:
        # The parser's own stack is full.
        raise ValueError("it is nested too deep") from error
    return {node.name: node for node in body if isinstance(node, ast.ClassDef)}


def _has_method(lineage: list[ast.ClassDef], name: str) -> bool:
    parts = (part for node in lineage for part in node.body)
    return any(isinstance(part, ast.FunctionDef) and part.name == name for part in parts)


def _shared_classes() -> dict[str, ast.ClassDef]:
    """Return the classes of the harness that workloads extend."""
    return _classes(bundled.workloads() / "harness" / "training.py")


def _lineage(node: ast.ClassDef, shared: Mapping[str, ast.ClassDef]) -> list[ast.ClassDef]:
    """Return a class after those of the harness that it extends, base classes first."""
    names = [base.id for base in node.bases if isinstance(base, ast.Name)]
    above = [part for name in names if name in shared for part in _lineage(shared[name], shared)]
    return [*above, node]


def _merged(lineage: list[ast.ClassDef], attribute: str) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for node in lineage:
        parts |= _declared(node, attribute)
    return parts


def _is_range(value: object) -> bool:
    ends = value if isinstance(value, tuple | list) else ()
    return bool(ends) and all(isinstance(end, Scalar) for end in ends)


def _workload_info(lineage: list[ast.ClassDef], *, name: str) -> WorkloadInfo:
    return WorkloadInfo(
        name=name,
        summary=(ast.get_docstring(lineage[-1]) or "").split("\n")[0],
        parameters=_merged(lineage, "PARAMS"),
        ranges={k: ends for k, ends in _merged(lineage, "RANGES").items() if _is_range(ends)},
        bottleneck=_declared(lineage[-1], "BOTTLENECK") or "",
        metrics=_names(_declared(lineage[-1], "METRICS")),
        loads_data=_has_method(lineage, "load"),
        spreads_ranks=_declared(lineage[-1], "SPREADS_RANKS") is True,
        writing=_writing(_declared(lineage[-1], "WRITES_BESIDE_DATA")),
    )


def _names(declared: object) -> tuple[str, ...]:
    """Return the texts of a tuple or list; of anything else nothing."""
    if not isinstance(declared, tuple | list):
        return ()
    return tuple(name for name in declared if isinstance(name, str))


def _writing(declared: object) -> dict[str, tuple[Scalar, ...]]:
    """Return the names in a dict with their tuples or lists of values, and nothing else."""
    if not isinstance(declared, dict):
        return {}
    return {
        name: tuple(value for value in values if isinstance(value, Scalar))
        for name, values in declared.items()
        if isinstance(name, str) and isinstance(values, tuple | list)
    }


def _declared(node: ast.ClassDef, attribute: str) -> Any:  # noqa: ANN401 — any literal
    for statement in node.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        if any(isinstance(target, ast.Name) and target.id == attribute for target in targets):
            assert isinstance(statement, ast.Assign | ast.AnnAssign)
            return ast.literal_eval(statement.value) if statement.value else {}
    return {}


def choose_workloads(settings: Settings, known: Known) -> tuple[Workload, ...]:
    """Return the workloads that run; raises ConfigError for those that cannot."""
    names = tuple(known.workloads)
    given = settings.set or {}
    chosen: list[Workload] = []
    tables = settings.workloads
    if not isinstance(tables, dict):
        tables = {name: WorkloadTable() for name in listed(tables)}
    for name, table in tables.items():
        if table != WorkloadTable():
            chosen.append(_command(name, table, names=names, has_values=name in given))
            continue
        if name not in known.workloads:
            raise ConfigError(f"unknown workload `{name}`", hint=closest(name, names))
        parameters = _parameters(known.workloads[name], given.get(name, {}))
        chosen.append(Workload(name=name, parameters=parameters))
    chosen += [_own_workload(item, given) for item in listed(settings.workload)]
    if not chosen:
        raise ConfigError("no workload is named", hint=closest("", names))
    taking_part = tuple(workload.name for workload in chosen)
    twice = {name for name in taking_part if taking_part.count(name) > 1}
    if twice:
        raise ConfigError(
            f"two workloads are called {min(twice)}", hint="rename one of the files or classes"
        )
    unknown = set(given) - set(taking_part)
    if unknown:
        word = min(unknown)
        raise ConfigError(
            f"--set names `{word}`, which does not run", hint=closest(word, taking_part)
        )
    return tuple(chosen)


def _command(
    name: str, table: WorkloadTable, *, names: tuple[str, ...], has_values: bool
) -> Workload:
    if name in names:
        raise ConfigError(
            f"{name} is a bundled workload", hint=f"give [workloads.{name}] another name"
        )
    if has_values:
        raise ConfigError(
            f"--set names {name}, but a command has no parameters",
            hint="write its arguments into the command",
        )
    return Workload(name=name, program=parse_program(name, table))


def _parameters(
    info: WorkloadInfo, given: _Given, *, is_complete: bool = True
) -> tuple[tuple[str, tuple[Scalar, ...]], ...]:
    """Return the given values, checked against what a workload declares.

    A class that takes parameters from another one does not declare them all.
    """
    checked: list[tuple[str, tuple[Scalar, ...]]] = []
    for name, value in sorted(given.items()):
        if is_complete and name not in info.parameters:
            raise ConfigError(
                f"{info.name} has no parameter `{name}`", hint=closest(name, tuple(info.parameters))
            )
        values = _values(f"{info.name}.{name}", value)
        for each in values:
            if name in info.parameters:
                _check_type(f"{info.name}.{name}", each, info.parameters[name])
            if name in info.ranges:
                _check_range(f"{info.name}.{name}", each, info.ranges[name])
        checked.append((name, values))
    return tuple(checked)


def _values(key: str, value: Scalar | tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    values = value if isinstance(value, tuple) else (value,)
    if not values or len(set(values)) < len(values):
        raise ConfigError(
            f"{key} has no value, or the same value twice", hint="give each value once"
        )
    for each in values:
        if isinstance(each, float) and not math.isfinite(each):
            raise ConfigError(
                f"{key}={each} is not a finite number",
                hint="give a finite number",
            )
    return values


def _check_type(key: str, value: Scalar, default: Scalar) -> None:
    accepted: tuple[type, ...] = (int, float) if isinstance(default, float) else (type(default),)
    # In Python, true and false are also integers.
    if isinstance(value, bool) != isinstance(default, bool) or not isinstance(value, accepted):
        raise ConfigError(
            f"{key}={value} has the wrong type",
            hint=f"give a value like {default!r}",
        )


def out_of_range(value: Scalar, accepted: Range) -> str:
    """Return what a workload accepts, as in "at least 2", if the value is not accepted; else ""."""
    least, most = accepted[0], accepted[-1]
    if isinstance(least, str | bool) or isinstance(most, str | bool):
        names = ", ".join(f"{each}".lower() for each in accepted)
        holds, wanted = value in accepted, f"one of {names}" if accepted[1:] else f"only {names}"
    else:
        holds = isinstance(value, int | float) and (
            (least is None or value >= least) and (most is None or value <= most)
        )
        ends = (("at least", least), ("at most", most))
        wanted = " and ".join(f"{word} {end:g}" for word, end in ends if end is not None)
    return "" if holds else wanted


def _check_range(key: str, value: Scalar, accepted: Range) -> None:
    """Refuse a value that the workload does not accept, before anything is built for it."""
    if wanted := out_of_range(value, accepted):
        example = next((end for end in accepted if end is not None), 1)
        raise ConfigError(
            f"{key}={value} is out of range",
            details=f"the workload accepts {wanted}",
            hint=f"give a value in that range, as in --set {key}={example}",
        )


# A module by its name; "file.py" is the name of a file.
_DOTTED: Final = re.compile(r"(?!.*\.py$)[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


def own_name(item: str) -> str:
    """Return the name of the workload that an item of `--workload` gives."""
    path, class_name = _own_place(item)
    return f"{path.stem}-{class_name}"


def _own_place(item: str) -> tuple[Path, str]:
    text, _, class_name = item.rpartition(":")
    # A file whose name looks like that of a module is taken as the file.
    if _DOTTED.fullmatch(text) and not Path(text).exists():
        text = f"{text.replace('.', '/')}.py"
    # A resumed run has the file's own name.
    return Path(text).expanduser().resolve(), class_name


def _own_workload(item: str, given: dict[str, _Given]) -> Workload:
    path, class_name = _own_place(item)
    if not class_name.isidentifier() or ":" not in item:
        raise ConfigError(
            f"--workload {item} is not understood",
            hint="the form is path/to/file.py:Class, or package.module:Class in this folder",
        )
    try:
        declared = _classes(path)
    except (OSError, ValueError, SyntaxError) as error:
        raise ConfigError(
            f"the workload file {path} cannot be read",
            details=plain(error),
            hint="check its path and syntax",
        ) from error
    if class_name not in declared:
        hint = closest(class_name, tuple(declared)) if declared else "it defines no class"
        raise ConfigError(f"{path} has no class {class_name}", hint=hint)
    name = own_name(item)
    info = _own_info(declared, class_name, name)
    return Workload(
        name=name,
        path=path,
        class_name=class_name,
        files=travelling(path),
        parameters=_parameters(info, given.get(name, {}), is_complete=False),
    )


def _own_info(declared: dict[str, ast.ClassDef], class_name: str, name: str) -> WorkloadInfo:
    """Return what the user's class declares; nothing if that is computed or of another type."""
    try:
        return _workload_info(_lineage(declared[class_name], _shared_classes()), name=name)
    except (ValueError, TypeError):
        # The worker checks the declarations once the class is created.
        return WorkloadInfo(name=name, summary="", parameters={})


def info_of(workload: Workload, known: Known) -> WorkloadInfo:
    """Return what a chosen workload declares; a plain command declares nothing."""
    if workload.path is not None:
        return _own_info(_classes(workload.path), workload.class_name, workload.name)
    nothing = WorkloadInfo(name=workload.name, summary="", parameters={})
    return nothing if workload.program is not None else known.workloads[workload.name]


def writes_into_data(info: WorkloadInfo, given: _Given) -> str:
    """Return the parameter by which a workload writes next to its data, as in "pattern=write"."""
    values = {name: given.get(name, info.parameters.get(name)) for name in info.writing}
    asked = {
        name: value if isinstance(value, tuple) else (value,) for name, value in values.items()
    }
    writing = [
        f"{name}={next(value for value in asked[name] if value in wanted)}"
        for name, wanted in info.writing.items()
        if {*asked[name]} & {*wanted}
    ]
    return writing[0] if writing and len(writing) == len(info.writing) else ""


def parse_program(name: str, table: WorkloadTable) -> Program:
    """Check a table and return its program; raises ConfigError naming the workload."""
    if not COMMAND_NAME.fullmatch(name):
        raise ConfigError(
            f"`{name}` is not a valid command name",
            hint="use letters, digits, dots, underscores and hyphens",
        )
    argv = command_words(table.command) if isinstance(table.command, str) else table.command or ()
    if not argv or not argv[0]:
        raise ConfigError(
            f"the command of the workload `{name}` is empty",
            hint="name a program and its arguments",
        )
    if table.lockstep and argv != SHELL:
        raise ConfigError(
            f"`lockstep` of {name} is only for the lines of envcompare why",
            hint="leave it out",
        )
    if table.timeout is not None and not 0 < table.timeout <= LONGEST_S:
        raise ConfigError(
            f"the timeout {table.timeout:g} of {name} is out of range",
            details=f"it must be seconds above 0, {LONGEST_S:.0f} (30 days) at most",
            hint="change --command-timeout, or `timeout` in the file",
        )
    return Program(
        argv=argv,
        cwd=_folder(name, table.cwd, is_mounted=argv != SHELL),
        measures=tuple((key, _pattern(key, text)) for key, text in table.measures.items()),
        timeout_s=table.timeout,
        prepare=table.prepare or "",
        conclude=table.conclude or "",
        lockstep=table.lockstep,
        most_rounds=table.most_rounds,
        step=table.step or "",
    )


def command_words(text: str) -> tuple[str, ...]:
    """Split a command line as a shell would; a leading NAME=VALUE sets a variable."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(
            f"the command {text!r} cannot be split into words",
            details=str(error),
            hint="close every quote",
        ) from error
    for word in words:
        if word in _SHELL_WORDS:
            raise ConfigError(
                f"the command {text!r} holds `{word}`, but it does not run in a shell",
                hint="start a shell: --command \"sh -c '…'\"",
            )
    return ("env", *words) if words and VARIABLE_SETTING.fullmatch(words[0]) else tuple(words)


def _pattern(name: str, text: str) -> str:
    hint = r"put the number in parentheses, as in loss: ([0-9.]+)"
    try:
        # Output is searched as bytes.
        groups = re.compile(text.encode()).groups
    except (re.error, OverflowError, ValueError) as error:
        raise ConfigError(
            f"the measure {name} is not a regular expression", details=f"{text}: {error}", hint=hint
        ) from error
    if groups < 1:
        raise ConfigError(f"the measure {name} has no group", details=text, hint=hint)
    return text


def _folder(name: str, given: str | None, *, is_mounted: bool) -> str:
    folder = os.path.normpath(Path(given or ".").expanduser().absolute())
    if is_mounted and folder in _SYSTEM_FOLDERS:
        raise ConfigError(
            f"the command {name} cannot run in {folder}",
            details="mounted there, that folder would hide the container's own",
            hint="name another folder with --command-dir",
        )
    return folder
