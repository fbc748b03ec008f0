"""What an arm leaves on a host is taken and read as a plain file, or not at all, on real hosts."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from envcompare.errors import CopyError, ProfileError, WorkloadError
from envcompare.profilers import MOST_BYTES, ProfilerRun, Quarantine, Tool
from envcompare.profilers.ncu import MEMORY, Ncu
from envcompare.transport import LOCAL, Transport, make_new_folder, shell
from envcompare.transport.copies import RemoteFile, fetch, take

SECRET = "the secret of the host"
NAME = "trace.nsys-rep"
# $1 the folder of a test: what an arm may write to is $1/scratch, and the secret is not below it
PREPARE = f'mkdir "$1/scratch" "$1/secret" && printf %s "{SECRET}" >"$1/secret/{NAME}"'
PLANT = {
    "a symbolic link": f'mkdir nsys && ln -s "$1/secret/{NAME}" nsys/{NAME}',
    "a link to a link": f'mkdir nsys && ln -s "$1/secret/{NAME}" x && ln -s ../x nsys/{NAME}',
    "a link that leads nowhere": f"mkdir nsys && ln -s /no/where nsys/{NAME}",
    "a link to a folder": f'mkdir nsys && ln -s "$1/secret" nsys/{NAME}',
    "a link in place of the folder": 'ln -s "$1/secret" nsys',
    "a relative link in place of the folder": "ln -s ../secret nsys",
    "a second name": f'mkdir nsys && ln "$1/secret/{NAME}" nsys/{NAME}',
    "a named pipe": f"mkdir nsys && mkfifo nsys/{NAME}",
    "a named pipe in place of the folder": "mkfifo nsys",
    "a folder": f"mkdir -p nsys/{NAME}/nsys",
}
# Prints what it sees around itself, as ncu takes options from a file in the folder it runs in.
TOOL = """#!/bin/sh
echo "$*"
ls
pwd
echo "$TMPDIR"
"""


@pytest.fixture
def place(transport: Transport, folder: str) -> str:
    """Give a folder with a scratch that an arm may write to, and a secret beside it."""
    assert shell(transport, PREPARE, folder).succeeded
    return folder


@pytest.fixture
def own(transport: Transport, place: str) -> Iterator[Quarantine]:
    """Give a quarantine beside them."""
    with Quarantine.empty(transport, "docker", f"{place}/taken") as made:
        yield made


def planted(transport: Transport, place: str, script: str) -> None:
    """Do in the scratch what an arm could do."""
    done = shell(transport, f'cd "$1/scratch" && {script}', place)
    assert done.succeeded, done.stderr


def left_and_taken(transport: Transport, place: str, own: Quarantine, content: str) -> RemoteFile:
    """Leave a plain file in the scratch, and take it."""
    planted(transport, place, f"mkdir nsys && printf %s {content} >nsys/{NAME}")
    taken = own.take(f"{place}/scratch", "nsys", NAME)
    assert taken is not None
    return taken


def secret(transport: Transport, place: str) -> str:
    """Return what the secret holds."""
    return shell(transport, 'cat -- "$1"', f"{place}/secret/{NAME}").stdout


def test_a_plain_file_is_taken_and_fetched(
    transport: Transport, place: str, own: Quarantine, tmp_path: Path
) -> None:
    """It comes whole, and stands in the scratch no more."""
    planted(transport, place, f"mkdir nsys && seq 300000 >nsys/{NAME}")
    taken = own.take(f"{place}/scratch", "nsys", NAME)
    assert taken is not None
    own.fetch(taken, tmp_path / "new" / "trace")
    assert (tmp_path / "new" / "trace").read_text().splitlines()[-1] == "300000"
    assert taken.size_bytes == (tmp_path / "new" / "trace").stat().st_size
    assert own.take(f"{place}/scratch", "nsys", NAME) is None


@pytest.mark.parametrize("names", [(NAME,), ("nsys", NAME)])
def test_what_is_not_there_is_nothing(place: str, own: Quarantine, names: tuple[str, ...]) -> None:
    """A profiler may have left no file."""
    assert own.take(f"{place}/scratch", *names) is None


@pytest.mark.parametrize("what", PLANT)
def test_what_is_no_plain_file_is_refused(
    transport: Transport, place: str, own: Quarantine, what: str
) -> None:
    """Nothing is followed, waited for or changed, and the arm is named that did it."""
    planted(transport, place, PLANT[what])
    with pytest.raises(WorkloadError) as caught:
        own.take(f"{place}/scratch", "nsys", NAME)
    assert caught.value.brief.startswith(f"docker: the profile {NAME} is a")
    assert (caught.value.phase, caught.value.exit_code) == ("protocol", 4)
    assert caught.value.hint
    assert secret(transport, place) == SECRET


def test_a_huge_file_without_content_fills_no_disk(
    transport: Transport, place: str, own: Quarantine, tmp_path: Path
) -> None:
    """A sparse file costs who makes it nothing; its size is looked at before it is read."""
    planted(transport, place, f"mkdir nsys && truncate -s {MOST_BYTES + 1} nsys/{NAME}")
    with pytest.raises(ProfileError, match=f"the file {NAME} is too large to be read") as caught:
        own.take(f"{place}/scratch", "nsys", NAME)
    assert "the limit is 1 GiB" in caught.value.details
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_grows_is_fetched_as_large_as_it_was(
    transport: Transport, place: str, own: Quarantine, tmp_path: Path
) -> None:
    """Who has it open may go on writing, and would never come to an end."""
    taken = left_and_taken(transport, place, own, "0123456789")
    shell(transport, 'head -c 100000 /dev/zero >>"$1"', taken.path)
    own.fetch(taken, tmp_path / "trace")
    assert (tmp_path / "trace").read_text() == "0123456789"


def test_a_file_that_is_gone_costs_a_profile_and_not_the_host(
    transport: Transport, place: str, own: Quarantine, tmp_path: Path
) -> None:
    """A copy that fails is told from a connection that is lost."""
    taken = left_and_taken(transport, place, own, "1")
    shell(transport, 'rm -- "$1"', taken.path)
    with pytest.raises(ProfileError, match="could not be fetched"):
        own.fetch(taken, tmp_path / "trace")
    assert list(tmp_path.iterdir()) == []


def test_a_shelf_is_empty_and_goes_with_what_is_on_it(transport: Transport, place: str) -> None:
    """What an earlier pass has left there is not taken for what this one left."""
    path = f"{place}/taken"
    assert shell(transport, 'mkdir "$1" && echo old >"$1/old"', path).succeeded
    with Quarantine.empty(transport, "docker", path):
        assert shell(transport, 'ls -A "$1"; stat -c %a "$1"', path).stdout == "700\n"
        shell(transport, 'mkdir "$1/folder" && echo new >"$1/folder/new"', path)
    assert not shell(transport, '[ -e "$1" ]', path).succeeded


def test_a_link_is_not_taken_for_the_folder_of_a_profiler(transport: Transport, place: str) -> None:
    """The mode of what it leads to would be changed, and the profile written there."""
    planted(transport, place, 'chmod 755 "$1/secret" && ln -s "$1/secret" nsys')
    make_new_folder(transport, f"{place}/scratch/nsys")
    asked = 'stat -c %F,%a "$1/scratch/nsys" "$1/secret"'
    assert shell(transport, asked, place).stdout == "directory,700\ndirectory,755\n"
    assert secret(transport, place) == SECRET


def exported(transport: Transport, place: str, own: Quarantine) -> str:
    """Export with a tool that tells what it sees; return what it wrote."""
    path = f"{place}/ncu"
    assert shell(transport, 'printf %s "$2" >"$1" && chmod 755 "$1"', path, TOOL).succeeded
    tool = Tool(name="ncu", program=path, folder=place, version="1.0")
    folder = f"{place}/scratch/ncu-memory"
    profiler = ProfilerRun(kind=MEMORY, tool=tool, arguments=(), folder=folder)
    found = Ncu().export(own, profiler, log="")
    assert found.export.name == "counters.csv"
    return shell(transport, 'cat -- "$1"', found.export.path).stdout


def test_an_export_is_made_where_no_arm_can_write(
    transport: Transport, place: str, own: Quarantine
) -> None:
    """Links under the names that it writes, and options for the tool, stay where they are."""
    plant = (
        "mkdir ncu-memory && cd ncu-memory && echo report >counters.ncu-rep && "
        f'ln -s "$1/secret/{NAME}" counters.csv && echo "<log>" >config.ncu-cfg'
    )
    planted(transport, place, plant)
    said, *names, folder, temporary = exported(transport, place, own).splitlines()
    assert said == "--import counters.ncu-rep --csv --page raw --print-units base"
    assert names == ["counters.csv", "counters.ncu-rep"]
    assert folder == temporary == own.folder
    assert secret(transport, place) == SECRET


def test_a_report_that_is_a_link_is_not_exported(
    transport: Transport, place: str, own: Quarantine
) -> None:
    """Its tool would be shown a file of the host."""
    plant = f'mkdir ncu-memory && ln -s "$1/secret/{NAME}" ncu-memory/counters.ncu-rep'
    planted(transport, place, plant)
    with pytest.raises(WorkloadError, match=r"counters\.ncu-rep is a symbolic link"):
        exported(transport, place, own)


@contextmanager
def swapping(scratch: Path, secrets: Path) -> Iterator[None]:
    """Let a folder and a link to the secrets take each other's place as fast as they can."""
    is_over = threading.Event()
    (scratch / "other").symlink_to(secrets)

    def swap() -> None:
        while not is_over.is_set():
            for source, target in (("nsys", "aside"), ("other", "nsys"), ("aside", "other")):
                os.rename(scratch / source, scratch / target)  # noqa: PTH104  no checks between

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_who_swaps_a_folder_for_a_link_at_the_same_time_gains_nothing(tmp_path: Path) -> None:
    """A look before the file is opened would come too early now and then."""
    scratch, secrets = tmp_path / "scratch", tmp_path / "secrets"
    for path in (scratch / "nsys", secrets, tmp_path / "own"):
        path.mkdir(parents=True)
    (secrets / NAME).write_text(SECRET)
    with swapping(scratch, secrets):
        for number in range(150):
            target = tmp_path / "own" / str(number)
            _taken_or_refused(scratch, target, tmp_path / "fetched")
    assert (secrets / NAME).read_text() == SECRET


def _taken_or_refused(scratch: Path, target: Path, fetched: Path) -> None:
    for folder in ("nsys", "other"):
        with suppress(OSError):
            (scratch / folder / NAME).touch()
    try:
        taken = take(LOCAL, str(scratch), names=("nsys", NAME), target=str(target))
    except CopyError:
        return
    if isinstance(taken, RemoteFile) and taken.is_plain:
        fetch(LOCAL, taken, fetched)
        assert fetched.read_text() == ""
