"""A local socket that reaches a UNIX socket of another machine, carried by OpenSSH."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from envcompare.errors import TransportError
from envcompare.transport.ssh_settings import Destination, SshOptions

_START_S = 20.0


@contextmanager
def forwarding(
    destination: Destination, options: SshOptions, *, local: Path, remote: str
) -> Iterator[None]:
    """Keep `ssh -L local:remote` running; its folder must be the user's alone."""
    log = local.with_suffix(".log")
    with log.open("wb") as stderr:
        try:
            ssh = subprocess.Popen(
                _argv(destination, options, f"{local}:{remote}"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise _failed(destination, remote, "the program ssh is not installed here") from error
    with ssh:
        try:
            why = _await_socket(ssh, local, log)
            if why:
                raise _failed(destination, remote, why)
            yield
        finally:
            ssh.kill()


def _argv(destination: Destination, options: SshOptions, forward: str) -> list[str]:
    config = options.config_path()
    settings = (
        "BatchMode=yes", "ClearAllForwardings=no", "ControlMaster=no", "ControlPath=none",
        "ExitOnForwardFailure=yes", "ConnectTimeout=10", "ServerAliveInterval=5",
        "StreamLocalBindMask=0177",
        f"StrictHostKeyChecking={'accept-new' if options.accept_new_host_keys else 'yes'}",
    )  # fmt: skip
    argv = ["ssh", "-nNT", "-L", forward, *(f"-o{setting}" for setting in settings)]
    argv += ["-F", str(config)] if config else []
    argv += ["-l", destination.user] if destination.user else []
    argv += ["-p", str(destination.port)] if destination.port else []
    return [*argv, "--", destination.alias]


def _await_socket(ssh: subprocess.Popen[bytes], local: Path, log: Path) -> str:
    """Wait until the socket is listened to; say why where it never will be."""
    end = time.monotonic() + _START_S
    while not _is_open(local):
        if ssh.poll() is not None:
            return log.read_text(errors="replace").strip()[-300:]
        if time.monotonic() > end:
            return f"ssh made no socket within {_START_S:g} s"
        time.sleep(0.02)
    return ""


def _is_open(local: Path) -> bool:
    """Say whether somebody accepts connections; a socket has a name before anybody does."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(local)) == 0


def _failed(destination: Destination, remote: str, why: str) -> TransportError:
    return TransportError(
        f"the socket {remote} of host '{destination}' cannot be reached from here",
        details=why,
        hint=f"check that `ssh {destination.alias} true` works without a question",
    )
