"""Reproduce two explanations: software that looks like a container, and a container that is one.

One command makes the images it needs, measures what is missing, keeps the results under
benchmarks/results/explanations, and writes docs/benchmarks/explanations.md from them.
"""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from bookkeeping import HERE, Places, Watch, benchmark, load_average, write_json
from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import RunComparison
from envcompare.environments.oci import ENGINE
from envcompare.environments.registry import environment
from envcompare.report.sections.why import split_parts
from envcompare.report.wording import NOT_MEASURED
from envcompare.report.wording.causewords import split_sentences
from envcompare.report.wording.headlines import headlines
from envcompare.report.wording.verdicts import estimate_text
from envcompare.run_folder.results import RunFolder
from envcompare.stack import Options, Progress, Request
from envcompare.text import Command
from envcompare.transport import Transport, run
from envcompare.transport.hosts import connect, parse_hosts
from envcompare.transport.openssh import SshOptions

WORKLOADS = HERE / "workloads"
TUNED_IMAGE = "envcompare-explanation:malloc"
TUNED = """FROM {base}
ENV MALLOC_TRIM_THRESHOLD_=536870912 MALLOC_MMAP_THRESHOLD_=536870912
"""
_HOME = r"(?:(?<=-[IL])|(?<![\w./-]))(?:/root|/home/[\w.-]+)(?![\w.-])"
_PLACES = (
    (re.compile(re.escape(f"{HERE.parent}/")), ""),
    (re.compile(rf"{re.escape(str(HERE.parent))}(?![\w.-])"), "<project>"),
    (re.compile(rf"{_HOME}/\.pyenv/versions/[\w.-]+"), "<prefix>"),
    (re.compile(_HOME), "~"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The host that measures, and how to reach it."""

    host: str
    ssh_config: Path | None
    options: Options

    @property
    def flags(self) -> tuple[str, ...]:
        """Return what every run is told of the host."""
        base = ("--base-image", self.options.base_image) if self.options.base_image else ()
        config = ("--ssh-config", str(self.ssh_config)) if self.ssh_config else ()
        return ("--hosts", self.host, *config, *base)

    def connect(self) -> Transport:
        """Return a transport to the host."""
        return connect(parse_hosts([self.host])[0], options=SshOptions(config=self.ssh_config))


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One run and what it is to show."""

    name: str
    title: str
    why: str
    flags: tuple[str, ...]


EXPLANATIONS = (
    Explanation(
        name="interpreter",
        title="Another interpreter, which looks like a container",
        why="The image has its distribution's Python 3.11, the host one that was built on it "
        "(pyenv); the workload is plain Python. Whoever times `python3` here and `docker run` "
        "there compares both at once.",
        flags=("--workload", f"{WORKLOADS / 'pythonbound.py'}:PythonBound"),
    ),
    Explanation(
        name="allocator",
        title="Two variables of an image, which look like a container",
        why="The image is the workload image with two `ENV` lines for glibc's malloc "
        "(`MALLOC_TRIM_THRESHOLD_` and `MALLOC_MMAP_THRESHOLD_`); nothing else differs. The "
        "workload makes buffers of a few megabytes, reads them and drops them. `--stabilise` "
        "would set the variables in every arm, so it is off.",
        flags=("--workload", f"{WORKLOADS / 'buffers.py'}:Buffers", "--no-stabilise"),
    ),
    Explanation(
        name="seccomp",
        title="System calls, which a container does make slower",
        why="The workload does nothing but small system calls. Docker filters them (seccomp), "
        "Apptainer and the plain process do not. The same stack twice: the difference stays.",
        flags=("--envs", "vm,docker,singularity@host", "--stacks", "image,host",
               "--reference", "vm-host",
               "--workload", f"{WORKLOADS / 'systemcalls.py'}:SystemCalls"),
    ),
)  # fmt: skip


@benchmark(__doc__, smoke=("--only", "seccomp", "--budget", "1"))
@click.option("--host", default="lab-h1", show_default=True)
@click.option("--ssh-config", type=click.Path(path_type=Path), default=Path(".lab/ssh_config"))
@click.option("--base-image", default="envcompare-base:python3.11", show_default=True)
@click.option(
    "--other-python",
    default=str(Path(sys.executable).resolve()),
    help="An interpreter of this machine, another build than the base image's.",
)
@click.option("--budget", default=200.0, help="Seconds a run.", show_default=True)
@click.option("--only", multiple=True, help="Measure these alone.")
def main(  # noqa: PLR0913 — an option each
    places: Places,
    *,
    host: str,
    ssh_config: Path,
    base_image: str,
    other_python: str,
    budget: float,
    only: tuple[str, ...],
) -> None:
    """Measure what is missing, then write the page."""
    place = Place(host=host, ssh_config=ssh_config, options=Options(base_image=base_image))
    for one in EXPLANATIONS:
        kept = places.results / "explanations" / one.name
        if one.name in (only or (one.name,)) and not (kept / "comparison.json").exists():
            extra = make_ready(one, place, other_python=other_python)
            runs = places.work / "explanations" / one.name
            watch = Watch.begin()
            folder = measure(one, (*extra, "--budget", str(budget)), out=runs)
            write_json(kept / "conditions.json", watch.conditions())
            keep(folder, kept)
    write_page(places)


def make_ready(one: Explanation, place: Place, *, other_python: str) -> tuple[str, ...]:
    """Make the image of a run; return the flags that say where it runs and on which software.

    Another interpreter is sure to be here alone, where the tool has its own.
    """
    if one.name == "seccomp":
        return place.flags
    if one.name == "interpreter":
        arms = f"vm@host,docker@host,image=docker:{place.options.base}"
        return ("--hosts", "local", "--envs", arms, "--host-python", other_python)
    transport = place.connect()
    try:
        request = Request(
            transport=transport, options=place.options, progress=Progress(_say), builder=ENGINE
        )
        image, venv = environment("docker").prepare(request), environment("vm").prepare(request)
        _tune(transport, dict(image.identity)["image.name"])
    finally:
        transport.close()
    arms = f"vm@host,docker@host,image=docker:{TUNED_IMAGE}"
    return (*place.flags, "--envs", arms, "--host-python", venv.interpreter)


def measure(one: Explanation, extra: tuple[str, ...], *, out: Path) -> Path:
    """Carry out the run, or go on with one that was interrupted; return its folder."""
    begun = sorted(out.glob("*/run.json"))
    words = (
        "--wait=600",
        "--out",
        str(out),
        "--quick",
        "--seed",
        "1",
        "--no-startup",
        "--title",
        one.title,
    )
    flags = (*words, *one.flags, *extra)
    if begun:
        flags = ("--wait=600", "--resume", str(begun[-1].parent))
    argv = (sys.executable, "-m", "envcompare", "run", *flags)
    _say(f"{one.name}: load {load_average()}")
    subprocess.run(argv, check=True)
    found: Path = max(out.glob("*/run.json"))
    return found.parent


def keep(folder: Path, target: Path) -> None:
    """Keep what the run found and what it was made of, with no path of this machine."""
    target.mkdir(parents=True, exist_ok=True)
    for name in ("run.json", "events.jsonl"):
        (target / name).write_text(placeless((folder / name).read_text(encoding="utf-8")))
    packed = gzip.compress((folder / "samples.jsonl").read_bytes(), mtime=0)
    (target / "samples.jsonl.gz").write_bytes(packed)
    found = compare_run(RunFolder.open(folder))
    text = msgspec.json.format(msgspec.json.encode(found), indent=1)
    kept = placeless(text.decode()) + "\n"
    (target / "comparison.json").write_text(kept)  # last: it marks the run as kept


def placeless(text: str) -> str:
    """Return the text without where things lie on this machine: project, interpreter and homes."""
    for place, name in _PLACES:
        text = place.sub(name, text)
    return text


def write_page(places: Places) -> None:
    """Write the page from the kept results."""
    measured = []
    lines = [
        "# Environment or software?",
        "",
        "`python benchmarks/explanations.py` made this page and can make it again; what it rests "
        "on lies in `benchmarks/results/explanations`. The sentences are those of the reports.",
    ]
    for one in EXPLANATIONS:
        kept = places.results / "explanations" / one.name
        if (path := kept / "comparison.json").exists():
            lines += _section(one, msgspec.json.decode(path.read_bytes(), type=RunComparison))
        if (path := kept / "conditions.json").exists():
            measured.append(json.loads(path.read_text(encoding="utf-8")))
    places.write_page("explanations.md", "\n".join(lines) + "\n", measured)


def _section(one: Explanation, found: RunComparison) -> Iterable[str]:
    yield from ("", f"## {one.title}", "", one.why, "")
    for headline in headlines(found):
        yield f"- {' '.join(text for text in (headline.lead, headline.caution) if text)}"
    yield from ("", *split_sentences(found), "")
    heads = ("whole", "environment first: environment", "software", "software first: environment",
             "software", "interaction")  # fmt: skip
    yield f"| arm | {' | '.join(heads)} |"
    yield f"|---|{'---|' * len(heads)}"
    for split in found.views.decompositions:
        parts = (
            estimate_text(estimate) if estimate else NOT_MEASURED
            for _, _, estimate, _ in split_parts(split)
        )
        yield f"| {split.arm} | {' | '.join(parts)} |"
    yield from _facts(found)


def _facts(found: RunComparison) -> Iterable[str]:
    """Say what the fingerprints tell of the confounders and of seccomp."""
    modes: Mapping[str, object] = {arm.arm: arm.facts.get("seccomp.mode") for arm in found.arms}
    told = ", ".join(f"{arm} {mode}" for arm, mode in modes.items() if "~" not in arm)
    cell, cpus = found.cells[0], found.arms[0].facts.get("cpu.count")
    yield from ("", f"Seccomp mode (0 none, 2 filter): {told}.")
    yield (
        f"{cell.restarts} restarts, {cell.rounds} rounds, {cell.elapsed_s:.0f} s; "
        f"run {found.run_id} on {cell.host} ({cpus} CPUs)."
    )


def _tune(transport: Transport, base: str) -> None:
    """Make an image that has two variables more than the workload image, and nothing else."""
    argv = ("docker", "build", "--network=none", "--tag", TUNED_IMAGE, "-")
    result = run(transport, Command(argv=argv), stdin=TUNED.format(base=base).encode())
    if not result.succeeded:
        raise click.ClickException(f"{TUNED_IMAGE} cannot be built: {result.tail(3)}")


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr)


if __name__ == "__main__":
    main()
