"""A real transport whose streams are watched, and spoiled where a test wants that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, cast

from typing_extensions import Self

from envcompare.text import Command
from envcompare.transport import Process, Transport


class Spoiling:
    """A transport that counts what goes into its commands, and may flip a byte or act at one."""

    def __init__(
        self,
        transport: Transport,
        *,
        flips_at: int | None = None,
        acts_at: int | None = None,
        act: Callable[[], object] = lambda: None,
    ) -> None:
        self._transport = transport
        self._flips_at = flips_at
        self._acts_at = acts_at
        self._act = act
        self.sent = 0

    @property
    def name(self) -> str:
        """Name the host."""
        return self._transport.name

    def spawn(self, command: Command) -> Process:
        """Start the command, with its input watched."""
        process = self._transport.spawn(command)
        return cast("Process", _Watched(process, self))

    def pass_on(self, data: bytes) -> bytes:
        """Return what is written in place of the data."""
        begin, flip, end = self.sent, self._flips_at, self.sent + len(data)
        self.sent = end
        if self._acts_at is not None and begin <= self._acts_at < end:
            self._act()
        if flip is not None and begin <= flip < end:
            data = data[: flip - begin] + bytes([data[flip - begin] ^ 1]) + data[flip - begin + 1 :]
        return data

    @property
    def bare(self) -> Transport:
        """Give the transport below."""
        return self._transport.bare

    def forward_unix(self, path: str) -> AbstractContextManager[Path]:
        """Leave it as it is."""
        return self._transport.forward_unix(path)

    def close(self) -> None:
        """Leave it to whoever opened it."""


class _Watched:
    def __init__(self, process: Process, owner: Spoiling) -> None:
        self._process = process
        self.stdin = _Input(process.stdin, owner)

    def __getattr__(self, name: str) -> object:
        return getattr(self._process, name)


class _Input:
    def __init__(self, stream: BinaryIO, owner: Spoiling) -> None:
        self._stream = stream
        self._owner = owner

    def write(self, data: bytes) -> int:
        return self._stream.write(self._owner.pass_on(data))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def close(self) -> None:
        self._stream.close()
