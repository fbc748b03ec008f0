"""The local end of a forwarded socket."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from pathlib import Path

from envcompare.transport.openssh import _await_socket


def test_socket_that_nobody_listens_to_yet_is_waited_for(tmp_path: Path) -> None:
    """Between bind and listen a socket has a name and refuses whoever comes."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as server, subprocess.Popen(("sleep", "60")) as ssh:
        server.bind(str(path))
        listening = threading.Event()

        def listen() -> None:
            time.sleep(0.2)
            listening.set()
            server.listen()

        thread = threading.Thread(target=listen)
        thread.start()
        assert _await_socket(ssh, path, tmp_path / "log") == ""
        assert listening.is_set()
        thread.join()
        ssh.kill()


def test_forwarder_that_ended_says_why(tmp_path: Path) -> None:
    """What it wrote is the reason."""
    (tmp_path / "log").write_text("Permission denied (publickey).\n")
    with subprocess.Popen(("true",)) as ssh:
        ssh.wait()
        why = _await_socket(ssh, tmp_path / "socket", tmp_path / "log")
    assert why == "Permission denied (publickey)."
