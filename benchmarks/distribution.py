"""Measure how fast files and images reach a host, against scp and `docker save | ssh docker load`.

A file of random bytes, as large as a SIF, goes by `put_file` and by scp; an image of one such
layer goes by `deliver` and by the pipe a user would write. All four take turns in every repetition,
in an order drawn anew, so that what else the machine does meets all of them; before each the host
forgets what it has. A ratio is that of the geometric means, with a t interval over the
repetitions.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import subprocess
import tarfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from bookkeeping import Places, Watch, benchmark, load_average, write_json
from envcompare.environments.oci import image_store
from envcompare.stack import Progress, image
from envcompare.stack.image import Image, deliver
from envcompare.stats.intervals import interval
from envcompare.text import Command
from envcompare.transport import CONTENT_S, LOCAL, Transport, file_sha256, run
from envcompare.transport.copies import put_file
from envcompare.transport.hosts import connect, parse_hosts

RAW = "distribution.json"
NAME = "envcompare-benchmark-blob:1"
TARGET = "/tmp/envcompare-benchmark"  # noqa: S108 - on the host, removed afterwards
PAIRS = (("put", "scp"), ("deliver", "docker save | ssh docker load"))
Way = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goods:
    """What is sent, and where."""

    host: Transport
    file: Path
    sha256: str
    image: Image
    ssh: tuple[str, ...]  # options that both ssh and scp take


@benchmark(__doc__.partition("\n\n")[0], smoke=("--repetitions", "2", "--size-mb", "1"))
@click.option("--host", default="lab-h1", show_default=True, help="The host to send to.")
@click.option("--ssh-config", default=".lab/ssh_config", show_default=True)
@click.option("--repetitions", default=10, show_default=True)
@click.option("--size-mb", default=300, show_default=True, help="Of the file and of the layer.")
@click.option("--seed", default=1, show_default=True)
def main(  # noqa: PLR0913 — an option each
    places: Places, *, host: str, ssh_config: str, repetitions: int, size_mb: int, seed: int
) -> None:
    """Time all ways and write the page."""
    watch = Watch.begin()
    os.environ["ENVCOMPARE_SSH_CONFIG"] = ssh_config
    transport = connect(parse_hosts([host])[0])
    goods = _goods(transport, places.work, size_mb, ("-F", ssh_config))
    times: dict[str, list[float]] = {way: [] for way in itertools.chain(*PAIRS)}
    loads = [load_average()]
    order = random.Random(seed)
    try:
        for number in range(repetitions):
            ways = list(_ways(goods).items())
            for name, act in order.sample(ways, len(ways)):
                times[name].append(_timed(goods, act))
            print(number + 1, {name: round(values[-1], 2) for name, values in times.items()})
            loads.append(load_average())
    finally:
        _forget(goods)
        run(LOCAL, Command(argv=("docker", "image", "rm", "-f", goods.image.id)))
        transport.close()
        goods.file.unlink()
    result = {
        "size_mb": size_mb,
        "load": [min(loads), max(loads)],
        "times_s": times,
        "conditions": watch.conditions(),
    }
    write_json(places.results / RAW, result)
    write_page(places)


def _goods(transport: Transport, work: Path, size_mb: int, ssh: tuple[str, ...]) -> Goods:
    work.mkdir(parents=True, exist_ok=True)
    file = work / "blob"
    file.write_bytes(os.urandom(size_mb * 1_000_000))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(file, "blob")
    make = Command(argv=("docker", "import", "-", NAME))
    imported = run(LOCAL, make, stdin=packed.getvalue(), timeout_s=CONTENT_S)
    found = image.find(image_store(LOCAL), NAME)
    if found is None:
        raise SystemExit(f"docker import failed: {imported.stderr}")
    return Goods(host=transport, file=file, sha256=file_sha256(file), image=found, ssh=ssh)


def _ways(goods: Goods) -> Mapping[str, Way]:
    host = goods.host.name
    ssh, scp = ("ssh", *goods.ssh, host), ("scp", "-q", *goods.ssh)
    pipe = f'docker save {goods.image.id} | "$@" docker load --quiet'
    ways: dict[str, Way] = {
        "put": lambda: put_file(goods.host, goods.file, TARGET, sha256=goods.sha256),
        "scp": lambda: _do((*scp, str(goods.file), f"{host}:{TARGET}")),
        "deliver": lambda: deliver(
            image_store(goods.host),
            goods.image,
            local=image_store(LOCAL),
            progress=Progress(_silent),
        ),
        "docker save | ssh docker load": lambda: _do(("sh", "-c", pipe, "sh", *ssh)),
    }
    return ways


def _silent(_text: str) -> None:
    """Show nothing while a time is taken."""


def _do(argv: tuple[str, ...]) -> None:
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


def _timed(goods: Goods, act: Way) -> float:
    _forget(goods)
    os.sync()  # what was written before is not paid for by the next
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def _forget(goods: Goods) -> None:
    """Take file and image from the host."""
    script = 'rm -f -- "$1"; docker image rm -f "$2"; sync'
    run(goods.host, Command(argv=("sh", "-c", script, "sh", TARGET, goods.image.id)))


def write_page(places: Places) -> None:
    """Write the page of what is kept."""
    content = json.loads((places.results / RAW).read_text(encoding="utf-8"))
    times, size_mb, (least, most) = content["times_s"], content["size_mb"], content["load"]
    lines = [_sentence(times, ours, theirs, size_mb) for ours, theirs in PAIRS]
    count = len(next(iter(times.values())))
    places.write_page(
        "distribution.md",
        f"""# Distribution

`python benchmarks/distribution.py`; raw data in `benchmarks/results/distribution.json`.

{size_mb} MB of random bytes to a lab host in a container of the same machine, {count} repetitions
in turns, load {least:.1f} to {most:.1f}. There the wire is as fast as the memory, so
that what is seen is the work of both ends; on a real network all ways wait for the wire. A ratio
below 1 means that envcompare is faster.

{chr(10).join(lines)}

`put` also compares the SHA-256 of what arrived, which scp does not. `deliver` also asks the docker
client there for the image, before and after, and compares the layers. Neither compresses: the
engine unpacks more slowly than a network of 1 Gbit/s brings, so that packing would only keep a core
busy.
""",
        [content.get("conditions", {})],
    )


def _sentence(times: Mapping[str, list[float]], ours: str, theirs: str, size_mb: int) -> str:
    own, other = np.array(times[ours]), np.array(times[theirs])
    found = interval(np.log(own / other).tolist(), level=0.95)
    assert found is not None
    ratio, low, high = (np.exp(value or 0) for value in (found.mean, found.low, found.high))
    speeds = (size_mb / np.median(one) for one in (own, other))
    return (
        f"- `{ours}` against `{theirs}`: ratio {ratio:.2f} ({low:.2f} to {high:.2f}, 95 %); "
        "medians {:.0f} and {:.0f} MB/s.".format(*speeds)
    )


if __name__ == "__main__":
    main()
