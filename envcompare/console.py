"""Terminal output during a command: progress, colours, errors in three sentences."""

from __future__ import annotations

import errno
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, cast

from envcompare.errors import EnvcompareError, RunFolderError, plain
from envcompare.text import escaped_json, flat, masked, visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

_LINE_EVERY_S = 15.0
_MOVING_LINE_EVERY_S = 5.0
# Bytes come in pieces much smaller than an eye can follow.
_SHOWN_EVERY_S = 0.1
_LINES_BELOW_BARS = 2  # the line that counts the others, and the cursor's line
# Before this time, the speed is that of the buffers.
_SPEED_AFTER_S = 0.5
# The errors of a pipe and of a terminal whose reader is gone.
_READER_GONE = frozenset({errno.EPIPE, errno.EIO})


class _Lasting:
    """A standard stream that goes quiet when its reader or its terminal is gone.

    Rich would end the process, but a measurement must not end because nobody watches it.
    """

    def __init__(self, stream: IO[Any], *, always: bool = False) -> None:
        self._stream = stream
        # A full disk is not a reason to stop either.
        self._always = always

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 — whatever the stream has
        return getattr(self._stream, name)

    def write(self, text: str | bytes) -> int:
        """Write text or bytes, or discard them once there is no reader.

        Raises RunFolderError if results cannot be written to disk.
        """
        with self._bearing():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, as `write` does."""
        with self._bearing():
            self._stream.flush()

    @contextmanager
    def _bearing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # What is buffered would fail again, at the latest when the interpreter ends.
            with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:  # noqa: PTH123 — a name as text
                os.dup2(nowhere.fileno(), self._stream.fileno())
            if not (self._always or error.errno in _READER_GONE):
                raise RunFolderError(
                    "the results cannot be written to stdout",
                    details=plain(error),
                    hint="free some disk space, or send them elsewhere",
                ) from error


def result_stream() -> IO[str]:
    """Return stdout; a closed reader is not an error, a full disk is.

    Characters outside its encoding are escaped: an ASCII terminal must not cost the result of a
    long run.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    return cast("IO[str]", _Lasting(sys.stdout))


def is_terminal() -> bool:
    """Tell whether stdout is a terminal, which binary output would garble."""
    return sys.stdout.isatty()


def _bars(console: Console) -> Progress:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class Bounded(Progress):
        def get_renderables(self) -> Iterator[Any]:
            tasks = self.tasks
            room = max(1, console.height - _LINES_BELOW_BARS)
            yield self.make_tasks_table(tasks[:room])
            if len(tasks) > room:
                yield Text(f"and {len(tasks) - room} more")

    # many bars form a table, in which a number takes less room than a bar
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[text]}", markup=False),
    )
    return Bounded(*columns, console=console, transient=True)


@dataclass(slots=True)
class Display:
    """Progress output on stderr, so that stdout has only the result."""

    is_quiet: bool = False
    _console: Console | None = None
    _progress: Progress | None = None
    _tasks: dict[str, TaskID] = field(default_factory=dict)
    _last_line: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def console(self) -> Console:
        """Return the Rich console on stderr, created on first use."""
        if self._console is None:
            from rich.console import Console

            stream = cast("IO[str]", _Lasting(sys.stderr, always=True))
            self._console = Console(file=stream, highlight=False, soft_wrap=True, emoji=False)
        return self._console

    def say(self, text: str) -> None:
        """Print one line; newlines, which a host may send, become spaces."""
        if not self.is_quiet:
            self.console.print(flat(masked(text)), markup=False)

    def saying(self, label: str, check: Callable[[], None] = lambda: None) -> Saying:
        """Return an object that prints lines about one subject; `check` may raise to end it."""
        return Saying(self, label, check)

    def error(self, error: EnvcompareError) -> None:
        """Print the three sentences of an error."""
        from rich.text import Text

        # Printed at once, since several hosts may fail at the same time.
        message = Text()
        for name, text in error.problem.parts():
            message.append(f"{name}: ", style="bold red" if name == "error" else "bold")
            message.append(f"{visible(masked(text))}\n")
        self.console.print(message, end="")

    @contextmanager
    def showing_progress(self) -> Iterator[None]:
        """Show a live bar for each cell on a terminal; elsewhere a line now and then."""
        if self.is_quiet or not self.console.is_terminal:
            yield
            return
        with _bars(self.console) as progress:
            self._progress = progress
            try:
                yield
            finally:
                self._progress = None
                self._tasks.clear()

    def cell(self, name: str, *, done: float, text: str) -> None:
        """Show the progress of a cell; `done` is the spent share of its budget."""
        with self._lock:
            if self._progress is not None:
                self._update_bar(self._progress, name, done=done, text=text)
            elif time.monotonic() - self._last_line.get(name, 0.0) >= _LINE_EVERY_S:
                self._last_line[name] = time.monotonic()
                self.say(f"  {name}: {min(done, 1.0):.0%} of the budget, {text}")

    def cell_done(self, name: str, text: str) -> None:
        """Remove a cell's bar and print how it ended."""
        with self._lock:
            self._drop_bar(name)
        self.say(f"  {name}: {text}")

    def moving(self, name: str, *, done: float, text: str) -> None:
        """Show the progress of a long transfer; `done` is the completed share."""
        with self._lock:
            if self._progress is not None:
                self._update_bar(self._progress, name, done=done, text=text)
                return
            now = time.monotonic()
            # The first report only starts the clock, so that a short transfer prints nothing.
            if now - self._last_line.setdefault(name, now) >= _MOVING_LINE_EVERY_S:
                self._last_line[name] = now
                self.say(f"  {name}: {text}")

    def moved(self, name: str) -> None:
        """Remove a transfer's bar."""
        with self._lock:
            self._last_line.pop(name, None)
            self._drop_bar(name)

    def _drop_bar(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        if self._progress is not None and task is not None:
            self._progress.remove_task(task)

    def _update_bar(self, progress: Progress, name: str, *, done: float, text: str) -> None:
        from rich.markup import escape

        if name not in self._tasks:
            label = escape(visible(name))
            self._tasks[name] = progress.add_task(label, total=1.0, text="")
        progress.update(self._tasks[name], completed=min(done, 1.0), text=visible(text))


@dataclass(frozen=True, slots=True)
class Saying:
    """Prints messages about one subject, and the progress of its long transfers."""

    _display: Display
    _label: str
    _check: Callable[[], None]

    def __call__(self, text: str) -> None:
        """Print one line."""
        self._check()
        self._display.say(f"  {self._label}: {text}")

    @contextmanager
    def moving(self, what: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
        """Yield a function that takes the number of bytes sent; it raises what `check` raises."""
        name = f"{self._label}: {what}"
        speed = Speed()
        last_s = float("-inf")

        def on_progress(done_bytes: int) -> None:
            nonlocal last_s
            self._check()
            if time.monotonic() - last_s < _SHOWN_EVERY_S:
                return
            last_s = time.monotonic()
            done = min(1.0, done_bytes / max(1, total_bytes))
            text = f"{done:.0%} of {total_bytes / 1e6:.0f} MB{speed.text(done_bytes)}"
            self._display.moving(name, done=done, text=text)

        try:
            yield on_progress
        finally:
            self._display.moved(name)


class Speed:
    """Transfer speed, measured from the first report of bytes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start: tuple[float, int] | None = None

    def text(self, done_bytes: int) -> str:
        """Return `, 85.3 MB/s`, or an empty text while unknown."""
        now = self._clock()
        if self._start is None:
            self._start = (now, done_bytes)
        since, first_bytes = self._start
        if now - since < _SPEED_AFTER_S:
            return ""
        return f", {(done_bytes - first_bytes) / (now - since) / 1e6:.1f} MB/s"


def print_lines(lines: Iterable[str]) -> None:
    """Write result lines to stdout, with control characters of hosts made visible.

    A reader that has closed the pipe is not an error.
    """
    stream = result_stream()
    stream.write("".join(f"{visible(line)}\n" for line in lines))
    stream.flush()


def print_event(line: bytes) -> None:
    """Write one line for a program that follows a run; a failed write does not end the run."""
    stream = _Lasting(sys.stdout.buffer, always=True)
    stream.write(escaped_json(line) + b"\n")
    stream.flush()


def print_bytes(content: bytes) -> None:
    """Write a file to stdout unchanged, in UTF-8 whatever the terminal's encoding."""
    stream = _Lasting(sys.stdout.buffer)
    stream.write(content)
    stream.flush()
