"""The hosts of a run: the inventory of the configuration file, `--hosts`, and the way to each.

A command runs on a node of a Slurm job as a step of the job, started by `srun`. srun forwards
output by whole lines, and an unfinished line when the command ends.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from envcompare.errors import (
    CommandTimeoutError,
    ConfigError,
    Interruption,
    TransportError,
    UnusableError,
    plain,
)
from envcompare.files import read_text
from envcompare.run_folder.records import HostGroup
from envcompare.text import Command, first_few
from envcompare.transport import LOCAL, LocalProcess, LocalTransport, Process, Transport, run
from envcompare.transport.openssh import Destination, SshOptions

# srun writes its own messages to stderr, so the command's stderr goes to descriptor 3. `exec`
# replaces the shell, so that signals reach srun and its exit code is that of the step.
_APART = ("/bin/sh", "-c", 'exec 3>&2 2>/dev/null; exec "$@"', "sh")
_STDERR = "--error=/proc/self/fd/3"
# The shell stays as the parent, because srun's 128 + n could also mean that the step was killed.
_LAUNCH = ("/bin/sh", "-c", '"$@"; exit "$?"', "sh")
_FAILED = 112  # the exit code of srun when it fails itself (SLURM_EXIT_ERROR)
# A job in a state of STARTED has its nodes, or will get them back (JOB STATE CODES of squeue).
_WAITING = frozenset({"CONFIGURING", "PENDING"})
STARTED = frozenset({
    "RESIZING", "RUNNING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED",
})  # fmt: skip
LOCAL_NAME = "local"
# A directory's accounts may be named me@example.org.
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(?:@[A-Za-z0-9_.+-]+)?")
_GROUPED = re.compile(r"((?:[^-=/@][^=/@]*)?)=(.*)", re.DOTALL)
_GROUPS = "for example --hosts metal=gpu01+gpu02,cloud=vm01"
_FORMS = (
    "write user@host, user@host:port, [IPv6]:port, a name from ~/.ssh/config, a file, or @GROUP "
    "or tag:TAG of the configuration file"
)
_GROUP_MARK, _TAG_MARK = "@", "tag:"
_EXAMPLES = {
    "group": 'write it into the configuration file, as in [groups] nightly = ["gpu01", "gpu02"]',
    "tag": 'write it into the configuration file, as in [hosts.gpu01] tags = ["a100"]',
}


@dataclass(slots=True, eq=False)
class SlurmJob:
    """A job whose nodes are measured; `on_loss` is called once, with the reason it ended early."""

    id: str
    on_loss: Callable[[str], None]
    loss: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def ending(self) -> tuple[str, ...]:
        """Return the command that cancels the job."""
        return ("scancel", self.id)

    def lose(self, why: str) -> None:
        """Record that the job has ended; the first call also calls `on_loss`."""
        with self._lock:
            is_news = not self.loss
            self.loss = self.loss or why
        if is_news:
            self.on_loss(why)

    def step(self, *argv: str, nodes: int = 1, node: str = "") -> Command:
        """Return a command that runs `argv` as a step, one process per node, next to other steps.

        Without options for CPUs, memory and GPUs, a step can use all that the job has on the node.
        """
        where = (f"--nodelist={node}",) if node else ()
        count = (f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1")
        # Steps share the CPUs, memory and GPUs of the job only with --overlap (srun(1)).
        how = ("--overlap", "--quiet", "--mpi=none", "--cpu-bind=none")
        options = (f"--jobid={self.id}", *how, *count, *where)
        return Command(argv=("srun", *options, *argv), env=(("SLURM_EXIT_ERROR", str(_FAILED)),))

    def state(self, *, name: str = "") -> str:
        """Return the job's state in Slurm's list, empty if it is not listed.

        A job that is not listed has released its nodes; a listed one may still have lost them. With
        a name, only a job whose name starts with it counts. Raises TransportError when Slurm does
        not answer.
        """
        silence = f"Slurm does not report the state of job {self.id}"
        hint = "check `squeue --me` on this machine; a run can be resumed"
        try:
            # number, state, name
            words = ("squeue", "--me", "--noheader", "--format=%A|%T|%j")
            listing = run(LOCAL, Command(argv=words))
        except CommandTimeoutError as error:
            raise TransportError(silence, details=error.brief, hint=hint) from error
        if not listing.succeeded:
            raise TransportError(silence, details=listing.tail(1), hint=hint)
        for line in listing.stdout.splitlines():
            number, _, rest = line.partition("|")
            state, _, full_name = rest.partition("|")
            if number == self.id and full_name.startswith(name):
                return state
        return ""


class _StepProcess:
    """A command on a node, controlled through the `srun` process on this machine."""

    def __init__(self, process: LocalProcess, *, brief: str, transport: SrunTransport) -> None:
        self._process = process
        self._brief = brief
        self._transport = transport
        self._is_killed = False
        self.stdin = process.stdin
        self.stdout = process.stdout
        self.stderr = process.stderr

    def wait(self, timeout_s: float | None = None) -> int:
        """Return the exit code, 128 + n after signal n.

        Raises TransportError when the node does not answer: the code is then not the command's.
        """
        try:
            code = self._process.wait(timeout_s)
        except CommandTimeoutError as error:
            where = self._transport.name
            raise CommandTimeoutError(
                f"{self._brief} did not end within {timeout_s:g} s on {where}"
            ) from error
        if code and not self._is_killed:
            self._transport.require_alive(self._brief)
        if code == _FAILED and not self._is_killed:
            raise TransportError(
                f"srun cannot start {self._brief} on {self._transport.name}",
                hint="resume the run; if it happens again, read slurmctld's log of the job",
            )
        return code

    def kill(self) -> None:
        """Let Slurm kill all processes of the step; safe to repeat."""
        if self._is_killed:
            return
        self._is_killed = True
        # On SIGTERM srun kills the step; SIGKILL, which no process can catch, would end srun alone.
        self._process.signal(signal.SIGTERM)
        with suppress(CommandTimeoutError):
            self._process.wait(10)
        self._process.kill()


class SrunTransport:
    """Carries commands and files to one node of a job."""

    def __init__(self, name: str, job: SlurmJob, node: str) -> None:
        self.name = name  # in the plan
        self._job = job
        self._node = node

    @property
    def bare(self) -> Transport:
        """Return the transport itself: interruption does not reach it."""
        return self

    def spawn(self, command: Command) -> _StepProcess:
        """Start the command on the node; a missing program ends with exit code 127.

        Raises TransportError if the job has ended.
        """
        if self._job.loss:
            raise self._lost(self._job.loss, "nothing")
        step = self._job.step(_STDERR, *_LAUNCH, *command.flat(), node=self._node)
        started = LOCAL.spawn(step, launch=_APART)
        return _StepProcess(started, brief=" ".join(command.argv[:2]), transport=self)

    def require_alive(self, brief: str) -> None:
        """Raise TransportError unless the node still runs commands.

        Runs a step as the test; asks Slurm whether the job is over only if that fails.
        """
        try:
            done = run(LOCAL, self._job.step("true", node=self._node))
        except CommandTimeoutError as error:
            raise self._lost("the node does not answer", brief) from error
        if done.succeeded:
            return
        why = done.tail(1) or "srun gave no message"
        if self._job.state() not in STARTED | _WAITING:
            self._job.lose(why)
        raise self._lost(why, brief)

    def forward_unix(self, path: str) -> AbstractContextManager[Path]:
        """Raise UnusableError: srun forwards no sockets, and daemons run outside the job."""
        raise UnusableError(
            f"the socket {path} of {self.name} cannot be reached from here",
            details="srun forwards no socket",
            hint="choose environments without a daemon, such as --envs vm,singularity",
        )

    def close(self) -> None:
        """Do nothing: each command has its own connection."""

    def _lost(self, why: str, what: str) -> TransportError:
        return TransportError(
            f"the node {self._node} of job {self._job.id} ({self.name}) was lost",
            details=f"while {what} ran: {why}",
            hint="resume the run, which asks for a new allocation",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownHost:
    """A host of the inventory: its address, which defaults to its name, and its tags."""

    address: str
    tags: tuple[str, ...] = ()
    group: str = ""  # the group it is compared in; empty: none


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The hosts of the configuration file by name, and its groups of names and `tag:NAME`."""

    hosts: Mapping[str, KnownHost] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def members(self, item: str, place: str) -> tuple[str, ...] | None:
        """Return the hosts of `@GROUP` or `tag:TAG`; None if the item is a host.

        Raises ConfigError for an unknown group or tag, and for an empty group.
        """
        if item.startswith(_GROUP_MARK):
            return self._of_group(item.removeprefix(_GROUP_MARK), place)
        if item.startswith(_TAG_MARK):
            return self._tagged(item.removeprefix(_TAG_MARK), place)
        return None

    def _of_group(self, name: str, place: str) -> tuple[str, ...]:
        if name not in self.groups:
            raise _unknown("group", name, place, self.groups)
        members: list[str] = []
        for item in self.groups[name]:
            if item.startswith(_GROUP_MARK):
                raise ConfigError(
                    f"{place}: the group '{name}' contains the group '{item}'",
                    details="a group contains hosts and tags",
                    hint=f"list the hosts of '{item}' in it, or give them a tag: tag:NAME",
                )
            if item.startswith(_TAG_MARK):
                members += self._tagged(item.removeprefix(_TAG_MARK), f"the group {name}")
            else:
                members.append(item)
        if not members:
            raise ConfigError(
                f"{place}: the group '{name}' has no hosts",
                hint=f'name hosts in it, as in [groups] {name} = ["gpu01", "gpu02"]',
            )
        return tuple(members)

    def _tagged(self, tag: str, place: str) -> tuple[str, ...]:
        members = tuple(name for name, host in self.hosts.items() if tag in host.tags)
        if not members:
            tags = dict.fromkeys(tag for host in self.hosts.values() for tag in host.tags)
            raise _unknown("tag", tag, place, tags)
        return members


def _unknown(kind: str, name: str, place: str, known: Iterable[str]) -> ConfigError:
    names = tuple(known)
    near = difflib.get_close_matches(name, names, n=1)
    return ConfigError(
        f"{place}: there is no {kind} '{name}'",
        details=f"known: {', '.join(names)}" if names else f"the configuration file has no {kind}s",
        hint=f"did you mean '{near[0]}'?" if near else _EXAMPLES[kind],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    """A host of a run; `label` names its files and is unique among the hosts of the run."""

    label: str
    destination: Destination
    tags: tuple[str, ...] | None = None  # None if the host is not in the inventory
    group: str = ""  # the group of hosts it is compared in
    job: SlurmJob | None = None  # the job whose node this host is
    node: str = ""  # the scheduler's name for it

    @property
    def is_local(self) -> bool:
        """Tell whether the host is this machine."""
        return self.destination.alias == LOCAL_NAME

    def __str__(self) -> str:
        return str(self.destination)


def parse_hosts(
    values: Sequence[str], inventory: Inventory | None = None, *, reads_files: bool = True
) -> tuple[HostSpec, ...]:
    """Parse the values of `--hosts`: comma-separated hosts and, with `reads_files`, files of hosts.

    `NAME=HOST+HOST` makes a group of hosts that is compared with the other groups. Groups and tags
    of the inventory may overlap. This machine and hosts of the inventory are never files.

    Raises ConfigError for an invalid host, an unknown group or tag, a host that is named twice, and
    groups that cannot be compared.
    """
    known = inventory or Inventory()
    places: dict[Destination, str] = {}  # where each host is named itself, not by a group or tag
    names: dict[Destination, str] = {}
    groups: dict[Destination, str] = {}
    own = {LOCAL_NAME, *known.hosts}
    for place, item, group in _items(values, lambda text: reads_files and text not in own):
        members = known.members(item, place)
        for name in (item,) if members is None else members:
            # a name that is not in the inventory is an address itself
            address = known.hosts[name].address if name in known.hosts else name
            destination = _parse(address, place)
            names.setdefault(destination, name)
            _note_group(groups, destination, group)
            if members is None and destination in places:
                raise ConfigError(
                    f"host '{destination}' is named twice",
                    details=f"in {places[destination]} and again in {place}",
                    hint="leave one of them out",
                )
            if members is None:
                places[destination] = place
    if not names:
        raise ConfigError("no host is named", hint=_FORMS)
    if not any(groups.values()):
        in_file = {name: host.group for name, host in known.hosts.items()}
        groups = {destination: in_file.get(name, "") for destination, name in names.items()}
        if len(set(filter(None, groups.values()))) < 2:
            # With fewer than two groups there is nothing to compare.
            groups = {}
    _check_groups(groups)
    return tuple(
        HostSpec(
            label=label,
            destination=destination,
            tags=known.hosts[name].tags if name in known.hosts else None,
            group=groups.get(destination, ""),
        )
        for label, (destination, name) in zip(_labels(names, known), names.items(), strict=True)
    )


def host_groups(hosts: Sequence[HostSpec]) -> tuple[HostGroup, ...]:
    """Return the groups of hosts that are compared, in order."""
    names = dict.fromkeys(host.group for host in hosts if host.group)
    return tuple(
        HostGroup(name=name, hosts=tuple(host.label for host in hosts if host.group == name))
        for name in names
    )


def _note_group(groups: dict[Destination, str], destination: Destination, group: str) -> None:
    known = groups.setdefault(destination, group)
    if known != group and known and group:
        raise ConfigError(
            f"host '{destination}' is in two groups",
            details=f"in {known} and in {group}",
            hint="leave it out of one of them",
        )
    groups[destination] = known or group


def _check_groups(groups: Mapping[Destination, str]) -> None:
    """Raise ConfigError unless all hosts have a group, of at least two, or no host has one."""
    names = tuple(dict.fromkeys(filter(None, groups.values())))
    if not names:
        return
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}", name):
            raise ConfigError(
                f"{name[:80]!r} cannot be the name of a group of hosts",
                details="a name has letters, digits, '.', '_' and '-', 40 at most",
                hint=_GROUPS,
            )
    alone = [str(host) for host, group in groups.items() if not group]
    if alone:
        raise ConfigError(
            f"{first_few(alone, most=4)}: in no group, while other hosts are",
            details=f"groups of hosts are compared here: {', '.join(names)}",
            hint=f"put every host into a group, {_GROUPS}",
        )
    if len(names) < 2:
        raise ConfigError(
            f"there is only one group of hosts, {names[0]}",
            hint=f"name a second group, {_GROUPS}, or name the hosts without a group",
        )
    if len({name.lower() for name in names}) < len(names):
        raise ConfigError(
            "two groups of hosts have names that differ in upper and lower case alone",
            hint=f"rename one of {', '.join(names)}",
        )


def connect(spec: HostSpec, *, options: SshOptions | None = None) -> Transport:
    """Connect to a host and return its transport."""
    if spec.job is not None:
        return SrunTransport(spec.label, spec.job, spec.node)
    if spec.is_local:
        return LocalTransport()
    # Importing paramiko is slow, and this machine does not need it.
    from envcompare.transport.ssh import SshTransport  # noqa: PLC0415

    return SshTransport(str(spec), spec.destination, options or SshOptions())


class InterruptibleTransport:
    """A transport whose commands are killed when the user asks to stop a second time.

    With `ends_at_once` the first request kills them, for questions whose answers may be lost.
    """

    def __init__(
        self, transport: Transport, interruption: Interruption, *, ends_at_once: bool = False
    ) -> None:
        self._transport = transport
        self._interruption = interruption
        self._ends_at_once = ends_at_once
        self.name = transport.name
        self.bare = transport.bare
        self.forward_unix = transport.forward_unix
        self.close = transport.close

    def spawn(self, command: Command) -> Process:
        """Start the command on the host, and register it to be killed."""
        process = self._transport.spawn(command)
        self._interruption.add(process, at_once=self._ends_at_once)
        return process


def _items(
    values: Sequence[str], may_be_file: Callable[[str], bool]
) -> Iterator[tuple[str, str, str]]:
    """Yield for each host: where it is written, for errors; its text; and its group."""
    named: set[str] = set()
    for value in values:
        for item in value.split(","):
            text = item.strip()
            # The name of a file may contain an equals sign.
            is_whole = may_be_file(text) and _is_file(text)
            grouped = None if is_whole else _GROUPED.fullmatch(text)
            if grouped is None:
                if text or value.strip():
                    yield from _of_item(text, may_be_file)
                continue
            group, hosts = (part.strip() for part in grouped.groups())
            if not group or not all(host.strip() for host in hosts.split("+")):
                lack = "a host is missing" if group else "no name of a group"
                raise ConfigError(f"--hosts {group}={hosts}: {lack}", hint=_GROUPS)
            if group in named:
                raise ConfigError(
                    f"the group of hosts {group} is named twice",
                    hint=f"write {group}=HOST+HOST, or give the second group another name",
                )
            named.add(group)
            for host in hosts.split("+"):
                yield from _of_item(host.strip(), may_be_file, group=group)


def _of_item(
    text: str, may_be_file: Callable[[str], bool], *, group: str = ""
) -> Iterator[tuple[str, str, str]]:
    if may_be_file(text) and ("/" in text or _is_file(text)):
        yield from ((place, line, group) for place, line in _lines(Path(text)))
    else:
        yield "--hosts", text, group


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
        # A byte order mark would become part of the first name.
        text = read_text(path, encoding="utf-8-sig")
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"the host file {path} cannot be read",
            details=plain(error),
            hint="check that it is text and that you may read it",
        ) from error
    for number, line in enumerate(text.splitlines(), start=1):
        host = line.partition("#")[0].strip()
        if host:
            yield f"{path}:{number}", host


def _parse(text: str, place: str) -> Destination:
    if text == LOCAL_NAME:
        return Destination(alias=LOCAL_NAME)
    user, at, rest = text.rpartition("@")
    alias, port = _split_port(rest)
    # A DNS name has at most 253 characters (RFC 1035, section 2.3.4).
    if (at and not _USER.fullmatch(user)) or not _is_host(alias) or len(text) > 253:
        raise _wrong(text, place, "it is not the name of a host")
    if port is not None and not (re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) < 1 << 16):
        raise _wrong(text, place, f"its port {port!r} is not a number from 1 to 65535")
    return Destination(alias=alias, user=user or None, port=int(port) if port else None)


def _split_port(rest: str) -> tuple[str, str | None]:
    bracketed = re.fullmatch(r"\[([^]]*)\](?::(.*))?", rest, re.DOTALL)
    if bracketed:
        return (bracketed[1] if ":" in bracketed[1] else ""), bracketed[2]
    # An IPv6 address without brackets cannot have a port.
    if rest.count(":") > 1:
        return rest, None
    alias, colon, port = rest.partition(":")
    return alias, port if colon else None


def _is_host(alias: str) -> bool:
    if ":" not in alias:
        return re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", alias) is not None
    try:
        ipaddress.IPv6Address(alias)
    except ValueError:
        return False
    return "%" not in alias or re.fullmatch(r"[A-Za-z0-9.-]+", alias.partition("%")[2]) is not None


def _wrong(text: str, place: str, why: str) -> ConfigError:
    return ConfigError(f"{place}: {text[:80]!r} is not a host", details=why, hint=_FORMS)


def _labels(names: Mapping[Destination, str], inventory: Inventory) -> list[str]:
    """Return unique labels for file names: the inventory's name or the host, if that is enough."""
    known = inventory.hosts
    short = [_safe(name if name in known else host.alias) for host, name in names.items()]
    labels: list[str] = []
    for host, label in zip(names, short, strict=True):
        unique = whole = label if short.count(label) == 1 else _safe(str(host))
        number = 2
        while unique in labels:
            unique, number = f"{whole}-{number}", number + 1
        labels.append(unique)
    return labels


def _safe(text: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-.") or "host"
