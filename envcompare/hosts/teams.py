"""Run ranks on several hosts: for each worker of the first host, start its peers on the others."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envcompare.command import Command
from envcompare.errors import StackError, UnusableError
from envcompare.hosts.folders import CellFolders
from envcompare.hosts.session import HostSession
from envcompare.measure import Variables
from envcompare.measure.worker import Worker
from envcompare.stack import Mount
from envcompare.transport import make_folder, run, shell

PROGRAM: Final = "ddp.py"
_FIRST_PORT, _PORTS = 20_000, 12_000  # below Linux's ephemeral ports
# The address by which the client reached the host, else the host's first.
_ADDRESS: Final = """set -- $SSH_CONNECTION
if [ -n "$3" ]; then printf '%s' "$3"; else set -- $(hostname -I); printf '%s' "$1"; fi
"""
_SECRET_BYTES: Final = 32
_WRITE: Final = 'umask 077; cat > "$1"'
Log = Callable[[str, str], tuple[Path, str]]
"""Of a host and an arm: the file, and its name in the run folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTeam:
    """The host of the first rank, its address for the other hosts, and those hosts.

    Each has a file with a secret of the run, by which the ranks recognize each other. It is sent
    over the transport, since every user of a host can read a command line.
    """

    leader: HostSession
    others: tuple[HostSession, ...]
    address: str

    @classmethod
    def of(cls, leader: HostSession, others: tuple[HostSession, ...]) -> HostTeam:
        """Find the address of the leader, and send a secret to all hosts.

        Raises UnusableError if the leader has no IPv4 address that others can reach, or if a secret
        cannot be written.
        """
        address = shell(leader.transport, _ADDRESS).stdout.strip()
        unfit = "an IPv6 address" if ":" in address else "a loopback address"
        if ":" in address or address.startswith("127."):
            raise UnusableError(
                f"the ranks of other hosts cannot join at {address}: it is {unfit}",
                hint=f"give {leader.host.label} by an IPv4 address that the others reach",
            )
        if not address:
            raise UnusableError(
                f"{leader.host.label} has no address that others could reach",
                hint="give it by an address that the others reach",
            )
        secret = secrets.token_hex(_SECRET_BYTES).encode()
        for session in (leader, *others):
            _hand(secret, session)
        return cls(leader=leader, others=others, address=address)

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the names of the hosts, the one of the first rank first."""
        return tuple(one.host.label for one in (self.leader, *self.others))

    def lacks(self, arm: str) -> UnusableError | None:
        """Return why an arm of the leader cannot have ranks on the others; None if it can."""
        own = dict(self.leader.arms[arm].prepared.software)
        for other in self.others:
            label = other.host.label
            if arm not in other.arms:
                return UnusableError(
                    f"{arm} is not usable on {label}, where it needs ranks",
                    hint=f"see what failed on {label}, or leave {arm} out of --envs",
                )
            theirs = dict(other.arms[arm].prepared.software)
            unlike = sorted(key for key in own.keys() | theirs if own.get(key) != theirs.get(key))
            if unlike:
                return StackError(
                    f"{arm} has other software on {label} than on {self.leader.host.label}",
                    details=f"they differ in {', '.join(unlike)}",
                    hint="give both hosts the same, or --allow-mismatch to continue anyway",
                )
        return None

    def launch(
        self,
        arm: str,
        start: Callable[[Variables], Worker],
        *,
        ranks: int,
        variables: Variables,
        log_of: Log,
    ) -> Worker:
        """Start the peers on the other hosts, then the leader's worker; they end with it.

        Hosts beyond the number of ranks are not used. The ranks find each other by torchrun's
        variables.
        """
        others = self.others[: ranks - 1]
        if not others:
            return start(variables)
        port = _FIRST_PORT + secrets.randbelow(_PORTS)
        shared = (
            *variables,
            ("MASTER_ADDR", self.address),
            ("MASTER_PORT", str(port)),
            ("GROUP_WORLD_SIZE", str(1 + len(others))),
            ("ENVCOMPARE_TEAM_HOSTS", ",".join(self.labels[: 1 + len(others)])),
        )
        with ExitStack() as undoing:
            peers: list[Worker] = []
            for number, other in enumerate(others, start=1):
                log, log_name = log_of(other.host.label, arm)
                own = (*shared, *_place_of(other, number))
                folders = CellFolders(session=other)
                worker = folders.launch(arm, PROGRAM, variables=own, log=log, log_name=log_name)
                undoing.callback(worker.kill)
                peers.append(worker)
            first = start((*shared, *_place_of(self.leader, 0)))
            first.peers = tuple(peers)
            undoing.pop_all()
        return first


def _place_of(session: HostSession, number: int) -> Variables:
    return (("GROUP_RANK", str(number)), ("ENVCOMPARE_TEAM", f"{_folder(session)}/secret"))


def _folder(session: HostSession) -> str:
    return f"{session.folder}/team"


def _hand(secret: bytes, session: HostSession) -> None:
    """Write the secret to a file that only its owner can read, and show it to all arms."""
    folder = _folder(session)
    make_folder(session.transport, folder)
    write = Command(argv=("sh", "-c", _WRITE, "sh", f"{folder}/secret"))
    written = run(session.transport, write, stdin=secret)
    if not written.succeeded:
        raise UnusableError(
            f"the secret of this run cannot be written on {session.host.label}",
            details=written.tail(1) or f"{folder}/secret",
            hint="check that the cache there has room and is writable",
        )
    session.mounts = (*session.mounts, Mount(path=folder))
