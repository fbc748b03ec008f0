"""What travels with a workload file: the file alone, or its folder as far as it counts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from commandline import envcompare

from envcompare.config.workloads import MOST_BYTES, MOST_FILES, travelling
from envcompare.errors import ConfigError

IMPORTS_HELPER = "from helper import Net\n\n\nclass Work(Net):\n    pass\n"


def made(folder: Path, files: dict[str, str]) -> Path:
    """Write files below a folder, and return the workload file among them."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / "work.py"


def git(folder: Path, *words: str) -> None:
    """Run Git in a folder."""
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)


@pytest.mark.parametrize(
    "source",
    [
        "import helper",
        "from helper import Net",
        "import helper.deep",
        "def late():\n    from helper import Net",
        "text = open(__file__)",
        "import sys\ntext = open(sys.modules[__name__].__file__)",
        "import importlib",
    ],
)
def test_a_file_that_needs_others_travels_with_its_folder(tmp_path: Path, source: str) -> None:
    """An import anywhere in it, or a way to find files."""
    path = made(tmp_path, {"work.py": source, "helper.py": "", "more/values.yaml": ""})
    assert travelling(path) == ("helper.py", "more/values.yaml", "work.py")


def test_a_file_that_needs_no_other_travels_alone(tmp_path: Path) -> None:
    """Whatever lies beside it, as in a home folder."""
    path = made(tmp_path, {"work.py": "import math\nhelper = 1", "helper.py": ""})
    (tmp_path / "large").write_bytes(b"1" * (MOST_BYTES + 1))
    assert travelling(path) == ("work.py",)


def test_file_in_a_package_travels_with_it_alone(tmp_path: Path) -> None:
    """Relative to the folder around the package, which is where it is imported from."""
    names = ("project/__init__.py", "project/net.py", "project/train/__init__.py")
    made(tmp_path, dict.fromkeys((*names, "data/large.csv", "setup.py"), ""))
    path = made(tmp_path / "project" / "train", {"work.py": "from ..net import Net\n"})
    assert travelling(path) == (*names, "project/train/work.py")


@pytest.mark.parametrize("name", ["project.work", "project/work.py"])
def test_workload_is_named_by_its_module_or_its_file(tmp_path: Path, name: str) -> None:
    """In the current folder."""
    made(tmp_path / "project", {"__init__.py": "", "work.py": "from . import x\nclass Net: pass\n"})
    done = envcompare("plan", "--workload", f"{name}:Net", "--envs", "vm", cwd=tmp_path)
    assert "files: work.py is sent with 1 other file of its folder" in done.stdout
    missing = envcompare("plan", "--workload", "project.none:Net", "--envs", "vm", cwd=tmp_path)
    assert missing.returncode == 2
    assert "project/none.py cannot be read" in missing.stderr


def test_a_package_and_what_a_link_leads_to_travel(tmp_path: Path) -> None:
    """A link to a folder above ends nowhere, and one that leads to nothing stays behind."""
    path = made(tmp_path / "project", {"work.py": IMPORTS_HELPER, "helper/__init__.py": ""})
    made(tmp_path / "shared", {"tools.py": "", "deep/more.py": ""})
    (path.parent / "shared").symlink_to("../shared")
    (path.parent / "loop").symlink_to(".")
    (path.parent / "gone").symlink_to("nothing")
    assert travelling(path) == (
        *("helper/__init__.py", "shared/deep/more.py", "shared/tools.py", "work.py"),
    )


@pytest.mark.parametrize("has_git", [True, False])
def test_hidden_files_environments_and_runs_stay_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_git: bool
) -> None:
    """Secrets are often hidden; what a run writes must not change what it is."""
    names = ("work.py", ".env", ".venv/a", "env/pyvenv.cfg", "env/lib/a.py", "__pycache__/h.pyc")
    names += ("helper.py", "results/1/samples.jsonl", "results/1/logs/a.log", "node_modules/a.js")
    path = made(tmp_path, {**dict.fromkeys(names, ""), "work.py": IMPORTS_HELPER})
    if not has_git:
        (tmp_path / ".bin").mkdir()
        for tool in ("sh", "env"):
            (tmp_path / ".bin" / tool).symlink_to(f"/bin/{tool}")
        monkeypatch.setenv("PATH", str(tmp_path / ".bin"))
    assert travelling(path) == ("helper.py", "work.py")


@pytest.mark.parametrize("is_repository", [True, False])
def test_what_a_gitignore_names_stays_behind(tmp_path: Path, *, is_repository: bool) -> None:
    """In a repository, below its root too, and in a folder that is none."""
    path = made(
        tmp_path / "part" if is_repository else tmp_path,
        {"work.py": IMPORTS_HELPER, "helper.py": "", "weights.bin": "", "sub/weights.bin": ""},
    )
    (tmp_path / ".gitignore").write_text("*.bin\n")
    if is_repository:
        git(tmp_path, "init", "-q")
        git(tmp_path, "add", "part/helper.py")
    assert travelling(path) == ("helper.py", "work.py")


def test_a_folder_that_its_repository_ignores_counts_by_itself(tmp_path: Path) -> None:
    """Else the file would travel without what it imports."""
    path = made(tmp_path / "tries", {"work.py": IMPORTS_HELPER, "helper.py": ""})
    (tmp_path / ".gitignore").write_text("tries/\n")
    git(tmp_path, "init", "-q")
    assert travelling(path) == ("helper.py", "work.py")


def test_what_is_too_large_is_named_with_what_to_try(tmp_path: Path) -> None:
    """Before anything is made or sent."""
    path = made(tmp_path, {"work.py": IMPORTS_HELPER, "helper.py": "", "runs/1/a": ""})
    with (tmp_path / "runs/1/a").open("wb") as file:
        file.truncate(3 << 30)
    with pytest.raises(ConfigError) as caught:
        travelling(path)
    assert caught.value.brief.startswith("work.py needs other files of its folder")
    assert "most of it in runs/ (3.0 GiB)" in caught.value.details
    assert ".gitignore" in caught.value.hint


@pytest.mark.parametrize("source", ["import importlib", "text = open(__file__)"])
def test_a_file_that_only_may_read_others_travels_alone_from_a_large_folder(
    tmp_path: Path, source: str
) -> None:
    """That it knows its own place is a weak sign, and no reason to refuse it."""
    path = made(tmp_path, {"work.py": source, "runs/1/a": ""})
    with (tmp_path / "runs/1/a").open("wb") as file:
        file.truncate(3 << 30)
    assert travelling(path) == ("work.py",)


@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_folder_that_stays_behind_is_said(tmp_path: Path, command: str) -> None:
    """Else a file that the workload reads is missing on the host, and nothing tells why."""
    source = "text = open(__file__)\n\n\nclass Work:\n    pass\n"
    made(tmp_path, {"work.py": source, "runs/1/a": ""})
    with (tmp_path / "runs/1/a").open("wb") as file:
        file.truncate(3 << 30)
    words = ("--workload", "work.py:Work", "--envs", "vm", "--hosts", "no-such-host.invalid")
    done = envcompare(command, *words, cwd=tmp_path)
    said = "files: work.py is sent alone, without the rest of its folder: 3.0 GiB in all"
    assert said in done.stdout + done.stderr
    assert "name what is large in a .gitignore" in done.stdout + done.stderr


def test_too_many_files_are_refused(tmp_path: Path) -> None:
    """As a folder of images is."""
    names = [f"images/{number}" for number in range(MOST_FILES + 1)]
    path = made(tmp_path, {**dict.fromkeys(names, ""), "work.py": IMPORTS_HELPER, "helper.py": ""})
    with pytest.raises(ConfigError) as caught:
        travelling(path)
    assert f"more than {MOST_FILES} files, most of them in images/;" in caught.value.details
