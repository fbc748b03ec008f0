"""Settings that nothing could be measured with are refused before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from experiments import known

from envcompare.cli.options import tables_of
from envcompare.config import parse_arms
from envcompare.config.experiment import Experiment, check_ranges, parse_cpus, resolve
from envcompare.config.settings import DEFAULTS, Settings, parse_settings
from envcompare.config.workloads import Range, WorkloadTable, parse_program
from envcompare.errors import ConfigError
from envcompare.run_folder.records import Scalar

KNOWN = known(cnn={"lr": 0.1})


def resolved(**given: object) -> Experiment:
    """Check settings as a file holds them."""
    content = {"envs": "vm,docker", "workloads": "cnn", **given}
    return resolve(parse_settings(content, source="test"), Settings(), known=KNOWN)


def refused(call: Callable[..., object], *given: object, **named: object) -> str:
    """Return what the user reads of a call that is refused, after checking that it has a remedy."""
    with pytest.raises(ConfigError) as caught:
        call(*given, **named)
    assert (bool(caught.value.hint), caught.value.exit_code) == (True, 2)
    return "\n".join(caught.value.lines())


@pytest.mark.parametrize("key", ["budget", "quiet-pressure", "quiet-load", "connect-timeout"])
@pytest.mark.parametrize("value", [float("inf"), float("nan"), -1.0, 0.0])
def test_numbers_that_are_no_amount_are_refused(key: str, value: float) -> None:
    """JSON holds no infinity: the run folder could not be read again."""
    assert f"--{key} {value} is out of range" in refused(resolved, **{key: value})


@pytest.mark.parametrize("value", [float("inf"), float("nan"), (0.1, float("inf"))])
def test_parameters_are_finite(value: float | tuple[float, ...]) -> None:
    """They too are written into the run folder."""
    assert "is not a finite number" in refused(resolved, set={"cnn": {"lr": value}})


@pytest.mark.parametrize("key", ["budget", "connect-timeout"])
def test_seconds_have_an_upper_bound(key: str) -> None:
    """Timers overflow far beyond it."""
    resolved(**{key: 30 * 86_400.0})
    said = refused(resolved, **{key: 1e10})
    assert "is out of range" in said
    assert "2592000 (30 days) at most" in said


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e10, 0.0])
def test_timeout_of_a_command_is_bounded(tmp_path: Path, value: float) -> None:
    """By the same bound as the budget."""
    table = WorkloadTable(command="true", cwd=str(tmp_path), timeout=value)
    said = refused(parse_program, "train", table)
    assert "is out of range" in said
    assert "--command-timeout" in said


@pytest.mark.parametrize("value", [0, -1, 4097, 100_000])
def test_threads_name_their_limit(value: int) -> None:
    """A worker would refuse more."""
    assert resolved(threads=4096).threads == 4096
    assert resolved(threads="as-run").threads is None
    assert "from 1 to 4096" in refused(resolved, threads=value)


@pytest.mark.parametrize(
    "value",
    ["0-99999999999", "0-8192", "8192", "3-2", "-3", "²", "", "0,", "a", (0, -3), (8192,), ()],
)
def test_cpus_no_kernel_has_are_refused(value: str | tuple[int, ...]) -> None:
    """Without expanding the range first."""
    assert "--pin" in refused(parse_cpus, value).splitlines()[0]


def test_cpus_of_flag_and_file_are_the_same() -> None:
    """Each once, in order."""
    assert parse_cpus("3, 0-1,1") == parse_cpus((3, 1, 0, 1)) == (0, 1, 3)
    assert parse_cpus("0,2-4") == (0, 2, 3, 4)
    assert parse_cpus("8191") == (8191,)


def test_measure_of_a_name_that_is_taken_is_refused() -> None:
    """One of the two would silently be left out."""
    both = {"measures": ("x=a(.)", "x=b(.)"), "cwd": None, "timeout": None}
    assert "two --measure are called `x`" in refused(tables_of, ("true",), **both)


@pytest.mark.parametrize("text", ["", " ", "''"])
def test_empty_command_is_named_as_it_was_given(text: str) -> None:
    """Under the flag it stood in."""
    said = refused(tables_of, (text,), measures=(), cwd=None, timeout=None)
    assert "is empty" in said
    assert f"--command {text!r}" in said


def test_empty_command_of_the_file_is_named_by_its_workload() -> None:
    """Its table has a name."""
    said = refused(parse_program, "train", WorkloadTable(command=""))
    assert "the command of the workload `train` is empty" in said


def test_hint_for_an_image_of_the_stack_host_is_accepted_in_turn() -> None:
    """Both ways out that it names can be taken."""
    said = refused(parse_arms, ("vm", "docker@host:foo"), KNOWN.environments)
    assert "the stack host takes no image" in said
    assert said.endswith("try: use docker@host, or mine=docker:foo")
    arms = parse_arms(("docker@host", "mine=docker:foo"), KNOWN.environments)
    assert [arm.id for arm in arms] == ["docker-host", "mine"]


RANGES: dict[str, Range] = {
    "lr": (0, None),
    "batch": (1, 65536),
    "optimizer": ("sgd", "adam"),
    "compile": (False,),
}
PARAMETERS: dict[str, Scalar] = {"batch": 64, "lr": 0.1, "optimizer": "sgd", "compile": False}
DECLARED = known(cnn=PARAMETERS, ranges={"cnn": RANGES})


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("batch", 0, "at least 1 and at most 65536"),
        ("batch", (64, 65537), "at least 1 and at most 65536"),
        ("lr", -0.1, "at least 0"),
        ("optimizer", "momentum", "one of sgd, adam"),
        ("compile", True, "only false"),
    ],
)
def test_value_that_a_workload_cannot_run_with_is_refused(
    name: str, value: Scalar | tuple[Scalar, ...], wanted: str
) -> None:
    """It is seen before anything is made, by the range that the workload declares."""
    with pytest.raises(ConfigError) as caught:
        resolve(Settings(set={"cnn": {name: value}}), Settings(workloads=("cnn",)), known=DECLARED)
    refused_value = value[-1] if isinstance(value, tuple) else value
    assert caught.value.brief == f"cnn.{name}={refused_value} is out of range"
    assert wanted in caught.value.details


@pytest.mark.parametrize(
    ("name", "value"),
    [("batch", (1, 65536)), ("lr", 0.0), ("lr", 1e9), ("optimizer", "adam"), ("compile", False)],
)
def test_value_at_the_ends_of_a_declared_range_is_accepted(
    name: str, value: Scalar | tuple[Scalar, ...]
) -> None:
    """Both ends belong to the range; None is an open end."""
    chosen = resolve(
        Settings(set={"cnn": {name: value}}), Settings(workloads=("cnn",)), known=DECLARED
    )
    values = value if isinstance(value, tuple) else (value,)
    assert chosen.workloads[0].parameters == ((name, values),)


def test_range_that_a_workload_of_the_users_own_declares_is_kept(tmp_path: Path) -> None:
    """A class of the user's own is held to what stands in its file."""
    file = tmp_path / "mine.py"
    file.write_text(
        "class Mine:\n    PARAMS = {'size': 8}\n    RANGES = {'size': (1, None)}\n",
        encoding="utf-8",
    )
    flags = Settings(workload=f"{file}:Mine", set={"mine-Mine": {"size": 0}})
    with pytest.raises(ConfigError, match=r"mine-Mine\.size=0 is out of range"):
        resolve(flags, Settings(), known=DECLARED)


def test_every_default_is_in_the_range_of_its_option() -> None:
    """A default that were refused would stop every run."""
    check_ranges(DEFAULTS)
