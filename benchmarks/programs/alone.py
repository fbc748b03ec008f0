"""Run steps of a workload without anything that measures, and print how long one took.

usage: alone.py FILE.py:CLASS PARAMETERS SECONDS
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from typing import Any

WARM_S = 0.7  # queues fill, and a quota's first budget is spent


def main() -> None:
    """Warm up, run whole steps until the time is over, print their mean."""
    file, _, name = sys.argv[1].rpartition(":")
    work_class = runpy.run_path(file)[name]
    params = {**getattr(work_class, "PARAMS", {}), **json.loads(sys.argv[2])}
    work = work_class(**params)
    work.setup(1, "cpu")
    _, began_s = _run(work, WARM_S, time.monotonic())
    steps, ended_s = _run(work, float(sys.argv[3]), began_s)
    print(json.dumps({"step_s": (ended_s - began_s) / steps}))
    if hasattr(work, "finish"):
        work.finish()


def _run(work: Any, seconds: float, began_s: float) -> tuple[int, float]:  # noqa: ANN401
    steps, now_s = 0, began_s
    while now_s < began_s + seconds:
        work.step()
        steps, now_s = steps + 1, time.monotonic()
    return steps, now_s


main()
