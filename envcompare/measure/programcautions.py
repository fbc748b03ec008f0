"""What the processes of a plain command leave to be said, each with a next step; pure."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from envcompare.config.programs import Program
from envcompare.run_folder.records import ProcessRun

SHORT_S = 0.01  # a few milliseconds of it are the start of a process, in any environment


def cautions(program: Program, runs: Iterable[ProcessRun], reference: str) -> tuple[str, ...]:
    """Say what was not found in the output, and whether the command is too short to be compared."""
    good = [run for run in runs if run.status == "ok"]
    found = [_unmatched(name, good) for name, _ in program.measures]
    own = [run.wall_ns / 1e9 for run in good if run.arm == reference]
    if own and median(own) < SHORT_S:
        found.append(
            f"one process takes {1000 * median(own):.1f} ms, most of it to start a process: give "
            "the command more to do"
        )
    return tuple(text for text in found if text)


def _unmatched(name: str, runs: list[ProcessRun]) -> str:
    arms = dict.fromkeys(run.arm for run in runs)
    silent = [arm for arm in arms if not any(name in run.values for run in runs if run.arm == arm)]
    if not silent:
        return ""
    where = "any arm" if len(silent) == len(arms) else ", ".join(silent)
    return (
        f"the measure {name} found no number in the output of {where}: it is not measured there; "
        "compare its expression with the log"
    )
