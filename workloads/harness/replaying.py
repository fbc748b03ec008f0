"""A line that ran on another machine: its recorded times and facts, instead of processes."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Dict

from harness.failures import ProcessError, phase


def replayed(path: str, request: Dict[str, Any]) -> Dict[str, Any]:
    """Return the answer to `look` or `command` from a capture; a control has its own times.

    Raises ProcessError if the file is gone, or holds fewer processes than are asked for.
    """
    with phase("setup"):
        try:
            with open(path, encoding="utf-8") as file:
                capture = json.load(file)
        except OSError as error:
            raise ProcessError(
                f"the capture cannot be read: {error}", hint="put it back there"
            ) from error
        if request["op"] == "look":
            return {
                "program": path,
                "programs": {},
                "code_hash": capture["line"],
                "fingerprint": capture["facts"],
                "is_captured": True,
            }
        is_control = os.environ.get("ENVCOMPARE_ARM", "").endswith("~control")
        times = capture["control" if is_control else "processes"]
        if request["number"] >= len(times):
            raise ProcessError(
                f"the capture holds {len(times)} processes", hint="capture the line once more"
            )
    return {
        **times[request["number"]],
        "t0_ns": time.monotonic_ns(),
        "exit_code": 0,
        "signal": None,
        "is_late": False,
        "left_processes": False,
        "settling_ns": 0,
        "values": {},
        "fingerprint": capture["facts"] if request.get("watch") else {},
    }
