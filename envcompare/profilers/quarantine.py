"""What a profiler has left on a host: taken out of reach of every container, and brought here.

A container may write anything into its scratch folder, at any time: links, pipes, files without an
end. So nothing there is opened by its name. What an arm left is moved into a folder that no
container is shown, and read and exported in there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envcompare.errors import CopyError, ProfileError, WorkloadError
from envcompare.transport import Transport, make_new_folder, remove_folder
from envcompare.transport.copies import FileType, RemoteFile, fetch, look, take

KEPT_BYTES = 32 << 20  # of a raw file, compressed by its tool; a larger one is read and left
# The few steps of a profile leave some MB, at the most some hundred; what an arm leaves shall not
# fill the disk here.
MOST_BYTES = 1 << 30

READ_LOG: Final = "read its output in the log of the arm in the run folder"
_FILE_TYPES: Final = {
    FileType.FOLDER: "a folder",
    FileType.LINK: "a symbolic link",
    FileType.PIPE: "a named pipe",
    FileType.SOCKET: "a socket",
    FileType.BLOCK_DEVICE: "a block device",
    FileType.CHARACTER_DEVICE: "a character device",
    FileType.REGULAR: "a file with a second name (a hard link)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """A private folder on a host for what an arm has left: no container is shown it."""

    transport: Transport
    arm: str
    folder: str

    def take(self, place: str, *names: str) -> RemoteFile | None:
        """Take the file of these names below a folder that the arm may write to.

        None where there is nothing. Raises WorkloadError of the phase `protocol` for what is no
        regular file or has a second name, ProfileError where it cannot be moved or is too large.
        """
        target = f"{self.folder}/{names[-1]}"
        try:
            taken = take(self.transport, place, names=names, target=target)
        except CopyError as error:
            raise _unfetched(error) from error
        if taken is not None and not taken.is_plain:
            raise WorkloadError(
                f"{self.arm}: the profile {taken.name} is {_FILE_TYPES[taken.type]}; it was not "
                "read",
                details="a profiler writes regular files: another program in the arm put it there",
                hint=DISTRUST,
                phase="protocol",
            )
        return taken and _of_allowed_size(taken)

    def written(self, name: str) -> RemoteFile:
        """Return what the host's own tool has written here; raises ProfileError without one."""
        file = look(self.transport, f"{self.folder}/{name}")
        if file is None or not file.is_plain:
            raise ProfileError(f"the tool on the host wrote no {name}", hint=READ_LOG)
        return _of_allowed_size(file)

    def fetch(self, taken: RemoteFile, target: Path) -> None:
        """Bring a file of the quarantine here; raises ProfileError where that fails.

        Raises TransportError when the host is lost.
        """
        try:
            fetch(self.transport, taken, target)
        except CopyError as error:
            raise _unfetched(error) from error


DISTRUST: Final = (
    "do not trust what this arm reports; check what its Python runs at startup, such as "
    "sitecustomize.py and .pth files"
)


def _of_allowed_size(taken: RemoteFile) -> RemoteFile:
    if taken.size_bytes <= MOST_BYTES:
        return taken
    raise ProfileError(
        f"the file {taken.name} is too large to be read",
        details=f"it has {taken.size_bytes / 2**30:.1f} GiB, and the limit is "
        f"{MOST_BYTES >> 30} GiB",
        hint="profile smaller steps, for example with a smaller batch by --set",
    )


def _unfetched(error: CopyError) -> ProfileError:
    return ProfileError("the file could not be fetched", details=error.details, hint=error.hint)


@contextmanager
def quarantine(transport: Transport, arm: str, folder: str) -> Iterator[Quarantine]:
    """Give an empty quarantine at that path, and remove it with all that is in it.

    Raises StackError where it cannot be made.
    """
    make_new_folder(transport, folder)
    try:
        yield Quarantine(transport=transport, arm=arm, folder=folder)
    finally:
        remove_folder(transport, folder)
