"""What all benchmarks share: `--smoke`, where raw data and pages lie, and what else was going on.

A benchmark is a function of its places and options. Under `--smoke` its places are a temporary
folder and its options those of one tiny trial, so that nothing that is published is touched.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import click

from envcompare.run_folder.records import Scalar

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
DATA = HERE / "data"  # what the simulation resamples
DOCS = HERE.parent / "docs" / "benchmarks"
WORK = HERE / ".work"  # made data, logs and unfinished runs: not kept
SMOKE_SAID = (
    "This was a smoke run: it shows that the benchmark runs, and nothing it printed is a figure. "
    "It kept no raw data and wrote no page."
)
_CODE = (".", ":!benchmarks/results", ":!benchmarks/data", ":!docs/benchmarks")
_STALLS = ("cpu", "io", "memory")

Conditions = Mapping[str, Scalar]
"""The commit that measured something and the load meanwhile; flat, as the values of an event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where a benchmark keeps raw data, publishes pages, and puts what is not kept."""

    results: Path = RESULTS
    docs: Path = DOCS
    data: Path = DATA
    work: Path = WORK

    @classmethod
    def below(cls, folder: Path) -> Places:
        """Return places of a folder that stands for the repository."""
        return cls(**{name: folder / name for name in ("results", "docs", "data", "work")})

    def write_page(self, name: str, page: str, measured: Iterable[Conditions] = ()) -> None:
        """Write a page; where it is known, its last line says at which commit and load."""
        told = tell(measured)
        self.docs.mkdir(parents=True, exist_ok=True)
        text = f"{page.rstrip()}\n\n{told}\n" if told else page
        (self.docs / name).write_text(text, encoding="utf-8")


class Benchmark(click.Command):
    """A command whose `--smoke` stands for the words of its tiniest trial."""

    smoke: tuple[str, ...] = ()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the words; what the user says besides `--smoke` comes later and so counts."""
        return super().parse_args(ctx, [*self.smoke, *args] if "--smoke" in args else args)

    def invoke(self, ctx: click.Context) -> None:
        """Run in the places of the repository, or in some that are removed afterwards."""
        if not ctx.params.pop("is_smoke"):
            ctx.params["places"] = Places()
            super().invoke(ctx)
            return
        with tempfile.TemporaryDirectory(prefix="envcompare-smoke-") as folder:
            ctx.params["places"] = Places.below(Path(folder))
            super().invoke(ctx)
        click.echo(SMOKE_SAID)


def benchmark(
    text: str | None, *, smoke: tuple[str, ...]
) -> Callable[[Callable[..., None]], Benchmark]:
    """Make a command line of a function that takes `places` and its options."""

    def made(main: Callable[..., None]) -> Benchmark:
        says = f"One tiny trial ({' '.join(smoke)}) in a temporary folder; no figure."
        flagged = click.option("--smoke", "is_smoke", is_flag=True, help=says)(main)
        command = click.command(cls=Benchmark, help=text)(flagged)
        command.smoke = smoke
        return command

    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Sees what else the machine does, from when it began until it is asked."""

    began_s: float
    load: float
    stalled_us: Mapping[str, int | None]

    @classmethod
    def begin(cls) -> Watch:
        """Begin now."""
        return cls(began_s=time.time(), load=load_average(), stalled_us=_stalled_us())

    def conditions(self) -> dict[str, Scalar]:
        """Return commit and load; a pressure is the percentage of the time that a task waited."""
        began = datetime.fromtimestamp(self.began_s, tz=timezone.utc)
        elapsed_s, now = time.time() - self.began_s, _stalled_us()
        pressures = {
            f"{name}_pressure": _share(self.stalled_us[name], now[name], elapsed_s)
            for name in _STALLS
        }
        return {
            **commit(), "began": began.isoformat(timespec="seconds"), "elapsed_s": elapsed_s,
            "load_before": self.load, "load_after": load_average(), **pressures,
        }  # fmt: skip


@functools.cache  # a long run is that of the commit it began with
def commit() -> Mapping[str, Scalar]:
    """Return the commit of this checkout, and whether its code differs from it; None elsewhere."""
    found = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "--", *_CODE)
    return {"commit": found, "is_dirty": None if changed is None else bool(changed)}


def tell(measured: Iterable[Conditions]) -> str:
    """Return a sentence with commits, loads and CPU pressures; nothing where they are not known."""
    known = [one for one in measured if one.get("commit")]
    if not known:
        return ""
    loads = [float(one[name] or 0) for one in known for name in ("load_before", "load_after")]
    told = f"Measured at commit {commits(known)}; load {min(loads):.1f} to {max(loads):.1f}"
    pressures = [float(p) for one in known if (p := one["cpu_pressure"]) is not None]
    if not pressures:
        return f"{told}."
    ends = dict.fromkeys(f"{one:.0f}" for one in (min(pressures), max(pressures)))
    return f"{told}; a task waited for a CPU in {' to '.join(ends)} % of the time."


def commits(measured: Iterable[Conditions]) -> str:
    """Return the commits at which something was measured, as far as they are known."""
    known = (
        f"`{str(one['commit'])[:7]}`{' with uncommitted changes' if one['is_dirty'] else ''}"
        for one in measured
        if one.get("commit")
    )
    return ", ".join(dict.fromkeys(known))


def mean_load(conditions: Conditions) -> float:
    """Return the mean of the loads before and after."""
    return sum(float(conditions[name] or 0) for name in ("load_before", "load_after")) / 2


def run_envcompare(*words: str) -> str:
    """Run a command of envcompare as a user does; return what it printed.

    Raises click.ClickException where its exit code is not 0.
    """
    argv = [sys.executable, "-m", "envcompare", "-q", *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{' '.join(words)}: {done.stderr or done.stdout}")
    return done.stdout


@contextmanager
def one_run(*words: str) -> Iterator[Path]:
    """Run `envcompare run` once; give its run folder, which is then removed.

    Raises click.ClickException as `run_envcompare` does.
    """
    with tempfile.TemporaryDirectory(prefix="envcompare-benchmark-") as out:
        run_envcompare("run", *words, "--wait=600", "--out", out)
        (folder,) = Path(out).iterdir()
        yield folder


def on_lab_host(main: Callable[..., None]) -> Callable[..., None]:
    """Give a benchmark the options `--host` and `--ssh-config`."""
    config = click.option("--ssh-config", default=".lab/ssh_config", show_default=True)
    return click.option("--host", default="lab-h1", show_default=True)(config(main))


def load_average() -> float:
    """Return the load of the last minute, which every result states."""
    return float(Path("/proc/loadavg").read_text(encoding="ascii").split()[0])


def write_json(path: Path, content: object) -> None:
    """Write a result whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    part.rename(path)


def _git(*words: str) -> str | None:
    argv = ("git", "-C", str(HERE.parent), *words)
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _stalled_us() -> dict[str, int | None]:
    return {name: _stalled(Path("/proc/pressure") / name) for name in _STALLS}


def _stalled(path: Path) -> int | None:
    """Return the total of the line `some` (kernel: Documentation/accounting/psi.rst)."""
    try:
        some = path.read_text(encoding="ascii").splitlines()[0]
    except OSError:  # a kernel without it, or one that refuses to say
        return None
    return int(some.rpartition("total=")[2])


def _share(first_us: int | None, last_us: int | None, elapsed_s: float) -> float | None:
    if first_us is None or last_us is None or elapsed_s <= 0:
        return None
    return min(100.0, (last_us - first_us) / elapsed_s / 1e4)
