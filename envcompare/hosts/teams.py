"""Ranks on several hosts: what computes along on the others, for each worker of the first."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envcompare.errors import StackError, UnusableError
from envcompare.hosts.folders import CellFolders
from envcompare.hosts.session import HostSession
from envcompare.measure.context import Variables
from envcompare.measure.worker import Worker
from envcompare.transport import shell

PROGRAM: Final = "ddp.py"
_FIRST_PORT, _PORTS = 20_000, 12_000  # below those that Linux gives to connections by itself
# The address by which the client reached the host, else the first of its own.
_ADDRESS: Final = """set -- $SSH_CONNECTION
if [ -n "$3" ]; then printf '%s' "$3"; else set -- $(hostname -I); printf '%s' "$1"; fi
"""
Log = Callable[[str, str], tuple[Path, str]]
"""Of a host and an arm: the file, and its name in the run folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTeam:
    """The host of the first rank, at an address that the others reach, and those others."""

    leader: HostSession
    others: tuple[HostSession, ...]
    address: str

    @classmethod
    def of(cls, leader: HostSession, others: tuple[HostSession, ...]) -> HostTeam:
        """Find the address of the leader; raises UnusableError where it has none of IPv4."""
        address = shell(leader.transport, _ADDRESS).stdout.strip()
        if ":" in address:
            raise UnusableError(
                f"the ranks of other hosts cannot join at {address}: it is an IPv6 address",
                hint=f"name {leader.host.label} by an IPv4 address that the other hosts reach",
            )
        if not address:
            raise UnusableError(
                f"{leader.host.label} tells no address that other hosts could reach",
                hint="reach it over SSH by the address that the other hosts use",
            )
        return cls(leader=leader, others=others, address=address)

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the names of the hosts, that of the first rank first."""
        return tuple(one.host.label for one in (self.leader, *self.others))

    def lacks(self, arm: str) -> UnusableError | None:
        """Return why an arm of the leader cannot have ranks on the others; None where it can."""
        own = dict(self.leader.arms[arm].prepared.software)
        for other in self.others:
            label = other.host.label
            if arm not in other.arms:
                return UnusableError(
                    f"{arm} is not usable on {label}, where ranks of it are to lie",
                    hint=f"see what failed on {label}, or leave {arm} out of --envs",
                )
            theirs = dict(other.arms[arm].prepared.software)
            unlike = sorted(key for key in own.keys() | theirs if own.get(key) != theirs.get(key))
            if unlike:
                return StackError(
                    f"{arm} has other software on {label} than on {self.leader.host.label}",
                    details=f"they differ in {', '.join(unlike)}",
                    hint="give both hosts the same, or --allow-mismatch to go on all the same",
                )
        return None

    def launch(
        self, arm: str, start: Callable[[Variables], Worker], *, variables: Variables, log_of: Log
    ) -> Worker:
        """Start what computes along, then a worker of the leader, with which all of it ends.

        They find each other by the variables that torchrun sets, and know each other by a token.
        """
        port = _FIRST_PORT + secrets.randbelow(_PORTS)
        shared = (
            *variables,
            ("MASTER_ADDR", self.address),
            ("MASTER_PORT", str(port)),
            ("GROUP_WORLD_SIZE", str(1 + len(self.others))),
            ("ENVCOMPARE_TEAM", secrets.token_hex(16)),
        )
        with ExitStack() as undoing:
            beside: list[Worker] = []
            for number, other in enumerate(self.others, start=1):
                log, log_name = log_of(other.host.label, arm)
                told = (*shared, ("GROUP_RANK", str(number)))
                folders = CellFolders(session=other)
                worker = folders.launch(arm, PROGRAM, variables=told, log=log, log_name=log_name)
                undoing.callback(worker.kill)
                beside.append(worker)
            first = start((*shared, ("GROUP_RANK", "0")))
            first.beside = tuple(beside)
            undoing.pop_all()
        return first
