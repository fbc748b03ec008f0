"""The same export read here and by `nsys stats`: every total is the same."""

from __future__ import annotations

import csv
import io
import subprocess
from pathlib import Path

import pytest
from nsysexports import plain

from envcompare.profile_files.nsys import read
from envcompare.run_folder.profiles import Profile

KEPT = Path(__file__).resolve().parents[2] / "data/profiles"
REPORTS = ("gpukernsum", "gpumemtimesum", "cudaapisum")
NEWER = {
    "gpukernsum": "cuda_gpu_kern_gb_sum",
    "gpumemtimesum": "cuda_gpu_mem_time_sum",
    "cudaapisum": "cuda_api_sum",
}

Totals = dict[tuple[str, ...], tuple[int, int, int, int]]


def profile_totals(profile: Profile, report: str) -> Totals:
    """Return calls, total, shortest and longest by what nsys groups them by."""
    found: Totals = {}
    rows = {
        "gpukernsum": profile.kernels,
        "gpumemtimesum": profile.copies,
        "cudaapisum": profile.api_calls,
    }
    for one in rows[report]:
        label = getattr(one, "name", "") or f"[CUDA memcpy {getattr(one, 'kind', '')}]"
        label = label.replace("memcpy memset", "memset")
        shape = [getattr(one, part, None) for part in ("grid", "block")]
        key = (label, *(" ".join(map(str, dims)) for dims in shape if dims))
        numbers = (one.calls, one.total_ns, one.min_ns, one.max_ns)
        found[key] = tuple(int(number or 0) for number in numbers)  # type: ignore[assignment]
    return found


def stats_totals(text: str) -> Totals:
    """Return what a CSV of `nsys stats` says, by the same keys."""
    found: Totals = {}
    for row in csv.DictReader(io.StringIO(text.strip())):
        label = row.get("Name") or row.get("Operation") or ""
        shape = [" ".join(row[part].split()) for part in ("GridXYZ", "BlockXYZ") if part in row]
        calls = row.get("Instances") or row.get("Count") or row.get("Num Calls") or ""
        times = (row[f"{part} (ns)"] for part in ("Total Time", "Min", "Max"))
        found[(label, *shape)] = tuple(map(int, (calls, *times)))  # type: ignore[assignment]
    return found


@pytest.mark.parametrize("report", REPORTS)
def test_totals_are_those_nsys_stats_gave(report: str, tmp_path: Path) -> None:
    """Kept output of nsys 2022.4.2 on the export that is built here."""
    profile = read(plain().write(tmp_path / "plain.sqlite"))
    kept = (KEPT / f"nsys-{report}.csv").read_text(encoding="utf-8")
    assert stats_totals(kept) == profile_totals(profile, report)


@pytest.mark.engine("nvidia-tools")
@pytest.mark.parametrize("report", REPORTS)
def test_totals_are_those_nsys_stats_gives(report: str, tmp_path: Path) -> None:
    """The installed nsys reads another export than the one whose output is kept."""
    path = plain(300, seed=7).write(tmp_path / "plain.sqlite")
    for name in (report, NEWER[report]):
        command = ["nsys", "stats", "-q", "-r", name, "-f", "csv", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        if "could not be found" not in done.stdout + done.stderr:
            break
    assert stats_totals(done.stdout) == profile_totals(read(path), report)
