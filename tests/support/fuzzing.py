"""Spoil files and other inputs for as long as is asked, and keep what breaks their reader."""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import click
import inputfuzz
from inputfuzz import INPUTS
from profilefuzz import CORPUS, NAMES, changes, outcome, seeds, spoiled

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Spoil, read, count; 1 where something broke a reader."""
    asked = arguments()
    draw, counts = random.Random(asked.seed), Counter[str]()
    began, until = time.monotonic(), time.monotonic() + asked.minutes * 60
    with tempfile.TemporaryDirectory() as folder:
        while counts.total() < asked.examples and time.monotonic() < until:
            counts[example(asked.reader, draw, Path(folder))] += 1
    told = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    spent = time.monotonic() - began
    click.echo(
        f"{asked.reader}: {counts.total()} examples in {spent:.0f} s, seed {asked.seed}: {told}"
    )
    return 1 if counts["broken"] else 0


def arguments() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(prog="script/fuzz", description=__doc__)
    parser.add_argument("reader", choices=(*NAMES, *INPUTS))
    parser.add_argument("--examples", type=int, default=10**9)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def example(reader: str, draw: random.Random, folder: Path) -> str:
    """Spoil one file and read it: refused, read or broken."""
    if reader in INPUTS:
        return _example_of_input(reader, draw, folder)
    seed = draw.choice(seeds(reader))
    names = sorted(changes(reader))
    steps = [(draw.choice(names), draw.getrandbits(32)) for _ in range(draw.randint(1, 4))]
    path = folder / seed.name
    path.write_bytes(spoiled(reader, seed, steps))
    try:
        return "refused" if outcome(reader, path) is None else "read"
    except Exception:  # noqa: BLE001 — whatever it is, it is what was looked for
        keep(reader, path)
        return "broken"


def _example_of_input(name: str, draw: random.Random, folder: Path) -> str:
    state, path = draw.getstate(), folder
    try:
        what, path = inputfuzz.outcome(name, draw, folder)
    except Exception:  # noqa: BLE001 — whatever it is, it is what was looked for
        draw.setstate(state)
        path, _ = INPUTS[name](draw, folder)
        keep(name, path)
        return "broken"
    return what


def keep(reader: str, path: Path) -> None:
    """Keep a file that broke its reader, once for each place it broke at."""
    lines = traceback.format_exc().strip().splitlines()
    places = [line.strip() for line in lines if line.strip().startswith("File ")]
    digest = hashlib.sha256("\n".join((places[-1], lines[-1][:40])).encode()).hexdigest()[:8]
    kept = CORPUS / reader / f"{digest}-{path.name}"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(path.read_bytes())
        click.echo(f"broken: {kept.relative_to(ROOT)}\n  {places[-1]}\n  {lines[-1][:200]}")


if __name__ == "__main__":
    sys.exit(main())
