"""What a profiler has left on a host: exported there, outside every container, and brought here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from envcompare.command import Command
from envcompare.errors import ProfileError
from envcompare.profilers.finding import ToolName
from envcompare.profilers.permissions import OPEN_FOR_ALL
from envcompare.profilers.wrapping import COUNTERS, TRACE, Profiler
from envcompare.transport import Transport
from envcompare.transport.operations import run

EXPORT_LIMIT_S = 600.0
KEPT_BYTES = 32 << 20  # of a raw file, compressed by its tool; a larger one is read and left

# $1 the program, $2 the folder, $3 the importer. In a container nsys may not find what turns its
# raw file into a report; the host has it, of the same version.
_EXPORT_TRACE = rf"""
cd -- "$2" || exit
report={TRACE}.nsys-rep
if [ ! -e "$report" ] && [ -e {TRACE}.qdstrm ] && [ -n "$3" ]; then
  "$3" -i {TRACE}.qdstrm -o "$report" >&2 || exit
fi
[ -e "$report" ] || exit 3
"$1" export --type sqlite -f true -o {TRACE}.sqlite "$report" >&2
"""
_EXPORT_COUNTERS = rf"""
cd -- "$2" || exit
[ -e {COUNTERS}.ncu-rep ] || exit 3
"$1" --import {COUNTERS}.ncu-rep --csv --page raw --print-units base >{COUNTERS}.csv
"""
_SIZE = 'wc -c <"$1"'
_LOG = "read what it said in the log of the arm in the run folder"
_RIGHTS = "ERR_NVGPUCTRPERM"
_BUSY = "driver resource was unavailable"
_HINTS = (
    (_RIGHTS, f"{OPEN_FOR_ALL}; see envcompare doctor"),
    (_BUSY, "end what else reads counters there, as by `dcgmi profile --pause`"),
)
_SAID = re.compile(r"^==(?:ERROR|WARNING)== *(.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The names of what a tool leaves: its own report, and what is read of it."""

    script: str
    report: str
    export: str


LEFT: dict[ToolName, Left] = {
    "nsys": Left(script=_EXPORT_TRACE, report=f"{TRACE}.nsys-rep", export=f"{TRACE}.sqlite"),
    "ncu": Left(script=_EXPORT_COUNTERS, report=f"{COUNTERS}.ncu-rep", export=f"{COUNTERS}.csv"),
}


def export(transport: Transport, profiler: Profiler, *, said: str) -> str:
    """Export what a profiler left in its folder; return the path of the export on the host.

    `said` is what it wrote beside. Raises ProfileError where nothing can be read, TransportError
    when the host is lost and CommandTimeoutError when the export takes too long.
    """
    tool, left = profiler.tool, LEFT[profiler.tool.name]
    words = (tool.program, profiler.folder, tool.importer)
    variables = (("LC_ALL", "C"), ("TMPDIR", profiler.folder))
    command = Command(argv=("sh", "-c", left.script, "sh", *words), env=variables)
    result = run(transport, command, timeout_s=EXPORT_LIMIT_S)
    if result.succeeded:
        return f"{profiler.folder}/{left.export}"
    if result.exit_code == 3:
        raise ProfileError(
            f"{tool.name} left no report",
            details=complaint(said) or "it did not say why",
            hint=remedy(said),
        )
    raise ProfileError(
        f"the report of {tool.name} cannot be exported",
        details=result.tail(1),
        hint=f"install on the host what {tool.importer or tool.program} misses there",
    )


def complaint(said: str) -> str:
    """Return the errors and warnings of ncu in a log, each once; empty where there are none."""
    return "; ".join(dict.fromkeys(_SAID.findall(said)))


def remedy(said: str) -> str:
    """Return what to try after such a complaint."""
    return next((hint for text, hint in _HINTS if text in said), _LOG)


def fetch(transport: Transport, path: str, target: Path, *, most_bytes: int | None = None) -> bool:
    """Bring a file of the host here; return whether it is there and not larger than allowed."""
    result = run(transport, Command(argv=("sh", "-c", _SIZE, "sh", path)), timeout_s=60)
    if not result.succeeded or (most_bytes is not None and int(result.stdout) > most_bytes):
        return False
    transport.get(path, target)
    return True
