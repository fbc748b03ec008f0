"""The hosts a user names, `user@host:port`, an SSH alias, `local` or a file; the way to them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envcompare.command import Command
from envcompare.errors import ConfigError
from envcompare.interrupt import Interruption
from envcompare.transport import Process, Transport
from envcompare.transport.gridengine import GridEngineJob, JobTransport
from envcompare.transport.inventory import Inventory
from envcompare.transport.local import LocalTransport
from envcompare.transport.srun import SlurmJob, SrunTransport
from envcompare.transport.ssh_settings import Destination, SshOptions

LOCAL = "local"

# A directory's accounts may be named me@example.org.
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(?:@[A-Za-z0-9_.+-]+)?")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_LONGEST = 253
_FORMS = (
    "write user@host, user@host:port, [IPv6]:port, a name from ~/.ssh/config, a file, or @GROUP "
    "or tag:TAG of the configuration file"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    """A host of a run; `label` names its files and is unique among the hosts of the run."""

    label: str
    destination: Destination
    tags: tuple[str, ...] | None = None  # of the inventory; None where it does not name the host
    job: SlurmJob | GridEngineJob | None = None  # that has the host for this run, a node of it
    node: str = ""  # as the scheduler calls it

    @property
    def is_local(self) -> bool:
        """Tell whether this machine is meant."""
        return self.destination.alias == LOCAL

    def __str__(self) -> str:
        return str(self.destination)


def parse_hosts(values: Sequence[str], inventory: Inventory | None = None) -> tuple[HostSpec, ...]:
    """Read the values of `--hosts`, each a list with commas, whose items may be files.

    Raises ConfigError for what cannot be a host, for a group or tag that the inventory does not
    have, and for a host that is named twice; groups and tags may have hosts in common.
    """
    known = inventory or Inventory()
    places: dict[Destination, str] = {}  # of the hosts that are named by themselves
    names: dict[Destination, str] = {}
    for place, item in _items(values):
        members = known.members(item, place)
        for name in (item,) if members is None else members:
            destination = _parse(known.address(name), place)
            names.setdefault(destination, name)
            if members is None:
                _note_place(places, destination, place)
    if not names:
        raise ConfigError("no host is named", details="the list of hosts is empty", hint=_FORMS)
    return tuple(
        HostSpec(
            label=label,
            destination=destination,
            tags=known.hosts[name].tags if name in known.hosts else None,
        )
        for label, (destination, name) in zip(_labels(names, known), names.items(), strict=True)
    )


def _note_place(places: dict[Destination, str], destination: Destination, place: str) -> None:
    if destination in places:
        raise ConfigError(
            f"host '{destination}' is named twice",
            details=f"in {places[destination]} and again in {place}",
            hint="leave one of them out",
        )
    places[destination] = place


def connect(spec: HostSpec, *, options: SshOptions | None = None) -> Transport:
    """Open the transport to a host; `local` is this machine."""
    if isinstance(spec.job, GridEngineJob):
        return JobTransport()
    if spec.job is not None:
        return SrunTransport(spec.label, spec.job, spec.node)
    if spec.is_local:
        return LocalTransport()
    from envcompare.transport.ssh_transport import SshTransport  # noqa: PLC0415  # heavy

    return SshTransport(str(spec), spec.destination, options or SshOptions())


class InterruptibleTransport:
    """A transport whose commands all die when the user asks to stop a second time.

    Those of one that `ends_at_once` die at the first: nothing is lost with an unanswered question.
    """

    def __init__(
        self, transport: Transport, interruption: Interruption, *, ends_at_once: bool = False
    ) -> None:
        self._transport = transport
        self._interruption = interruption
        self._ends_at_once = ends_at_once
        self.forward_unix = transport.forward_unix
        self.close = transport.close

    @property
    def name(self) -> str:
        """Name the host as the user wrote it."""
        return self._transport.name

    @property
    def bare(self) -> Transport:
        """Give the transport below, for what must run after everything else was killed."""
        return self._transport.bare

    def spawn(self, command: Command) -> Process:
        """Start the command there and remember it until the run ends."""
        process = self._transport.spawn(command)
        self._interruption.add(process, at_once=self._ends_at_once)
        return process


def _items(values: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each host as written, with the place that an error names."""
    for value in values:
        for item in value.split(","):
            text = item.strip()
            if "/" in text or (text and _is_file(text)):
                yield from _lines(Path(text))
            elif text or value.strip():
                yield "--hosts", text


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    if not _is_file(str(path)):
        raise ConfigError(
            f"the host file {str(path)!r} cannot be read",
            details="there is no such file",
            hint=_FORMS,
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"the host file {path} cannot be read",
            details=str(error),
            hint="check that it is text and that you may read it",
        ) from error
    for number, line in enumerate(text.splitlines(), start=1):
        host = line.partition("#")[0].strip()
        if host:
            yield f"{path}:{number}", host


def _parse(text: str, place: str) -> Destination:
    if text == LOCAL:
        return Destination(alias=LOCAL)
    user, at, rest = text.rpartition("@")
    alias, port = _split_port(rest)
    if (at and not _USER.fullmatch(user)) or not _is_host(alias) or len(text) > _LONGEST:
        raise _wrong(text, place, "it is not the name of a host")
    return Destination(alias=alias, user=user or None, port=_port(text, place, port))


def _split_port(rest: str) -> tuple[str, str | None]:
    bracketed = re.fullmatch(r"\[([^]]*)\](?::(.*))?", rest, re.DOTALL)
    if bracketed:
        return (bracketed[1] if ":" in bracketed[1] else ""), bracketed[2]
    if rest.count(":") > 1:
        return rest, None
    alias, colon, port = rest.partition(":")
    return alias, port if colon else None


def _is_host(alias: str) -> bool:
    if ":" not in alias:
        return _NAME.fullmatch(alias) is not None
    try:
        ipaddress.IPv6Address(alias)
    except ValueError:
        return False
    return "%" not in alias or re.fullmatch(r"[A-Za-z0-9.-]+", alias.partition("%")[2]) is not None


def _port(text: str, place: str, port: str | None) -> int | None:
    if port is None:
        return None
    if re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) < 1 << 16:
        return int(port)
    raise _wrong(text, place, f"its port {port!r} is not a number from 1 to 65535")


def _wrong(text: str, place: str, why: str) -> ConfigError:
    return ConfigError(f"{place}: {text[:80]!r} is not a host", details=why, hint=_FORMS)


def _labels(names: Mapping[Destination, str], inventory: Inventory) -> list[str]:
    """Name hosts for files: as the inventory does, or by the host where that is enough."""
    hosts = list(names)
    known = inventory.hosts
    short = [_safe(name if name in known else host.alias) for host, name in names.items()]
    labels: list[str] = []
    for host, label in zip(hosts, short, strict=True):
        whole = label if short.count(label) == 1 else _safe(str(host))
        number = 2
        unique = whole
        while unique in labels:
            unique, number = f"{whole}-{number}", number + 1
        labels.append(unique)
    return labels


def _safe(text: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-.") or "host"
