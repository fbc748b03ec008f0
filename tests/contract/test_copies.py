"""Copies of files that are cut, damaged, or made twice at a time, on real hosts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from lab import Lab, served_by
from spoiling import Spoiling

from envcompare.errors import CommandTimeoutError, InterruptedRunError, Interruption, TransportError
from envcompare.text import Command
from envcompare.transport import Process, Transport, copies, file_sha256, run
from envcompare.transport.copies import get_file, put_file
from envcompare.transport.hosts import InterruptibleTransport, connect, parse_hosts

SIZE = 20_000_000
CUT = SIZE * 6 // 10
# What is on the way when a connection ends has left this side and not arrived.
IN_FLIGHT = 3_000_000
# Makes a folder of programs in which flock is not there, or is one that always fails.
POOR = r"""
mkdir "$1" && cd "$1" || exit
for name in sh wc mkdir dirname sha256sum chmod rm df sed cat mv sleep; do
  ln -s "$(command -v "$name")" "$name" || exit
done
[ -z "$2" ] || { printf '#!/bin/sh\nexit %s\n' "$2" >flock && chmod +x flock; }
"""


class Poor(Spoiling):
    """A host on which only the programs of one folder are found."""

    def __init__(self, transport: Transport, programs: str) -> None:
        super().__init__(transport)
        self._programs = programs

    def spawn(self, command: Command) -> Process:
        """Start the command with another PATH."""
        path = ("PATH", self._programs)
        return super().spawn(Command(argv=command.argv, env=(path,)))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a file of some megabytes that cannot be packed."""
    path = tmp_path_factory.mktemp("source") / "a file"
    path.write_bytes(os.urandom(SIZE))
    return path


@pytest.fixture
def again(lab: Lab, transport: Transport) -> Iterator[Transport]:
    """Give a second transport to the same host."""
    opened = connect(parse_hosts([transport.name])[0])
    yield opened
    opened.close()


def once_at(cut: int, act: Callable[[], None]) -> Callable[[int], None]:
    """Return what acts once when so many bytes have gone."""
    done = threading.Event()

    def told(bytes_done: int) -> None:
        if bytes_done >= cut and not done.is_set():
            done.set()
            act()

    return told


def stop() -> None:
    """End a copy as the user would."""
    raise InterruptedRunError("interrupted")


def cut_short(transport: Transport, source: Path, target: str) -> None:
    """Send the first part of a file."""
    with pytest.raises(InterruptedRunError):
        put_file(transport, source, target, on_progress=once_at(CUT, stop))


def names(transport: Transport, folder: str) -> list[str]:
    """Return what is in a folder of the host."""
    return run(transport, Command(argv=("ls", "-A", folder))).stdout.splitlines()


def digest(transport: Transport, path: str) -> str:
    """Return the hash of a file of the host."""
    return run(transport, Command(argv=("sha256sum", path))).stdout[:64]


def test_an_interrupted_copy_is_gone_on_from(
    transport: Transport, folder: str, source: Path
) -> None:
    """The second call sends only what the first did not, and nothing stands there before."""
    target = f"{folder}/new/it's here"
    cut_short(transport, source, target)
    assert [name.partition(".part-")[0] for name in names(transport, f"{folder}/new")] == [
        "it's here"
    ]
    assert names(transport, f"{folder}/new") != ["it's here"]
    counting = Spoiling(transport)
    heard: list[int] = []
    put_file(counting, source, target, on_progress=heard.append)
    assert counting.sent <= SIZE - CUT + IN_FLIGHT
    assert heard[0] == SIZE - counting.sent
    assert heard[-1] == SIZE
    assert digest(transport, target) == file_sha256(source)
    assert names(transport, f"{folder}/new") == ["it's here"]


@pytest.mark.engine("ssh")
def test_a_copy_goes_on_by_itself_when_its_connection_is_cut(
    lab: Lab, tmp_path: Path, source: Path
) -> None:
    """It connects anew, and sends the rest alone."""
    transport = connect(parse_hosts([lab.alias])[0])
    server = served_by(transport)
    folder = run(transport, Command(argv=("mktemp", "-d"))).stdout.strip()
    counting = Spoiling(transport)
    told = once_at(CUT, lambda: lab.as_root("kill", "-KILL", server) and None)
    put_file(counting, source, f"{folder}/file", on_progress=told)
    assert SIZE < counting.sent + 1 <= SIZE + IN_FLIGHT
    assert digest(transport, f"{folder}/file") == file_sha256(source)
    get_file(transport, f"{folder}/file", tmp_path / "back", sha256=file_sha256(source))
    assert (tmp_path / "back").read_bytes() == source.read_bytes()
    run(transport, Command(argv=("rm", "-r", folder)))
    transport.close()


def test_a_part_that_was_damaged_is_sent_from_its_start(
    transport: Transport, folder: str, source: Path
) -> None:
    """A byte that changed on the disk meanwhile is found out by the hash of the whole."""
    cut_short(transport, source, f"{folder}/file")
    (part,) = names(transport, folder)
    flip = 'printf xyz | dd of="$1" bs=1 seek=1000000 conv=notrunc'
    assert run(transport, Command(argv=("sh", "-c", flip, "sh", f"{folder}/{part}"))).succeeded
    counting = Spoiling(transport)
    put_file(counting, source, f"{folder}/file")
    assert counting.sent > SIZE
    assert digest(transport, f"{folder}/file") == file_sha256(source)
    assert names(transport, folder) == ["file"]


@pytest.mark.parametrize("size", [1000, SIZE])
def test_a_byte_that_changes_on_the_way_is_refused(
    transport: Transport, folder: str, source: Path, tmp_path: Path, size: int
) -> None:
    """Nothing is left of it, and what stood there before stays."""
    file = tmp_path / "file"
    file.write_bytes(source.read_bytes()[:size])
    run(transport, Command(argv=("sh", "-c", 'echo old >"$1"', "sh", f"{folder}/file")))
    with pytest.raises(TransportError) as caught:
        put_file(Spoiling(transport, flips_at=size // 2), file, f"{folder}/file")
    assert caught.value.brief == f"cannot copy {file} to {transport.name}:{folder}/file"
    assert caught.value.details == "it arrived changed or not whole"
    assert caught.value.hint
    assert names(transport, folder) == ["file"]
    assert run(transport, Command(argv=("cat", f"{folder}/file"))).stdout == "old\n"


def test_two_copies_to_one_name_do_not_disturb_each_other(
    transport: Transport, again: Transport, folder: str, source: Path
) -> None:
    """Each arrives or finds what the other sent; no part is left."""
    threads = [
        threading.Thread(target=put_file, args=(one, source, f"{folder}/file"))
        for one in (transport, again, transport)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert digest(transport, f"{folder}/file") == file_sha256(source)
    assert names(transport, folder) == ["file"]


@pytest.mark.parametrize("flock_exit", ["", "71"])
@pytest.mark.parametrize("size", [1000, SIZE])
def test_a_host_that_cannot_lock_is_sent_to_as_well(
    transport: Transport, folder: str, source: Path, tmp_path: Path, *, flock_exit: str, size: int
) -> None:
    """Neither the program flock nor a file system that can lock is needed."""
    programs = Command(argv=("sh", "-c", POOR, "sh", f"{folder}/programs", flock_exit))
    assert run(transport, programs).succeeded
    file = tmp_path / "file"
    file.write_bytes(source.read_bytes()[:size])
    for _ in range(2):
        put_file(Poor(transport, f"{folder}/programs"), file, f"{folder}/new/file")
    assert digest(transport, f"{folder}/new/file") == file_sha256(file)
    assert names(transport, f"{folder}/new") == ["file"]


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_copy_in_which_nothing_moves_is_given_up(
    transport: Transport,
    folder: str,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_sent: bool,
) -> None:
    """A disk or a network share of the host may take or give nothing, and no connection ends."""
    for name, seconds in (("_STALL_S", 0.6), ("_HASHING_S", 3.0), ("_TICK_S", 0.1)):
        monkeypatch.setattr(copies, name, seconds)
    programs = f"{folder}/programs"
    stuck = "printf '#!/bin/sh\\nexec sleep 300\\n' >cat && chmod +x cat && cp cat tail"
    made = Command(argv=("sh", "-c", f"{POOR}\nrm cat && {stuck}", "sh", programs, "2"))
    assert run(transport, made).succeeded
    host = Poor(transport, programs)
    sending = partial(put_file, host, source, f"{folder}/there")
    fetching = partial(get_file, host, f"{folder}/there", tmp_path / "here", sha256=64 * "0")
    with pytest.raises(CommandTimeoutError, match="has stalled") as caught:
        (sending if is_sent else fetching)()
    # nothing was fetched yet, and of what is sent some went into a buffer
    minutes = "0.01" if is_sent else "0.05"
    assert caught.value.details == f"no data has moved for {minutes} min"


def test_a_folder_of_that_name_is_not_copied_into(
    transport: Transport, folder: str, source: Path
) -> None:
    """The file would stand there under the name of its part."""
    with pytest.raises(TransportError) as caught:
        put_file(transport, source, folder)
    assert caught.value.details == f"{folder} is a folder"
    assert names(transport, folder) == []


def test_no_copy_is_begun_once_the_user_insists_on_the_end(
    transport: Transport, folder: str, source: Path
) -> None:
    """What copies is killed like every other command."""
    interruption = Interruption()
    interruption.request()
    interruption.request()
    with pytest.raises(TransportError, match="cannot copy"):
        put_file(InterruptibleTransport(transport, interruption), source, f"{folder}/file")
    assert "file" not in names(transport, folder)


def test_parts_of_an_earlier_content_go(
    transport: Transport, folder: str, source: Path, tmp_path: Path
) -> None:
    """What was begun and is wanted no more does not fill the disk."""
    cut_short(transport, source, f"{folder}/file")
    other = tmp_path / "other"
    other.write_text("new")
    put_file(transport, other, f"{folder}/file")
    assert names(transport, folder) == ["file"]
    assert run(transport, Command(argv=("cat", f"{folder}/file"))).stdout == "new"


def test_a_file_that_is_there_already_is_not_sent(
    transport: Transport, folder: str, source: Path
) -> None:
    """The hash of what stands there is enough; its mode is put right."""
    put_file(transport, source, f"{folder}/file")
    run(transport, Command(argv=("chmod", "600", f"{folder}/file")))
    counting = Spoiling(transport)
    put_file(counting, source, f"{folder}/file")
    assert counting.sent == 0
    mode = f"{source.stat().st_mode & 0o777:o}\n"
    assert run(transport, Command(argv=("stat", "-c", "%a", f"{folder}/file"))).stdout == mode


def test_an_interrupted_fetch_is_gone_on_from(
    transport: Transport, folder: str, source: Path, tmp_path: Path
) -> None:
    """Where the hash is known, what has come is kept, unless it is wrong."""
    put_file(transport, source, f"{folder}/file")
    whole, target = file_sha256(source), tmp_path / "back"
    for is_damaged in (False, True):
        with pytest.raises(InterruptedRunError):
            get_file(
                transport, f"{folder}/file", target, sha256=whole, on_progress=once_at(CUT, stop)
            )
        (part,) = tmp_path.iterdir()
        if is_damaged:
            content = part.read_bytes()
            part.write_bytes(b"x" + content[1:])
        heard: list[int] = []
        get_file(transport, f"{folder}/file", target, sha256=whole, on_progress=heard.append)
        assert heard[0] > CUT
        assert min(heard) < CUT if is_damaged else min(heard) > CUT
        assert file_sha256(target) == whole
        assert list(tmp_path.iterdir()) == [target]
        target.unlink()


def test_a_fetch_that_is_gone_on_from_keeps_within_its_limit(
    transport: Transport, folder: str, tmp_path: Path
) -> None:
    """What an earlier one has left counts too, where the file has grown on the host."""
    run(transport, Command(argv=("sh", "-c", 'printf %15s >"$1"', "sh", f"{folder}/file")))
    whole = "0" * 64
    (tmp_path / f"back.part-{whole[:16]}").write_bytes(b" " * 6)
    heard: list[int] = []
    with pytest.raises(TransportError) as caught:
        get_file(
            transport,
            f"{folder}/file",
            tmp_path / "back",
            sha256=whole,
            most_bytes=10,
            on_progress=heard.append,
        )
    assert "sent more than the file had" in str(caught.value.details)
    assert heard == []


def test_a_fetch_that_arrives_changed_is_refused(
    transport: Transport, folder: str, tmp_path: Path
) -> None:
    """Another content than was asked for leaves nothing here."""
    run(transport, Command(argv=("sh", "-c", 'echo other >"$1"', "sh", f"{folder}/file")))
    with pytest.raises(TransportError, match="cannot copy"):
        get_file(transport, f"{folder}/file", tmp_path / "back", sha256="0" * 64)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.engine("ssh")
@pytest.mark.parametrize("is_seen_before", [True, False])
def test_a_full_disk_is_said_as_such(lab: Lab, source: Path, *, is_seen_before: bool) -> None:
    """Nothing is sent that has no room; what fills the disk on the way does not stay."""
    transport = connect(parse_hosts([lab.alias])[0])
    folder = run(transport, Command(argv=("mktemp", "-d"))).stdout.strip()
    size = "8m" if is_seen_before else "24m"
    lab.as_root("mount", "-t", "tmpfs", "-o", f"size={size},mode=777", "tmpfs", folder)
    fill = Command(argv=("sh", "-c", 'head -c 12000000 /dev/zero >"$1"', "sh", f"{folder}/other"))
    told = once_at(SIZE // 4, lambda: None if is_seen_before else run(transport, fill) and None)
    counting = Spoiling(transport)
    try:
        with pytest.raises(TransportError) as caught:
            put_file(counting, source, f"{folder}/file", on_progress=told)
        assert "No space left on device" in caught.value.details
        assert (counting.sent == 0) is is_seen_before
        assert names(transport, folder) == [] if is_seen_before else ["other"]
    finally:
        lab.as_root("umount", folder)
        run(transport, Command(argv=("rmdir", folder)))
        transport.close()
