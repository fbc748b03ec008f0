"""One command's output into another, and a SIF's path, where no other host is needed."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import pytest

from envcompare import transport
from envcompare.errors import CommandTimeoutError, StackError, TransportError
from envcompare.stack import Progress, sif
from envcompare.stack.image import pipe
from envcompare.text import Command
from envcompare.transport import LOCAL, LocalTransport, copies, run

WRITES_FOR_EVER = 'echo $$ >"$1.new" && mv "$1.new" "$1" && exec sleep 600'


class Full(LocalTransport):
    """A host that starts nothing once the other end runs."""

    def __init__(self, other: Path) -> None:
        self._other = other

    def spawn(self, _: Command) -> NoReturn:
        """Refuse, as a host without a free session does."""
        while not self._other.exists():
            time.sleep(0.01)
        raise TransportError("the host grants no session")


class SlowSink:
    """A sink that takes longer for a chunk than a command is waited for in silence."""

    size_bytes = 0

    def write(self, data: Any, /) -> int:
        """Take the chunk after 1.2 s."""
        time.sleep(1.2)
        self.size_bytes += len(data)
        return len(data)


def test_a_slow_sink_gets_the_whole_output() -> None:
    """While it takes a chunk, no more is read: that is not the end of the output."""
    sink = SlowSink()
    done = run(LOCAL, Command(argv=("head", "-c", "200000", "/dev/zero")), sink=sink)
    assert (done.exit_code, sink.size_bytes) == (0, 200_000)


def test_an_error_of_what_writes_the_input_is_raised() -> None:
    """Of any kind: the command would otherwise succeed with half of its input."""

    def fail(stream: BinaryIO) -> None:
        stream.write(b"abc")
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        run(LOCAL, Command(argv=("cat",)), stdin=fail)


@pytest.mark.timeout(60)
def test_a_pipe_without_a_second_end_leaves_no_first_one(tmp_path: Path) -> None:
    """What would write for ever to nobody is killed."""
    noted = tmp_path / "pid"
    writer = Command(argv=("sh", "-c", WRITES_FOR_EVER, "sh", str(noted)))
    with pytest.raises(TransportError, match="no session"):
        pipe((LOCAL, writer), (Full(noted), Command(argv=("cat",))), on_progress=print)
    stat = Path("/proc", noted.read_text().strip(), "stat")
    with suppress(OSError):
        while stat.read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)


def test_both_ends_of_a_pipe_say_how_they_ended(tmp_path: Path) -> None:
    """The reader may end before it has read everything."""
    sizes: list[int] = []
    script = 'head -c 100000 >"$1"; echo enough >&2; exit 3'
    piped = pipe(
        (LOCAL, Command(argv=("head", "-c", "5000000", "/dev/zero"))),
        (LOCAL, Command(argv=("sh", "-c", script, "sh", str(tmp_path / "file")))),
        on_progress=sizes.append,
    )
    assert (piped.sink_exit, piped.succeeded) == (3, False)
    assert piped.stderr.strip() == "enough"
    assert (tmp_path / "file").stat().st_size == 100_000
    assert sizes == sorted(sizes)


def test_a_pipe_in_which_nothing_moves_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither end is left behind."""
    for name, seconds in (("_STALL_S", 0.6), ("_HASHING_S", 120.0), ("_TICK_S", 0.1)):
        monkeypatch.setattr(copies, name, seconds)
    stuck = Command(argv=("sh", "-c", "echo some; exec sleep 299.25"))
    way = "on its way from local to local has stalled"
    with pytest.raises(CommandTimeoutError, match=way) as caught:
        pipe((LOCAL, stuck), (LOCAL, Command(argv=("cat",))), on_progress=lambda _: None)
    assert caught.value.details == "no data has moved for 0.01 min"
    assert not run(LOCAL, Command(argv=("pgrep", "-f", "^sleep 299.25"))).succeeded


def test_output_that_never_ends_holds_up_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child in the background may write on for ever after the command has ended."""
    monkeypatch.setattr(transport, "_SETTLE_S", 2.0)
    script = "timeout 60 sh -c 'while echo x; do sleep 0.217; done' & exit 7"
    assert run(LOCAL, Command(argv=("sh", "-c", script))).exit_code == 7
    goes_on = Command(argv=("pkill", "-f", "[w]hile echo x; do sleep 0.217"))
    assert run(LOCAL, goes_on).succeeded


def test_a_sif_in_the_home_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell turns the ~ of an arm into a path."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "own.sif").write_bytes(b"not much")
    found = sif.given(LOCAL, "~/own.sif", local=LOCAL, progress=Progress(print))
    assert found.path == str(tmp_path / "own.sif")
    with pytest.raises(StackError, match=r"none\.sif is not on local"):
        sif.given(LOCAL, "~/none.sif", local=LOCAL, progress=Progress(print))
