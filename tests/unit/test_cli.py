"""The command line: three sentences for every mistake, the documented exit codes, no traceback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from commandline import envcompare
from imports import measured

from envcompare import bundled
from envcompare.config.workloads import catalogue
from envcompare.errors import (
    Phase,
    RunFolderError,
    TransportError,
    UnusableError,
    WorkloadError,
    exit_code_of,
    phase_of,
    plain,
)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "word"),
    [
        (("frobnicate",), 2, "frobnicate"),
        (("run", "--bogus"), 2, "--bogus"),
        (("run", "--budget", "soon"), 2, "soon"),
        (("run", "--config", "nowhere.toml"), 2, "nowhere.toml"),
        (("run", "--envs", "dokcer"), 2, "docker"),
        (("plan", "--hosts", ",,"), 2, "no host"),
        (("plan", "--envs", ""), 2, "no environment"),
        (("plan", "--quick", "--strict"), 2, "--quick and --strict exclude each other"),
        (("why", "--strict", "--quick", "true", "false"), 2, "--strict and --quick exclude"),
        (("plan", "--command", "true", "--command-dir", ""), 2, "--command-dir names no folder"),
        (("plan", "--command-dir", ""), 2, "belong to a --command"),
        (("plan", "--set", "cnn.batch=0"), 2, "cnn.batch=0 is out of range"),
        (("plan", "--hosts", "a:x:b"), 2, "a:x:b"),
        (("report", "nowhere"), 5, "nowhere"),
        (("run", "--resume", "nowhere"), 5, "nowhere"),
        (("run", "--resume", "nowhere", "--envs", "vm"), 2, "with --resume, only --allow-mismatch"),
    ],
)
def test_mistake_ends_in_sentences_and_its_exit_code(
    tmp_path: Path, arguments: tuple[str, ...], exit_code: int, word: str
) -> None:
    """What was wrong and what to try, on stderr; nothing is left behind."""
    done = envcompare(*arguments, cwd=tmp_path)
    assert done.returncode == exit_code
    assert done.stderr.startswith("error: ")
    assert word in done.stderr
    assert "  try: " in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "--config", "nowhere.toml"),
        ("plan", "--workload", "nowhere.py:Net"),
        ("why", "nowhere.capture", "elsewhere.capture"),
    ],
)
def test_missing_file_is_told_in_words_without_the_number_of_the_error(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """`[Errno 2]` says nothing to most users, and the first line names the file."""
    done = envcompare(*arguments, cwd=tmp_path)
    assert "  why: " in done.stderr
    assert "Errno" not in done.stderr


def test_error_of_the_system_is_given_without_its_number_and_with_its_file_if_asked() -> None:
    """Any other error says what it says."""
    error = FileNotFoundError(2, "No such file or directory", "a.toml")
    assert plain(error) == "No such file or directory"
    assert plain(error, has_file=True) == "No such file or directory: a.toml"
    assert plain(OSError(5, "Input/output error"), has_file=True) == "Input/output error"
    assert (plain(OSError("odd")), plain(ValueError("bad"), has_file=True)) == ("odd", "bad")


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (TransportError("lost"), 3),
        (UnusableError("no engine"), 3),
        (WorkloadError("no data"), 4),
        (RunFolderError("a link"), 5),
        (KeyError("a fault"), 70),
    ],
)
def test_what_ends_a_cell_has_the_exit_code_of_its_kind(error: Exception, exit_code: int) -> None:
    """A gate in CI tells by it whether a workload or envcompare itself failed."""
    usual: Phase = "environment" if isinstance(error, UnusableError) else "data"
    assert exit_code_of(phase_of(error, usual)) == exit_code


def test_what_fails_inside_an_arm_has_the_exit_code_of_the_workload() -> None:
    """Also a first loss that differs from that of the reference."""
    assert [phase for phase in get_args(Phase) if exit_code_of(phase) == 4] == [
        *("import", "data", "setup", "step", "process", "protocol", "checksum")
    ]


@pytest.mark.parametrize(
    "command", ["run", "plan", "doctor", "build", "import", "report", "compare", "list", "clean"]
)
def test_help_says_what_a_command_does(tmp_path: Path, command: str) -> None:
    """Every command explains itself in a sentence."""
    done = envcompare(command, "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("Usage:")
    assert len(done.stdout.splitlines()[2].strip()) > 20


def test_plan_prints_a_configuration_that_gives_the_same_plan(tmp_path: Path) -> None:
    """What is printed can be saved, changed and used again."""
    flags = ("--envs", "vm,docker", "--set", "rnn.hidden=64,128", "--workloads", "rnn")
    first = envcompare("plan", *flags, "--seed", "7", cwd=tmp_path)
    text = first.stdout.partition("arms:")[0].partition("\n")[2]
    (tmp_path / "envcompare.toml").write_text(text.replace("\n  ", "\n").removeprefix("  "))
    again = envcompare("plan", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stdout == first.stdout


def test_list_names_workloads_parameters_and_environments(tmp_path: Path) -> None:
    """The names that --workloads, --set and --envs take."""
    shown = envcompare("list", cwd=tmp_path).stdout
    for word in ("cnn", "hidden=40", "singularity"):
        assert word in shown


def test_list_describes_no_two_workloads_alike() -> None:
    """The description is what a newcomer chooses by."""
    summaries = {name: info.summary for name, info in catalogue().items()}
    assert len(set(summaries.values())) == len(summaries)
    assert "MNIST" in summaries["cnn"]
    assert "sentiment" in summaries["rnn"]


def test_a_configuration_that_is_no_file_or_nested_too_deep_is_refused(tmp_path: Path) -> None:
    """A pipe waits for a writer, and a parser has an end."""
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "deep.toml").write_text(f"envs = {'[' * 5000}{']' * 5000}")
    for name, why in (("pipe", "it is a named pipe"), ("deep", "it is nested too deep")):
        done = envcompare("plan", "--config", f"{name}.toml", cwd=tmp_path)
        assert done.returncode == 2
        assert f"  why: {why}" in done.stderr


def test_a_run_folder_with_a_configuration_that_is_no_toml_is_refused(tmp_path: Path) -> None:
    """It is shown as it is where it is only shown."""
    folder = measured(tmp_path, configuration=f"a = {'[' * 5000}{']' * 5000}").path
    assert envcompare("compare", str(folder), cwd=tmp_path).returncode == 0
    for command in (("clean", "--run"), ("run", "--resume")):
        done = envcompare(*command, str(folder), cwd=tmp_path)
        assert done.returncode == 5, done.stderr
        assert "it is nested too deep" in done.stderr


@pytest.mark.parametrize("name", bundled.studies())
def test_every_study_can_be_planned_and_changed(tmp_path: Path, name: str) -> None:
    """It is a configuration file like any other; the usual one does not count then."""
    (tmp_path / "envcompare.toml").write_text("nonsense = 1\n")
    done = envcompare("plan", "--study", name, "--envs", "docker", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f'title = "{name}: ' in done.stdout
    assert 'envs = "docker"' in done.stdout
    listed = envcompare("list", cwd=tmp_path).stdout
    (line,) = (one for one in listed.splitlines() if one.startswith(f"  {name}: "))
    assert line.rstrip().endswith(("?", "."))


def test_a_part_of_a_study_can_be_run(tmp_path: Path) -> None:
    """What the file sets for its other workloads is left out with them; a flag may not do so."""
    part = ("plan", "--study", "amp", "--workloads", "mlp")
    done = envcompare(*part, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "  local/mlp/" in done.stdout
    assert "  local/lenet/" not in done.stdout
    done = envcompare(*part, "--set", "lenet.batch=3", cwd=tmp_path)
    assert done.returncode == 2
    assert "--set names `lenet`, which does not run" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--study", "alexnet"), "unknown study `alexnet`"),
        (("--study", "amp", "--config", "x.toml"), "--study and --config both name"),
    ],
)
def test_a_study_that_is_none_is_refused(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    """Wrong usage ends with 2 and a way out."""
    done = envcompare("plan", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "  try: " in done.stderr


def test_an_installation_without_its_files_says_so(tmp_path: Path) -> None:
    """The rule that masks secrets in errors is one of them: this one is shown without it."""
    package = Path(bundled.__file__).parent
    shutil.copytree(package, tmp_path / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    argv = [sys.executable, "-m", "envcompare", "list"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 70
    assert done.stderr.splitlines() == [
        "error: the bundled workloads are missing",
        f"  why: neither next to {tmp_path / package.name} nor in it",
        "  try: install envcompare-bench again",
    ]
