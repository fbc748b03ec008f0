"""The CPU set of this process, set by the process itself and so the same way in every arm."""

from __future__ import annotations

import os
from typing import List, Optional

from failures import ProcessError

_HINT = "give --pin CPUs that are allowed there in every environment, or leave it out"


def pin(cpus: Optional[List[int]]) -> None:
    """Run on these CPUs alone; None leaves the process where it may run."""
    if cpus is None:
        return
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cpus)
    except (OSError, TypeError, ValueError, OverflowError) as error:
        raise ProcessError(
            f"cannot run on CPUs {cpus}: {error}; allowed: {sorted(allowed)}", hint=_HINT
        ) from error
    # The kernel drops a CPU it cannot give as long as one is left (sched_setaffinity(2)).
    if os.sched_getaffinity(0) != set(cpus):
        raise ProcessError(
            f"cannot run on all of CPUs {cpus}; allowed: {sorted(allowed)}", hint=_HINT
        )
