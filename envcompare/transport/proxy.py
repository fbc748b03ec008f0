"""The program that ProxyCommand names, in place of a connection over TCP."""

from __future__ import annotations

import socket
import subprocess
import threading


def start_proxy(command: str) -> socket.socket:
    """Start ProxyCommand on one end of a socket pair; it is shell text by its definition."""
    ours, theirs = socket.socketpair()
    with theirs:
        program = subprocess.Popen(
            ("/bin/sh", "-c", f"exec {command}"),
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            start_new_session=True,
        )
    threading.Thread(target=program.wait, daemon=True).start()
    return ours
