"""How long the software takes to make, how large it is, and what room it takes meanwhile.

Each thing is made from nothing, in a cache of its own, and then asked for again: wheelhouse and
venv on this machine, the image by its engine, the SIF in each compression on a lab host. `--room`
takes the steps of one variant once each and watches the disk; with its software two runs on a CPU
end it, here and on the host.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from bookkeeping import Conditions, Places, Watch, benchmark, load_average, write_json
from envcompare import bundled
from envcompare.config import Compression, Variant
from envcompare.environments.oci import ENGINE, image_store
from envcompare.environments.singularity import find_engine, make_sif
from envcompare.stack import Options, Progress, Request, building, image, storage, venv, wheelhouse
from envcompare.stack.image import Image
from envcompare.stack.sif import Sif
from envcompare.stack.storage import Wheelhouse
from envcompare.text import Command
from envcompare.transport import LocalTransport, Transport, run, shell
from envcompare.transport.hosts import connect, parse_hosts
from envcompare.transport.openssh import SshOptions

RAW = "building.json"
ROOM_RAW = "building-cu128.json"
DISK = "/"  # of the caches and of every engine: lab hosts keep theirs in volumes of this machine's
SAMPLED_EVERY_S = 0.1
RUN_LIMIT_S = 900.0
RUN = (
    *("--device", "cpu", "--variant", "cu128", "--python", "3.11"),
    *("--workloads", "cnn", "--budget", "120"),
)
REQUIREMENTS = bundled.workloads() / "requirements" / "cu130.in"
ROOM_REQUIREMENTS = REQUIREMENTS.with_name("cu128.in")
COMPRESSIONS: tuple[Compression, ...] = ("zstd", "gzip", "none", "sandbox")
SMALL = Path(__file__).parent / "programs" / "small.in"  # pip alone: made in seconds
HERE = LocalTransport()
T = TypeVar("T")


PAGE = """# Building

`python benchmarks/building.py`; raw data in `benchmarks/results/building.json`. One run, each thing
made once from nothing and asked for again, on {cpus} CPUs; the load is that of the minute before.
The wheelhouse is resolved and downloaded, less what pip's own cache has; all else needs no network.
The SIFs are made on an SSH host, from the image in its engine.

| | cold, s | warm, s | MB | load |
|---|---:|---:|---:|---:|
{rows}

What is warm was still looked at: the wheelhouse for its files, the venv for its mark, the image by
its labels, a SIF by the hash of its file (a sandbox has none).

## What two builds from scratch have in common

- The tree hash of site-packages (names, modes and content of every file): in venv, image, SIF, and
  the SIF of `containers/envcompare.def`.
- The layers of the image, byte for byte, by BuildKit and by the classic builder: the times of files
  are set, and byte code is compiled in the same small groups in the same order. Another release of
  the engine may pack the same files into another archive: Docker 20.10 and 26.1 each give the same
  digest every time, and not the same as each other. So the tree hash is what is compared.
- Not the ID of the image: its configuration holds the time of the build. Not the file of a SIF: its
  header and file system hold times and a random identity. Both are kept, and sent as they are.
"""
ROOM_SECTION = """## What room a stack with CUDA takes

`python benchmarks/building.py --room`; raw data in `benchmarks/results/building-cu128.json`. The
plain wheels of torch 2.10.0 with CUDA 12.8 and all they need are {count} wheels of {packed:.2f} GB,
which hold {unpacked:.2f} GB. Each step was taken once, while the free space of the disk was read
every 0.1 s: what the step left, and the most that was gone meanwhile. Caches and engines, those of
the SSH host too, are on this one disk. Other work was on the machine: the seconds are an upper
limit, and what that work wrote is in the figures.

| | s | size, GB | left, GB | at most, GB | load |
|---|---:|---:|---:|---:|---:|
{rooms}

- pip keeps what it downloads in its temporary folder until all is there, then copies it; its own
  cache was off, and takes the size of the wheels again where it is on.
- A build leaves more than the image: BuildKit keeps the wheels twice and what was installed once
  (`docker builder prune` removes that).
- The SIF was made on the SSH host, whose engine did not have the image yet: an archive of the image
  is sent and lies there while Apptainer takes its layers, unpacks them, and packs the SIF.
- The engine here writes the image it sends to temporary files, and the engine there the archive it
  loads: with two disks each has its part of the most.
- The size of a venv and of an image is that of their files; a file takes whole blocks of a disk.
- From these figures `envcompare/stack/storage.py` has its multiples, by which `envcompare doctor`
  and `envcompare build` say what is lacking before a download. Two things are reckoned, not
  measured: how an image on its way divides over two disks, and a SIF made from the host's own
  engine.
"""
RUNS_SECTION = """
### Runs with it on a CPU

Neither machine has a GPU. Each command was run once, with what the steps above had made. The
verdicts are shown without the cautions of their reports: the base image is of a newer Debian than
this machine, so vm and docker have different C libraries.

| command | s | exit code | verdicts |
|---|---:|---:|---|
{runs}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """One thing that was made: seconds from nothing and when it is there, its size, the load."""

    what: str
    cold_s: float
    warm_s: float
    size_bytes: int
    load: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """Of what the software is made, and where the SIFs are."""

    host: Transport
    ssh_config: Path  # by which the host is found
    python: str
    base: str
    requirements: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What room a step took: its result, the fall of free space by it, and the most meanwhile."""

    what: str
    cold_s: float
    size_bytes: int
    kept_bytes: int
    peak_bytes: int
    load: float


@dataclass(slots=True)
class Falling:
    """How far the free space of a disk has fallen since the beginning: now, and at most."""

    kept_bytes: int = 0
    peak_bytes: int = 0
    ended: threading.Event = field(default_factory=threading.Event)


@benchmark(__doc__, smoke=("--requirements", str(SMALL), "--compression", "none"))
@click.option("--python", default="3.11", show_default=True)
@click.option("--host", default="lab-h1", show_default=True)
@click.option("--ssh-config", default=Path(".lab/ssh_config"), type=Path, show_default=True)
@click.option("--image", "base", default="envcompare-base:python3.11", show_default=True)
@click.option("--requirements", default=REQUIREMENTS, type=Path, help="What is installed.")
@click.option(
    "--compression",
    "compressions",
    default=COMPRESSIONS,
    type=click.Choice(COMPRESSIONS),
    multiple=True,
    show_default=True,
)
@click.option("--room", "is_room", is_flag=True, help="Take the steps of cu128 as well.")
def main(  # noqa: PLR0913 — an option each
    places: Places,
    *,
    python: str,
    host: str,
    ssh_config: Path,
    base: str,
    requirements: Path,
    compressions: tuple[Compression, ...],
    is_room: bool,
) -> None:
    """Make everything once, unless that was done, and write the page."""
    transport = connect(parse_hosts((host,))[0], options=SshOptions(config=ssh_config))
    making = Making(
        host=transport, ssh_config=ssh_config, python=python, base=base, requirements=requirements
    )
    if not (places.results / RAW).exists():
        watch = Watch.begin()
        with _own_cache():
            rows = [asdict(one) for one in _all(making, compressions)]
        kept = {"cpus": os.cpu_count(), "rows": rows, "conditions": watch.conditions()}
        write_json(places.results / RAW, kept)
    if is_room and not (places.results / ROOM_RAW).exists():
        if requirements == REQUIREMENTS:
            making = replace(making, requirements=ROOM_REQUIREMENTS)
        with _own_cache():
            write_json(places.results / ROOM_RAW, _measure_room(making))
    transport.close()
    write_page(places)


@contextmanager
def _own_cache() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        yield


def write_page(places: Places) -> None:
    """Write the page of what is kept."""
    kept = [
        json.loads((places.results / name).read_text(encoding="utf-8"))
        for name in (RAW, ROOM_RAW)
        if (places.results / name).exists()
    ]
    measured = [conditions for one in kept for conditions in _conditions(one)]
    places.write_page("building.md", _page(kept[0], *kept[1:]), measured)


def _conditions(content: dict[str, Any]) -> list[Conditions]:
    known = content.get("conditions", [])
    return known if isinstance(known, list) else [known]


def _all(making: Making, compressions: Iterable[Compression]) -> Iterator[Made]:
    resolve = partial(_resolve, making, "cpu")
    wheels, row = _timed("wheelhouse", resolve, lambda made: made.size_bytes)
    yield row
    interpreter = venv.find_interpreter(HERE, python=making.python, chosen=None)

    def make_venv() -> Path:
        made = venv.make(HERE, wheels, interpreter=interpreter, progress=Progress(click.echo))
        return Path(made.interpreter).parents[1]

    yield _timed("venv", make_venv, lambda path: _size(HERE, str(path)))[1]
    # What no build has seen makes the engine's own cache useless, and another key a new image.
    (wheels.folder / "nonce").write_text(secrets.token_hex())
    recipe = image.recipe(
        replace(wheels, key=secrets.token_hex(32)), base=making.base, local=image_store(HERE)
    )

    def build() -> Image:
        return building.build(recipe, local=image_store(HERE), progress=Progress(click.echo))

    built, row = _timed("image", build, lambda made: made.size_bytes)
    yield row
    try:
        image.deliver(
            image_store(making.host), built, local=image_store(HERE), progress=Progress(click.echo)
        )
        yield from _sifs(making.host, built, compressions)
    finally:
        shell(making.host, 'rm -rf -- "$1"', f"{storage.host_cache(making.host)}/{built.key}")
        for where in (HERE, making.host):
            run(where, Command(argv=("docker", "image", "rm", "--force", built.id)))


def _resolve(making: Making, variant: Variant) -> Wheelhouse:
    return wheelhouse.fill(
        making.requirements,
        python=making.python,
        variant=variant,
        local=HERE,
        progress=Progress(click.echo),
    )


def _sifs(
    transport: Transport, built: Image, compressions: Iterable[Compression]
) -> Iterator[Made]:
    program = find_engine(transport)
    for compression in compressions:

        def make(compression: Compression = compression) -> Sif:
            options = Options(sif_compression=compression)
            progress = Progress(click.echo)
            request = Request(
                transport=transport,
                options=options,
                progress=progress,
                builder=ENGINE,
                local=HERE,
            )
            return make_sif(request, built, program=program)

        yield _timed(f"SIF, {compression}", make, lambda made: _size(transport, made.path))[1]


def _measure_room(making: Making) -> dict[str, Any]:
    """Make a stack step by step, each the first time, and return what room each took."""
    watch, progress, local = Watch.begin(), Progress(click.echo), image_store(HERE)
    os.environ["PIP_NO_CACHE_DIR"] = "1"
    resolve = partial(_resolve, making, "cu128")
    wheels, first = _room("wheels", resolve, lambda made: made.size_bytes)
    interpreter = venv.find_interpreter(HERE, python=making.python, chosen=None)

    def make_venv() -> str:
        made = venv.make(HERE, wheels, interpreter=interpreter, progress=progress)
        return str(Path(made.interpreter).parents[1])

    second = _room("venv", make_venv, lambda path: _size(HERE, path))[1]
    recipe = image.recipe(wheels, base=making.base, local=local)

    def build() -> Image:
        return building.build(recipe, local=local, progress=progress)

    built, third = _room("image, with what its build keeps", build, lambda made: made.size_bytes)
    rows = [first, second, third]
    _remove_build_cache()  # what follows needs the room
    remote = ("--hosts", making.host.name, "--ssh-config", str(making.ssh_config))
    try:
        runs = [_run_on_cpu(making, "--envs", "vm,docker")]
        rows += _rooms_of_host(making, built)
        runs.append(_run_on_cpu(making, "--envs", "docker,singularity", *remote))
    finally:
        shell(making.host, 'rm -rf -- "$1"', f"{storage.host_cache(making.host)}/{built.key}")
        for where in (HERE, making.host):
            run(where, Command(argv=("docker", "image", "rm", "--force", built.id)))
        _remove_build_cache()  # which no longer shares its layers with the image
    return {
        "wheels": len(wheels.sums),
        "packed_bytes": wheels.amount.packed_bytes,
        "unpacked_bytes": wheels.amount.unpacked_bytes,
        "rows": [asdict(row) for row in rows],
        "runs": runs,
        "conditions": [watch.conditions()],
    }


def _remove_build_cache() -> None:
    run(HERE, Command(argv=("docker", "builder", "prune", "--force")))


def _rooms_of_host(making: Making, built: Image) -> Iterator[Room]:
    """Make the SIF on a host from an archive, and send the image into its engine."""
    progress, local = Progress(click.echo), image_store(HERE)
    request = Request(
        transport=making.host, options=Options(), progress=progress, builder=ENGINE, local=HERE
    )

    def pack() -> Sif:
        return make_sif(request, built, program=find_engine(making.host))

    yield _room("SIF, zstd", pack, lambda made: _size(making.host, made.path))[1]
    there = image_store(making.host)

    def send() -> Image:
        return image.deliver(there, built, local=local, progress=progress)

    yield _room("image, sent to the host", send, lambda made: made.size_bytes)[1]


def _run_on_cpu(making: Making, *where: str) -> dict[str, Any]:
    """Run a workload with the software; say how, how it ended, and with which verdicts."""
    words = ("run", *where, *RUN, "--base-image", making.base)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as out:
        argv = (sys.executable, "-m", "envcompare", *words, "--out", out)
        done = run(HERE, Command(argv=argv), timeout_s=RUN_LIMIT_S)
        seconds = time.monotonic() - began
        verdicts = _verdicts(Path(out))
    click.echo(done.stdout + done.stderr)
    return {
        "command": f"envcompare {' '.join(words)}",
        "exit_code": done.exit_code,
        "seconds": seconds,
        "verdicts": verdicts,
    }


def _verdicts(out: Path) -> list[dict[str, Any]]:
    """Return the verdict on each arm of the run folder in `out`; none where it has no analysis."""
    return [
        {name: one[name] for name in ("arm", "outcome")}
        | {name: (one["primary"] or {}).get(name) for name in ("log_ratio", "low", "high")}
        for path in out.glob("*/comparison.json")
        for one in json.loads(path.read_text(encoding="utf-8"))["comparisons"]
        if not one["is_control"]
    ]


def _room(what: str, make: Callable[[], T], size: Callable[[T], int]) -> tuple[T, Room]:
    """Make something and watch the disk meanwhile."""
    load, began = load_average(), time.monotonic()
    with _falling() as fell:
        made = make()
    row = Room(
        what=what,
        cold_s=time.monotonic() - began,
        size_bytes=size(made),
        kept_bytes=fell.kept_bytes,
        peak_bytes=fell.peak_bytes,
        load=load,
    )
    click.echo(row)
    return made, row


@contextmanager
def _falling() -> Iterator[Falling]:
    """Watch the free space of the disk; what else is written meanwhile counts as well."""
    fell, first = Falling(), shutil.disk_usage(DISK).free

    def look() -> None:
        fell.kept_bytes = first - shutil.disk_usage(DISK).free
        fell.peak_bytes = max(fell.peak_bytes, fell.kept_bytes)

    def watch() -> None:
        while not fell.ended.wait(SAMPLED_EVERY_S):
            look()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield fell
    finally:
        fell.ended.set()
        thread.join()
        look()


def _timed(what: str, make: Callable[[], T], size: Callable[[T], int]) -> tuple[T, Made]:
    """Make something twice; the second time it is there."""
    load, seconds = load_average(), []
    for _ in range(2):
        began = time.monotonic()
        made = make()
        seconds.append(time.monotonic() - began)
    row = Made(what=what, cold_s=seconds[0], warm_s=seconds[1], size_bytes=size(made), load=load)
    click.echo(row)
    return made, row


def _size(transport: Transport, path: str) -> int:
    return int(shell(transport, 'du -sb -- "$1"', path).stdout.split()[0])


def _page(content: dict[str, Any], room: dict[str, Any] | None = None) -> str:
    rows = [
        f"| {row['what']} | {row['cold_s']:.1f} | {row['warm_s']:.2f} | "
        f"{row['size_bytes'] / 1e6:.0f} | {row['load']:.1f} |"
        for row in content["rows"]
    ]
    page = PAGE.format(cpus=content["cpus"], rows="\n".join(rows))
    return page if room is None else f"{page}\n{_room_section(room)}"


def _room_section(content: dict[str, Any]) -> str:
    rows = [
        f"| {row['what']} | {row['cold_s']:.0f} | {row['size_bytes'] / 1e9:.2f} | "
        f"{row['kept_bytes'] / 1e9:.2f} | {row['peak_bytes'] / 1e9:.2f} | {row['load']:.1f} |"
        for row in content["rows"]
    ]
    section = ROOM_SECTION.format(
        count=content["wheels"],
        packed=content["packed_bytes"] / 1e9,
        unpacked=content["unpacked_bytes"] / 1e9,
        rooms="\n".join(rows),
    )
    runs = [
        f"| `{one['command']}` | {one['seconds']:.0f} | {one['exit_code']} | "
        f"{'; '.join(map(_verdict, one['verdicts']))} |"
        for one in content["runs"]
    ]
    return section + RUNS_SECTION.format(runs="\n".join(runs))


def _verdict(one: dict[str, Any]) -> str:
    """Return the words of a verdict and, where it has one, the interval that it rests on."""
    said = f"{one['arm']} {one['outcome']}"
    if one["low"] is None or one["high"] is None:
        return said
    mean, low, high = (
        f"{100 * math.expm1(one[name]):+.1f} %".replace("-", "−")
        for name in ("log_ratio", "low", "high")
    )
    return f"{said}, {mean} ({low} to {high})"


if __name__ == "__main__":
    main()
