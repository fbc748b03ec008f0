"""The bounds of a host's device, measured in the reference arm and kept in the host's cache."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from envcompare.command import Command, CommandResult
from envcompare.errors import CommandTimeoutError, StackError, StillRunningError
from envcompare.run_folder.profiles import Roofs
from envcompare.run_folder.records import FingerprintValue
from envcompare.transport import Transport, make_folder, read_json, run, shell

PROGRAM = "harness/counters/roofs.py"
SECONDS = 10.0  # of measuring, without the start of PyTorch
LIMIT_S = 300.0
STEADY = 0.1  # that the median repetition may take longer than the best
# What a roof holds for: another of these is another roof.
GPU_KEYS = (
    "gpu.name", "gpu.uuid", "gpu.driver", "gpu.clock_sm_mhz_max", "gpu.clock_memory_mhz_max",
    "gpu.clock_sm_mhz_application", "gpu.power_limit_w", "gpu.ecc", "gpu.mig", "torch.version",
)  # fmt: skip
CPU_KEYS = (
    "cpu.model", "cpu.microcode", "cpu.count", "cpu.boost", "cpu.governor", "torch.version",
    "cgroup.cpu_quota",
)  # fmt: skip
Facts = Mapping[str, FingerprintValue]


class _Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What the program on the host writes."""

    device: str
    bytes_per_s: float | None = None
    flops_per_s: dict[str, float] = {}
    uuid: str = ""
    driver: str = ""
    clocks: str = ""
    torch: str = ""
    spread: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where roofs are measured and kept, and what keeps that host from being quiet."""

    transport: Transport
    host: str
    cache: str
    run: Callable[[Command], CommandResult]  # in the arm, for at most LIMIT_S
    busy: Callable[[], str] = str  # empty where nothing does


def roofs_command(
    interpreter: str, workloads: str, *, device: str, threads: int, cpus: tuple[int, ...] | None
) -> Command:
    """Return the command that measures inside an arm, with the threads and CPUs of the workers."""
    argv = (
        *(interpreter, "-B", f"{workloads}/{PROGRAM}", "--device", device),
        *("--threads", str(threads), "--seconds", str(SECONDS)),
        *(("--cpus", ",".join(map(str, cpus))) if cpus else ()),
    )
    return Command(argv=argv)


def measure_roofs(place: Place, command: Command, facts: Facts) -> Roofs:
    """Return the roofs of a host's device, measured by `command` unless its cache has them.

    `facts` are those of the reference's fingerprint: device, driver, clocks and PyTorch decide
    whether cached roofs still hold. Those of a busy machine may be too low: that is said, and they
    are not kept. Where nothing can be measured a reason stands in the place of the numbers. Raises
    TransportError when the host is lost.
    """
    path = f"{place.cache}/roofs/{key_of(command, facts)}.json"
    cached = _read(shell(place.transport, 'cat -- "$1"', path).stdout)
    if cached is not None:
        return _roofs(place.host, cached)
    busy = place.busy()
    try:
        done = place.run(command)
    except CommandTimeoutError:
        return _unmeasured(place.host, facts, f"the program did not finish within {LIMIT_S:.0f} s")
    except StillRunningError as error:
        return _unmeasured(place.host, facts, f"{error.brief}: {error.details}")
    measured = _read(done.stdout)
    if not done.succeeded or measured is None:
        return _unmeasured(place.host, facts, done.tail(1) or f"exit code {done.exit_code}")
    doubt = busy or _unsteadiness(measured)
    if not doubt:
        _keep(place.transport, path, measured)
    return _roofs(place.host, measured, doubt)


def _unsteadiness(measured: _Measured) -> str:
    if measured.spread is None or measured.spread <= STEADY:
        return ""
    return f"the median repetition took {measured.spread:.0%} longer than the best"


def key_of(command: Command, facts: Facts) -> str:
    """Return a name for what the roofs hold for: device and settings, program, threads, PyTorch."""
    start = next((at for at, word in enumerate(command.argv) if word.endswith(f"/{PROGRAM}")), 0)
    keys = GPU_KEYS if facts.get("gpu.uuid") or facts.get("gpu.name") else CPU_KEYS
    held = {name: facts.get(name) for name in keys}
    text = msgspec.json.encode([command.argv[start:], held])
    return hashlib.sha256(text).hexdigest()[:16]


def _keep(transport: Transport, path: str, measured: _Measured) -> None:
    """Write the cache of the host whole or not at all; a disk that refuses costs a measurement."""
    with suppress(StackError):
        make_folder(transport, path.rpartition("/")[0])
    script = 'cat > "$1.partial" && mv -- "$1.partial" "$1"'
    argv = ("sh", "-c", script, "sh", path)
    run(transport, Command(argv=argv), stdin=msgspec.json.encode(measured))


def _read(text: str) -> _Measured | None:
    """Return the last line of an output; None where it is no measurement."""
    try:
        return read_json((text.strip().splitlines() or [""])[-1], _Measured)
    except msgspec.MsgspecError:
        return None


def _roofs(host: str, measured: _Measured, doubt: str = "") -> Roofs:
    source = f"measured with PyTorch {measured.torch}" if measured.torch else "measured"
    return Roofs(
        host=host,
        device=measured.device,
        source=f"{source}; may be too low, since {doubt}" if doubt else source,
        is_measured=True,
        bytes_per_s=measured.bytes_per_s,
        flops_per_s=measured.flops_per_s,
        uuid=measured.uuid,
        driver=measured.driver,
        clocks=measured.clocks,
    )


def _unmeasured(host: str, facts: Facts, why: str) -> Roofs:
    device = facts.get("gpu.name") or facts.get("cpu.model") or ""
    return Roofs(
        host=host,
        device=str(device),
        source="",
        is_measured=False,
        uuid=str(facts.get("gpu.uuid") or ""),
        driver=str(facts.get("gpu.driver") or ""),
        reason=f"the roofs could not be measured: {why}",
    )
