"""The loader: both layouts, with workers and without, repeat; what is no data is said."""

from __future__ import annotations

import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from conversation import WORKER, Conversation, Start
from nightly import nightly_except

pytestmark = pytest.mark.torch
# Asks the loader of this interpreter how much of its time it decodes images; prints the share.
SHARE = """
import cProfile, pstats, sys
from loader import Loader
work = Loader(**Loader.PARAMS)
work.load(sys.argv[1])
work.setup(1, "cpu")
work.step()
with cProfile.Profile() as profile:
    for _ in range(20):
        work.step()
found = pstats.Stats(profile)
calls = {name: own for (_, _, name), (_, _, own, _, _) in found.stats.items()}
decoding = sum(own for name, own in calls.items() if "Decoder" in name or "resize" in name)
print(decoding / found.total_tt)
"""


@pytest.fixture(scope="module")
def photos(torch_interpreter: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder of made photos."""
    folder = tmp_path_factory.mktemp("data") / "photos"
    argv = [torch_interpreter, WORKER, "--prepare", folder, "--workload", "loader"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["ok"]
    return folder


def _losses(worker: Conversation, data: Path, **params: Any) -> list[tuple[float, float]]:
    losses = []
    hello = worker.ask(
        "hello", workload="loader", params=params, data=str(data), threads=1, device="cpu"
    )
    assert hello["ok"], hello
    for seed in (5, 6, 5):
        first = worker.ask("gen", seed=seed, pad=0)
        assert first["ok"], first
        losses.append((first["checksum"], worker.ask("run", k=3)["loss"]))
        assert worker.ask("end")["ok"]
    worker.ask("quit")
    return losses


@pytest.mark.parametrize("model", nightly_except(("none",), ("none", "resnet18")))
@pytest.mark.parametrize("layout", ["folder", "tar"])
def test_generations_repeat_with_and_without_workers(
    start: Start, torch_interpreter: str, photos: Path, layout: str, model: str
) -> None:
    """Arms are compared by their losses: of a seed they are the same, of another they differ."""
    for workers in (0, 2):
        worker: Conversation = start(torch_interpreter)
        params = {"layout": layout, "workers": workers, "model": model, "batch": 2, "side": 32}
        losses = _losses(worker, photos, **params)
        assert losses[0] == losses[2]
        assert losses[0] != losses[1]


def test_nothing_is_decoded_where_that_is_not_asked_for(
    start: Start, torch_interpreter: str, photos: Path
) -> None:
    """The mean of a batch is then the length of its files."""
    worker: Conversation = start(torch_interpreter)
    sizes = [path.stat().st_size for path in photos.glob("train/*/*.JPEG")]
    for loss in _losses(worker, photos, decode=False)[0]:
        assert min(sizes) <= loss <= max(sizes)


def test_most_of_its_time_goes_to_decoding(torch_interpreter: str, photos: Path) -> None:
    """With its defaults, by the profiler of Python."""
    argv = [torch_interpreter, "-c", SHARE, str(photos)]
    folder = WORKER.parents[1]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0.5


def _said(start: Start, python: str, data: Path | None, **params: Any) -> str:
    worker: Conversation = start(python)
    fields = {"data": str(data)} if data else {}
    said = worker.ask("hello", workload="loader", params=params, threads=1, device="cpu", **fields)
    said = worker.ask("gen", seed=1, pad=0) if said["ok"] else said
    assert not said["ok"]
    return str(said["error"]["brief"])


@pytest.mark.parametrize(
    ("layout", "words"),
    [("folder", "has no folder with JPEG or PNG files"), ("tar", "has no .tar file")],
)
def test_a_folder_without_images_is_reported(
    start: Start, torch_interpreter: str, tmp_path: Path, layout: str, words: str
) -> None:
    """It says what layout is read."""
    assert words in _said(start, torch_interpreter, tmp_path, layout=layout)
    assert "no data was given" in _said(start, torch_interpreter, None, layout=layout)


def test_a_shard_that_is_cut_is_reported(
    start: Start, torch_interpreter: str, tmp_path: Path
) -> None:
    """With its name, in the step that meets it."""
    (tmp_path / "a.tar").write_bytes(b"x" * 700)
    said = _said(start, torch_interpreter, tmp_path, layout="tar")
    assert f"{tmp_path}/a.tar is no shard of images and classes" in said


def test_a_shard_without_images_does_not_hang(
    start: Start, torch_interpreter: str, tmp_path: Path
) -> None:
    """It would be read for ever."""
    with tarfile.open(tmp_path / "a.tar", "w") as shard:
        shard.add(__file__, "a.txt")
    said = _said(start, torch_interpreter, tmp_path, layout="tar")
    assert "has no image with a class" in said


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"layout": "tar", "workers": 99}, "'workers' is 99 and must be from 0 to 8"),
        ({"decode": False, "model": "resnet18"}, "it needs decode=true"),
    ],
)
def test_values_that_cannot_work_are_reported(
    start: Start, torch_interpreter: str, photos: Path, params: dict[str, Any], words: str
) -> None:
    """Before a step."""
    assert words in _said(start, torch_interpreter, photos, **params)
