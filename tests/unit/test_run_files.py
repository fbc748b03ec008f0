"""A run folder that somebody changed: refused with what is wrong, nothing dropped in silence."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from builders import block, run_record

from envcompare.analysis.timing.runfiles import RunFiles, read_files
from envcompare.cli.planning import resumed
from envcompare.config.settings import Settings
from envcompare.errors import RunFolderError
from envcompare.run_folder.records import EnergyBlock, Event, GpuReading, Memory, Sample, Startup
from envcompare.run_folder.results import RunFolder

PHASES = {name: 1 for name in Startup.__struct_fields__ if name.endswith("_ns")}


def read(out: Path, *samples: Sample, events: tuple[Event, ...] = ()) -> RunFiles:
    """Write a run folder and read it."""
    folder = RunFolder.create(out, run_record())
    for event in events:
        folder.append_event(event)
    folder.close()
    # as somebody else writes it: what cannot be read back is not written by the folder itself
    lines = b"".join(msgspec.json.encode(sample) + b"\n" for sample in samples)
    (folder.path / "samples.jsonl").write_bytes(lines)
    return read_files(folder)


def startup(**changes: int) -> Startup:
    """Return a launch of vm."""
    place = {"repetition": 0, "order": 0, "train_steps": 10}
    return Startup(cell=block().cell, arm="vm", **{**place, **PHASES, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (block(arm="podman"), "holds the environment podman, which run.json does not name"),
        (block(cell="local/rnn/default"), "holds the cell local/rnn/default"),
        (block(restart=1), "line 2 .* has the round of line 1 once more"),
        (block(k=4), "line 2 .* has 3 times of 4 steps"),
        (block(wall_ns=(), cpu_ns=(), k=0), "line 2 .* has 0 times of 0 steps"),
        (block(wall_ns=(5, -1, 5)), "line 2 .* has a time below 0"),
        (block(wall_ns=(5, 10**400, 5)), "line 2 .* Expected `int` <= 10"),
        (startup(real_ns=-1), "line 2 .* has a time below 0"),
    ],
    ids=lambda one: one[:24] if isinstance(one, str) else "",
)
def test_sample_that_nobody_measured_is_refused(tmp_path: Path, sample: Sample, words: str) -> None:
    """With its line, and what run.json says where it does not belong to it."""
    with pytest.raises(RunFolderError) as raised:
        read(tmp_path, block(restart=1), sample)
    assert raised.value.exit_code == 5
    assert raised.value.hint
    text = f"{raised.value.brief} {raised.value.details}"
    assert all(part in text for part in words.split(" .* ")), text


def test_event_of_another_run_is_refused(tmp_path: Path) -> None:
    """A file that was copied from elsewhere tells another course."""
    event = Event(t=1.0, what="cell-started", host="gpu01", cell="gpu01/cnn/default")
    with pytest.raises(RunFolderError, match=r"events.jsonl does not belong to the run"):
        read(tmp_path, events=(event,))


def test_samples_that_are_gone_are_counted_by_the_end_of_the_run(tmp_path: Path) -> None:
    """A file that was cut off has one torn line, and all behind it is lost too."""
    end = Event(t=1.0, what="run-ended", values={"samples": 3})
    samples = tuple(block(round=number) for number in range(3))
    whole = read(tmp_path / "whole", *samples, events=(end,))
    assert (whole.is_complete, whole.lost) == (True, 0)
    cut = read(tmp_path / "cut", samples[0], events=(end,))
    assert (cut.is_complete, cut.lost) == (False, 2)
    uncounted = read(tmp_path / "uncounted", samples[0], events=(Event(t=1.0, what="run-ended"),))
    assert (uncounted.is_complete, uncounted.lost) == (True, 0)


def test_a_run_that_lost_samples_is_not_resumed(tmp_path: Path) -> None:
    """Its cells have ended: nothing would be measured again, and a second end would hide it."""
    resumption = Event(t=2.0, what="run-resumed")
    ends = tuple(Event(t=t, what="run-ended", values={"samples": n}) for t, n in ((1, 3), (3, 1)))
    cut = read(tmp_path, block(), events=(ends[0], resumption, ends[1]))
    assert (cut.is_complete, cut.lost) == (False, 2)
    with pytest.raises(RunFolderError, match="some of its samples were lost") as raised:
        resumed(RunFolder.open(tmp_path / cut.run.run_id), Settings())
    assert "holds 1 of 3" in raised.value.details


def test_what_a_run_writes_is_read(tmp_path: Path) -> None:
    """A clock that jumped is why its block was dropped, and threads that end take their wait."""
    jumped = block(restart=1, wall_ns=(5, -(10**9), 5), status="dropped", all_wait_ns=-7)
    memory = Memory(cell=block().cell, arm="vm", restart=0, generation=0, max_rss_bytes=2**40)
    none: tuple[int | None, ...] = (None,)
    reading = GpuReading(
        cell=block().cell,
        uuid="GPU-1",
        t_ns=(1,),
        power_mw=none,
        energy_mj=none,
        sm_mhz=none,
        memory_mhz=none,
        temperature_c=(-3,),
        throttling=(2**64 - 1,),
        utilization_percent=none,
    )
    samples = (block(), jumped, startup(), memory, reading, energy_block())
    files = read(tmp_path, *samples)
    assert files.samples == samples
    assert files.energy_blocks == {block().cell: [energy_block()]}
    assert [one.blocks for one in files.cell_data()] == [(block(), jumped)]


@pytest.mark.parametrize("fields", [{"k": 0}, {"wall_ns": 0}, {"wall_ns": -1}])
def test_energy_block_of_no_steps_or_time_is_refused(
    tmp_path: Path, fields: dict[str, int]
) -> None:
    """An energy of a step would be divided by it."""
    with pytest.raises(RunFolderError, match=r"samples.jsonl is damaged in line 2"):
        read(tmp_path, block(), energy_block(**fields))


def energy_block(*, k: int = 900, wall_ns: int = 5 * 10**9) -> EnergyBlock:
    """Return a block of the energy pass."""
    return EnergyBlock(cell=block().cell, arm="vm", round=0, order=0, k=k, t0_ns=7, wall_ns=wall_ns)
