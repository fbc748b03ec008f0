"""The program that runs inside an arm: it keeps stdout for the protocol, then serves or prepares.

Nothing but these three modules is imported before file descriptor 1 is out of the way, so that
no import can write into the protocol.
"""

import os
import sys
import time

_OTHER_END_S = 30  # until the other end of a pipe is there, which is before this process is


def main() -> int:
    """Serve protocol 1 on stdin and stdout, or prepare data when arguments are given."""
    entry_ns = time.monotonic_ns()
    _take_channel()
    replies = os.dup(1)
    os.dup2(2, 1)
    # A read-only mount could not keep byte code and a writable one could: no arm keeps any.
    sys.dont_write_bytecode = True
    if len(sys.argv) > 1:
        from harness import preparing  # noqa: PLC0415

        return preparing.main(sys.argv[1:], replies)
    from harness import serving  # noqa: PLC0415

    return serving.serve(entry_ns, replies)


def _take_channel() -> None:
    """Take the named pipes that stand for stdin and stdout, where envcompare has made them.

    Nothing that this process starts may take them too.
    """
    folder = os.environ.pop("ENVCOMPARE_CHANNEL", "")
    if not folder:
        return
    import signal  # noqa: PLC0415 — nothing speaks the protocol yet

    why = f"nobody opens the pipes in {folder}: is the engine in a machine of its own?"
    usual = signal.signal(signal.SIGALRM, lambda *_: sys.exit(why))
    signal.alarm(_OTHER_END_S)
    for number, name, flags in ((0, "requests", os.O_RDONLY), (1, "replies", os.O_WRONLY)):
        pipe = os.open(os.path.join(folder, name), flags)
        os.dup2(pipe, number)
        os.close(pipe)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, usual)


if __name__ == "__main__":
    # beside the workloads, not in this folder: `harness` is the one name that is importable
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.exit(main())
