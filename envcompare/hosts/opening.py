"""Open hosts: connect to them, and collect facts of the host and its arms."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from envcompare.config.experiment import Experiment, parse_cpus
from envcompare.console import Display
from envcompare.environments import gpu, software
from envcompare.environments.registry import IMAGE_BUILDER, environment
from envcompare.environments.software import inside
from envcompare.errors import (
    CommandTimeoutError,
    HostHeldError,
    Interruption,
    OutputLimitError,
    UnusableError,
)
from envcompare.fingerprint.comparing import DataIdentity, Identity
from envcompare.gpu import driver_version
from envcompare.hosts import HostSession, keeper, kinds_of_software
from envcompare.hosts.keeper import Asker
from envcompare.run_folder.records import Scalar
from envcompare.stack import Mount, Progress, building
from envcompare.stack.image import is_built_on
from envcompare.stack.storage import ImageStore, host_cache
from envcompare.stack.venv import first_python
from envcompare.text import Command, spoken
from envcompare.transport import LOCAL, LocalTransport, Transport, read_json, shell
from envcompare.transport.hosts import HostSpec, InterruptibleTransport, connect
from envcompare.transport.openssh import SshOptions

_APPLICATION: Final = b"envcompare"  # makes the derived ID of a machine specific to this program
# Each value is one line; a missing file has none.
_DESCRIBE = r"""
show() {
  value=$(cat -- "$2" 2>/dev/null | head -c 256 | tr -s '[:space:]' ' ')
  [ -z "$value" ] || printf '%s\t%s\n' "$1" "${value% }"
}
printf 'kernel.release\t%s\n' "$(uname -r)"
printf 'kernel.version\t%s\n' "$(uname -v)"
printf 'cpu.model\t%s\n' "$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1)"
printf 'cpu.microcode\t%s\n' "$(sed -n 's/^microcode[[:space:]]*: //p' /proc/cpuinfo | head -n 1)"
show machine.id /etc/machine-id
show boot.id /proc/sys/kernel/random/boot_id
show cpu.online /sys/devices/system/cpu/online
show cpu.governor /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor
show cpu.boost /sys/devices/system/cpu/cpufreq/boost
show cpu.no_turbo /sys/devices/system/cpu/intel_pstate/no_turbo
show smt /sys/devices/system/cpu/smt/control
show thp /sys/kernel/mm/transparent_hugepage/enabled
show kernel.clocksource /sys/devices/system/clocksource/clocksource0/current_clocksource
show gpu.driver /proc/driver/nvidia/version
exit 0
"""
_DESCRIBED: Final = 255  # characters of a value, and no more
_SHOWN_CPUS: Final = 8
_DATA_LIMIT_S: Final = 600.0
_BOOT = "cat /proc/sys/kernel/random/boot_id 2>/dev/null || true"
_IDENTIFY = f"id -u; id -g; {_BOOT}"
_IDENTITY = re.compile(r"(?P<uid>[0-9]+)\n(?P<gid>[0-9]+)\n(?:(?P<boot>[0-9a-f-]{36})(?:\n|$))?")


@contextmanager
def hosts_at_once(display: Display, jobs: int) -> Iterator[ThreadPoolExecutor]:
    """Yield the threads that work on hosts, while their progress is shown."""
    with display.showing_progress(), ThreadPoolExecutor(jobs) as pool:
        yield pool


def open_session(
    host: HostSpec, experiment: Experiment, run_id: str, interruption: Interruption
) -> HostSession:
    """Connect to a host and collect what must be known about it.

    Raises TransportError if it cannot be reached, CommandTimeoutError if it does not answer,
    UnusableError if it lacks a CPU of --pin, and InterruptedRunError if the user stops.
    """
    bare = connect(host, options=ssh_options(experiment))
    # Questions end at the first interrupt, since nothing is lost with them before a session is
    # open.
    asked = InterruptibleTransport(bare, interruption, ends_at_once=True)
    try:
        identity = _identity(host, asked)
        session = HostSession(
            host=host,
            transport=InterruptibleTransport(bare, interruption),
            local=InterruptibleTransport(LocalTransport(), interruption),
            boot_id=identity["boot"] or "",
            run_id=run_id,
            cache=host_cache(asked),
            uid=int(identity["uid"]),
            gid=int(identity["gid"]),
            python=experiment.python or first_python(asked, chosen=experiment.vm_python).version,
            gpus=gpu.survey(asked) if experiment.may_use_gpu else None,
            unused_gpus=None if experiment.may_use_gpu else gpu.glance(asked),
            machine=_machine(asked),
        )
        _require_cpus(session, experiment.pin or ())
        # A command that the user has killed has no answer, which must not pass for one.
        interruption.check()
    except BaseException:
        bare.close()
        # The stop by the user is raised in place of an error of what it has killed.
        interruption.check()
        raise
    return session


def _require_cpus(session: HostSession, pin: tuple[int, ...]) -> None:
    online = str(session.machine.get("cpu.online", ""))
    if not online or len(online) >= _DESCRIBED:
        return  # unknown, or cut off
    missing = sorted({*pin} - {*(parse_cpus(online) or ())})
    if missing:
        cpus = ", ".join(map(str, missing[:_SHOWN_CPUS])) + ", …" * (len(missing) > _SHOWN_CPUS)
        what = f"CPU {cpus} does" if len(missing) == 1 else f"CPUs {cpus} do"
        raise UnusableError(
            f"{what} not exist on {session.host.label} (it has CPUs {online})",
            hint="give --pin CPUs that every host has, or leave it out",
        )


def require_free(hosts: tuple[HostSpec, ...], experiment: Experiment) -> None:
    """Raise HostHeldError if other clients hold every host, or one of those with ranks.

    A host that cannot be asked, or is taken later, is left to the run.
    """
    held: HostHeldError | None = None
    for host in hosts:
        refusal = _refusal(host, experiment)
        if refusal is None and experiment.rendezvous is None:
            return
        held = held or refusal
    if held is not None:
        raise held


def require_base(
    hosts: tuple[HostSpec, ...], experiment: Experiment, say: Callable[[str], None]
) -> None:
    """Pull the base image that the user named if an arm may need it and it is not here.

    It is not needed if a host has an image built on it. Raises StackError if it cannot be pulled.
    """
    base = experiment.base_image
    if base is None or set(kinds_of_software(experiment)) <= {"venv"}:
        return
    store = ImageStore(engine=IMAGE_BUILDER.engine, transport=LOCAL)
    building.require_base(
        base,
        local=store,
        is_elsewhere=lambda: any(_has_built(host, experiment, base) for host in hosts),
        progress=Progress(say),
    )


def _has_built(host: HostSpec, experiment: Experiment, base: str) -> bool:
    try:
        with closing(connect(host, options=ssh_options(experiment))) as transport:
            store = ImageStore(engine=IMAGE_BUILDER.engine, transport=transport)
            return is_built_on(base, store)
    except UnusableError:
        return False


def _refusal(host: HostSpec, experiment: Experiment) -> HostHeldError | None:
    """Return the error for a held host; None if it is free or cannot be asked."""
    asker = Asker.of(host, "run", "new")
    try:
        with closing(connect(host, options=ssh_options(experiment))) as transport:
            # This one is never requested: the attempt has its own time limit.
            waiting = Interruption()
            lock = keeper.take(transport, asker, wait_s=0, interruption=waiting, say=lambda _: None)
            lock.release()
    except HostHeldError as error:
        return error
    except UnusableError:
        return None
    return None


def boot_id(transport: Transport) -> str:
    """Return the boot ID of a kernel; empty if it has none."""
    return shell(transport, _BOOT).stdout.strip()


def _identity(host: HostSpec, asked: Transport) -> re.Match[str]:
    answer = shell(asked, _IDENTIFY)
    identity = _IDENTITY.match(answer.stdout)
    if identity is None:
        raise UnusableError(
            f"{host.label} does not answer as a POSIX host",
            details=f"`id -u` and `id -g` printed: {spoken(answer.stdout + answer.stderr)}",
            hint="the login shell there must run `id -u` and print nothing else",
        )
    return identity


def _machine(transport: Transport) -> Identity:
    """Return what identifies a host, and settings that a reboot or user may change."""
    lines = shell(transport, _DESCRIBE).stdout.splitlines()
    pairs = (line.partition("\t")[::2] for line in lines)
    return {name: _KEPT_AS.get(name, str)(value) for name, value in pairs if value}


def _hidden(machine_id: str) -> str:
    """Return a derived machine ID, since machine-id(5) asks to conceal the original."""
    return hmac.new(machine_id.encode(), _APPLICATION, hashlib.sha256).hexdigest()[:32]


_KEPT_AS: Final[dict[str, Callable[[str], Scalar]]] = {
    "gpu.driver": driver_version,
    "machine.id": _hidden,
}


def identify(session: HostSession, data: str | None) -> None:
    """Determine the identity of a host and its arms for a resumed run, once they are staged.

    `data` is the user's file or folder on the host.
    """
    if not session.arms:
        return  # nothing can be measured
    session.identities = {"": {**session.machine, **(_data_facts(session, data) if data else {})}}
    for ready in session.arms.values():
        if ready.arm.is_control:
            continue
        identity: Identity = dict(ready.prepared.software)
        # The engine of a plain process is the kernel, which belongs to the host's facts.
        if ready.check.version != session.machine.get("kernel.release"):
            identity |= ready.engine_version
        session.identities[ready.arm.id] = identity


def _data_facts(session: HostSession, path: str) -> Identity:
    """Return the hash of the user's data and the times of its files; empty if unreadable."""
    ready = session.nearest_arms[0]
    program = f"{session.workloads}/harness/formats/data.py"
    command = Command(argv=(ready.prepared.interpreter, program, path))
    mounts = (*session.mounts, Mount(path=path))
    try:
        result = session.run_inside(ready, command, mounts=mounts, timeout_s=_DATA_LIMIT_S)
        said = read_json(result.stdout, DataIdentity)
    except (CommandTimeoutError, OutputLimitError, msgspec.DecodeError):
        # A cell that cannot read the data says so.
        return {}
    return said.facts()


def note_differing_files(session: HostSession, progress: Progress) -> None:
    """Find the files in which the software of the arms differs, once all of them are usable.

    Replaces the arms of the session by ones that list these files.
    """
    arms = {
        arm: (
            inside(
                environment(ready.arm.environment),
                session.transport,
                ready.prepared,
                run_id=session.run_id,
            ),
            ready.prepared,
        )
        for arm, ready in session.arms.items()
    }
    for arm, prepared in software.tell_files_apart(arms, progress=progress).items():
        session.arms[arm] = replace(session.arms[arm], prepared=prepared)


def ssh_options(experiment: Experiment) -> SshOptions:
    """Return the SSH options of this experiment."""
    return SshOptions(
        config=Path(experiment.ssh_config).expanduser() if experiment.ssh_config else None,
        accept_new_host_keys=experiment.accept_new_host_keys,
        connect_timeout_s=experiment.connect_timeout_s,
    )
