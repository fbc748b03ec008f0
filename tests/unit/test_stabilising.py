"""Every worker of a restart gets the same allocator thresholds and the same hash seed."""

from __future__ import annotations

import json
from pathlib import Path

from benches import bench, measure

from envcompare.measure import stable_variables

TELLING = """
import json, os, time

class Telling:
    def load(self, data):
        names = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "PYTHONHASHSEED")
        found = {"hash": hash("a word"), **{name: os.environ.get(name) for name in names}}
        with open(f"{data}/../told-{os.getpid()}.json", "w") as file:
            json.dump(found, file)

    def setup(self, seed, device):
        pass

    def step(self):
        time.sleep(0.001)
        return 1.0
"""


def told(path: Path, *, stabilise: bool) -> list[dict[str, object]]:
    """Return what each worker of a short run saw, in the order of the restarts."""
    (path / "telling.py").write_text(TELLING, encoding="utf-8")
    measure(bench(path, f"{path}/telling.py:Telling", stabilise=stabilise, budget_s=1.5))
    files = sorted(path.glob("told-*.json"), key=lambda file: file.stat().st_mtime_ns)
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def test_workers_of_a_restart_agree_when_stabilised(tmp_path: Path) -> None:
    """Three arms, one hash of a word; the thresholds are those that glibc reads."""
    first = told(tmp_path, stabilise=True)[:3]
    assert len({one["hash"] for one in first}) == 1
    assert {one["MALLOC_MMAP_THRESHOLD_"] for one in first} == {str(32 << 20)}
    assert {one["MALLOC_TRIM_THRESHOLD_"] for one in first} == {str(1 << 30)}


def test_workers_are_left_alone_when_not_stabilised(tmp_path: Path) -> None:
    """The work is measured as the user would run it."""
    first = told(tmp_path, stabilise=False)[:3]
    assert len({one["hash"] for one in first}) == 3
    assert {one["MALLOC_MMAP_THRESHOLD_"] for one in first} == {None}


def test_hash_seed_is_another_in_each_restart_and_the_same_when_resumed() -> None:
    """No result rests on one order of a set, and a resumed run draws what it would have drawn."""
    seeds = [dict(stable_variables(7, "local/cnn/default", n))["PYTHONHASHSEED"] for n in range(20)]
    again = dict(stable_variables(7, "local/cnn/default", 3))["PYTHONHASHSEED"]
    assert len(set(seeds)) == 20
    assert again == seeds[3]
