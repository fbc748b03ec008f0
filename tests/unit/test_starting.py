"""`envcompare init` in folders as people have them, completions, and the default arms."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from commandline import envcompare

from envcompare.cli.options import read_settings
from envcompare.cli.planning import usable_defaults
from envcompare.cli.starting import FILE, _asked
from envcompare.config.scheduling import _parsed, parse_allocation
from envcompare.config.settings import Settings, WorkloadTable

SLURM = "#!/bin/sh\n#SBATCH --partition=gpu\n#SBATCH --gres gpu:a100:1\n#SBATCH --mem=4G\nsrun x\n"


def test_folder_with_a_dockerfile_gets_a_file_and_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file can be planned, and each line is run once if nothing must be made before."""
    folder = tmp_path / "My App"
    folder.mkdir()
    (folder / "train.py").write_text("print('trained')\n")
    (folder / "Dockerfile").write_text("FROM python:3.12-slim\n")
    (folder / "job.sh").write_text(SLURM)
    (folder / "my.sif").touch()
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("docker", "apptainer"):
        (programs / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    done = envcompare("init", cwd=folder)
    assert done.returncode == 0, done.stderr
    text = (folder / FILE).read_text()
    assert "#   docker build --tag my-app:test --file Dockerfile ." in text
    on_a_node = "#   envcompare run --envs plain=vm,sif=singularity:my.sif --allocation slurm:"
    asked = "partition=gpu,gres=gpu:a100:1,mem-gb=4,time=01:00:00"
    assert f"{on_a_node}{asked}\n" in text
    settings = read_settings(folder / FILE)
    arms = ("plain=vm", "image=docker:my-app:test", "sif=singularity:my.sif")
    assert settings.envs == arms
    (line,) = [one for one in done.stdout.splitlines() if "envcompare why" in one]
    assert shlex.split(line)[2:] == [
        "python3 train.py",
        'docker run --rm -v "$PWD":/w -w /w my-app:test python3 train.py',
        "apptainer exec my.sif python3 train.py",
    ]
    assert "plain: ran in " in done.stdout
    assert "image: not tried: first docker build --tag my-app:test" in done.stdout
    planned = envcompare("plan", cwd=folder)
    assert planned.returncode == 0, planned.stderr
    again = envcompare("init", cwd=folder)
    assert again.returncode == 2
    assert "envcompare.toml exists already" in again.stderr
    assert (folder / FILE).read_text() == text


def test_allocation_asks_for_what_the_slurm_script_asks_for() -> None:
    """With long or short options; a job always has a time limit."""
    script = (
        "#!/bin/sh\n#SBATCH -p gpu\n#SBATCH -A ours\n#SBATCH -t 30\n#SBATCH -N2\n#SBATCH -c 4\n"
        "#SBATCH --gpus-per-node=1\n#SBATCH --mem=800M\n#SBATCH --output=log\n"
    )
    asked = _asked(script)
    assert asked == {
        "partition": "gpu", "account": "ours", "time": "30", "nodes": "2", "cpus": "4",
        "gres": "gpu:1", "mem-gb": "1",
    }  # fmt: skip
    text = ",".join(f"{key}={value}" for key, value in asked.items())
    assert _parsed(f"slurm:{text}").cpus == 4
    assert _asked("#!/bin/sh\necho\n") == {}


@pytest.mark.parametrize(
    ("value", "gb"),
    [
        ("4096", "4"), ("800M", "1"), ("16G", "16"), ("1T", "1024"), ("3145729K", "4"), ("0", None),
        ("all", None),
    ],
)  # fmt: skip
def test_memory_of_the_slurm_script_is_in_mb_without_a_unit(value: str, gb: str | None) -> None:
    """In whole GB, rounded up; all memory of a node cannot be asked for."""
    assert _asked(f"#SBATCH --partition=p\n#SBATCH --mem={value}\n").get("mem-gb") == gb


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("--time=2-0", "time", "2-0"),
        ("--time=UNLIMITED", "time", "01:00:00"),
        ("--nodes=1-2", "nodes", None),
        ("--gres=lscratch:10,gpu:a100:1", "gres", "gpu:a100:1"),
        ('--partition="gpu"', "partition", "gpu"),
        ("--constraint='a100|h100'", "constraint", "a100|h100"),
        ('--constraint="a b"', "constraint", None),
        ("--exclusive ", "exclusive", None),
        ("--partition ", "partition", None),
    ],
)
def test_line_of_the_slurm_script_becomes_a_value_that_is_accepted_or_none(
    line: str, key: str, value: str | None
) -> None:
    """In quotes or not; a line ends where it ends."""
    asked = _asked(f"#SBATCH {line}\n#SBATCH --account=ours\n")
    assert asked.get(key) == value
    assert asked["account"] == "ours"
    text = ",".join(f"{key}={value}" for key, value in asked.items())
    assert parse_allocation(f"slurm:{text}", {}, now_s=0) is not None


def test_line_for_a_node_is_quoted_for_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`a100|h100` would be a pipe."""
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "my app.sif"):
        Path(name).touch()
    Path("job.sh").write_text("#SBATCH --constraint='a100|h100'\n")
    assert envcompare("init", "--try-s", "0", cwd=tmp_path).returncode == 0
    (line,) = [line for line in FILE.read_text().splitlines() if "--allocation" in line]
    words = shlex.split(line.removeprefix("#"))
    assert words[2:4] == ["--envs", "plain=vm,sif=singularity:my app.sif"]
    assert words[4:] == ["--allocation", "slurm:constraint=a100|h100,time=01:00:00"]


def test_program_that_fails_or_takes_long_is_reported(tmp_path: Path) -> None:
    """With what it printed last; the file is written all the same."""
    (tmp_path / "bench.py").write_text("raise SystemExit('no data here')\n")
    (tmp_path / "model.sif").touch()
    done = envcompare("init", cwd=tmp_path)
    assert "plain: failed with exit code 1: no data here" in done.stdout
    assert read_settings(tmp_path / FILE).envs == ("plain=vm", "sif=singularity:model.sif")
    (tmp_path / FILE).unlink()
    (tmp_path / "bench.py").write_text("import time; time.sleep(60)\n")
    done = envcompare("init", "--try-s", "1", cwd=tmp_path)
    assert "plain: runs for more than 1 s" in done.stdout
    assert envcompare("init", str(tmp_path / "bench.py"), cwd=tmp_path).returncode == 2


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ((), "no program is in"),
        (("a.py", "b.py"), "several programs are in"),
    ],
)
def test_folder_without_one_program_is_refused(
    tmp_path: Path, files: tuple[str, ...], why: str
) -> None:
    """And nothing is written."""
    for name in files:
        (tmp_path / name).write_text("if __name__ == '__main__':\n    pass\n")
    (tmp_path / "library.py").write_text("x = 1\n")
    done = envcompare("init", cwd=tmp_path)
    assert done.returncode == 2
    assert why in done.stderr
    listed = ", ".join((*files, "library.py"))
    first = (*files, "library.py")[0]
    assert f"as in `envcompare init {first}`: {listed}\n" in done.stderr
    assert not (tmp_path / FILE).exists()
    if files:
        written = envcompare("init", "a.py", "--try-s", "0", cwd=tmp_path)
        assert written.returncode == 0
        assert written.stdout.startswith(
            f"wrote {FILE}; see it with `envcompare plan`, measure with `envcompare run`\n"
        )


def test_program_is_named_as_its_folder_has_it(tmp_path: Path) -> None:
    """An image holds the folder at another path, so a path from `/` or `..` would not be there."""
    folder, link = tmp_path / "project", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    (folder / "train.py").touch()
    (tmp_path / "outside.py").touch()
    for program in (f"{folder}/train.py", f"{link}/train.py", "../link/train.py"):
        done = envcompare("init", program, "--try-s", "0", cwd=folder)
        assert done.returncode == 0, done.stderr
        assert read_settings(folder / FILE).workloads == {
            "train": WorkloadTable(command=("python3", "train.py"))
        }
        (folder / FILE).unlink()
    for program in (f"{tmp_path}/outside.py", "../outside.py"):
        done = envcompare("init", program, cwd=folder)
        assert f"there is no file {program} in {folder}" in done.stderr


@pytest.mark.parametrize(
    ("files", "hint"),
    [
        (("b.py", "a b.py"), "name a file of this folder, as in `envcompare init 'a b.py'`: "),
        ((), "go to the folder of a Python program"),
    ],
)
def test_program_that_is_not_there_is_refused_with_those_that_are(
    tmp_path: Path, files: tuple[str, ...], hint: str
) -> None:
    """A hint never names a file that does not exist."""
    for name in files:
        (tmp_path / name).touch()
    done = envcompare("init", "train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no file train.py" in done.stderr
    assert f"  try: {hint}" in done.stderr


def test_completions_are_written_where_a_shell_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They ask envcompare itself."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    done = envcompare("--install-completion", "bash", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "bash-completion" / "completions" / "envcompare"
    assert "_ENVCOMPARE_COMPLETE=bash_complete" in path.read_text()
    assert str(path) in done.stdout


def test_default_arms_are_those_that_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left out is named; what the user asks for stays."""
    program = tmp_path / "docker"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    flags, said = usable_defaults(Settings(), Settings())
    assert flags.envs == ("vm", "docker")
    assert said == "arms: vm ✓, docker ✓, singularity – not installed"
    for asked in (Settings(envs=("vm", "singularity")), Settings(hosts=("gpu01",))):
        assert usable_defaults(asked, Settings()) == (asked, "")
    program.unlink()
    assert usable_defaults(Settings(), Settings()) == (Settings(), "")
