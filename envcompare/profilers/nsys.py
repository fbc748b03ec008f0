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
    not_installed,
)
from envcompare.run_folder.profiles import Profile
from envcompare.transport import Transport

NAME: Final = "nsys"
# It runs from a folder `target-linux-*` alone, and wants the parent of that around it. The first
# place that has one is taken, there the highest version.
_SEARCH = r"""
nsys=$(on_path nsys)
case $nsys in */target-linux-*/nsys) ;; *) nsys= ;; esac
nsys=$(first "$nsys" \
  "$(newest "$root"/opt/nvidia/nsight-systems*/*/target-linux-*/nsys)" \
  "$(newest "$root"/usr/local/cuda*/nsight-systems*/target-linux-*/nsys)" \
  "$(newest "$root"/usr/lib/nsight-systems/target-linux-*/nsys)")
if [ -n "$nsys" ]; then
  nsys=$(readlink -f -- "$nsys") && parent=$(dirname "$(dirname "$nsys")")
  tell program "$nsys"
  tell folder "$parent"
  tell version "$("$nsys" --version 2>&1 | tail -n 1)"
  tell importer "$(first "$(newest "$parent"/host-linux-*/QdstrmImporter)" \
    "$(newest "$root"/usr/lib/nsight-systems/host-linux-*/QdstrmImporter)")"
  tell cuda "$(printf '%s\n' "$(dirname "$nsys")"/libcupti.so.* | \
    sed -n 's/.*libcupti\.so\.\([0-9][0-9.]*\)$/\1/p' | sort -V | tail -n 1)"
  tell options "$("$nsys" profile --help 2>&1 | options)"
fi
"""
_MISSING: Final = not_installed("Nsight Systems (nsys)", "nsight-systems")
# $1 the program, $2 the folder, $3 the importer. In a container nsys may not find what turns its
# raw file into a report; the host has it, of the same version.
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
# Nothing is sampled on the CPU, so that no right is needed; CUDA graphs are taken apart, since
# their kernels would not be in the table of kernels otherwise. The worker outlives the trace: it
# still has to answer, and by default nsys ends the program where the collection ends.
_OPTIONS = (
    ("--cpuctxsw", "none"),
    ("--cuda-graph-trace", "node"),
    ("--kill", "none"),
)
_WHOLE: Final = "--capture-range=none"
# Its own words beside those of the worker, as far as they tell why it saw nothing.
_COMPLAINT: Final = re.compile(
    r"^.*(?:CUDA driver version|(?i:version mismatch)|CUDA profiling|CUDA injection|QDSTRM file"
    r"|Importer error|std::exception::what).*$",
    re.MULTILINE,
)
_HINTS: Final = (
    ("CUDA driver version", "install a newer Nsight Systems, which knows the driver of the host"),
    ("mismatch", "reboot, so that the loaded driver is that of the installed libraries"),
    ("QDSTRM file", "install the host part of Nsight Systems too, with QdstrmImporter"),
)


@dataclass(frozen=True, slots=True)
class Nsys:
    """Traces the steps between the marks; the file is a SQLite database."""

    root: str = ""  # stands before the places where the program is looked for

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Return the trace alone."""
        return (Pass(name="nsys"),)

    def discover(
        self,
        transport: Transport,
        compute_capability: str = "",  # noqa: ARG002 — of the seam
    ) -> Tool | Check:
        """Return the newest nsys of a host; a trace is the same for every GPU."""
        return find_tool(transport, _SEARCH, name=NAME, missing=_MISSING, root=self.root)

    def wrap(self, tool: Tool, kind: Pass, *, folder: str) -> ProfilerRun:
        """Return nsys as it traces, with the options that this version knows."""
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

    def export(self, quarantine: Quarantine, run: ProfilerRun, *, said: str) -> Exported:
        """Make the database of the report, or of the raw file where there is no report yet."""
        return export_report(quarantine, run, _FILES, complaint=self.explain(said))

    def read(self, run: ProfilerRun, export: Path) -> Profile:
        """Read the database; of a whole process the marked steps alone count."""
        profile = read(NAME, (export,), version=run.tool.version)
        kinds = {note.kind for note in profile.notes}
        is_whole = _WHOLE in run.arguments
        if is_whole and "marked-range" not in kinds:
            raise ProfileError(
                "the trace of nsys holds no mark of the steps, so that they cannot be told from "
                "the rest of the process",
                details="; ".join(complaints(export)),
                hint=READ_LOG,
            )
        if not profile.kernels and "whole-graphs" not in kinds:
            what = "in a trace of the whole process either" if is_whole else "between the marks"
            told = "; ".join(complaints(export))
            raise NothingTracedError(
                f"nsys saw no kernel of the steps, which ran on the GPU, {what}",
                details=told or "it did not say why",
                hint=_hint(told),
            )
        return profile

    def explain(self, said: str) -> Problem | None:
        """Return what of a log tells why nothing was seen, each line once, and what to try."""
        details = "; ".join(dict.fromkeys(_COMPLAINT.findall(said)))
        if not details:
            return None
        return Problem(brief=f"{NAME} complained", details=details, hint=_hint(details))


def _hint(said: str) -> str:
    return next((hint for text, hint in _HINTS if text in said), READ_LOG)
