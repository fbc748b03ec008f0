"""How long the software takes to make, and how large it is: cold, and when it is there already.

Each thing is made from nothing, in a cache of its own, and then asked for again: wheelhouse and
venv on this machine, the image by its engine, the SIF in each compression on a lab host.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from bookkeeping import Places, Watch, benchmark, load_average, write_json
from envcompare import bundled
from envcompare.command import Command
from envcompare.config.settings import Compression
from envcompare.environments.docker import ENGINE, image_store
from envcompare.environments.singularity import find_engine, make_sif
from envcompare.stack import Options, Progress, Request, building, cache, image, venv, wheelhouse
from envcompare.stack.image import Image
from envcompare.stack.sif import Sif
from envcompare.stack.wheelhouse import Wheelhouse
from envcompare.transport import Transport, run, shell
from envcompare.transport.hosts import connect, parse_hosts
from envcompare.transport.local import LocalTransport
from envcompare.transport.ssh_settings import SshOptions

RAW = "building.json"
REQUIREMENTS = bundled.workloads() / "requirements" / "cu130.in"
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
    python: str
    base: str
    requirements: Path


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
def main(  # noqa: PLR0913 — an option each
    places: Places,
    *,
    python: str,
    host: str,
    ssh_config: Path,
    base: str,
    requirements: Path,
    compressions: tuple[Compression, ...],
) -> None:
    """Make everything once, unless that was done, and write the page."""
    result = places.results / RAW
    if not result.exists():
        watch = Watch.begin()
        transport = connect(parse_hosts((host,))[0], options=SshOptions(config=ssh_config))
        with tempfile.TemporaryDirectory() as folder:
            os.environ["XDG_CACHE_HOME"] = folder
            making = Making(host=transport, python=python, base=base, requirements=requirements)
            rows = [asdict(one) for one in _all(making, compressions)]
        transport.close()
        kept = {"cpus": os.cpu_count(), "rows": rows, "conditions": watch.conditions()}
        write_json(result, kept)
    write_page(places)


def write_page(places: Places) -> None:
    """Write the page of what is kept."""
    content = json.loads((places.results / RAW).read_text(encoding="utf-8"))
    places.write_page("building.md", _page(content), [content.get("conditions", {})])


def _all(making: Making, compressions: Iterable[Compression]) -> Iterator[Made]:
    def resolve() -> Wheelhouse:
        return wheelhouse.fill(
            making.requirements,
            python=making.python,
            variant="cpu",
            local=HERE,
            progress=Progress(click.echo),
        )

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
        shell(making.host, 'rm -rf -- "$1"', f"{cache.host_cache(making.host)}/{built.key}")
        for where in (HERE, making.host):
            run(where, Command(argv=("docker", "image", "rm", "--force", built.id)))


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


def _page(content: dict[str, Any]) -> str:
    rows = [
        f"| {row['what']} | {row['cold_s']:.1f} | {row['warm_s']:.2f} | "
        f"{row['size_bytes'] / 1e6:.0f} | {row['load']:.1f} |"
        for row in content["rows"]
    ]
    return PAGE.format(cpus=content["cpus"], rows="\n".join(rows))


if __name__ == "__main__":
    main()
