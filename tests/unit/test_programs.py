"""Plain commands as the user writes them: flags and tables, names, and what is refused."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from experiments import known
from hypothesis import given
from hypothesis import strategies as st

from envcompare.cli.options import settings_of, tables_of
from envcompare.cli.planning import plan_lines, standalone
from envcompare.config.experiment import Experiment, resolve
from envcompare.config.plan import make_plan
from envcompare.config.settings import Settings, parse_settings, settings_toml
from envcompare.config.workloads import Program, WorkloadTable, parse_program
from envcompare.errors import ConfigError
from envcompare.text import parse_toml
from envcompare.transport.hosts import parse_hosts

KNOWN = known(cnn={"batch": 64}, rnn={})


@pytest.fixture(autouse=True)
def without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read no configuration file that happens to lie in the current folder."""
    monkeypatch.chdir(tmp_path)


def resolved(**values: Any) -> Experiment:
    """Resolve these flags, as click gives them."""
    flags, file = settings_of({"envs": "vm,docker", **values})
    return resolve(flags, file, known=KNOWN)


def program(text: str, **fields: Any) -> Program:
    """Return the program of one `--command`."""
    (workload,) = resolved(commands=(text,), **fields).workloads
    assert workload.program is not None
    return workload.program


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("python train.py --epochs 1", "train"),
        ("./bin/run-it.sh now", "run-it"),
        ("python -m torch.distributed.run x.py", "torch.distributed.run"),
        ("python3.11 -u train.py", "train"),
        ("python -c 'print(1)'", "python-c"),
        ("env A=1 /usr/bin/python3.11 -c 'print(1)'", "python3.11-c"),
        ("python", "python-command"),
        ("python llama.py", "llama-command"),
        ("./compile.sh", "compile-command"),
        ("OMP_NUM_THREADS=2 python a/b.py", "b"),
        ("env A=1 time ls", "ls"),
        ("sh -c 'a | b'", "sh"),
        ("'./my prog'", "my-prog"),
    ],
)
def test_command_is_named_after_what_it_runs(text: str, name: str) -> None:
    """A cell must be told apart from others by a word the user typed."""
    assert [workload.name for workload in resolved(commands=(text,)).workloads] == [name]


def test_commands_of_one_program_are_told_apart_by_number() -> None:
    """Each makes a cell of its own."""
    found = resolved(commands=("python a.py 1", "python a.py 2", "ls")).workloads
    assert [one.name for one in found] == ["a", "a-2", "ls"]


def test_command_runs_alone_unless_workloads_are_named() -> None:
    """The defaults make way, names beside it stay."""
    assert [w.name for w in resolved(commands=("ls",)).workloads] == ["ls"]
    assert [w.name for w in resolved(commands=("ls",), workloads="cnn").workloads] == ["cnn", "ls"]
    beside = resolved(commands=("python cnn.py",), workloads="cnn").workloads
    assert [one.name for one in beside] == ["cnn", "cnn-command"]


def test_variables_in_front_are_set_as_a_shell_would() -> None:
    """`A=1 program` is what people type."""
    assert program("A=1 python x.py").argv == ("env", "A=1", "python", "x.py")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0="))))
def test_words_arrive_as_they_were_quoted(words: list[str]) -> None:
    """Whatever a shell would pass on reaches the program."""
    words = ["ls", *(word for word in words if word not in {"|", "||", "&&", "&", ";"})]
    if not {">", ">>", "<"} & set(words):
        (table,) = tables_of((shlex.join(words),), measures=(), cwd=None, timeout=None).values()
        assert table.command == tuple(words)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"commands": ("a | b",)}, "does not run in a shell"),
        ({"commands": ("a && b",)}, "does not run in a shell"),
        ({"commands": ("echo 'x",)}, "cannot be split"),
        ({"commands": ("",)}, "is empty"),
        ({"commands": ("ls",), "measures": ("x",)}, "not understood"),
        ({"commands": ("ls",), "measures": ("x=(",)}, "not a regular expression"),
        ({"commands": ("ls",), "measures": (r"x=(?u)(\w)",)}, "not a regular expression"),
        ({"commands": ("ls",), "measures": ("x=abc",)}, "has no group"),
        ({"commands": ("ls",), "command_timeout": 0.0}, "out of range"),
        ({"commands": ("ls",), "command_dir": "/"}, "cannot run in /"),
        ({"commands": ("ls",), "command_dir": "/usr"}, "cannot run in /usr"),
        ({"measures": ("x=(1)",)}, "belong to a --command"),
        ({"command_dir": "/data"}, "belong to a --command"),
        ({"commands": ("ls",), "set": ("ls.size=1",)}, "no parameters"),
    ],
)
def test_impossible_command_is_refused_with_a_remedy(values: dict[str, Any], message: str) -> None:
    """Before anything is started, with exit code 2."""
    with pytest.raises(ConfigError, match=message) as caught:
        resolved(**values)
    assert caught.value.exit_code == 2
    assert caught.value.hint


def test_file_holds_tables_beside_bundled_names() -> None:
    """`[workloads.x] command = […]` is the form of the file; an empty table is a bundled name."""
    text = """
    [workloads.cnn]
    [workloads.mine]
    command = ["python", "train.py", "two words"]
    cwd = "/data/mine"
    timeout = 30
    measures = { loss = "loss: ([0-9.]+)" }
    """
    file = parse_settings(parse_toml(text), source="x.toml")
    cnn, mine = resolve(Settings(), file, known=KNOWN).workloads
    assert (cnn.name, cnn.program) == ("cnn", None)
    assert mine.program == Program(
        argv=("python", "train.py", "two words"),
        cwd="/data/mine",
        measures=(("loss", "loss: ([0-9.]+)"),),
        timeout_s=30,
    )


def test_a_table_may_not_have_the_name_of_a_bundled_workload() -> None:
    """What a file calls so may be either; a flag gives its command another name."""
    file = parse_settings(parse_toml('[workloads.cnn]\ncommand = "python x.py"'), source="x.toml")
    with pytest.raises(ConfigError, match="is a bundled workload") as caught:
        resolve(Settings(), file, known=KNOWN)
    assert "give [workloads.cnn] another name" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "key", "word"),
    [
        ("[workloads.x]\ncomand = ['a']\n", "comand", "command"),
        ("[workloads.x]\ncommand = ['a']\ntimeout = 'long'\n", "workloads", "long"),
    ],
)
def test_wrong_table_names_key_and_remedy(text: str, key: str, word: str) -> None:
    """Inside a table as outside of it."""
    with pytest.raises(ConfigError) as caught:
        parse_settings(parse_toml(text), source="x.toml")
    assert key in caught.value.brief
    assert word in caught.value.hint + caught.value.details


def test_measure_without_a_command_in_a_table_is_refused() -> None:
    """A table with measures alone would measure nothing."""
    with pytest.raises(ConfigError, match="is empty"):
        parse_program("x", WorkloadTable(measures={"loss": "(1)"}))


def test_settings_of_a_run_mean_the_same_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run finds its folder and its words, from wherever it is resumed."""
    made = standalone(
        resolved(commands=("python train.py",), measures=("loss=(1)",), workloads="cnn"),
        parse_hosts(["local"]),
    )
    monkeypatch.chdir("/")
    again = resolve(
        parse_settings(parse_toml(settings_toml(made.settings)), source="run.json"),
        Settings(),
        known=KNOWN,
    )
    assert again.workloads == made.workloads
    assert again.workloads[1].program == Program(
        argv=("python", "train.py"), cwd=str(tmp_path), measures=(("loss", "(1)"),)
    )


def test_plan_shows_the_command_and_its_first_rounds() -> None:
    """What would run is seen before it runs."""
    made = resolved(commands=("python train.py 'two words'",), seed=3)
    plan = make_plan(made, ("local",), accept_many=False)
    text = "\n".join(plan_lines(made, plan))
    assert "command: python train.py 'two words'" in text
    assert text.count("round ") == 3
