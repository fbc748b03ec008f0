"""The separate process that turns charts into SVG, PNG and PDF.

Its JavaScript engine aborts the whole process if memory runs out.
"""

from __future__ import annotations

import atexit
import json
import resource
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from typing import IO, Any, Final, Literal

from envcompare.errors import UnusableError
from envcompare.text import cause_line

_LIMIT_S: Final = 120.0  # for one chart; each takes some ten milliseconds
_HEAD_BYTES: Final = 9
_CHUNK_BYTES: Final = 1 << 20
_PROGRAM: Final = """
import sys
sys.path[:] = sys.argv[1:]
import json, resource, struct
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
import vl_convert
for line in sys.stdin.buffer:
    name, arguments = json.loads(line)
    try:
        made, is_made = getattr(vl_convert, name)(**arguments), True
    except ValueError as error:
        made, is_made = str(error), False
    content = made.encode() if isinstance(made, str) else made
    sys.stdout.buffer.write(struct.pack("!?Q", is_made, len(content)) + content)
    sys.stdout.buffer.flush()
"""
_Conversion = Literal["vegalite_to_svg", "svg_to_png", "svg_to_pdf"]


class ChartsError(UnusableError):
    """The program that draws charts cannot run here."""


def converted(conversion: _Conversion, **arguments: Any) -> bytes:  # noqa: ANN401 — JSON
    """Return the output of vl_convert; raises ChartsError if it cannot run here."""
    return _renderer().converted(json.dumps([conversion, arguments]).encode() + b"\n")


def left_out_charts() -> str:
    """Return why this process cannot draw further charts; empty if it can."""
    return _renderer().why


@cache
def _renderer() -> _Renderer:
    return _Renderer()


class _Renderer:
    """The only renderer process; the first chart starts it, and it never restarts."""

    def __init__(self) -> None:
        self.why = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None

    def converted(self, request: bytes) -> bytes:
        if not self.why:
            try:
                process = self._process or self._start()
                assert process.stdin is not None
                process.stdin.write(request)
                head = self._read(process, _HEAD_BYTES)
                content = self._read(process, int.from_bytes(head[1:], "big"))
            except (OSError, MemoryError) as error:
                self.why = self._cause(error)
                self.close()
            else:
                if not head[0]:
                    raise ValueError(content.decode())
                return content
        raise ChartsError(
            "charts cannot be drawn here",
            details=self.why,
            hint="raise the limit (`ulimit -v unlimited`), or draw the report on another machine",
        )

    def _start(self) -> subprocess.Popen[bytes]:
        # without `site` and the current folder, its modules come from where ours do
        argv = [sys.executable, "-I", "-S", "-c", _PROGRAM, *sys.path]
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 — as long as the process
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, bufsize=0
        )
        atexit.register(self.close)
        return self._process

    def _read(self, process: subprocess.Popen[bytes], size: int) -> bytes:
        assert process.stdout is not None
        end, content = time.monotonic() + _LIMIT_S, bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while len(content) < size:
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise TimeoutError(f"it drew no chart within {_LIMIT_S:.0f} s")
                chunk = process.stdout.read(min(_CHUNK_BYTES, size - len(content)))
                if not chunk:
                    raise BrokenPipeError
                content += chunk
        return bytes(content)

    def _cause(self, error: BaseException) -> str:
        """Return why no chart was drawn: the program's last output, its signal, its time limit."""
        if not isinstance(error, BrokenPipeError) or self._process is None or self._said is None:
            return f"the program that draws them cannot run: {str(error) or type(error).__name__}"
        code = self._process.wait()
        self._said.seek(0)
        text = self._said.read(_CHUNK_BYTES).decode(errors="replace")
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if code < 0 and limit != resource.RLIM_INFINITY:
            return (
                "the program that draws them needs more address space than its limit of "
                f"{limit / 2**30:.0f} GiB (`ulimit -v`)"
            )
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"the program that draws them ended ({name}): {_said(text, code)}"

    def close(self) -> None:
        """End the process; safe to repeat."""
        atexit.unregister(self.close)
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        if self._said is not None:
            self._said.close()
        self._process = self._said = None


def _said(text: str, code: int) -> str:
    lines: Sequence[str] = [line for line in text.splitlines() if "Fatal" in line]
    return lines[0].strip("# ") if code < 0 and lines else cause_line(text, brief="") or "no word"
