"""The lines of the protocol, and the news that the other end is gone."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import select
import signal
import struct
import sys
import termios
from typing import Any, Iterator, NoReturn

from harness.failures import ProtocolError
from harness.tasks import end_offspring

LINE_LIMIT_BYTES = 1 << 20
GUARD_PERIOD_S = 1.0


def read_line(fd: int) -> bytes | None:
    """Return the next line without its end, or None when the input has ended.

    It reads byte by byte: what follows the line stays in the pipe for the next reader, and a line
    that arrives in pieces is put together. It costs about 0.1 ms and is never timed.
    """
    line = bytearray()
    while True:
        byte = os.read(fd, 1)
        if not byte:
            return None
        if byte == b"\n":
            return bytes(line)
        line += byte
        if len(line) > LINE_LIMIT_BYTES:
            raise ProtocolError(f"a request is longer than {LINE_LIMIT_BYTES} bytes")


def parse_request(line: bytes) -> dict[str, Any]:
    """Return the request in a line; raise ProtocolError if it is invalid."""
    try:
        request = json.loads(line)
    except ValueError as error:
        raise ProtocolError(f"not a JSON line: {error}") from error
    if not isinstance(request, dict) or not isinstance(request.get("op"), str):
        raise ProtocolError('a request is a JSON object with a text "op"')
    return request


def encode(message: dict[str, Any]) -> bytes:
    """Return a message as one line of strict JSON; a number that is not finite becomes null.

    A name of a file may be no UTF-8: what is not becomes a question mark.
    """
    text = json.dumps(_strict(message), allow_nan=False, ensure_ascii=False)
    return text.encode(errors="replace") + b"\n"


def send(fd: int, line: bytes) -> None:
    """Write the whole line, or end the process if there is no reader any more."""
    view = memoryview(line)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except BrokenPipeError:
        leave(0)


def ended(fd: int) -> bool:
    """Return whether the other end has closed and everything it wrote has been read."""
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)
    if not poll.poll(0):
        return False
    unread = fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4)
    return bool(struct.unpack("i", unread)[0] == 0)


@contextlib.contextmanager
def exit_when_ended(fd: int) -> Iterator[None]:
    """Look once a second during the body whether `fd` has ended, and end the process then.

    A timer signal serves here because a second thread would make `fork` unsafe. A block of the
    usual length is over before the first look.
    """
    signal.signal(signal.SIGALRM, lambda _number, _frame: leave(0) if ended(fd) else None)
    signal.siginterrupt(signal.SIGALRM, False)  # noqa: FBT003  the system's own signature
    signal.setitimer(signal.ITIMER_REAL, GUARD_PERIOD_S, GUARD_PERIOD_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def flush_prints() -> None:
    """Flush the output of the workload."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def leave(code: int) -> NoReturn:
    """Kill all descendants, flush the output of the workload, and end this process."""
    end_offspring()
    flush_prints()
    os._exit(code)


def _strict(value: Any) -> Any:  # noqa: ANN401  it walks what a workload returned
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    return number if math.isfinite(number) else None
