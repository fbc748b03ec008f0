"""Exports of Nsight Systems made at run time: the real schema, rows by hand."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

# As newer versions export it: nsys 2022.4, whose tables the schema holds, has no such table.
DIAGNOSTICS = """
CREATE TABLE DIAGNOSTIC_EVENT (
 timestamp INTEGER NOT NULL,
 timestampType INTEGER NOT NULL,
 source INTEGER NOT NULL,
 severity INTEGER NOT NULL,
 text TEXT NOT NULL,
 globalPid INTEGER
);
"""
# Nor this one.
VISIBLE = """
CREATE TABLE TARGET_INFO_CUDA_DEVICE (
 gpuId INTEGER,
 cudaId INTEGER,
 pid INTEGER,
 uuid TEXT,
 numMultiprocessors INTEGER
);
"""
IMPORTS = Path(__file__).resolve().parents[1] / "data/imports"
SCHEMA = IMPORTS.parent / "profiles/nsys-schema.sql"
KERNEL, MEMCPY = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET, RUNTIME = "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_RUNTIME"
PROCESS = 281474976710656 + (4242 << 24)
THREAD, BACKWARD = PROCESS + 4242, PROCESS + 4243
PUSH_POP, START_END = 59, 60
NAMES = (
    "void at::native::add<float, std::less<int>>(float*, int)",
    "ampere_sgemm_128x64_nn",
    "void cudnn::fprop<Tile<128, 64>>(int, float const*)",
)
COPY_NAMES = {1: "cudaMemcpyAsync_v3020", 2: "cudaMemcpyAsync_v3020", 8: "cudaMemcpy_v3020"}

Row = dict[str, object]


@dataclass(kw_only=True)
class Trace:
    """The rows of an export, by table; strings are numbered as they come."""

    tables: dict[str, list[Row]] = field(default_factory=dict)
    strings: dict[str, int] = field(default_factory=dict)

    def text(self, value: str) -> int:
        """Return the number of a string."""
        return self.strings.setdefault(value, len(self.strings) + 1)

    def add(self, table: str, **cells: object) -> Row:
        """Append a row; what is not said has the value a plain program has."""
        self.tables.setdefault(table, []).append(cells)
        return cells

    def call(
        self, name: str, start: int, end: int, *, correlation: int, thread: int = THREAD
    ) -> None:
        """Append an API call."""
        self.add(
            RUNTIME, start=start, end=end, eventClass=0, globalTid=thread,
            correlationId=correlation, nameId=self.text(name), returnValue=0,
        )  # fmt: skip

    def kernel(
        self, name: str, start: int, end: int, *, correlation: int = 0, stream: int = 7,
        device: int = 0, grid: tuple[int, int, int] = (1, 1, 1),
        block: tuple[int, int, int] = (32, 1, 1), process: int = PROCESS,
    ) -> Row:  # fmt: skip
        """Append a kernel; without a correlation it has no API call."""
        number = self.text(name)
        return self.add(
            KERNEL, start=start, end=end, deviceId=device, contextId=1, streamId=stream,
            correlationId=correlation, globalPid=process, demangledName=number, shortName=number,
            registersPerThread=32, gridX=grid[0], gridY=grid[1], gridZ=grid[2], blockX=block[0],
            blockY=block[1], blockZ=block[2], staticSharedMemory=0, dynamicSharedMemory=0,
            localMemoryPerThread=0, localMemoryTotal=0, gridId=1,
        )  # fmt: skip

    def copy(
        self, kind: int, start: int, end: int, *, size: int, correlation: int = 0, device: int = 0
    ) -> Row:
        """Append a copy."""
        return self.add(
            MEMCPY, start=start, end=end, deviceId=device, contextId=1, streamId=7,
            correlationId=correlation, globalPid=PROCESS, bytes=size, copyKind=kind,
        )  # fmt: skip

    def memset(self, start: int, end: int, *, size: int, correlation: int = 0) -> Row:
        """Append a memset."""
        return self.add(
            MEMSET, start=start, end=end, deviceId=0, contextId=1, streamId=7,
            correlationId=correlation, globalPid=PROCESS, value=0, bytes=size,
        )  # fmt: skip

    def range(
        self, text: str, start: int, end: int | None, *, kind: int = PUSH_POP, thread: int = THREAD
    ) -> None:
        """Append an NVTX range."""
        self.add("NVTX_EVENTS", start=start, end=end, eventType=kind, text=text, globalTid=thread)

    def say(self, severity: int, text: str) -> None:
        """Append a message of nsys: 1 is information, 2 a warning, 3 an error."""
        self.add(
            "DIAGNOSTIC_EVENT", timestamp=0, timestampType=1, source=1, severity=severity,
            text=text, globalPid=PROCESS,
        )  # fmt: skip

    def gpu(self, number: int = 0, name: str = "NVIDIA A100-PCIE-40GB") -> None:
        """Append a GPU of the machine."""
        self.add(
            "TARGET_INFO_GPU", vmId=1, id=number, name=name, chipName="GA100", smCount=108,
            clockRate=1410000000, memoryBandwidth=1555200000000, computeMajor=8, computeMinor=0,
            uuid=f"GPU-{number}",
        )  # fmt: skip

    def see(self, gpu: int, *, as_number: int, process: int = PROCESS) -> None:
        """Append which GPU of the machine a process has under a number."""
        self.add(
            "TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=as_number,
            pid=process >> 24 & 0xFFFFFF, uuid=f"GPU-{gpu}", numMultiprocessors=108,
        )  # fmt: skip

    def write(self, path: Path, *, without: Iterable[str] = ()) -> Path:
        """Write the export, without some of its tables."""
        with sqlite3.connect(path) as database:
            database.executescript(SCHEMA.read_text(encoding="utf-8"))
            for newer, table in (
                ("DIAGNOSTIC_EVENT", DIAGNOSTICS),
                ("TARGET_INFO_CUDA_DEVICE", VISIBLE),
            ):
                database.executescript(table if newer in self.tables else "")
            for table in without:
                database.execute(f"DROP TABLE {table}")
            strings = self.strings.items()
            database.executemany(
                "INSERT INTO StringIds VALUES (?, ?)", [(number, text) for text, number in strings]
            )
            for table, rows in self.tables.items():
                for row in rows:
                    _insert(database, table, row)
        database.close()
        return path


def _insert(database: sqlite3.Connection, table: str, row: Mapping[str, object]) -> None:
    names, marks = ", ".join(row), ", ".join("?" * len(row))
    database.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(row.values()))


def change(path: Path, text: str) -> Path:
    """Run SQL on an export as a faulty writer would, checks of the schema left out."""
    database = sqlite3.connect(path)
    database.execute("PRAGMA ignore_check_constraints = ON")
    database.executescript(text)
    database.close()
    return path


def exported(folder: Path, name: str) -> Path:
    """Write the export whose tables stand in `tests/data/imports/<name>.sql`."""
    path = folder / f"{name}.sqlite"
    database = sqlite3.connect(path)
    database.executescript((IMPORTS / f"{name}.sql").read_text(encoding="utf-8"))
    database.close()
    return path


def plain(kernels: int = 60, *, seed: int = 1) -> Trace:
    """Return a trace of a small program: kernels on two streams, copies, a memset, ranges."""
    draw, trace = random.Random(seed), Trace()
    trace.gpu()
    trace.range("forward", 0, 10**9)
    now, gpu = 1_000, {7: 2_000, 13: 2_500}
    for number in range(1, kernels + 1):
        trace.call("cudaLaunchKernel_v7000", now, now + draw.randint(2, 90), correlation=number)
        stream = draw.choice((7, 13))
        start = max(gpu[stream], now + 100) + draw.randint(0, 50)
        gpu[stream] = start + draw.randint(100, 5_000)
        shape = (draw.choice((1, 80, 432)), 1, 1)
        trace.kernel(
            draw.choice(NAMES), start, gpu[stream], correlation=number, stream=stream, grid=shape
        )
        now += draw.randint(100, 2_000)
    for number, (kind, name) in enumerate(COPY_NAMES.items(), kernels + 1):
        trace.call(name, now, now + 500, correlation=number)
        trace.copy(kind, now + 600, now + 900 + number, size=4096 * kind, correlation=number)
        now += 2_000
    trace.call("cudaMemsetAsync_v3020", now, now + 70, correlation=kernels + 9)
    trace.memset(now + 100, now + 350, size=1 << 20, correlation=kernels + 9)
    return trace
