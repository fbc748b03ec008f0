"""What measuring costs beside the steps, and a command sent against one typed by hand.

The first part reads the blocks of a lockstep trial. The second runs the same Python program in the
same container of an SSH host, in random pairs: over envcompare's transport and environment, and as
`ssh HOST docker run …` with a connection that is open already, as a shell in a terminal is.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import subprocess
import tempfile
import time
from pathlib import Path

import click
import numpy as np

from bookkeeping import Places, Watch, benchmark, write_json
from envcompare.environments import Isolation
from envcompare.environments.oci import image_store
from envcompare.environments.registry import environment
from envcompare.run_folder.records import Block
from envcompare.stack import Progress
from envcompare.stack.image import deliver, find
from envcompare.stats.intervals import Interval, interval
from envcompare.text import Command
from envcompare.transport import LOCAL, run
from envcompare.transport.hosts import connect, parse_hosts
from envcompare.transport.openssh import SshOptions
from ground import Trial, ground, measure, read_blocks, save

PROGRAM = "s = 0\nfor i in range(30_000_000):\n    s += i"


@benchmark(__doc__, smoke=("--budget", "1", "--pairs", "1"))
@click.option("--budget", default=60.0, help="Seconds of lockstep.", show_default=True)
@click.option("--pairs", default=12, show_default=True)
@click.option("--host", default="lab-h1", show_default=True)
@click.option("--ssh-config", default=Path(".lab/ssh_config"), type=Path, show_default=True)
@click.option("--image", default="envcompare-base:python3.11", show_default=True)
@click.option("--python", default="", help="An interpreter that imports torch.")
def main(  # noqa: PLR0913 — an option each
    places: Places,
    *,
    budget: float,
    pairs: int,
    host: str,
    ssh_config: Path,
    image: str,
    python: str,
) -> None:
    """Measure what is missing, then write the result."""
    folder = places.results / "overhead"
    spent, roads = folder / "lockstep.json", folder / "roads.json"
    if not spent.exists():
        on, began, watch = ground(python=python), time.monotonic(), Watch.begin()
        trial = Trial(name="overhead", arms={"a": {}, "b": {}}, budget_s=budget, seed=1)
        save(folder / "lockstep.jsonl.gz", measure(trial, on))
        elapsed_s = time.monotonic() - began
        write_json(spent, {"elapsed_s": elapsed_s, "conditions": watch.conditions()})
    if not roads.exists():
        write_json(roads, _roads(pairs, host, ssh_config, image))
    print(write_page(places))


def _roads(pairs: int, host: str, config: Path, image: str) -> dict[str, object]:
    """Time both roads in pairs, each in random order; the first pair is left out."""
    watch, local = Watch.begin(), image_store(LOCAL)
    if (base := find(local, image)) is None:
        raise click.ClickException(f"the image {image} is not on this machine")
    transport = connect(parse_hosts((host,))[0], options=SshOptions(config=config))
    there = deliver(image_store(transport), base, local=local, progress=Progress(print))
    user = run(transport, Command(argv=("id", "-u"))).stdout.strip()
    isolation = Isolation(
        run_id="overhead", arm="docker", reference=there.id, uid=int(user), gid=int(user)
    )
    command = environment("docker").wrap(
        Command(argv=("/usr/bin/python3", "-c", PROGRAM)), isolation
    )
    times: dict[str, list[float]] = {"envcompare": [], "by hand": []}
    with tempfile.TemporaryDirectory() as folder:
        shared = ("-F", str(config), "-o", f"ControlPath={folder}/s", "-o", "ControlPersist=60")
        subprocess.run(("ssh", *shared, "-o", "ControlMaster=yes", host, "true"), check=True)
        by_hand = ("ssh", *shared, host, shlex.join(command.flat()))
        for number in range(pairs + 1):
            for name in random.Random(number).sample(tuple(times), 2):
                began = time.monotonic()
                if name == "envcompare":
                    assert run(transport, command).succeeded
                else:
                    subprocess.run(by_hand, check=True, stdin=subprocess.DEVNULL)
                times[name].append(time.monotonic() - began)
        subprocess.run(("ssh", *shared, "-O", "exit", host), check=False, capture_output=True)
    transport.close()
    return {"seconds": times, "cpus": os.cpu_count(), "conditions": watch.conditions()}


def shares(blocks: tuple[Block, ...], elapsed_s: float) -> tuple[float, float]:
    """Return what was no step: of the time of the rounds, and of the whole time."""
    by_generation: dict[tuple[int, int], list[Block]] = {}
    for block in blocks:
        by_generation.setdefault((block.restart, block.generation), []).append(block)
    spans = steps = 0.0
    for found in by_generation.values():
        rounds = sorted((one for one in found if not one.warmup), key=lambda one: one.t0_ns)
        last = rounds[-1]
        spans += last.t0_ns + sum(last.wall_ns) - rounds[0].t0_ns
        steps += sum(sum(one.wall_ns) for one in rounds)
    return 1 - steps / spans, 1 - steps / 1e9 / elapsed_s


def write_page(places: Places) -> str:
    """Write the page from the raw data; return it."""
    folder = places.results / "overhead"
    spent = json.loads((folder / "lockstep.json").read_text(encoding="utf-8"))
    roads = json.loads((folder / "roads.json").read_text(encoding="utf-8"))
    in_rounds, in_all = shares(read_blocks(folder / "lockstep.jsonl.gz"), spent["elapsed_s"])
    ratios = np.log(roads["seconds"]["envcompare"][1:]) - np.log(roads["seconds"]["by hand"][1:])
    found = interval(ratios.tolist(), level=0.95)
    assert found is not None
    page = _page(in_rounds, in_all, found, spent["elapsed_s"])
    places.write_page("overhead.md", page, [one.get("conditions", {}) for one in (spent, roads)])
    return page


def _page(in_rounds: float, in_all: float, found: Interval, elapsed_s: float) -> str:
    return "\n".join(
        (
            "# Overhead",
            "",
            "`python benchmarks/overhead.py`; raw data in `benchmarks/results/overhead/`.",
            "",
            f"- Between the blocks of a generation: {in_rounds:.2%} of the time is no step "
            "(messages, counters, the fresh order of each round).",
            f"- Of all {elapsed_s:.0f} s of a trial: {in_all:.0%} is no measured step. That is "
            "what new processes, imports, fresh models and warm-up cost; it buys the replication "
            "that an interval needs, and a longer budget does not lower it.",
            "- The same program in the same container of an SSH host, over envcompare's transport "
            f"and environment against `ssh HOST docker run …`: {np.expm1(found.mean):+.2%} "
            f"({np.expm1(found.low or 0):+.2%} to {np.expm1(found.high or 0):+.2%}, 95 %, "
            f"{found.restarts} pairs).",
            "",
        )
    )


if __name__ == "__main__":
    main()
