"""Nsight Systems: traces kernels, copies and API calls of a worker between its marks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envcompare.environments import Check
from envcompare.errors import NothingTracedError, Problem, ProfileError
from envcompare.profile_files import read
from envcompare.profile_files.nsys import complaints
from envcompare.profilers import (
    READ_LOG,
    Exported,
    Pass,
    ProfilerRun,
    Quarantine,
    ReportFiles,
    Tool,
    export_report,
    find_tool,
    install_hints,
)
from envcompare.run_folder.profiles import Profile
from envcompare.transport import Transport

NAME: Final = "nsys"
# It only runs from a folder `target-linux-*`, and needs the parent of that folder. The search takes
# the first location that has one, and there the highest version.
_SEARCH = r"""
nsys=$(on_path nsys)
case $nsys in */target-linux-*/nsys) ;; *) nsys= ;; esac
nsys=$(first "$nsys" \
  "$(newest "$root"/opt/nvidia/nsight-systems*/*/target-linux-*/nsys)" \
  "$(newest "$root"/usr/local/cuda*/nsight-systems*/target-linux-*/nsys)" \
  "$(newest "$root"/usr/lib/nsight-systems/target-linux-*/nsys)")
if [ -n "$nsys" ]; then
  nsys=$(readlink -f -- "$nsys") && parent=$(dirname "$(dirname "$nsys")")
  report program "$nsys"
  report folder "$parent"
  report version "$("$nsys" --version 2>&1 | tail -n 1)"
  report importer "$(first "$(newest "$parent"/host-linux-*/QdstrmImporter)" \
    "$(newest "$root"/usr/lib/nsight-systems/host-linux-*/QdstrmImporter)")"
  report cuda "$(printf '%s\n' "$(dirname "$nsys")"/libcupti.so.* | \
    sed -n 's/.*libcupti\.so\.\([0-9][0-9.]*\)$/\1/p' | sort -V | tail -n 1)"
  report options "$("$nsys" profile --help 2>&1 | options)"
fi
"""
_MISSING: Final = install_hints("Nsight Systems (nsys)", "nsight-systems")
# $1 the program, $2 the folder, $3 the importer. In a container nsys may not find the importer,
# which turns its raw file into a report; the host has the same version of it.
_FILES = ReportFiles(
    report="trace.nsys-rep",
    unfinished="trace.qdstrm",
    export="trace.sqlite",
    script=r"""
cd -- "$2" || exit
report=trace.nsys-rep
if [ ! -e "$report" ]; then
  "$3" -i trace.qdstrm -o "$report" >&2 || exit
fi
"$1" export --type sqlite -f true -o trace.sqlite "$report" >&2
""",
)
# No CPU sampling, so that no permission is needed. CUDA graphs are traced by node, since their
# kernels would otherwise be missing. By default nsys ends the program with the collection, but the
# worker still has to answer.
_OPTIONS = (
    ("--cpuctxsw", "none"),
    ("--cuda-graph-trace", "node"),
    ("--kill", "none"),
)
_WHOLE: Final = "--capture-range=none"
# Messages of nsys in the worker's log that explain an empty trace.
_COMPLAINT: Final = re.compile(
    r"^.*(?:CUDA driver version|(?i:version mismatch)|CUDA profiling|CUDA injection|QDSTRM file"
    r"|Importer error|std::exception::what).*$",
    re.MULTILINE,
)
_HINTS: Final = (
    ("CUDA driver version", "install a newer Nsight Systems that supports the host's driver"),
    ("mismatch", "reboot, so that the loaded driver matches the installed libraries"),
    ("QDSTRM file", "install the host part of Nsight Systems too, with QdstrmImporter"),
)


@dataclass(frozen=True, slots=True)
class Nsys:
    """Traces the steps between the marks; the file is a SQLite database."""

    root: str = ""  # prefix of the search paths

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Return the one pass."""
        return (Pass(name="nsys"),)

    def discover(
        self,
        transport: Transport,
        compute_capability: str = "",  # noqa: ARG002 — of the seam
    ) -> Tool | Check:
        """Return the newest nsys of a host; a trace is the same for every GPU."""
        return find_tool(transport, _SEARCH, name=NAME, missing=_MISSING, root=self.root)

    def wrap(self, tool: Tool, kind: Pass, *, folder: str) -> ProfilerRun:
        """Return how to start nsys, with the options that this version has."""
        known = tuple(f"{name}={value}" for name, value in _OPTIONS if tool.knows(name))
        end = ("--capture-range-end=stop",) if tool.knows("--capture-range-end") else ()

        def arguments(*capture: str) -> tuple[str, ...]:
            return (
                *("profile", "--trace=cuda,nvtx", "--sample=none", *known, *capture),
                *("--stats=false", "--export=none"),
                *("--force-overwrite=true", f"--output={folder}/trace"),
            )

        return ProfilerRun(
            kind=kind,
            tool=tool,
            arguments=arguments(*end, "--capture-range=cudaProfilerApi"),
            second=arguments(_WHOLE),
            folder=folder,
        )

    def export(self, quarantine: Quarantine, run: ProfilerRun, *, log: str) -> Exported:
        """Export the report, or the raw file if there is no report yet, to a database."""
        return export_report(quarantine, run, _FILES, complaint=self.explain(log))

    def read(self, run: ProfilerRun, export: Path) -> Profile:
        """Read the database; in a trace of the whole process, only marked steps count."""
        profile = read(NAME, (export,), version=run.tool.version)
        kinds = {note.kind for note in profile.notes}
        is_whole = _WHOLE in run.arguments
        if is_whole and "marked-range" not in kinds:
            raise ProfileError(
                "the nsys trace has no marks, so the steps cannot be separated from the rest",
                details="; ".join(complaints(export)),
                hint=READ_LOG,
            )
        if not profile.kernels and "whole-graphs" not in kinds:
            scope = ", even in the whole process" if is_whole else " between the marks"
            messages = "; ".join(complaints(export))
            raise NothingTracedError(
                f"nsys traced no kernel of the GPU steps{scope}",
                details=messages or "no reason given",
                hint=_hint(messages),
            )
        return profile

    def explain(self, log: str) -> Problem | None:
        """Return the lines of a log that explain an empty trace, each once, with a hint."""
        details = "; ".join(dict.fromkeys(_COMPLAINT.findall(log)))
        if not details:
            return None
        return Problem(brief=f"{NAME} reported a problem", details=details, hint=_hint(details))


def _hint(log: str) -> str:
    return next((hint for text, hint in _HINTS if text in log), READ_LOG)
