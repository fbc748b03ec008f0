"""Settings: flags beat the file, and every mistake names file, key and remedy."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from envcompare.cli import app
from envcompare.cli.options import PATH, UserPath, parse_set, read_settings
from envcompare.cli.planning import resolved
from envcompare.cli.running import run
from envcompare.config import known_keys
from envcompare.config.settings import DEFAULTS, Settings, WorkloadTable, merge, options
from envcompare.environments.registry import all_traits
from envcompare.errors import ConfigError
from envcompare.text import listed


def written(folder: Path, text: str) -> Path:
    """Write a configuration file and return its path."""
    path = folder / "envcompare.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_file_holds_what_the_flags_hold(tmp_path: Path) -> None:
    """A key is spelt as its flag."""
    path = written(
        tmp_path,
        'envs = ["vm", "docker"]\nbudget = 90\naccept-new-host-keys = true\n'
        "[set.rnn]\nhidden = [64, 128]\n",
    )
    read = read_settings(path)
    assert listed(read.envs) == ("vm", "docker")
    assert (read.budget, read.accept_new_host_keys) == (90, True)
    assert read.set == {"rnn": {"hidden": (64, 128)}}


def test_unknown_key_names_file_key_and_the_likely_word(tmp_path: Path) -> None:
    """A misspelt key is not ignored."""
    path = written(tmp_path, "budgett = 90\n")
    with pytest.raises(ConfigError) as caught:
        read_settings(path)
    assert str(path) in caught.value.brief
    assert "`budgett`" in caught.value.brief
    assert "`budget`" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('budget = "much"\n', "budget"),
        ("envs = 3\n", "envs"),
        ('preset = "slow"\n', "preset"),
        ("[set]\nrnn = 3\n", "set"),
        ('startup = "yes"\n', "startup"),
    ],
)
def test_wrong_type_names_file_key_and_value(tmp_path: Path, text: str, key: str) -> None:
    """A value of the wrong kind is refused with the key it stands under."""
    with pytest.raises(ConfigError) as caught:
        read_settings(written(tmp_path, text))
    assert f"`{key}" in caught.value.brief
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('preset = "fast"', '`preset` takes "quick", "default" or "strict"'),
        ("preset = 3", '`preset` takes "quick", "default" or "strict"'),
        ('threads = "all"', '`threads` takes a whole number or "as-run"'),
        ("threads = 1.5", '`threads` takes a whole number or "as-run"'),
        ('sif-compression = "x"', '`sif-compression` takes "zstd", "gzip", "none" or "sandbox"'),
        ('budget = "5m"', "`budget` takes a number of seconds"),
        ('margin = "5%"', "`margin` takes a number of percent"),
        ("envs = 3", "`envs` takes a text in quotes or a list"),
        ('startup = "yes"', "`startup` takes true or false"),
        ("set = 3", "`set` takes a table"),
        ('[workloads.x]\ntimeout = "5m"', "`workloads[...].timeout` takes a number"),
        ('allocation = {scheduler = "slurm"}', "`allocation` cannot be read"),
    ],
)
def test_wrong_value_is_refused_with_what_the_key_takes(
    tmp_path: Path, text: str, said: str
) -> None:
    """In plain words, with every word that it takes."""
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_settings(path)
    assert caught.value.brief == f"{path}: {said}"
    assert "found" in caught.value.details


def test_preset_as_a_key_is_refused_with_its_spelling(tmp_path: Path) -> None:
    """The flag is `--quick`, the key `preset`."""
    with pytest.raises(ConfigError, match="unknown key `quick`") as caught:
        read_settings(written(tmp_path, "quick = true\n"))
    assert '`preset = "quick"`' in caught.value.hint


@pytest.mark.parametrize("text", ["envs = [", "\x00", "a = 1\na = 2\n", None])
def test_file_that_is_broken_or_missing_is_an_error(tmp_path: Path, text: str | None) -> None:
    """A file that was asked for must be there, and be TOML."""
    path = tmp_path / "nowhere.toml" if text is None else written(tmp_path, text)
    with pytest.raises(ConfigError, match=re.escape(f"{path} cannot be read")):
        read_settings(path)


def test_flags_win_over_the_file_parameter_by_parameter() -> None:
    """`--set` of one parameter keeps the others of the file."""
    flags = Settings(budget=30, set={"rnn": {"hidden": 64}})
    file = Settings(budget=90, seed=1, set={"rnn": {"hidden": 128, "batch": 32}})
    merged = merge(flags, file)
    assert (merged.budget, merged.seed) == (30, 1)
    assert merged.set == {"rnn": {"hidden": 64, "batch": 32}}


def test_set_reads_numbers_words_and_lists() -> None:
    """Values get the type they look like."""
    parsed = parse_set(("rnn.hidden=64,128", "cnn.lr=1e-3", "cnn.optimizer=adam", "cnn.x=true"))
    assert parsed["rnn"]["hidden"] == (64, 128)
    assert parsed["cnn"] == {"lr": 0.001, "optimizer": "adam", "x": True}


def test_tilde_that_a_shell_leaves_is_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in --out=~/runs, and in the file; a folder called `~` would be made."""
    monkeypatch.setenv("HOME", str(tmp_path))
    experiment, _ = resolved(Settings(envs="vm", out="~/runs"), Settings())
    assert experiment.out == tmp_path / "runs"
    assert PATH.convert("~/runs", None, None) == tmp_path / "runs"
    assert PATH.convert("~nobody-has-this/runs", None, None) == Path("~nobody-has-this/runs")
    kinds = [option.type for command in app.commands.values() for option in command.params]
    paths = [kind for kind in kinds if isinstance(kind, click.Path)]
    assert paths
    assert all(isinstance(path, UserPath) for path in paths)


@pytest.mark.parametrize("item", ["", "rnn", "rnn.hidden", "rnn.hidden=", ".hidden=1", "rnn.=1"])
def test_set_that_is_not_understood_names_the_form(item: str) -> None:
    """The error shows the form."""
    with pytest.raises(ConfigError, match="is not understood"):
        parse_set((item,))


def test_set_that_gives_a_parameter_twice_is_refused() -> None:
    """The first value would not be measured."""
    with pytest.raises(ConfigError, match=r"--set gives rnn\.hidden twice"):
        parse_set(("rnn.hidden=64", "rnn.layers=2", "rnn.hidden=128"))


def test_a_command_leaves_out_the_values_that_the_file_sets_for_others(tmp_path: Path) -> None:
    """As `--workloads` does."""
    file = Settings(workloads="rnn", set={"rnn": {"hidden": 64}})
    flags = Settings(workloads={"mine": WorkloadTable(command="python t.py")})
    experiment, _ = resolved(flags, file)
    assert [workload.name for workload in experiment.workloads] == ["mine"]


@pytest.mark.parametrize(
    "declared", ["PARAMS = None", "PARAMS = {[1]: 2}", 'RANGES = {"lr": 5}', 'RANGES = {"lr": ()}']
)
def test_what_a_class_declares_wrongly_is_left_to_its_worker(tmp_path: Path, declared: str) -> None:
    """It says what is wrong; here nothing is known of the class then."""
    path = tmp_path / "own.py"
    path.write_text(f"class Net:\n    {declared}\n")
    flags = Settings(workload=(f"{path}:Net",), workloads=(), set={"own-Net": {"lr": 0.5}})
    experiment, _ = resolved(flags, Settings())
    assert experiment.workloads[-1].name == "own-Net"


def test_a_link_to_a_workload_file_has_the_name_of_the_file(tmp_path: Path) -> None:
    """A resumed run knows the file alone."""
    (tmp_path / "train.py").write_text("class Net:\n    pass\n")
    (tmp_path / "current.py").symlink_to("train.py")
    first, _ = resolved(Settings(workload=(f"{tmp_path}/current.py:Net",)), Settings())
    again, _ = resolved(Settings(), first.settings)
    assert [one.workloads[-1].name for one in (first, again)] == ["train-Net"] * 2


@pytest.mark.parametrize("measure", ["a{4294967296}(b)", "(\udcff)"])
def test_a_measure_that_no_engine_takes_is_refused(measure: str) -> None:
    """Too many repetitions, and a character that is not UTF-8."""
    table = WorkloadTable(command="true", measures={"loss": measure})
    with pytest.raises(ConfigError, match="is not a regular expression"):
        resolved(Settings(workloads={"mine": table}), Settings())


def test_keys_are_spelt_with_hyphens() -> None:
    """The list in an error shows the spelling that works."""
    assert "sif-compression" in known_keys(Settings)


def test_help_names_the_environments_that_are_compared_by_default() -> None:
    """The help is made without looking at environments, and says the same."""
    usual = [name for name, traits in all_traits().items() if traits.is_default]
    assert options()["envs"][0].default_text == ",".join(usual)


def test_every_setting_has_a_flag_with_its_help() -> None:
    """What a file may hold can be given on the command line as well, and is explained there."""
    flags = {each.name: each for each in run.params if isinstance(each, click.Option)}
    assert set(options()) <= set(flags)
    assert [name for name in options() if not flags[name].help] == []


@pytest.mark.parametrize(
    ("given", "expected"), [("as-run", "as-run"), ("4", 4), ("many", None), ("1.5", None)]
)
def test_threads_take_a_number_or_the_word_for_none(given: str, expected: object) -> None:
    """Anything else is refused, with what is taken."""
    (flag,) = (each for each in run.params if each.name == "threads")
    if expected is None:
        with pytest.raises(click.BadParameter, match="neither a whole number nor as-run"):
            flag.type_cast_value(click.Context(run), given)
    else:
        assert flag.type_cast_value(click.Context(run), given) == expected


@pytest.mark.parametrize("name", ["threads", "quiet_pressure", "sif_compression"])
def test_help_names_the_default_that_is_used(name: str) -> None:
    """It is made of the same declaration."""
    (flag,) = (each for each in run.params if each.name == name and isinstance(each, click.Option))
    default = getattr(DEFAULTS, name)
    shown = f"{default:g}" if isinstance(default, int | float) else default
    assert (flag.help or "").endswith(f"[default: {shown}]")
