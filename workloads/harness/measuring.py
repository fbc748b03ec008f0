"""The launcher of plain commands: runs one program to its end inside an arm, and times it.

It answers one request, `look` or `command`, and ends. Its stdout is the protocol's alone; what the
program prints goes to stderr. It imports the standard library only, and nothing of it is timed.
"""

import os
import sys


def main() -> int:
    """Answer the one request on stdin."""
    replies = os.dup(1)
    os.dup2(2, 1)
    # A read-only mount could not keep byte code and a writable one could: no arm keeps any.
    sys.dont_write_bytecode = True
    from harness import programs  # noqa: PLC0415

    return programs.answer(replies)


if __name__ == "__main__":
    # `harness` is imported from the folder of the workloads, not from that of this file
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.exit(main())
