"""How fast profiler files are read, and in how much memory: an nsys export side by side with nsys.

`nsys stats` and this reader read the same export in turn; the ratio is of one and the same run. A
Kineto trace of a gigabyte is made, read in a process of its own, and removed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import click

from bookkeeping import Places, Watch, benchmark, write_json

ROOT = Path(__file__).resolve().parents[1]
RAW = "profile-readers.json"
SUMS = ("gpukernsum", "gpumemtimesum", "cudaapisum")
ALL = (*SUMS, "gpumemsizesum", "gputrace")
NEWER = {
    "gpukernsum": "cuda_gpu_kern_gb_sum",
    "gpumemtimesum": "cuda_gpu_mem_time_sum",
    "cudaapisum": "cuda_api_sum",
    "gpumemsizesum": "cuda_gpu_mem_size_sum",
    "gputrace": "cuda_gpu_trace",
}
READ = (
    "import sys\n"
    "from pathlib import Path\n"
    "from envcompare.profile_files import read\n"
    "profile = read(sys.argv[1], [Path(sys.argv[2])])\n"
    "print(sum(kernel.calls for kernel in profile.kernels))\n"
    "print(Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])\n"
)
OPERATORS_A_STEP = 40

NO_NSYS = "Not measured: nsys was not on PATH, so that there was nothing to compare with."

HEAD = """# Reading the files of profilers

`python benchmarks/profile_readers.py`; raw data in `benchmarks/results/profile-readers.json`. Each
reader is a process of its own, its start included; what counts is the processor's time, since the
machine had other work to do (the load is that of the minute before).

## An export of Nsight Systems, beside `nsys stats`

"""

NSYS = """{kernels:,} kernels on two streams, as many API calls, {copies:,} copies, in an export of
{megabytes:.0f} MB ({nsys}); {runs} runs in turn, median.

| | CPU seconds | times as long |
|---|---:|---:|
| `nsys stats`, sums alone | {sums_s:.2f} | {sums_ratio:.2f} |
| `nsys stats`, all a profile is made of | {all_s:.2f} | {all_ratio:.1f} |
| envcompare | {own_s:.2f} | 1 |

Sums are of kernels by name and shape, copies by direction, and API calls; all is those, the sizes
of copies and the trace of launches. The goal was to read at least 5 times as fast as `nsys stats`:
it is not met. Sums alone are made inside SQLite, and no reader that sees every row in Python is as
fast. A profile also holds the order of launches, the range each kernel was launched in, busy time
and gaps; all rows are needed for that, which `nsys stats` prints as text. Meanwhile this reader
looks for damage, orphans, and rows told twice. More than half of its time SQLite checks the file
and hands over the rows; starting Python is a sixth. In single pairs the second ratio was
{least:.1f} to {most:.1f}. Peak memory of the reader: {own_mb:.0f} MB; load {load:.1f}.
"""

TRACES = """
## A large trace of torch.profiler

| file | on disk, MB | events | CPU seconds | peak memory, MB | kernels found |
|---|---:|---:|---:|---:|---:|
{traces}

The packed trace is a quarter as long before packing. Memory grows with the number of events that
count, at {per_event:.0f} bytes each in the larger trace, not with the size of the file; the goal is
a trace of 1 GB in 1 GB. Load {traces_load:.1f}.
"""


@benchmark(__doc__, smoke=("--kernels", "1000", "--trace-mb", "4", "--runs", "1"))
@click.option("--kernels", default=200_000, show_default=True)
@click.option("--trace-mb", default=1000, show_default=True)
@click.option("--runs", default=5, show_default=True)
def main(places: Places, kernels: int, trace_mb: int, runs: int) -> None:
    """Measure what is missing, then write the page."""
    result = places.results / RAW
    found = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {}
    measured: dict[str, Callable[[Path], object]] = {
        "nsys": lambda folder: _nsys(folder, kernels, runs),
        "traces": lambda folder: list(_traces(folder, trace_mb)),
    }
    for name, measure in measured.items():
        if name not in found:
            watch = Watch.begin()
            with tempfile.TemporaryDirectory() as folder:
                measured_now = measure(Path(folder))
            if measured_now is not None:
                noted = {f"{name}_load": watch.load, f"{name}_conditions": watch.conditions()}
                found |= {name: measured_now, **noted}
                write_json(result, found)
    write_page(places)


def write_page(places: Places) -> None:
    """Write the page of what is kept."""
    content = json.loads((places.results / RAW).read_text(encoding="utf-8"))
    conditions = [content.get(f"{name}_conditions", {}) for name in ("nsys", "traces")]
    places.write_page("profile-readers.md", _page(content), conditions)


def _nsys(folder: Path, kernels: int, runs: int) -> dict[str, Any] | None:
    """Read an export in turns with nsys; where that is missing read it once, and time nothing."""
    path = folder / "export.sqlite"
    copies = _write_export(path, kernels)
    if shutil.which("nsys") is None:
        click.echo(f"{NO_NSYS} {_own('nsys', path).said} kernels were read.")
        return None
    said = subprocess.run(["nsys", "--version"], capture_output=True, text=True, check=True)
    sums, everything = (_names(path, reports) for reports in (SUMS, ALL))
    pairs = []
    for _ in range(runs):
        spent = [_run(_stats_command(path, names)) for names in (sums, everything)]
        assert all("," in one.said for one in spent), "nsys stats gave no table"
        own = _own("nsys", path)
        pair = {"sums_s": spent[0].cpu_s, "all_s": spent[1].cpu_s, "own_s": own.cpu_s}
        pairs.append({**pair, "own_mb": own.peak_mb})
        click.echo(pairs[-1])
    return {
        "version": said.stdout.strip().removeprefix("NVIDIA "), "kernels": kernels,
        "copies": copies, "megabytes": path.stat().st_size / 1e6, "pairs": pairs,
    }  # fmt: skip


def _write_export(path: Path, kernels: int) -> int:
    """Write an export in the schema of nsys, and return how many copies stand in it."""
    sys.path.insert(0, str(ROOT / "tests/support"))
    from nsysexports import plain  # noqa: PLC0415 — the benchmark's data is the tests' own

    trace = plain(kernels)
    for number in range(kernels // 100):
        trace.copy(1, 10**12 + number * 100, 10**12 + number * 100 + 50, size=4096)
    trace.write(path)
    return len(trace.tables["CUPTI_ACTIVITY_KIND_MEMCPY"])


def _names(path: Path, reports: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names this release of nsys has for its reports."""
    if "could not be found" in _run_stats(path, reports[:1]):
        return tuple(NEWER[report] for report in reports)
    return reports


def _run_stats(path: Path, reports: tuple[str, ...]) -> str:
    return _run(_stats_command(path, reports)).said


def _stats_command(path: Path, reports: tuple[str, ...]) -> list[str]:
    names = [word for report in reports for word in ("-r", report)]
    return ["nsys", "stats", "-q", *names, "-f", "csv", str(path)]


def _own(reader: str, path: Path) -> Ran:
    """Read a file in a process of its own, which says how many kernels it found.

    It also says its peak: what the kernel tells of a child counts the parent it was forked from.
    """
    ran = _run([sys.executable, "-c", READ, reader, str(path)])
    kernels, peak_kib = ran.said.split()
    return replace(ran, said=kernels, peak_mb=int(peak_kib) * 1024 / 1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a process of its own said and took, with those it started."""

    said: str
    cpu_s: float
    wall_s: float
    peak_mb: float = 0.0


def _run(argv: list[str]) -> Ran:
    began = time.monotonic()
    process = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT, text=True
    )
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.stdout.close()
    process.returncode = os.waitstatus_to_exitcode(status)
    return Ran(
        said=said,
        cpu_s=usage.ru_utime + usage.ru_stime,
        wall_s=time.monotonic() - began,
    )


def _traces(folder: Path, megabytes: int) -> Iterator[dict[str, Any]]:
    for name in ("trace.json", "trace.json.gz"):
        path = folder / name
        events = _write_trace(path, megabytes if name.endswith("json") else megabytes // 4)
        own = _own("kineto", path)
        yield {
            "name": name, "megabytes": path.stat().st_size / 1e6, "events": events,
            "kernels": int(own.said), "cpu_s": own.cpu_s, "peak_mb": own.peak_mb,
        }  # fmt: skip
        click.echo(f"{name}: {own}")
        path.unlink()


def _write_trace(path: Path, megabytes: int) -> int:
    """Write steps of a trace until so many megabytes stand there unpacked; return its events."""
    import gzip  # noqa: PLC0415 — of this function alone

    events = written = 0
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.write('{"schemaVersion": 1, "deviceProperties": [], "traceEvents": [\n')
        while written < megabytes * 1_000_000:
            lines = [json.dumps(one, indent=1) for one in _step(events)]
            events += len(lines)
            written += file.write(",\n".join(lines) + ",\n")
        file.write('{"ph": "M", "name": "end"}\n]}\n')
    return events


def _step(number: int) -> Iterator[dict[str, Any]]:
    """Yield operators, launches and kernels as Kineto writes them."""
    for place in range(OPERATORS_A_STEP):
        at, own = (number + place) * 20.125, number + place + 1
        yield _event(
            "cpu_op", f"aten::operator_{place}", at, 18.5, _OPERATOR | {"External id": own}
        )
        args = {"External id": own, "cbid": 211, "correlation": own}
        yield _event("cuda_runtime", "cudaLaunchKernel", at + 2, 6.25, args)
        name = f"void at::native::elementwise_{place}<float>(int)"
        args = {"External id": own, "correlation": own, **_KERNEL}
        yield _event("kernel", name, at + 10, 12.125, args)


_OPERATOR: dict[str, Any] = {"Record function id": 0, "Sequence number": 7, "Fwd thread id": 0}
_KERNEL: dict[str, Any] = {
    "queued": 0, "device": 0, "context": 1, "stream": 7, "registers per thread": 32,
    "shared memory": 0, "blocks per SM": 2.5, "warps per SM": 10.0, "grid": [432, 1, 1],
    "block": [128, 1, 1], "est. achieved occupancy %": 31,
}  # fmt: skip


def _event(
    category: str, name: str, start: float, lasts: float, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": 1000, "tid": 1000, "ts": start,
        "dur": lasts, "args": args,
    }  # fmt: skip


def _page(content: dict[str, Any]) -> str:
    rows = [
        f"| `{row['name']}` | {row['megabytes']:.0f} | {row['events']:,} | {row['cpu_s']:.0f} | "
        f"{row['peak_mb']:.0f} | {row['kernels']:,} |"
        for row in content["traces"]
    ]
    traces = TRACES.format(
        per_event=max(row["peak_mb"] * 1e6 / row["events"] for row in content["traces"][:1]),
        traces_load=content["traces_load"],
        traces="\n".join(rows),
    )
    nsys = _beside_nsys(content) if "nsys" in content else f"{NO_NSYS}\n"
    return f"{HEAD}{nsys}{traces}"


def _beside_nsys(content: dict[str, Any]) -> str:
    nsys = content["nsys"]
    pairs = nsys["pairs"]
    ratios = [pair["all_s"] / pair["own_s"] for pair in pairs]
    return NSYS.format(
        kernels=nsys["kernels"], copies=nsys["copies"], megabytes=nsys["megabytes"],
        nsys=nsys["version"], runs=len(pairs), least=min(ratios), most=max(ratios),
        **{name: median(pair[name] for pair in pairs) for name in ("sums_s", "all_s", "own_s")},
        sums_ratio=median(pair["sums_s"] / pair["own_s"] for pair in pairs),
        all_ratio=median(ratios), own_mb=max(pair["own_mb"] for pair in pairs),
        load=content["nsys_load"],
    )  # fmt: skip


if __name__ == "__main__":
    main()
