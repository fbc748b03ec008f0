"""A capture: the processes of a line and what was read of them, for use on another machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from envcompare.errors import ConfigError, RunFolderError, plain
from envcompare.files import read_whole
from envcompare.run_folder.records import (
    SCHEMA,
    Count,
    FingerprintValue,
    ProcessRun,
)
from envcompare.run_folder.results import RunFolder, json_bytes
from envcompare.text import masked

_MOST_PROCESSES: Final = 50
# A verdict needs eight processes, and the first one warms up.
_LEAST_PROCESSES: Final = 9
# Our largest capture has 0.1 MiB.
_MOST_BYTES: Final = 4 << 20
_Time = Annotated[int, msgspec.Meta(ge=1, le=10**18)]
_CpuTime = Annotated[int, msgspec.Meta(ge=0, le=10**18)]


class CapturedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The times of one process, in ns."""

    wall_ns: _Time
    user_ns: _CpuTime | None = None
    sys_ns: _CpuTime | None = None
    max_rss_bytes: Count | None = None


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """A line as it ran on a machine: two series of processes, and the facts of one of them."""

    line: str
    created: str
    tool_version: str
    facts: dict[str, FingerprintValue]
    processes: tuple[CapturedProcess, ...]
    control: tuple[CapturedProcess, ...]
    schema: Literal[2] = SCHEMA


def capture_of(folder: RunFolder) -> Capture:
    """Return the capture of a run that compared a line with itself.

    Raises RunFolderError if too few processes ended for a verdict.
    """
    run = folder.read_run()
    first, second = (arm.id for arm in run.arms if not arm.is_control)
    samples = folder.read_samples().samples
    series = {
        arm: tuple(
            CapturedProcess(
                wall_ns=sample.wall_ns,
                user_ns=sample.user_ns,
                sys_ns=sample.sys_ns,
                max_rss_bytes=sample.max_rss_bytes,
            )
            for sample in samples
            if isinstance(sample, ProcessRun) and sample.arm == arm and sample.status == "ok"
        )
        for arm in (first, second)
    }
    facts = [record.facts for record in folder.read_fingerprints() if record.arm == first]
    count = min(map(len, series.values()))
    if not facts or count < _LEAST_PROCESSES:
        raise RunFolderError(
            f"the line ran {count} times, too few for a capture",
            details=f"a capture needs at least {_LEAST_PROCESSES} rounds",
            hint="raise --budget",
        )
    return Capture(
        line=masked(next(arm.reference for arm in run.arms if arm.id == first)),
        created=run.created,
        tool_version=run.tool_version,
        facts=facts[0],
        processes=series[first][:_MOST_PROCESSES],
        control=series[second][:_MOST_PROCESSES],
    )


def write_capture(path: Path, capture: Capture) -> None:
    """Write a capture to a new file; raises ConfigError if that is impossible."""
    try:
        # Mode x refuses a file that appeared after the name was checked.
        with path.open("xb") as file:
            file.write(json_bytes(capture))
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written",
            details=error.strerror or str(error),
            hint="name another file with --output",
        ) from error


def read_capture(path: Path) -> Capture:
    """Read a capture; raises ConfigError if the file is none."""
    try:
        capture = msgspec.json.decode(read_whole(path, most=_MOST_BYTES), type=Capture)
        if min(len(capture.processes), len(capture.control)) < _LEAST_PROCESSES:
            raise msgspec.ValidationError(f"it holds fewer than {_LEAST_PROCESSES} processes")
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(
            f"{path} cannot be read as a capture",
            details=plain(error),
            hint="check the path, or make one: envcompare capture 'LINE' --output slow.capture",
        ) from error
    return capture
