"""Run folders of older schema versions: read and compared as before, but never written into."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from commandline import envcompare
from goldenruns import KEPT

from envcompare.analysis.compare import compare_run
from envcompare.errors import RunFolderError
from envcompare.fingerprint.identity import change_text, noted_changes
from envcompare.report.wording.profileterms import note_sentences
from envcompare.run_folder.profiles import Device, Profile
from envcompare.run_folder.records import SCHEMA
from envcompare.run_folder.results import RunFolder, json_bytes
from envcompare.run_folder.versions import OLDEST, version_of

V1 = KEPT / "v1"
KINDS = ("measured", "imported")


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> RunFolder:
    """Return a copy of a run folder that envcompare wrote with schema 1."""
    shutil.copytree(V1 / request.param, tmp_path / "run")
    return RunFolder.open(tmp_path / "run")


def test_every_older_schema_version_has_kept_run_folders() -> None:
    """A version that is raised leaves folders behind that the one before it wrote."""
    for version in range(OLDEST, SCHEMA):
        for name in KINDS:
            run = (KEPT / f"v{version}" / name / "run.json").read_bytes()
            assert version_of(run) == version


def test_every_record_of_an_older_folder_is_read_as_one_of_the_newest_schema(
    folder: RunFolder,
) -> None:
    """What reads records knows one version of them."""
    records = (
        folder.read_run(),
        *folder.read_events().events,
        *folder.read_samples().samples,
        *folder.read_fingerprints(),
        *folder.read_profiles(),
    )
    assert {record.schema for record in records} == {SCHEMA}


def test_an_older_folder_leads_to_the_numbers_that_are_kept_beside_it(
    folder: RunFolder,
) -> None:
    """The comparison is that of today's estimator: what reads the older version shows."""
    # the last digits are those of numpy and scipy
    digits = lambda text: float(f"{float(text):.12g}")  # noqa: E731
    kept = (folder.path / "comparison.json").read_text()
    before = json.loads(kept, parse_float=digits)["comparisons"]
    after = json.loads(json_bytes(compare_run(folder)), parse_float=digits)["comparisons"]
    for key in ("cell", "arm", "outcome", "leaning", "primary"):
        assert [drawn[key] for drawn in after] == [drawn[key] for drawn in before]


def read_kept(folder: Path, **fields: object) -> Profile:
    """Return a profile of version 1 as it is read, with fields of its first quantity or itself."""
    shutil.copytree(V1 / "imported", folder)
    path = next(folder.rglob("vm/imported-ncu.json"))
    record = json.loads(path.read_text())
    scope = fields.pop("scope", "")
    record["profile"]["quantities"][0] |= {"scope": scope, "gpu": None}
    path.write_text(json.dumps({**record, "profile": {**record["profile"], **fields}}))
    records = RunFolder.open(folder).read_profiles()
    (profile,) = (r.profile for r in records if (r.arm, r.name) == ("vm", "imported-ncu"))
    assert profile is not None
    return profile


@pytest.mark.parametrize("scope", ["GPU 1", "GPU 1: no other kernel runs"])
def test_gpu_that_an_older_record_tells_in_words_is_a_number(tmp_path: Path, scope: str) -> None:
    """A run folder of an earlier version is compared GPU by GPU as well."""
    assert read_kept(tmp_path / "run", scope=scope).quantities[0].gpu == 1


def test_pages_of_an_older_record_are_told_by_its_format(tmp_path: Path) -> None:
    """They say whether two numbers of Nsight Compute may be divided."""
    profile = read_kept(tmp_path / "run", pages=[], format="report by ncu_report + csv details")
    assert profile.pages == ("raw", "details")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"reason": "the workload ran on the CPU: no GPU to look into"}, "no-gpu"),
        ({"reason": "ncu is not installed", "hint": "install it"}, "not-usable"),
        ({"reason": "vm: the worker ended", "is_failure": True}, "failed"),
        ({"reason": "only the first 2000 launches were counted", "state": "ok"}, "launches-cut"),
        ({"reason": "not counted: quantized_lstm", "state": "ok"}, "partial"),
        ({"reason": "", "hint": "sudo sysctl", "state": "ok"}, "partial"),
        ({"reason": "", "state": "ok"}, None),
    ],
)
def test_what_an_older_profile_lacks_is_told_as_data(
    tmp_path: Path, fields: dict[str, object], expected: str | None
) -> None:
    """Its words stay; a pass that failed is tried again as before."""
    shutil.copytree(V1 / "measured", tmp_path / "run")
    path = next((tmp_path / "run").rglob("vm/nsys.json"))
    older = {**json.loads(path.read_text()), "hint": "", "state": "missing", **fields}
    path.write_text(json.dumps(older))
    records = RunFolder.open(tmp_path / "run").read_profiles()
    (record,) = (r for r in records if (r.arm, r.kind) == ("vm", "nsys"))
    assert (record.lacks.why if record.lacks else None) == expected
    assert record.is_failure == (expected == "failed")
    if record.lacks and fields["reason"]:
        assert (record.lacks.problem.brief, record.lacks.problem.hint) == (
            fields["reason"],
            older["hint"],
        )


@pytest.mark.parametrize("damage", [[1], {"tool": 1}, {"quantities": {"a": 1}}, "text"])
def test_damage_in_an_older_record_is_said_as_damage(tmp_path: Path, damage: object) -> None:
    """Records are upgraded before their types are checked."""
    shutil.copytree(V1 / "imported", tmp_path / "run")
    path = next(tmp_path.rglob("vm/imported-ncu.json"))
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "profile": damage}))
    with pytest.raises(RunFolderError, match="cannot be read"):
        RunFolder.open(tmp_path / "run").read_profiles()


def test_an_older_run_is_not_resumed(tmp_path: Path) -> None:
    """A folder holds records of one schema; exit 2 says which, and what to do."""
    shutil.copytree(V1 / "measured", tmp_path / "run")
    before = (tmp_path / "run" / "events.jsonl").read_bytes()
    result = envcompare("run", "--resume", "run", cwd=tmp_path)
    assert result.returncode == 2
    assert "run cannot be resumed: it has schema 1" in result.stderr
    assert f"this envcompare writes schema {SCHEMA}" in result.stderr
    assert (tmp_path / "run" / "events.jsonl").read_bytes() == before


def test_nothing_is_imported_into_an_older_run(tmp_path: Path) -> None:
    """It is refused before any file is read."""
    shutil.copytree(V1 / "measured", tmp_path / "run")
    trace = tmp_path / "trace.json"
    trace.write_text("{}")
    result = envcompare(
        "import", "kineto", "--env", "vm", "--into", "run", str(trace), cwd=tmp_path
    )
    assert result.returncode == 2
    assert "run cannot be extended: it has schema 1" in result.stderr


def test_program_of_a_word_in_an_older_identity_is_named_by_its_key(tmp_path: Path) -> None:
    """The report names the program that changed before a run of version 1 was resumed."""
    shutil.copytree(V1 / "measured", tmp_path / "run")
    path = tmp_path / "run" / "events.jsonl"
    event = json.loads(path.read_text().splitlines()[0])
    changed = [
        {**event, "what": "identity", "arm": "vm", "values": {"program nvcc": n}} for n in "12"
    ]
    path.write_text("".join(f"{json.dumps(each)}\n" for each in (event, *changed)))
    (change,) = noted_changes(RunFolder.open(tmp_path / "run").read_events().events)
    assert change_text(change) == "the program nvcc was 1, now 2"


def test_sentences_of_an_older_record_are_kept_as_its_notes(tmp_path: Path) -> None:
    """They are printed as they were written then."""
    notes = read_kept(tmp_path / "run", notes=["2 processes are added up"]).notes
    assert note_sentences(notes) == ("2 processes are added up",)


@pytest.mark.parametrize("name", ["compute capability 8.0", "GPU 3"])
def test_text_that_an_older_record_has_for_a_name_names_no_gpu(tmp_path: Path, name: str) -> None:
    """A GPU without a name is never held to be another model than one with a name."""
    devices = [{"name": name, "compute_capability": "8.0"}]
    profile = read_kept(tmp_path / "run", devices=devices)
    assert profile.devices == (Device(compute_capability="8.0"),)


def test_how_generations_began_is_told_by_the_words_of_an_older_event(tmp_path: Path) -> None:
    """And so is why no start was a cold one; other words of an event mean nothing."""
    lines = (
        {"what": "arm-ready", "text": "generations by fork: one thread lives in the template"},
        {"what": "arm-ready", "text": "generations by rebuild"},
        {"what": "note", "text": "cold start not measured: refused", "values": {"cold": False}},
        {"what": "note", "text": "generations by fork: this is a note"},
    )
    texts = (msgspec.json.encode({"t": 1.0, "schema": 1, **line}) for line in lines)
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "events.jsonl").write_bytes(b"".join(text + b"\n" for text in texts))
    assert [event.values for event in RunFolder.open(tmp_path).read_events().events] == [
        {"generation": "fork", "why": "one thread lives in the template"},
        {"generation": "rebuild", "why": ""},
        {"cold": False, "why": "refused"},
        {},
    ]
