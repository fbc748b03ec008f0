"""Processes of one run on several hosts: connections on which both ends prove its secret.

The secret reaches each host over SSH and is never sent here. The client gives its name, and each
end sends an HMAC of a number that the other end has just drawn, which prevents replay, and of the
addresses of the connection, which prevents relaying over another one. Over such connections the
processes find each other; see `SharedStore`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import hmac
import json
import os
import secrets
import socket
import struct
import threading
import time
from datetime import timedelta
from typing import Any, Callable, Optional

import torch  # noqa: TID251  its home is workloads/
import torch.distributed  # noqa: TID251

JOIN_LIMIT_S = 45.0  # until the processes of a host have joined, once started
JOIN_LIMIT = timedelta(seconds=JOIN_LIMIT_S)
_PROOF_LIMIT_S = 5.0  # for a client's proof; on a busy host a rank may wait for a CPU
_LINE_BYTES = 1 << 10  # the longest proof
_NONCE_BYTES = 16
_PAUSE_S = 0.01  # between looks at a key that is not set
_GET_ADDRESS = 0x8915  # SIOCGIFADDR, netdevice(7)


def read_secret() -> bytes:
    """Return the secret of the run, from the file that was sent to each host."""
    with open(os.environ["ENVCOMPARE_TEAM"], "rb") as file:
        return file.read()


def proof(secret: bytes, *words: str) -> bytes:
    """Return the HMAC-SHA-256 of words, as 32 bytes (RFC 2104)."""
    return hmac.new(secret, json.dumps(words).encode(), hashlib.sha256).digest()


class Meeting:
    """The place where the first process waits for the others, on one address of its host."""

    def __init__(self, secret: bytes) -> None:
        """Listen; raise RuntimeError if that fails."""
        self._secret = secret
        self._strangers = 0
        self._joined: dict[str, socket.socket] = {}  # by name, until they are asked for
        self.address, self.port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        try:
            self._listener = socket.create_server((self.address, self.port), backlog=64)
        except OSError as error:
            code = error.errno or 0
            why = "does this environment have the network of its host?"
            raise RuntimeError(
                f"the ranks of other hosts cannot join at {self.address}, port {self.port}: "
                f"{os.strerror(code)}; "
                f"{'another program listens there' if code == errno.EADDRINUSE else why}"
            ) from error

    def close(self) -> None:
        """Accept no more connections, and close those that nobody has asked for."""
        self._listener.close()
        for connection in self._joined.values():
            connection.close()

    def accept(self, wanted: list[str]) -> list[socket.socket]:
        """Return a connection for each of these names; raise RuntimeError if one is missing.

        Others that join meanwhile are kept: a rank may ask for the store before the last one joins.
        """
        deadline = time.monotonic() + JOIN_LIMIT_S
        while missing := [name for name in wanted if name not in self._joined]:
            try:
                self._listener.settimeout(max(0.01, deadline - time.monotonic()))
                connection, _ = self._listener.accept()
            except OSError as error:
                raise RuntimeError(self._absence(missing[0])) from error
            name = self._admit(connection)
            if name is not None:
                self._joined[name] = connection
                continue
            connection.close()
            self._strangers += 1
            if time.monotonic() > deadline:
                raise RuntimeError(self._absence(missing[0]))
        return [self._joined.pop(name) for name in wanted]

    def _absence(self, name: str) -> str:
        strangers = f" (connections without the secret of this run: {self._strangers})"
        return (
            f"{name} did not join within {JOIN_LIMIT_S:.0f} s at {self.address}, port {self.port}"
            f"{strangers * bool(self._strangers)}. A firewall between the hosts must let pass TCP "
            "to ports from 20000 to 31999 of the first host, and above 32767 of all; the other "
            "host's log in the run folder may say more"
        )

    def _admit(self, connection: socket.socket) -> Optional[str]:
        """Return the name of the client if both ends prove the secret, else None."""
        nonce, deadline = secrets.token_hex(_NONCE_BYTES), time.monotonic() + _PROOF_LIMIT_S
        try:
            connection.sendall(nonce.encode() + b"\n")
            name, theirs, answer = json.loads(_read_line(connection, deadline))
            ends = _ends(connection.getpeername(), connection.getsockname())
            expected = proof(self._secret, "join", name, nonce, theirs, *ends).hex()
            if not hmac.compare_digest(expected, answer):
                return None
            own = proof(self._secret, "lead", name, nonce, theirs, *ends)
            connection.sendall(own.hex().encode() + b"\n")
            _keep(connection)
        except (OSError, RecursionError, TypeError, ValueError):
            return None
        return str(name)


def connect(name: str, secret: bytes) -> socket.socket:
    """Connect to the first process under a name.

    Raises RuntimeError if it does not prove the secret, and OSError if it cannot be reached.
    """
    place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    connection = socket.create_connection(place, timeout=JOIN_LIMIT_S)
    try:
        is_first = _is_first(connection, name, secret)
        why = "its proof is wrong, or addresses are translated between the hosts"
    except (OSError, ValueError) as error:
        is_first, why = False, str(error)
    if not is_first:
        connection.close()
        raise RuntimeError(
            f"the program at {place[0]}, port {place[1]} did not prove that it is the first rank "
            f"of this run ({why}), so it gets no data"
        )
    _keep(connection)
    return connection


def _is_first(connection: socket.socket, name: str, secret: bytes) -> bool:
    """Prove the secret to the other end; return whether that end proves it too."""
    deadline = time.monotonic() + JOIN_LIMIT_S
    own = secrets.token_hex(_NONCE_BYTES)
    nonce = _read_line(connection, deadline).decode().strip()
    ends = _ends(connection.getsockname(), connection.getpeername())
    answer = proof(secret, "join", name, nonce, own, *ends).hex()
    connection.sendall(json.dumps([name, own, answer]).encode() + b"\n")
    expected = proof(secret, "lead", name, nonce, own, *ends).hex().encode()
    return hmac.compare_digest(expected, _read_line(connection, deadline).strip())


def _ends(client: tuple[str, int], server: tuple[str, int]) -> tuple[str, str]:
    """Return both ends of a connection, in the same form on either side."""
    return f"{client[0]}:{client[1]}", f"{server[0]}:{server[1]}"


def _read_line(connection: socket.socket, deadline: float) -> bytes:
    """Return a line; what follows it stays in the connection."""
    line = b""
    while not line.endswith(b"\n"):
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        byte = connection.recv(1)
        if not byte or len(line) == _LINE_BYTES:
            raise ConnectionError("it hung up" if not byte else "its line is too long")
        line += byte
    return line


def _keep(connection: socket.socket) -> None:
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def interface_of(address: str) -> str:
    """Return the network device of this host whose first IPv4 address this is.

    gloo and NCCL announce the first address of the device to other ranks. Raises RuntimeError if no
    device has this address as its first.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as endpoint:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                reply = fcntl.ioctl(endpoint, _GET_ADDRESS, request)
                if socket.inet_ntoa(reply[20:24]) == socket.gethostbyname(address):
                    return name
    raise RuntimeError(
        f"no network device of this host has the address {address} as its first, by which ranks "
        "would find it; name the host by the first address of a device"
    )


class Table:
    """The keys by which processes find each other, held by the first process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def ask(self, op: str, key: str = "", *words: Any) -> Any:  # noqa: ANN401  what JSON carries
        """Carry out an operation; bytes are hexadecimal text."""
        ops: dict[str, Callable[..., Any]] = {
            "set": self._set,
            "get": lambda key: self._values[key].hex() if key in self._values else None,
            "add": self._add,
            "swap": self._swap,
            "delete": lambda key: self._values.pop(key, None) is not None,
            "count": lambda _: len(self._values),
        }
        with self._lock:
            return ops[op](key, *words)

    def serve(self, connection: socket.socket) -> None:
        """Answer the requests of a connection, one line of JSON each, until it ends."""

        def answer() -> None:
            with connection, connection.makefile("rb") as lines, contextlib.suppress(OSError):
                for line in lines:
                    reply = json.dumps(self.ask(*json.loads(line)))
                    connection.sendall(reply.encode() + b"\n")

        threading.Thread(target=answer, daemon=True).start()

    def _set(self, key: str, value: str) -> None:
        self._values[key] = bytes.fromhex(value)

    def _add(self, key: str, amount: int) -> int:
        total = int(self._values.get(key, b"0")) + amount
        self._values[key] = str(total).encode()
        return total

    def _swap(self, key: str, expected: str, desired: str) -> str:
        """Set a key that has the expected value; return what it has then."""
        if self._values.get(key, b"").hex() == expected:
            self._values[key] = bytes.fromhex(desired)
        return self._values[key].hex() if key in self._values else expected


class SharedStore(torch.distributed.Store):  # type: ignore[misc]  # Any where there is no torch
    """A store of PyTorch over authenticated connections; TCPStore does not authenticate.

    The caller must keep a reference: PyTorch holds only the C++ part, which lacks these methods.
    """

    def __init__(self, ask: Callable[..., Any]) -> None:
        super().__init__()
        self._ask = ask

    @classmethod
    def joined(cls, rank: int, secret: bytes) -> SharedStore:
        """Return the first process's store, as seen from another process."""
        connection, lock = connect(f"store {rank}", secret), threading.Lock()
        lines = connection.makefile("rb")

        def ask(*request: Any) -> Any:  # noqa: ANN401
            with lock:
                connection.sendall(json.dumps(request).encode() + b"\n")
                reply = lines.readline()
            if not reply:
                raise ConnectionError("the first rank has ended")
            return json.loads(reply)

        return cls(ask)

    def set(self, key: str, value: Any) -> None:  # noqa: ANN401  bytes, or a text
        """Set a key."""
        self._ask("set", key, _as_bytes(value).hex())

    def get(self, key: str) -> bytes:
        """Return the value of a key once it is set; raise RuntimeError if that takes too long."""
        self.wait([key])
        return bytes.fromhex(self._ask("get", key))

    def add(self, key: str, amount: int) -> int:
        """Add to the number of a key and return the sum."""
        total: int = self._ask("add", key, amount)
        return total

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are set."""
        return all(self._ask("get", key) is not None for key in keys)

    def wait(self, keys: list[str], timeout: timedelta = JOIN_LIMIT) -> None:
        """Wait until all keys are set; raise RuntimeError if that takes too long."""
        deadline = time.monotonic() + min(timeout, JOIN_LIMIT).total_seconds()
        while not self.check(keys):
            if time.monotonic() > deadline:
                raise RuntimeError(f"another rank did not set {', '.join(keys)} in time")
            time.sleep(_PAUSE_S)

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:  # noqa: ANN401
        """Set a key that has the expected value, or that is unset if `expected` is empty."""
        words = (_as_bytes(expected).hex(), _as_bytes(desired).hex())
        return bytes.fromhex(self._ask("swap", key, *words))

    def delete_key(self, key: str) -> bool:
        """Delete a key; return whether it was set."""
        return bool(self._ask("delete", key))

    def num_keys(self) -> int:
        """Return how many keys are set."""
        return int(self._ask("count"))

    def clone(self) -> SharedStore:
        """Return this store: it may be shared."""
        return self


def _as_bytes(value: Any) -> bytes:  # noqa: ANN401
    return value.encode() if isinstance(value, str) else bytes(value)


def prove_peers(secret: bytes, device: str, group: Any = None) -> None:  # noqa: ANN401
    """Check that each connection of a PyTorch group ends in a process that knows the secret.

    Each pair exchanges HMACs on the connection that its data will take. Raises RuntimeError if a
    proof is wrong or late.
    """
    size, rank = torch.distributed.get_world_size(group), torch.distributed.get_rank(group)
    own = [secrets.token_bytes(_NONCE_BYTES) for _ in range(size)]
    theirs = _exchange(own, device, group)
    proofs = _exchange(
        [
            proof(secret, f"{rank} to {peer}", theirs[peer].hex(), own[peer].hex())
            for peer in range(size)
        ],
        device,
        group,
    )
    for peer in range(size):
        words = (f"{peer} to {rank}", own[peer].hex(), theirs[peer].hex())
        if not hmac.compare_digest(proof(secret, *words), proofs[peer]):
            raise RuntimeError(
                f"what answers as rank {peer} does not know the secret of this run: another "
                "program has taken its connection, and nothing is computed with it"
            )


def _exchange(rows: list[bytes], device: str, group: Any) -> list[bytes]:  # noqa: ANN401
    """Send each process its row, all of one length; return the rows that they sent."""
    sent = torch.tensor(list(b"".join(rows)), dtype=torch.uint8, device=device)
    received = torch.empty_like(sent)
    try:
        work = torch.distributed.all_to_all_single(received, sent, group=group, async_op=True)
        work.wait(JOIN_LIMIT)
    except RuntimeError as error:
        raise RuntimeError(
            "the ranks could not prove to each other that they belong to this run: "
            f"{str(error).splitlines()[0]}; one has ended, or another program has its connection"
        ) from error
    joined, length = bytes(received.tolist()), len(rows[0])
    return [joined[at : at + length] for at in range(0, len(joined), length)]
