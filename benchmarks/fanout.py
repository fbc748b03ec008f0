"""Measure how long many hosts take to be asked at once, and how much memory that costs here.

The hosts are names of a few lab hosts, so that each connection is a real one to a real sshd.
`envcompare doctor` asks all of them, Ansible runs one raw command on each, and so does OpenSSH
under `xargs -P`; all three have the same number of hosts at once and take turns in an order drawn
anew.
Nothing is timed on a host, so that it does not matter that they share a kernel.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click
import numpy as np

from bookkeeping import Places, Watch, benchmark, load_average, write_json

RAW = "fanout.json"
DOCTOR, ANSIBLE, XARGS = "envcompare doctor", "ansible -m raw", "xargs -P ssh"
_KEYS = ("hostname", "user", "port", "identityfile", "userknownhostsfile")
_LOOK_EVERY_S = 0.05
_OF_ANSIBLE = "ansible-core"
_COMMAND = "true"
_UNREACHED = ("UNREACHABLE", "cannot connect", "cannot find host", "Could not resolve")


@dataclass(slots=True, kw_only=True)
class Tree:
    """Watches a process and what it starts; a page that several share counts once in all."""

    root: int
    peak_bytes: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        """Look until it is told to end."""
        while not self._ended.wait(_LOOK_EVERY_S):
            self.peak_bytes = max(self.peak_bytes, sum(map(_pss_bytes, _family(self.root))))

    def end(self) -> None:
        """End at the next look."""
        self._ended.set()


@benchmark(__doc__.partition("\n\n")[0], smoke=("--sizes", "1,3", "--repetitions", "1"))
@click.option("--servers", default="lab-h1", show_default=True, help="Lab hosts behind the names.")
@click.option("--ssh-config", default=".lab/ssh_config", show_default=True)
@click.option("--sizes", default="1,10,20,100", show_default=True, help="Numbers of hosts.")
@click.option(
    "--jobs", default=8, show_default=True, help="Hosts at once; sshd drops more than 10."
)
@click.option("--repetitions", default=5, show_default=True)
@click.option("--seed", default=1, show_default=True)
def main(  # noqa: PLR0913 — an option each
    places: Places,
    *,
    servers: str,
    ssh_config: str,
    sizes: str,
    jobs: int,
    repetitions: int,
    seed: int,
) -> None:
    """Time all ways and write the page."""
    watch = Watch.begin()
    places.work.mkdir(parents=True, exist_ok=True)
    counts = [int(size) for size in sizes.split(",")]
    config = _aliases(
        places.work / "fanout_ssh_config", servers.split(","), ssh_config, max(counts)
    )
    ansible = _ansible(places.work / "ansible")
    taken: dict[str, dict[str, list[tuple[float, int]]]] = {}
    order, loads = random.Random(seed), [load_average()]
    for size in counts * repetitions:
        ways = _ways(size, config, ansible, jobs=jobs)
        for name in order.sample(sorted(ways), len(ways)):
            took_s, peak_bytes = _run(ways[name])
            taken.setdefault(name, {}).setdefault(str(size), []).append((took_s, peak_bytes))
            print(f"{size} hosts, {name}: {took_s:.2f} s, {peak_bytes / 1e6:.0f} MB", flush=True)
        loads.append(load_average())
    result = {
        "jobs": jobs,
        "servers": len(servers.split(",")),
        "load": [min(loads), max(loads)],
        "taken": taken,
        "conditions": watch.conditions(),
    }
    write_json(places.results / RAW, result)
    write_page(places)


def _aliases(path: Path, servers: list[str], config: str, count: int) -> Path:
    """Write a configuration of OpenSSH in which the servers have many names."""
    known = []
    for server in servers:
        said = subprocess.run(
            ("ssh", "-G", "-F", config, server), capture_output=True, text=True, check=True
        ).stdout
        pairs = (line.partition(" ")[::2] for line in said.splitlines())
        known.append({key: value for key, value in pairs if key in _KEYS})
    lines: list[str] = []
    for number in range(count):
        lines.append(f"Host {_name(number)}")
        lines += [f"  {key} {value}" for key, value in known[number % len(known)].items()]
        lines += ["  IdentitiesOnly yes", "  StrictHostKeyChecking yes"]
        lines += ["  HostKeyAlgorithms ssh-ed25519"]
    path.write_text("\n".join((*lines, "")), encoding="utf-8")
    return path.resolve()


def _name(number: int) -> str:
    return f"fleet-{number:03}"


def _ansible(folder: Path) -> Path | None:
    """Return the program of Ansible, installed into an environment of its own; None without."""
    program = folder / "bin" / "ansible"
    if not program.exists():
        subprocess.run((sys.executable, "-m", "venv", str(folder)), check=True)
        install = (str(folder / "bin" / "pip"), "install", "-q", _OF_ANSIBLE)
        if subprocess.run(install, check=False).returncode:
            shutil.rmtree(folder)
            print(f"{_OF_ANSIBLE} cannot be installed: it is left out", flush=True)
            return None
    return program.resolve(strict=False)


def _ways(
    size: int, config: Path, ansible: Path | None, *, jobs: int
) -> Mapping[str, tuple[tuple[str, ...], Mapping[str, str]]]:
    """Return each way with what its environment has beside ours."""
    names = [_name(number) for number in range(size)]
    doctor = (sys.executable, "-m", "envcompare", "doctor", "--hosts", ",".join(names))
    reach = (*doctor, "--envs", "vm", "--ssh-config", str(config), "--jobs", str(jobs))
    each = f"printf '%s\\n' {' '.join(names)} | xargs -P {jobs} -I@ ssh -F {config} @ {_COMMAND}"
    ways: dict[str, tuple[tuple[str, ...], Mapping[str, str]]] = {
        DOCTOR: (reach, {}),
        XARGS: (("sh", "-c", each), {}),
    }
    if ansible is not None:
        raw = (str(ansible), "all", "-i", ",".join((*names, "")), "-f", str(jobs))
        # without it a connection of the last repetition would be used again
        options = f"-F {config} -o ControlMaster=no -o ControlPath=none"
        ways[ANSIBLE] = ((*raw, "-m", "raw", "-a", _COMMAND), {"ANSIBLE_SSH_ARGS": options})
    return ways


def _run(way: tuple[tuple[str, ...], Mapping[str, str]]) -> tuple[float, int]:
    """Return how long a way took and the most memory it had at once."""
    argv, variables = way
    start = time.perf_counter()
    with subprocess.Popen(
        argv, env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        tree = Tree(root=process.pid)
        watching = threading.Thread(target=tree.watch)
        watching.start()
        said = process.communicate()[0].decode(errors="replace")
        took_s = time.perf_counter() - start
        tree.end()
        watching.join()
    if process.returncode not in {0, 3} or any(word in said for word in _UNREACHED):
        raise SystemExit(f"{argv[:4]} ended with {process.returncode}:\n{said[-2000:]}")
    return took_s, tree.peak_bytes


def _family(root: int) -> list[int]:
    """Return a process and all that it started, directly or not."""
    family = [root]
    for parent in family:
        for path in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                family += [int(word) for word in path.read_text().split()]
            except OSError:  # it has ended
                continue
    return family


def _pss_bytes(process: int) -> int:
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0
    lines = (line.split() for line in text.splitlines())
    return next((int(words[1]) * 1024 for words in lines if words[0] == "Pss:"), 0)


def write_page(places: Places) -> None:
    """Write the page of what is kept."""
    content = json.loads((places.results / RAW).read_text(encoding="utf-8"))
    taken, (least, most) = content["taken"], content["load"]
    sizes = list(next(iter(taken.values())))
    count = len(taken[DOCTOR][sizes[0]])
    repeated = f"Medians of {count} repetitions in turns" if count > 1 else "One repetition"
    head = "| hosts | " + " | ".join(f"`{name}`" for name in taken) + " |"
    rows = [
        f"| {size} | " + " | ".join(_figures(taken[name][size]) for name in taken) + " |"
        for size in sizes
    ]
    table = "\n".join((head, "|---" * (len(taken) + 1) + "|", *rows))
    places.write_page(
        "fanout.md",
        f"""# Many hosts at once

`python benchmarks/fanout.py`; raw data in `benchmarks/results/fanout.json`.

{repeated}, {content["jobs"]} hosts at once, load {least:.1f} to
{most:.1f}: seconds from start to end, and the peak of the memory (PSS) of the client and all its
processes. The hosts are names of {content["servers"]} lab hosts on the machine of the client, so
that both ends share its processors.

{table}

{_growth(taken, sizes)}

The work is not the same: `doctor` asks each host about its login, kernel, Python, driver and
environments, with several commands over its connection; the other two run `true` once. Ansible and
OpenSSH start a process and a connection for each host and may not keep it (`ControlMaster=no`). The
program `pssh` of PyPI (2.3.1) does not start on Python 3; `xargs -P` does what it does.
""",
        [content.get("conditions", {})],
    )


def _figures(values: list[tuple[float, int]]) -> str:
    took_s, peak_bytes = (float(np.median([value[place] for value in values])) for place in (0, 1))
    return f"{took_s:.2f} s, {peak_bytes / 1e6:.0f} MB"


def _growth(taken: Mapping[str, Mapping[str, list[tuple[float, int]]]], sizes: list[str]) -> str:
    """Say how much the client of envcompare grows from the fewest to the most hosts."""
    peaks = {size: [peak for _, peak in taken[DOCTOR][size]] for size in sizes}
    few, many = (float(np.median(peaks[size])) for size in (sizes[0], sizes[-1]))
    return (
        f"From {sizes[0]} to {sizes[-1]} hosts the memory of `{DOCTOR}` grows to "
        f"{many / few:.2f} times as much."
    )


if __name__ == "__main__":
    main()
