"""The program that runs inside an arm: it keeps stdout for the protocol, then serves or prepares.

Nothing but these three modules is imported before file descriptor 1 is out of the way, so that
no import can write into the protocol.
"""

import os
import sys
import time

_NO_PIPES_CODE = 76  # EX_PROTOCOL of sysexits.h; envcompare knows by it that an arm has no pipes


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
    """Use named pipes as stdin and stdout if envcompare has made them.

    The variable is removed, so that child processes do not use them too. Exits if the pipes cannot
    be opened.
    """
    folder = os.environ.pop("ENVCOMPARE_CHANNEL", "")
    if not folder:
        return
    try:
        # Their reader is there before this process is; under another kernel than the reader's there
        # is none, and nothing would ever end the wait for it.
        replies = os.open(os.path.join(folder, "replies"), os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        sys.stderr.write(f"the pipes in {folder} lead nowhere: {error.strerror}\n")
        sys.exit(_NO_PIPES_CODE)
    os.set_blocking(replies, True)
    requests = os.open(os.path.join(folder, "requests"), os.O_RDONLY)
    for number, pipe in ((0, requests), (1, replies)):
        os.dup2(pipe, number)
        os.close(pipe)


if __name__ == "__main__":
    # `harness` is imported from the folder of the workloads, not from that of this file
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.exit(main())
