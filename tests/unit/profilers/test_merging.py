"""Passes over the same launches as one profile."""

from __future__ import annotations

from pathlib import Path

import pytest
from ncutexts import BYTES, DATA, TIME, launch, raw

from envcompare.errors import ConfigError, ProfileError
from envcompare.profile_files import read
from envcompare.report.wording.profilewords import note_sentences
from envcompare.run_folder.profiles import Note

FMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"


def files(folder: Path, *texts: str) -> list[Path]:
    """Return files with these texts."""
    paths = [folder / f"{place}.csv" for place in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


def memory(*names: str) -> str:
    """Return a pass over memory with launches of these kernels."""
    rows = (launch(place, 10, 64, name=name) for place, name in enumerate(names))
    return raw({TIME: "ns", BYTES: "byte"}, *rows)


def flops(*names: str) -> str:
    """Return a pass over instructions with launches of these kernels."""
    rows = (launch(place, 5, name=name) for place, name in enumerate(names))
    return raw({FMA: "inst"}, *rows)


@pytest.mark.parametrize("order", [("ncu_raw_2024.csv", "ncu_raw_2024_flops.csv"),
                                   ("ncu_raw_2024_flops.csv", "ncu_raw_2024.csv")])  # fmt: skip
def test_passes_give_intensity_with_the_time_of_the_one_that_has_it(order: tuple[str, str]) -> None:
    """FLOPs of one pass and bytes of the other belong to the same launches."""
    profile = read("ncu", [DATA / name for name in order])
    found = {quantity.name: quantity.value for quantity in profile.quantities}
    assert (found["kernel_time_ns"], found["dram_bytes"]) == (100_000, 2_406_400)
    assert found["flops_fp32"] == 2 * 2030 + 5 + 1015
    assert found["flops_tensor"] == 2 * 410_600 + 205_300
    assert found["arithmetic_intensity"] == pytest.approx((5080 + 1_026_500) / 2_406_400)
    assert found["tensor_core_share"] == 95
    assert [device.name for device in profile.devices] == ["NVIDIA A100-SXM4-40GB"]
    assert Note(kind="no-time") not in profile.notes


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (flops("a", "c"), "launch 1 is b (grid (4, 1, 1), block (32, 1, 1)) in one and c"),
        (flops("b", "a"), "launch 0 is a"),
        (flops("a", "b", "b"), "2 launches of 2 kernels in one, 3 of 2 in the other; b differs"),
    ],
)
def test_passes_over_other_launches_are_refused(tmp_path: Path, other: str, why: str) -> None:
    """Counters of one program are never put beside the bytes of another."""
    with pytest.raises(ProfileError) as told:
        read("ncu", files(tmp_path, memory("a", "b"), other))
    assert why in told.value.details
    assert told.value.brief == "cannot trust 0.csv and 1.csv"


def test_metric_of_both_passes_comes_from_the_one_with_time(tmp_path: Path) -> None:
    """It is not added up."""
    again = raw({FMA: "inst", BYTES: "byte"}, launch(0, 5, 999, name="a"))
    profile = read("ncu", files(tmp_path, again, memory("a")))
    assert profile.kernels[0].metrics[BYTES] == 64


def test_tool_that_writes_one_file_takes_one(tmp_path: Path) -> None:
    """Two traces are two profiles."""
    with pytest.raises(ConfigError):
        read("nsys", files(tmp_path, "", ""))
    with pytest.raises(ConfigError):
        read("ncu", [])


def test_what_the_caller_knows_stands_in_the_profile(tmp_path: Path) -> None:
    """The version goes into the source of each quantity, the controls in the place of the note."""
    paths = files(tmp_path, memory("a"))
    assert any("upper bound" in note for note in note_sentences(read("ncu", paths).notes))
    profile = read("ncu", paths, version="2024.1", controls=Note(kind="controls-off"))
    assert profile.notes == (Note(kind="controls-off"),)
    assert {quantity.source for quantity in profile.quantities} == {"ncu 2024.1"}
