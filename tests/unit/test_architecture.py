"""The import direction of the house: downwards only, no cycle, each heavy library at home."""

from __future__ import annotations

import ast
import functools
import shutil
import subprocess
import sys
from collections.abc import Collection
from importlib.metadata import version
from pathlib import Path

import pytest

from envcompare.environments.registry import ENVIRONMENTS

PACKAGE = Path(__file__).resolve().parents[2] / "envcompare"
MEASURED = Path(__file__).resolve().parents[1] / "data" / "runs" / "1x1x1"

LAYERS = (
    ("__main__",),
    ("cli",),
    ("runner", "report", "doctor", "importing"),
    ("hosts",),
    ("measure", "analysis", "proof"),
    ("profilers",),
    ("environments",),
    ("stack",),
    ("config", "profile_files"),
    ("fingerprint", "stats", "gpu", "transport"),
    ("run_folder",),
    ("console",),
    ("text",),
    ("bundled", "errors", "files"),
)
# The rooms inside a room, highest first. Where modules are named, all are; else they may use all.
INNER_LAYERS = {
    "analysis": (("two_runs",), ("profiles",), ("timing",), ("model",)),
    "report": (
        ("page",),
        ("exports", "gates"),
        ("summary",),
        ("sections",),
        ("charts",),
        ("wording",),
    ),
    "profile_files": (
        ("kineto", "ncu", "nsys", "nvprof"),
        ("derive", "nsysexport"),
        ("rawfiles",),
    ),
}
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
NEVER_TOGETHER = (("runner", "report"), ("runner", "doctor"), ("report", "doctor"))
MEASURING = {
    "runner",
    "hosts",
    "measure",
    "environments",
    "profilers",
    "transport",
    "stack",
    "doctor",
}
HOMES = {
    "scipy": {"stats"},
    "paramiko": {"transport.ssh"},
    "docker": {"stack.image", "stack.storage"},
    "spython": {"environments.singularity"},
    "pandas": {"analysis.frames"},
    "jinja2": {"report"},
    "altair": {"report.charts"},
    "vl_convert": {"report.charts"},
    "pyarrow": {"report.exports"},
    "torch": set(),
    "torchvision": set(),
}


def modules() -> dict[str, Path]:
    """Return the dotted names below the package and their files."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        if "_files" in path.parts or path == PACKAGE / "__init__.py":
            continue
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def imports(path: Path) -> frozenset[str]:
    """Return the dotted names a file imports anywhere."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


def read_modules(path: Path, known: Collection[str]) -> set[str]:
    """Return which of the known modules a file reads names from.

    `from envcompare.room import name` reads the module `room.name` where there is one, and else
    what stands in `room/__init__.py`.
    """
    read: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            read |= {alias.name.removeprefix("envcompare.") for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            home = node.module.removeprefix("envcompare").removeprefix(".")
            inside = {f"{home}.{alias.name}".removeprefix(".") for alias in node.names}
            read |= inside if inside <= set(known) else {*inside, home}
    return read & set(known)


def own_imports(path: Path) -> set[str]:
    """Return the first part below `envcompare` of everything a file imports from the package."""
    parts = {name.split(".")[1] for name in imports(path) if name.startswith("envcompare.")}
    return parts & set(LEVEL)


@pytest.mark.parametrize("module", sorted(modules()))
def test_module_imports_downwards_only(module: str) -> None:
    """Nothing imports what stands above its room or beside it."""
    room = module.split(".", maxsplit=1)[0]
    assert room in LEVEL, f"{room} stands in no layer"
    others = own_imports(modules()[module]) - {room}
    assert {name for name in others if LEVEL[name] <= LEVEL[room]} == set()


@pytest.mark.parametrize("room", INNER_LAYERS)
def test_rooms_in_a_room_import_downwards_only(room: str) -> None:
    """Inside a room the same holds: charts know no section, and sections no summary."""
    level = {name: i for i, names in enumerate(INNER_LAYERS[room]) for name in names}
    for module, path in modules().items():
        inner = module.removeprefix(f"{room}.").split(".")[0]
        if not module.startswith(f"{room}.") or inner not in level:
            continue
        parts = {name.split(".")[2] for name in imports(path)
                 if name.startswith(f"envcompare.{room}.")} - {inner}  # fmt: skip
        assert {name for name in parts & set(level) if level[name] <= level[inner]} == set(), module


@pytest.mark.parametrize("room", INNER_LAYERS)
def test_layers_in_a_room_name_what_is_there(room: str) -> None:
    """A new folder must be given its place, and a new module where modules have places."""
    named = {name for names in INNER_LAYERS[room] for name in names}
    folders = {path.parent.name for path in (PACKAGE / room).glob("*/__init__.py")}
    files = {path.stem for path in (PACKAGE / room).glob("[!_]*.py")}
    assert named <= folders | files
    assert folders | (files if named & files else set()) <= named


@pytest.mark.parametrize("pair", NEVER_TOGETHER)
def test_runner_report_and_doctor_never_import_each_other(pair: tuple[str, str]) -> None:
    """The measuring half and the reading half meet only in the run folder."""
    for one, other in (pair, pair[::-1]):
        for module, path in modules().items():
            if module.split(".", maxsplit=1)[0] == one:
                assert other not in own_imports(path)


def test_reading_half_imports_nothing_of_the_measuring_half() -> None:
    """A report is drawn on a laptop with no torch, no Docker and no SSH."""
    for module, path in modules().items():
        if module.split(".", maxsplit=1)[0] in {"analysis", "report"}:
            assert own_imports(path) & MEASURING == set(), module


def test_modules_have_no_import_cycle() -> None:
    """Every module can be read without one that reads it."""
    names = modules()
    graph = {module: read_modules(path, names) - {module} for module, path in names.items()}
    done: set[str] = set()

    def visit(module: str, road: tuple[str, ...]) -> None:
        assert module not in road, " → ".join((*road, module))
        if module not in done:
            for other in graph[module]:
                visit(other, (*road, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_profilers_are_named_in_their_own_files_only() -> None:
    """What is special to a tool stands with it; the rest asks for what a tool is like."""
    rooms = ("profilers.nsys", "profilers.ncu", "profile_files", "run_folder")
    for module, path in modules().items():
        constants = {
            node.value for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }  # fmt: skip
        if not any(module == room or module.startswith(f"{room}.") for room in rooms):
            assert constants & {"nsys", "ncu"} == set(), module


@pytest.mark.parametrize(("library", "homes"), HOMES.items())
def test_heavy_library_is_imported_at_home_only(library: str, homes: set[str]) -> None:
    """Each heavy library has one home."""
    for module, path in modules().items():
        if any(name.split(".", maxsplit=1)[0] == library for name in imports(path)):
            assert any(module == home or module.startswith(f"{home}.") for home in homes), module


def test_no_file_names_an_environment_but_its_own() -> None:
    """What is special to an environment stands in its file, and comes elsewhere as data."""
    spellings = {name: {name, *where.traits.aliases} for name, where in ENVIRONMENTS.items()}
    names = set[str]().union(*spellings.values())
    homes = {
        "envcompare.environments.oci": {"docker"},  # the program of the engine
        "envcompare.environments.line": {"docker", "podman"},  # the clients that lines call
    }
    for name, where in ENVIRONMENTS.items():
        homes.setdefault(type(where).__module__, set()).update(spellings[name])
    for module, path in modules().items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        assert texts & names <= homes.get(f"envcompare.{module}", set()), module


def test_help_imports_no_heavy_library() -> None:
    """`envcompare --help` answers at once because nothing heavy is imported for it."""
    script = (
        "import sys\nfrom envcompare import cli\nsys.argv = ['envcompare', '--help']\n"
        "try:\n    cli.main()\nfinally:\n"
        f"    print([n for n in {sorted([*HOMES, 'numpy', 'rich'])!r} if n in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_page_is_drawn_without_the_import_that_takes_longest(tmp_path: Path) -> None:
    """It takes 2 s where it is installed, as it is here, and no chart needs it."""
    assert version("rfc3987-syntax")
    shutil.copytree(MEASURED, tmp_path / "run")
    argv = (sys.executable, "-X", "importtime", "-m", "envcompare", "report", str(tmp_path / "run"))
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert "jsonschema._format" in done.stderr
    assert "rfc3987_syntax.syntax_helpers" not in done.stderr
