"""The worker of a line whose program takes the steps: it starts the line, and keeps its turns.

Its stdout is the protocol's alone; what the program prints goes to stderr.
"""

import os
import sys
import time


def main() -> int:
    """Serve protocol 1 on stdin and stdout."""
    entry_ns = time.monotonic_ns()
    replies = os.dup(1)
    os.dup2(2, 1)
    sys.dont_write_bytecode = True
    from harness import stepper  # noqa: PLC0415

    return stepper.Stepper(entry_ns, replies).serve()


if __name__ == "__main__":
    # `harness` is imported from the folder of the workloads, not from that of this file
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.exit(main())
