"""What a run says of its failures and of what it lost is what helps."""

from __future__ import annotations

from pathlib import Path

import pytest
from benches import bench, measure

from envcompare.analysis.compare import compare_run
from envcompare.errors import RunFolderError
from envcompare.measure import worker
from envcompare.run_folder.records import Event
from envcompare.text import cause_line

LISTING = """
class Lists:
    def setup(self, seed, device):
        pass

    def step(self):
        return float(sum(i * i for i in range(20000)) % 97)

    def finish(self):
        return {"per_class": [0.9, 0.8], "accuracy": 0.85}


class Prints(Lists):
    def step(self):
        print("x" * 1000)
        return super().step()
"""


# What CPython 3.11 says where PYTHONHOME holds no Python.
FATAL = "Fatal Python error: init_fs_encoding: failed\nPython runtime state: core initialized\n"
FRAMES = "Current thread 0x00007f00 (most recent call first):\n  <no Python frame>\n"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("Traceback (most recent call last):\n  f()\n  ^^^\nEOFError: x", "EOFError: x"),
        ("starting\nout of memory\n\n", "out of memory"),
        ("one", "one"),
        ("docker: no such device\n\nRun 'docker run --help' for more", "docker: no such device"),
        ("^^^^\n---", ""),
        ("Traceback:\nValueError: it said so", ""),
        (f"{FATAL}ModuleNotFoundError: No module named 'encodings'\n\n{FRAMES}",
         "ModuleNotFoundError: No module named 'encodings'"),
        (f"{FATAL}\n{FRAMES}", "Fatal Python error: init_fs_encoding: failed"),
        ("  <no Python frame>", "<no Python frame>"),
    ],
)  # fmt: skip
def test_cause_is_the_last_line_with_words(text: str, cause: str) -> None:
    """The first line of a traceback says nothing; what the brief says is not said twice."""
    assert cause_line(text, brief="docker: ValueError: it said so") == cause


def test_finish_may_return_any_value(tmp_path: Path) -> None:
    """A list is kept as text, and takes no measurement with it."""
    (tmp_path / "own.py").write_text(LISTING, encoding="utf-8")
    found = measure(bench(tmp_path, f"{tmp_path}/own.py:Lists", budget_s=1.5))
    results = [event.values for event in found.events if event.what == "generation"]
    assert results
    assert results[0] == {"per_class": "[0.9, 0.8]", "accuracy": 0.85}


def test_log_of_a_worker_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a workload prints in each step does not fill the disk; its arm fails and says so."""
    monkeypatch.setattr(worker, "LOG_LIMIT_BYTES", 5000)
    (tmp_path / "own.py").write_text(LISTING, encoding="utf-8")
    found = measure(bench(tmp_path, f"{tmp_path}/own.py:Prints", budget_s=1.5))
    assert "MiB to its log during" in found.failures()
    assert "print less in each step" in found.failures()
    log = (tmp_path / "docker.log").read_bytes()
    assert b"the log ends here" in log
    # one launch at least; each begins anew
    assert len(log) < 5 * 5100


def test_measured_cells_without_samples_are_an_error(tmp_path: Path) -> None:
    """A lost file is no result."""
    (tmp_path / "own.py").write_text(LISTING, encoding="utf-8")
    found = measure(bench(tmp_path, f"{tmp_path}/own.py:Lists", budget_s=1.5))
    found.folder.append_event(Event(t=1.0, what="cell-ended", cell="local/cnn", state="ok"))
    found.folder.close()
    (found.folder.path / "samples.jsonl").unlink()
    with pytest.raises(RunFolderError, match=r"samples\.jsonl is missing or empty"):
        compare_run(found.folder)
