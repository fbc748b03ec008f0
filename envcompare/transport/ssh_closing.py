"""Closing a channel in order: sshd ends a whole connection where anything follows a CLOSE.

paramiko builds a message under the channel's lock and sends it after that. When a command ends just
as its input is written or closed, the answer to its CLOSE may so overtake the message.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any
from weakref import WeakKeyDictionary

import paramiko  # noqa: TID251
from paramiko.channel import Channel  # noqa: TID251
from paramiko.common import MSG_CHANNEL_CLOSE  # noqa: TID251
from paramiko.message import Message  # noqa: TID251

_CLOSE_S = 1.0
_locks: WeakKeyDictionary[Channel, threading.Lock] = WeakKeyDictionary()


def sending(channel: Channel) -> threading.Lock:
    """Return the lock to hold while something is sent into a channel or its input is ended."""
    return _locks.setdefault(channel, threading.Lock())


def close(channel: Channel) -> None:
    """Close a channel after what is being sent into it, which a lost window may hold up."""
    lock = sending(channel)
    is_free = lock.acquire(timeout=_CLOSE_S)
    try:
        channel.close()
    finally:
        if is_free:
            lock.release()


def _closed_there(channel: Any, _: Message) -> None:  # noqa: ANN401 — has what stubs leave out
    """Take the other side's CLOSE, and answer it when nothing is being sent any more.

    The thread of the connection must not wait for a sender: that may wait for it.
    """
    with channel.lock:
        messages = channel._close_internal()  # noqa: SLF001 — as paramiko's own handler
        channel.transport._unlink_channel(channel.chanid)  # noqa: SLF001
    lock = sending(channel)
    if lock.acquire(blocking=False):
        try:
            _answer(channel, messages)
        finally:
            lock.release()
    else:
        threading.Thread(target=_wait_and_answer, args=(channel, messages), daemon=True).start()


def _wait_and_answer(channel: Channel, messages: tuple[Message | None, ...]) -> None:
    with sending(channel), contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        _answer(channel, messages)


def _answer(channel: Any, messages: tuple[Message | None, ...]) -> None:  # noqa: ANN401
    for message in messages:
        if message is not None:
            channel.transport._send_user_message(message)  # noqa: SLF001


class OrderedTransport(paramiko.Transport):
    """A connection that answers a CLOSE only after what is being sent into that channel."""

    _channel_handler_table = {  # noqa: RUF012 — paramiko's own is such
        **vars(paramiko.Transport)["_channel_handler_table"],
        MSG_CHANNEL_CLOSE: _closed_there,
    }
