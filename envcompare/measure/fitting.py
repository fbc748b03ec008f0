"""The largest batch that fits into memory, searched for by a program inside an arm."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from envcompare.command import Command, CommandResult
from envcompare.errors import CommandTimeoutError, OutputLimitError, StillRunningError
from envcompare.measure.replies import Amount, LaunchSpec
from envcompare.run_folder.records import Scalar
from envcompare.transport import read_json

PROGRAM = "harness/fitting.py"
LIMIT_S = 1800.0
_ENV = (("MALLOC_MMAP_THRESHOLD_", str(1 << 16)),)  # what is freed leaves no holes


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """What the program says: 0 where not even the first size fits.

    `measurable` is the largest of the sizes asked for of which every arm can hold one at a time.
    """

    largest: Amount
    measurable: Amount
    beyond: Amount | None  # the smallest that was tried and does not fit
    limited_by: Literal["memory", "workload", "cap"]
    memory_mib: Amount  # of a process, or that PyTorch may have of a GPU; 0 is all of it
    device: Literal["cpu", "cuda"]
    tries: Amount
    said: str = ""  # by the workload, of what it does not take

    def values(self) -> dict[str, Scalar]:
        """Return it as the values of an event."""
        return msgspec.structs.asdict(self)


def fitting_command(  # noqa: PLR0913 — what is tried, and within what
    interpreter: str,
    workloads: str,
    spec: LaunchSpec,
    *,
    sizes: Sequence[int],
    memory_mib: dict[str, int],
    beside: int,
) -> Command:
    """Return the command that searches; `memory_mib` is by device, 0 is all there is."""
    asked = {
        "workload": spec.workload,
        "params": {name: value for name, value in spec.params.items() if name != "batch"},
        "data": spec.data or None,
        "threads": spec.threads,
        "cpus": spec.cpus,
        "device": spec.device,
        "sizes": sizes,
        "memory_mib": memory_mib,
        "beside": beside,
    }
    argv = (interpreter, "-B", f"{workloads}/{PROGRAM}", json.dumps(asked))
    return Command(argv=argv, env=_ENV)


def search_fit(command: Command, run_inside: Callable[[Command], CommandResult]) -> Fit | str:
    """Return what fits, or why that is not known. Raises TransportError when the host is lost."""
    try:
        done = run_inside(command)
    except CommandTimeoutError:
        return f"the search did not finish within {LIMIT_S:.0f} s"
    except (OutputLimitError, StillRunningError) as error:
        return f"{error.brief}: {error.details}"
    said = done.stdout.strip().splitlines()
    if not done.succeeded or not said:
        return done.tail(1) or f"the search ended with exit code {done.exit_code}"
    try:
        fit = read_json(said[-1], Fit)
    except msgspec.MsgspecError as error:
        return f"the answer of the search is not understood: {error}"
    if fit.limited_by != "workload":
        return fit
    why = done.tail(1) or "the workload did not say why"
    return msgspec.structs.replace(fit, said=why) if fit.largest else why
