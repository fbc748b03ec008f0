"""Workers that answer with what cannot be: their arm is out, and the run stays readable."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from benches import Measured, bench, measure
from builders import block

from envcompare.errors import WorkloadError
from envcompare.run_folder.records import Block
from envcompare.run_folder.results import RunFolder

# The image of an arm decides what stands on its standard output.
SOURCE = """
import json, os

write = os.write


def lie(data, file):
    try:
        reply = json.loads(data)
    except ValueError:
        return data
    if reply.get("op") != {op!r} or os.environ["ENVCOMPARE_ENVIRONMENT"] != {arm!r}:
        return data
    told = {told}
    return told if isinstance(told, bytes) else json.dumps({{**reply, **told}}).encode() + b"\\n"


def write_all(file, data):
    told = memoryview(lie(bytes(data), file))
    while told:
        told = told[write(file, told):]
    return len(data)


os.write = write_all


class Steady:
    batch = 1

    def setup(self, seed, device):
        pass

    def step(self):
        return float(sum(i * i for i in range(3000)) % 97)
"""
DEEP = """b'{"op":"run","ok":true,"x":' + b"[" * 200000 + b"]" * 200000 + b"}\\n" """
LIES = {
    "memory no machine has": ("end", "{'max_rss_bytes': 10**19}"),
    "memory below 0": ("end", "{'max_rss_bytes': -1}"),
    "result no file holds": ("end", "{'result': {'loss': 10**400}}"),
    "time no clock has": ("run", "{'wall_ns': [10**19] * len(reply['wall_ns'])}"),
    "number no float holds": ("run", "{'wall_ns': [10**400] * len(reply['wall_ns'])}"),
    "counter no machine has": ("run", "{'minor_faults': 10**19}"),
    "time below 0": ("run", "{'wall_ns': [-5, *reply['wall_ns'][1:]]}"),
    "CPU time below 0": ("run", "{'cpu_ns': [-5, *reply['cpu_ns'][1:]]}"),
    "wait below 0": ("run", "{'wait_ns': -1}"),
    "faults below 0": ("run", "{'minor_faults': -1}"),
    "build below 0": ("gen", "{'build_ns': -1}"),
    "CPU below 0": ("run", "{'cpu': -3}"),
    "CPU of a larger host": ("run", "{'cpu': 8000}"),
    "CPU no kernel has": ("run", "{'cpu': 10**6}"),
    "loss that is no number": ("run", "{'loss': 'small'}"),
    "no times": ("run", "{'wall_ns': []}"),
    "no times of the CPU": ("run", "{'cpu_ns': []}"),
    "times of too many steps": ("run", "{'wall_ns': [1] * 100000, 'cpu_ns': [1] * 100000}"),
    "no number": ("run", "{'cpu_ns': [float('nan')] * len(reply['cpu_ns'])}"),
    "number without an end": ("end", "{'result': {'loss': float('inf')}}"),
    "another operation": ("run", "{'op': 'gen'}"),
    "operation that is none": ("gen", "{'op': ['gen']}"),
    "nothing but an end of line": ("run", r"b'\n'"),
    "nested": ("run", DEEP),
    "no text": ("gen", """b'{"op":"gen","ok":true,"\\xff":1}\\n'"""),
    "batch no float holds": ("hello", "{'batch': 10**400}"),
    "time of imports": ("hello", "{'import_ns': 10**19}"),
    "fact no file holds": ("hello", "{'fingerprint': {'n': 10**400}}"),
}


def lied_to(
    folder: Path, arm: str, op: str, told: str, *, before: str = "", **changes: object
) -> Measured:
    """Measure a cell in which one arm answers one operation with something else."""
    path = folder / "own.py"
    path.write_text(before + SOURCE.format(op=op, arm=arm, told=told))
    made = bench(folder, f"{path}:Steady", **{"budget_s": 1.0, "target": 1e-4, **changes})
    return measure(made)


def failed(measured: Measured) -> dict[str, str]:
    """Return where the arms that are out failed."""
    return {
        event.arm: event.failure.phase
        for event in measured.events
        if event.what == "arm-failed" and event.failure and event.arm
    }


@pytest.mark.parametrize(("op", "told"), LIES.values(), ids=LIES)
def test_arm_that_lies_is_out_alone(op: str, told: str, tmp_path: Path) -> None:
    """The others are measured to the end."""
    measured = lied_to(tmp_path, "docker", op, told)
    assert failed(measured) == {"docker": "protocol"}
    arms = {sample.arm for sample in measured.folder.read_samples().samples}
    assert {"vm", "vm~control"} <= arms


@pytest.mark.parametrize(
    "name", ["memory no machine has", "no times", "times of too many steps", "nested", "no text"]
)
def test_reference_that_lies_ends_its_cell_with_the_reason(name: str, tmp_path: Path) -> None:
    """Nothing can be compared, and what was measured can be read."""
    measured = lied_to(tmp_path, "vm", *LIES[name])
    assert failed(measured)["vm"] == "protocol"
    measured.folder.read_samples()


def test_answer_about_other_steps_is_said_with_both_numbers(tmp_path: Path) -> None:
    """Whoever reads it sees that the worker, not the workload, is wrong."""
    measured = lied_to(tmp_path, "docker", "run", "{'cpu_ns': []}")
    assert "docker: the answer to `run` is about 0 steps, not " in measured.failures()


@pytest.mark.parametrize("name", ["time below 0", "CPU below 0", "CPU of a larger host"])
def test_who_answers_what_cannot_be_is_named(name: str, tmp_path: Path) -> None:
    """The arm that lies is told from those that ran after it, and nothing below 0 is kept."""
    measured = lied_to(tmp_path, "docker", *LIES[name], same_cpu=True)
    assert measured.failures().startswith("docker: ")
    assert "do not trust what this arm reports" in measured.failures()
    kept = [
        sample for sample in measured.folder.read_samples().samples if isinstance(sample, Block)
    ]
    assert {one.arm for one in kept} == {"vm", "vm~control"}
    assert all(one.cpu is None or 0 <= one.cpu < 8000 for one in kept)


LEADING_AWAY = "{name: pathed(value) for name, value in reply.items() if name not in ('op', 'ok')}"
PATHED = """
def pathed(value):
    if isinstance(value, dict):
        return {FOLDER: FOLDER, **{name: pathed(part) for name, part in value.items()}}
    if isinstance(value, list):
        return [pathed(part) for part in value]
    return FOLDER if isinstance(value, str) else value


"""


@pytest.mark.parametrize("op", ["hello", "gen", "run", "facts", "end", "quit"])
def test_path_in_every_field_leads_nowhere(op: str, tmp_path: Path) -> None:
    """No file is written, read or removed by a name that a worker answered with."""
    outside = tmp_path / "outside"
    outside.mkdir()
    secret = outside / "secret"
    secret.write_text("a secret")
    paths = f"FOLDER = {f'../../../../..{secret}'!r}\n{PATHED}"
    (tmp_path / "run").mkdir()
    measured = lied_to(tmp_path / "run", "docker", op, LEADING_AWAY, before=paths)
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside", "run"]
    written = [path for path in measured.folder.path.rglob("*") if path.is_file()]
    assert [path for path in written if b"a secret" in path.read_bytes()] == []
    assert {"vm", "vm~control"} <= {sample.arm for sample in measured.folder.read_samples().samples}


def test_sample_that_cannot_be_read_back_is_not_written(tmp_path: Path) -> None:
    """One line would cost the report of the whole run."""
    folder = RunFolder(tmp_path)
    folder.append_sample(block())
    with pytest.raises(WorkloadError, match="cannot be stored: Expected `int` <= "):
        folder.append_sample(msgspec.structs.replace(block(), t0_ns=10**19))
    folder.close()
    assert folder.read_samples().samples == (block(),)


def test_worker_that_dies_while_it_answers_has_not_lied(tmp_path: Path) -> None:
    """Half of an answer, as of one that the kernel killed, breaks no rule: it may start again."""
    measured = lied_to(
        tmp_path, "docker", "run", "write(file, data[:9]) and os.kill(os.getpid(), 9)"
    )
    assert failed(measured)["docker"] == "process"
