"""What must be the same in two runs, and may differ only where that is allowed and said."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from builders import CELL
from measuredruns import Made, one_cell, run_folder

from envcompare.analysis.two_runs import RunChange
from envcompare.analysis.two_runs.changes import compare_runs, read_run
from envcompare.errors import ConfigError, RunFolderError
from envcompare.run_folder.records import Event
from envcompare.run_folder.results import RunFolder

OTHER = "local/rnn/default"


def compared(tmp_path: Path, *made: Made, allow_mismatch: bool = False) -> RunChange:
    """Write two runs and compare them."""
    first, second = (read_run(RunFolder.open(run_folder(tmp_path, one))) for one in made)
    return compare_runs(first, second, allow_mismatch=allow_mismatch)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"facts": {"vm": {"python.version": "3.12.1"}}}, "Python 3.11.2 → 3.12.1"),
        ({"facts": {"vm": {"cpu.model": "Xeon"}}}, "the processor EPYC → Xeon"),
        ({"facts": {"vm": {"thp": "always"}}}, "transparent huge pages none → always"),
        ({"facts": {"vm": {"uid": 1000}}}, "uid none → 1000"),
        ({"facts": {"vm": {"process.nice": 10}}}, "the priority (nice) none → 10"),
        ({"identity": {"vm": {"docker.version": "29"}}}, "the version of docker none → 29"),
        ({"code": "beef" * 16}, "the code of the workload c0dec0dec0de… → beefbeefbeef…"),
        ({"code": None}, "the code of the workload c0dec0dec0de… → not known"),
        ({"data": "0ther"}, "the data da7a → 0ther"),
        ({"design": {"threads": 2}}, "--threads 1 → 2"),
        ({"design": {"threads": None}}, "--threads 1 → as-run"),
        ({"design": {"stabilise": True}}, "--stabilise off → on"),
        ({"held": 1.0}, "rounds with all arms on the same CPU (--same-cpu): 0 % → 100 %"),
        ({"design": {"pin": (0, 1)}}, "--pin none → 0,1"),
    ],
)
def test_another_reference_code_or_setting_is_refused_with_both_values(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    """A ratio to something else is another ratio; allowed, it is compared and said."""
    before, after = one_cell("a", 1.0), one_cell("b", 1.1, **changes)
    with pytest.raises(ConfigError) as caught:
        compared(tmp_path / "refused", before, after)
    assert words in caught.value.details
    assert "--allow-mismatch" in caught.value.hint
    found = compared(tmp_path / "allowed", before, after, allow_mismatch=True)
    assert [mismatch.text for mismatch in found.mismatches] == [words]
    assert len(found.changes) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"facts": {"vm": {"hostname": "two", "pid": 8}}},
        {"design": {"margin": 0.02, "budget_s": 60.0, "preset": "default"}},
        {"design": {"same_cpu": True}},  # nothing was held, as with several threads
    ],
)
def test_names_and_presets_may_differ(tmp_path: Path, changes: dict[str, object]) -> None:
    """They change neither the machine nor the work, nor does an option that had no effect."""
    found = compared(tmp_path, one_cell("a", 1.0), one_cell("b", 1.1, **changes))
    assert found.mismatches == ()


@pytest.mark.parametrize(("share", "is_told"), [(0.0, True), (0.4, False)])
def test_some_rounds_more_on_one_cpu_are_no_mismatch(
    tmp_path: Path, share: float, *, is_told: bool
) -> None:
    """How often a thread gives up its CPU differs from run to run; an option is all or nothing."""
    before, after = one_cell("a", 1.0, held=share), one_cell("b", 1.1, held=1.0)
    found = compared(tmp_path, before, after, allow_mismatch=True)
    assert [mismatch.key for mismatch in found.mismatches] == ["same_cpu"] * is_told


def test_a_fact_that_a_run_did_not_ask_for_is_no_mismatch(tmp_path: Path) -> None:
    """Of that run it is not known; two runs that know it are held to it."""
    facts = {"engine.requests": "through its client", "mount.packages": "ext4 rw"}
    without, with_facts = one_cell("a", 1.0), one_cell("b", 1.1, facts={"vm": facts})
    assert compared(tmp_path / "known", without, with_facts).mismatches == ()
    other = one_cell("c", 1.1, facts={"vm": {**facts, "mount.packages": "overlay rw"}})
    with pytest.raises(ConfigError) as caught:
        compared(tmp_path / "other", with_facts, other)
    assert "ext4 rw → overlay rw" in caught.value.details


def test_the_hash_seed_that_stabilising_draws_is_no_mismatch(tmp_path: Path) -> None:
    """Each run draws its own, anew for each restart; without --stabilise it was set by hand."""
    made = [
        one_cell(
            name,
            1.0,
            design={"stabilise": True},
            facts={"vm": {"env.PYTHONHASHSEED": seed}, "docker": {"env.PYTHONHASHSEED": seed}},
        )
        for name, seed in (("a", "1"), ("b", "2"))
    ]
    found = compared(tmp_path, *made)
    assert (found.mismatches, found.changes[0].differences) == ((), ())
    by_hand = [one_cell(name, 1.0, facts={"vm": {"env.PYTHONHASHSEED": name}}) for name in "cd"]
    with pytest.raises(ConfigError, match="cannot be compared"):
        compared(tmp_path, *by_hand)


def test_a_mismatch_names_its_cells_and_each_once(tmp_path: Path) -> None:
    """What all cells share is told once."""
    ratios = {"vm": 1.0, "docker": 1.0, "vm~control": 1.0}
    cells = {CELL: ratios, OTHER: ratios}
    made = Made(run_id="a", cells=cells), Made(run_id="b", cells=cells, code="beef" * 16)
    found = compared(tmp_path, *made, allow_mismatch=True)
    assert [mismatch.cells for mismatch in found.mismatches] == [(CELL, OTHER)]


def test_a_run_that_was_resumed_after_its_timing_knows_its_code(tmp_path: Path) -> None:
    """Nothing greets again where only a profile was missing."""
    before, after = (run_folder(tmp_path, one_cell(name, 1.0)) for name in "ab")
    folder = RunFolder.open(after)
    folder.append_event(Event(t=6.0, what="run-resumed"))
    folder.append_event(Event(t=7.0, what="cell-started", host="local", cell=CELL))
    folder.append_event(Event(t=8.0, what="cell-ended", host="local", cell=CELL, state="ok"))
    folder.append_event(Event(t=9.0, what="run-ended"))
    folder.close()
    first, second = (read_run(RunFolder.open(path)) for path in (before, after))
    assert compare_runs(first, second).mismatches == ()


def test_a_configuration_that_is_no_toml_is_an_unreadable_folder(tmp_path: Path) -> None:
    """Someone wrote into run.json."""
    with pytest.raises(RunFolderError, match=r"configuration in run\.json of b"):
        compared(tmp_path, one_cell("a", 1.0), one_cell("b", 1.0, configuration="envs = "))


def test_data_that_an_older_run_did_not_note_are_a_caution(tmp_path: Path) -> None:
    """They may be the same or not."""
    found = compared(tmp_path, one_cell("a", 1.0, data=None), one_cell("b", 1.0))
    assert found.mismatches == ()
    assert "whether the data are the same is not known" in found.cautions[0]


def test_another_command_under_the_same_name_is_refused(tmp_path: Path) -> None:
    """Of a plain command only its words are known."""
    toml = '[workloads.cnn]\ncommand = "{}"\n'
    first = one_cell("a", 1.0, configuration=toml.format("train --fast"))
    second = one_cell("b", 1.0, configuration=toml.format("train --slow"))
    with pytest.raises(ConfigError) as caught:
        compared(tmp_path / "refused", first, second)
    assert "the command train --fast → train --slow" in caught.value.details
    same = one_cell("b", 1.0, configuration=toml.format("train --fast"))
    assert "same program" in compared(tmp_path / "same", first, same).cautions[0]


def test_a_reference_without_a_fingerprint_is_not_known_to_be_the_same(tmp_path: Path) -> None:
    """What was lost is not taken for equal."""
    before, after = (run_folder(tmp_path, one_cell(name, 1.0)) for name in "ab")
    shutil.rmtree(after / "fingerprints")
    runs = [read_run(RunFolder.open(path)) for path in (before, after)]
    with pytest.raises(ConfigError) as caught:
        compare_runs(*runs)
    assert "the fingerprint known → not known" in caught.value.details


def test_what_was_seen_of_a_command_in_one_run_alone_is_no_mismatch(tmp_path: Path) -> None:
    """Its maps are read now and then; another build of what both runs saw is one."""
    before = one_cell("a", 1.0, facts={"vm": {"programs": ("ffmpeg 1", "sh 1")}})
    seen = one_cell("b", 1.0, facts={"vm": {"programs": ("ffmpeg 1",)}})
    assert compared(tmp_path / "seen", before, seen).mismatches == ()
    newer = one_cell("b", 1.0, facts={"vm": {"programs": ("ffmpeg 2",)}})
    with pytest.raises(ConfigError) as caught:
        compared(tmp_path / "newer", before, newer)
    assert "programs (ffmpeg" in caught.value.details


def test_what_is_loaded_late_is_no_mismatch_where_it_was_looked_at_early(tmp_path: Path) -> None:
    """A run that was interrupted in its first generation has looked around before any work."""
    early = one_cell("a", 1.0, taken="start", facts={"vm": {"loaded_libraries": ("libc.so.6 1",)}})
    loaded = {"loaded_libraries": ("libc.so.6 1", "libgomp.so 1"), "threads.omp": 1}
    late = one_cell("b", 1.0, facts={"vm": loaded})
    assert compared(tmp_path / "late", early, late).mismatches == ()
    newer = one_cell("b", 1.0, facts={"vm": {**loaded, "torch.version": "2.14.0"}})
    with pytest.raises(ConfigError):
        compared(tmp_path / "newer", early, newer)
