"""The run folder keeps what was written, says what is torn, and refuses what it cannot trust."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import msgspec
import pytest
from builders import block, run_record
from commandline import envcompare
from schemas import SCHEMA_NAMES, schema_text

from envcompare.errors import RunFolderError
from envcompare.run_folder import (
    LEFT_S,
    distinct_name,
    elapsed_s,
    own_left_s,
    since_retry,
    standing,
)
from envcompare.run_folder.records import (
    SCHEMA,
    ArmRecord,
    CellRecord,
    Event,
    FingerprintRecord,
)
from envcompare.run_folder.results import RunFolder, addresses_of, new_run_id

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schema"


HOSTS = ("gpu01", "gpu02")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    """Give a new run folder."""
    made = RunFolder.create(tmp_path, run_record())
    yield made
    made.close()


def test_samples_come_back_as_they_were_written(folder: RunFolder) -> None:
    """A sample read is the sample written."""
    samples = (block(arm="vm", order=0), block(arm="docker", order=1))
    for sample in samples:
        folder.append_sample(sample)
    assert folder.read_samples().samples == samples


def test_torn_last_line_is_dropped_and_counted(folder: RunFolder) -> None:
    """What a crash cut off is not lost silently."""
    folder.append_sample(block())
    folder.close()
    journal = folder.path / "samples.jsonl"
    journal.write_bytes(journal.read_bytes() + b'{"kind":"block","cell":"lo')
    read = folder.read_samples()
    assert (len(read.samples), read.torn) == (1, 1)


def test_writing_after_a_torn_line_keeps_every_whole_line(folder: RunFolder) -> None:
    """A resumed run never glues its first line to a torn one."""
    folder.append_sample(block(round=0))
    folder.close()
    journal = folder.path / "samples.jsonl"
    journal.write_bytes(journal.read_bytes() + b'{"kind":"blo')
    folder.append_sample(block(round=1))
    read = folder.read_samples()
    assert [sample.round for sample in read.samples] == [0, 1]
    assert read.torn == 0


def test_damaged_middle_line_is_refused_with_its_number(folder: RunFolder) -> None:
    """Damage that no crash explains is an error that says where it is."""
    folder.append_sample(block())
    folder.close()
    journal = folder.path / "samples.jsonl"
    journal.write_bytes(b"not json\n" + journal.read_bytes())
    with pytest.raises(RunFolderError, match="line 1"):
        folder.read_samples()


@pytest.mark.parametrize("schema", [1, SCHEMA + 1])
@pytest.mark.parametrize("words", [("report",), ("run", "--resume")])
def test_another_schema_is_refused_by_its_number(
    folder: RunFolder, schema: int, words: tuple[str, ...]
) -> None:
    """A folder of another version is not guessed at: it is left as it is, with exit code 5."""
    path = folder.path / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": schema}))
    before = {one.name: one.read_bytes() for one in folder.path.iterdir()}
    done = envcompare(*words, str(folder.path), cwd=folder.path.parent)
    assert done.returncode == 5, done.stderr
    said = " ".join(done.stderr.split())
    assert f"run.json has schema {schema}" in said
    assert f"this envcompare reads schema {SCHEMA} only" in said
    assert "use the version of envcompare that wrote it; run.json names it" in said
    assert {one.name: one.read_bytes() for one in folder.path.iterdir()} == before


@pytest.mark.parametrize("schema", [1, SCHEMA + 1])
def test_a_line_of_another_schema_is_refused_by_its_number(folder: RunFolder, schema: int) -> None:
    """Whatever else such a line holds: nothing tells to remove it."""
    folder.append_sample(block())
    folder.close()
    line = {**json.loads((folder.path / "samples.jsonl").read_text()), "schema": schema}
    for changed in (line, {**line, "wall_ns": "of another type"}):
        (folder.path / "samples.jsonl").write_text(json.dumps(changed) + "\n")
        with pytest.raises(RunFolderError, match=f"samples.jsonl has schema {schema}") as caught:
            folder.read_samples()
        assert caught.value.details
        assert caught.value.hint


def test_unknown_field_is_ignored(folder: RunFolder) -> None:
    """A later version may add fields to the same schema."""
    run = json.loads((folder.path / "run.json").read_text())
    (folder.path / "run.json").write_text(json.dumps({**run, "later": True}))
    assert folder.read_run() == run_record()


def test_folder_without_run_json_is_no_run_folder(tmp_path: Path) -> None:
    """The error names the folder and what is missing."""
    with pytest.raises(RunFolderError, match="is not a run folder"):
        RunFolder.open(tmp_path)


VM = ArmRecord(id="vm", environment="vm", is_reference=True)
DOCKER = ArmRecord(id="docker", environment="docker")


@pytest.mark.parametrize(
    ("arms", "why"),
    [
        ((), "no environment"),
        ((DOCKER,), "0 references"),
        ((VM, msgspec.structs.replace(DOCKER, is_reference=True)), "2 references"),
        ((VM, DOCKER, DOCKER), "one environment twice"),
    ],
)
def test_run_whose_arms_are_in_disorder_is_refused(
    folder: RunFolder, arms: tuple[ArmRecord, ...], why: str
) -> None:
    """What compares them relies on one reference and on distinct names."""
    folder.write_json("run.json", msgspec.structs.replace(run_record(), arms=arms))
    with pytest.raises(RunFolderError, match=why) as caught:
        folder.read_run()
    assert caught.value.details
    assert caught.value.hint


def test_fingerprints_are_read_back_for_every_host_and_arm(folder: RunFolder) -> None:
    """A fingerprint stands under its host, its arm and the cell it was taken in."""
    record = FingerprintRecord(
        host="gpu 01", arm="vm", cell="gpu 01/cnn/default", facts={"python.version": "3.11.2"}
    )
    folder.write_fingerprint(record)
    assert folder.read_fingerprints() == (record,)
    assert (
        folder.path / "fingerprints" / distinct_name("gpu 01") / "vm" / "cnn_default.json"
    ).is_file()


ADDRESSES = [
    ('hosts = ["me@gpu01", "gpu02:2222"]', {"gpu01": "me@gpu01", "gpu02": "gpu02:2222"}),
    ("[hosts.gpu01]\naddress = 'me@a'\n[hosts.gpu02]", {"gpu01": "me@a", "gpu02": "gpu02"}),
    ('allocation = "slurm:nodes=2"', {"gpu01": "", "gpu02": ""}),
    ('hosts = ["gpu01"]', {}),
    ("hosts = 5", {}),
    ("no TOML", {}),
]


@pytest.mark.parametrize(("configuration", "addresses"), ADDRESSES)
def test_what_reaches_the_hosts_of_a_run_is_read_from_its_configuration(
    configuration: str, addresses: dict[str, str]
) -> None:
    """The names in the plan lack the user and the port."""
    cells = tuple(CellRecord(id=f"{host}/a/b", host=host, workload="a") for host in HOSTS)
    run = msgspec.structs.replace(run_record(), cells=cells, configuration=configuration)
    assert addresses_of(run) == addresses


def test_ranks_on_several_hosts_need_all_of_them() -> None:
    """A command with --rendezvous names them together."""
    cell = CellRecord(id="gpu02/ddp/a", host="gpu02", workload="ddp", hosts=HOSTS[::-1])
    run = msgspec.structs.replace(
        run_record(), cells=(cell,), configuration='hosts = ["gpu01", "gpu02:22"]'
    )
    assert addresses_of(run) == {"gpu02": "gpu01,gpu02:22"}


def test_resumed_run_is_read_by_what_stands() -> None:
    """A host or cell that failed before a resumption is judged by what came after it."""
    events = (
        Event(t=0.0, what="run-started"),
        Event(t=1.0, what="host-failed", host="a"),
        Event(t=2.0, what="cell-started", host="b", cell="b/cnn"),
        Event(t=3.0, what="interrupted", host="b", cell="b/cnn"),
        Event(t=9.0, what="run-resumed"),
        Event(t=9.5, what="cell-started", host="b", cell="b/cnn"),
        Event(t=12.0, what="cell-ended", host="b", cell="b/cnn", state="ok"),
    )
    assert [event.t for event in standing(events)] == [9.0, 9.5, 12.0]
    assert elapsed_s(events[2:4] + events[5:]) == 1.0 + 2.5


def test_what_a_cell_had_left_of_its_share_is_known_after_an_interruption() -> None:
    """What it took since its last turn is off, also inside the first one."""
    events = (
        Event(t=0.0, what="cell-started", cell="c"),
        Event(t=0.0, what="turn", cell="c", text="waits for its turn"),
        Event(t=5.0, what="restart", cell="c"),
        Event(t=15.0, what="turn", cell="c", values={"restart": 0, LEFT_S: 44.0}),
        Event(t=40.0, what="restart", cell="c"),
        Event(t=48.0, what="interrupted", cell="c"),
    )
    assert own_left_s(events, whole_s=60.0) == 44.0 - 8.0
    assert own_left_s(events[:3] + events[5:], whole_s=60.0) == 60.0 - 43.0
    assert own_left_s((), whole_s=60.0) == 60.0
    unnoted = (*events[:3], Event(t=15.0, what="turn", cell="c", values={"restart": 0}))
    assert own_left_s(unnoted, whole_s=60.0) == 60.0


def test_a_cell_that_is_tried_again_begins_a_life_of_its_own() -> None:
    """What it took before it had ended is not taken off; a lost host ends no life."""
    first = (
        Event(t=0.0, what="cell-started", cell="c"),
        Event(t=60.0, what="cell-ended", cell="c", state="failed"),
    )
    again = (
        Event(t=90.0, what="cell-started", cell="c"),
        Event(t=96.0, what="interrupted", cell="c"),
    )
    assert since_retry((*first, *again)) == again
    assert since_retry(first) == first
    lost = (first[0], Event(t=60.0, what="cell-ended", cell="c", state="unreachable"), *again)
    assert since_retry(lost) == lost


def test_line_that_does_not_fit_on_the_disk_leaves_no_half_line(
    folder: RunFolder, tmp_path: Path
) -> None:
    """A full disk is an error, and what was written before stays readable."""
    import resource

    folder.append_sample(block(round=0))
    size = (folder.path / "samples.jsonl").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, before[1]))
    try:
        with pytest.raises(RunFolderError, match="cannot be written"):
            folder.append_sample(block(round=1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    folder.append_sample(block(round=2))
    read = folder.read_samples()
    assert ([sample.round for sample in read.samples], read.torn) == ([0, 2], 0)


def test_unwritable_disk_is_a_run_folder_error(tmp_path: Path) -> None:
    """No traceback where the place is a file."""
    (tmp_path / "out").write_text("")
    with pytest.raises(RunFolderError, match="cannot be made"):
        RunFolder.create(tmp_path / "out", run_record())


def test_run_ids_differ() -> None:
    """Two runs started in one second have two folders."""
    assert len({new_run_id() for _ in range(50)}) > 1


@pytest.mark.parametrize("name", SCHEMA_NAMES)
def test_published_schema_is_a_valid_json_schema(name: str) -> None:
    """What docs/schema holds can be used by other tools."""
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)


def test_written_files_obey_the_published_schemas(folder: RunFolder) -> None:
    """The schemas describe what is really written."""
    folder.append_sample(block())
    folder.append_event(Event(t=1.0, what="note", text="hello"))
    for name, text in (
        ("run", (folder.path / "run.json").read_text()),
        ("samples", (folder.path / "samples.jsonl").read_text()),
        ("events", (folder.path / "events.jsonl").read_text()),
    ):
        schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
        jsonschema.validate(json.loads(text), schema)


def test_published_schemas_are_those_of_the_types() -> None:
    """A changed type without a new schema file is noticed."""
    for name in SCHEMA_NAMES:
        assert (SCHEMAS / f"{name}.schema.json").read_text() == schema_text(name)


@pytest.mark.parametrize("name", ["run.json", "samples.jsonl"])
def test_text_that_is_no_utf8_is_damage(folder: RunFolder, name: str) -> None:
    """An editor may have saved it in another encoding."""
    folder.append_sample(block())
    folder.close()
    path = folder.path / name
    path.write_bytes(path.read_bytes().replace(b"local", b"loc\xe9l"))
    with pytest.raises(RunFolderError, match=r"cannot be read|is damaged in line 1"):
        folder.read_run() if name == "run.json" else folder.read_samples()


def test_folders_that_lead_to_themselves_are_not_walked_for_ever(folder: RunFolder) -> None:
    """A fingerprint lies three levels deep, and nothing below is looked at."""
    folder.write_fingerprint(FingerprintRecord(host="h", arm="vm", cell="h/cnn/default", facts={}))
    for name in ("a", "b"):
        (folder.path / "fingerprints" / name).symlink_to(".")
    (found,) = {(one.host, one.arm) for one in folder.read_fingerprints()}
    assert found == ("h", "vm")
