"""One trial of a fault: a run of a fixed size is hurt, resumed, and checked in one place.

Whatever hurt it, the run must end with each block that a calm run has, once, and leave nothing.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from faultwork import source
from lab import Lab
from runs import BASE, STEPS_ALONE, run_folder

from envcompare.run_folder import standing_samples
from envcompare.run_folder.records import Block, RunRecord
from envcompare.run_folder.results import RunFolder

_T = TypeVar("_T")
RESTARTS, ROUNDS, STEPS = 2, 10, 20  # blocks of 0.1 s: a fault takes half a second to come
PRECIOUS = "/var/tmp/precious"
LIMIT_S = 240.0  # of a run: far more than any needs
_POLL_S = 0.05
_GRACE_S = 20.0  # for what ends by itself
_CLIENT = (
    "from envcompare.measure import limits; limits.MIN_BLOCK_LIMIT_S = {limit_s}; "
    "from envcompare.cli import main; main()"
)
_WORKERS = r"""
for file in $(grep -lsF "ENVCOMPARE_RUN=$1" /proc/[0-9]*/environ); do
  pid=${file%/environ}
  tr '\000' '\n' <"$file" | grep -qxF "ENVCOMPARE_ARM=$2" || continue
  case $(readlink "$pid/exe") in *python*) ;; *) continue ;; esac
  ! tr '\000' '\n' <"$pid/cmdline" | grep -q "harness/worker.py$" || echo "${pid#/proc/}"
done 2>/dev/null
:
"""
_MOUNTS = 'grep -F "$1" /proc/mounts || :'
_HERE = 'grep -lsF "ENVCOMPARE_RUN=$1" /proc/[0-9]*/environ; grep -F "$1" /proc/mounts; :'


class Broken(AssertionError):  # noqa: N818 — it is what a trial may end as, and no error of its code
    """The run did not survive the fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a run that was hurt."""

    lost: int  # blocks that were measured, and again after the fault
    left: tuple[str, ...]  # on hosts and client
    next_s: float | None  # from the fault, or its end, to the next block; None where none was due


@dataclass(slots=True, kw_only=True)
class Trial:
    """A run of a fixed size on lab hosts, that a fault may hurt."""

    hosts: tuple[Lab, ...]
    folder: Path  # of this trial alone
    draw: random.Random
    arms: tuple[str, ...] = ("vm@host", f"mine=docker:{BASE}")
    deed: str = "stuck"  # of the workload, when it is asked for
    variables: dict[str, str] = field(default_factory=dict)
    mounts: list[Path] = field(default_factory=list)  # here
    mounts_there: list[str] = field(default_factory=list)  # on the host that is hurt
    exit_codes: tuple[int, ...] = (0,)  # that a resumed run may end with
    prelude: str = ""  # what the client does first
    block_limit_s: float = 60.0  # after which a worker that hangs is given up
    _since: float | None = None
    _next_s: float | None = None
    _processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def host(self) -> Lab:
        """Return the host that is hurt."""
        return self.hosts[0]

    @property
    def out(self) -> Path:
        """Return where its run folder is."""
        return self.folder / "out"

    @property
    def run(self) -> Path:
        """Return the run folder."""
        path = run_folder(self.out)
        if path is None:
            raise Broken("there is no run folder")
        return path

    @property
    def ids(self) -> tuple[str, ...]:
        """Return the arms by name, with the control."""
        names = [arm.split("=")[0].replace("@", "-") for arm in self.arms]
        return (*names, f"{names[0]}~control")

    def words(self) -> list[str]:
        """Return what the run is told."""
        work = self.folder / "faulty.py"
        work.write_text(source(self.deed, precious=PRECIOUS))
        aliases = ",".join(host.alias for host in self.hosts)
        return [
            *("run", "--out", str(self.out), "--quick", "--base-image", BASE, "--hosts", aliases),
            *("--envs", ",".join(self.arms), "--workload", f"{work}:Faulty", *STEPS_ALONE),
            *("--restarts", str(RESTARTS), "--rounds", str(ROUNDS), "--steps", str(STEPS)),
            *("--budget", "900", "--seed", str(self.draw.randrange(2**31))),
            *("--host-patience", "60", "--no-noise-memory"),
        ]

    def start(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        """Start the client with these words, or those of a new run."""
        self.out.mkdir(parents=True, exist_ok=True)
        client = self.prelude + _CLIENT.format(limit_s=self.block_limit_s)
        log = (self.folder / "client.log").open("a")
        process = subprocess.Popen(
            [sys.executable, "-c", client, *(words or self.words())],
            cwd=self.folder,
            env={**os.environ, **self.variables, **variables},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        log.close()
        self._processes.append(process)
        return process

    def lines(self) -> int:
        """Return how many events and samples the run has written."""
        path = run_folder(self.out)
        names = ("events.jsonl", "samples.jsonl")
        return 0 if path is None else sum(_lines(path / name) for name in names)

    def samples(self, arm: str = "") -> int:
        """Return how many samples it has written, of an arm or of all."""
        path = run_folder(self.out)
        mark = f'"arm":"{arm}"'.encode() if arm else b"\n"
        return 0 if path is None else _lines(path / "samples.jsonl", mark)

    def reach(self, lines: int, process: subprocess.Popen[str]) -> None:
        """Wait until the run has written so many lines, or has ended."""
        end = time.monotonic() + LIMIT_S
        while self.lines() < lines and process.poll() is None:
            if time.monotonic() > end:
                raise Broken(f"the run has only {self.lines()} lines after {LIMIT_S:.0f} s")
            time.sleep(_POLL_S)

    def reach_block(self, process: subprocess.Popen[str]) -> None:
        """Wait until the run is in the middle of the rounds of a restart."""
        arms, per_restart = len(self.ids), len(self.ids) * (ROUNDS + 1)
        before = self.draw.randrange(RESTARTS) * (per_restart + arms)
        samples = before + self.draw.randrange(1, per_restart // 2)
        end = time.monotonic() + LIMIT_S
        while self.samples() < samples and process.poll() is None:
            if time.monotonic() > end:
                raise Broken(f"the run has only {self.samples()} samples after {LIMIT_S:.0f} s")
            time.sleep(0.005)

    def mark(self, arm: str = "") -> None:
        """Measure from now on how long the next sample takes to come: of an arm, or any."""
        self._since, before = time.monotonic(), self.samples(arm)
        began = self._since

        def watch() -> None:
            while self._since == began and time.monotonic() < began + LIMIT_S:
                if self.samples(arm) > before:
                    self._next_s = time.monotonic() - began
                    return
                time.sleep(_POLL_S)

        threading.Thread(target=watch, daemon=True).start()

    def finish(self, process: subprocess.Popen[str], *, limit_s: float = LIMIT_S) -> int:
        """Wait until a client has ended; one that hangs is killed."""
        try:
            return process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            kill(process)
            raise Broken(f"the client hung for {limit_s:.0f} s: {self.said()}") from None

    def said(self) -> str:
        """Return the last lines that clients have said."""
        log = self.folder / "client.log"
        return " | ".join(log.read_text(errors="replace").splitlines()[-8:])

    def workers(self, arm: str) -> list[str]:
        """Return the processes of a worker on its host, the one that answers first.

        The last one runs the steps.
        """
        said = self.host.as_root("sh", "-c", _WORKERS, "sh", self.run.name, arm)
        return sorted(said.split(), key=int)

    def hurt(self, arm: str, script: str, *, which: slice = slice(None)) -> None:
        """Run a script on the host as root with the processes of the worker of an arm."""
        end = time.monotonic() + _GRACE_S
        while not (pids := self.workers(arm)):
            if time.monotonic() > end:
                raise Broken(f"no worker of {arm} is there")
        self.host.as_root("sh", "-c", script, "sh", *pids[which])

    def require(self, what: str) -> None:
        """Refuse a fault that was without effect: the run has no event of that kind."""
        if f'"what":"{what}"' not in (self.run / "events.jsonl").read_text():
            raise Broken(f"the fault had no effect: there is no event {what}")

    def resume(self) -> None:
        """Go on with the run to its end, as often as a claim that is just ending refuses it."""
        if run_folder(self.out) is None:  # it was killed before it had a folder
            code = self.finish(self.start())
        else:
            for _ in range(5):
                process = self.start("run", "--resume", str(self.run))
                code = self.finish(process)
                if code != 3 or code in self.exit_codes:
                    break
                time.sleep(2)
        if code not in self.exit_codes:
            raise Broken(f"resumed with exit code {code}: {self.said()}")

    def check(self) -> Outcome:
        """Resume the run and check all that must hold after any fault; raises Broken."""
        self.resume()
        self._since = None
        self._check_plan()
        try:
            lost = check_whole(self.run)
        except Broken as error:
            raise Broken(f"{error}; {self.said()}") from error
        left = self._left()
        if left:
            raise Broken(f"left behind: {'; '.join(left)}")
        return Outcome(lost=lost, left=left, next_s=self._next_s)

    def _check_plan(self) -> None:
        """Refuse a run that was told another plan than that of all trials."""
        record = RunFolder.open(self.run).read_run()
        cells = sorted(cell.id for cell in record.cells)
        assert cells == sorted(f"{host.alias}/faulty-Faulty/default" for host in self.hosts)
        assert {arm.id for arm in record.arms} == set(self.ids)
        assert (record.design.restarts, record.design.rounds) == (RESTARTS, ROUNDS)

    def _left(self) -> tuple[str, ...]:
        """Return what is left of the run, once what ends by itself has ended."""
        end = time.monotonic() + _GRACE_S
        while (left := self._left_now()) and time.monotonic() < end:
            time.sleep(0.5)
        return left

    def _left_now(self) -> tuple[str, ...]:
        run = self.run.name
        there = [
            f"{host.alias}: {line}"
            for host in self.hosts
            for line in (
                *host.left_of(run).splitlines(),
                *host.as_root("sh", "-c", _MOUNTS, "sh", run).splitlines(),
            )
        ]
        done = subprocess.run(
            ["sh", "-c", _HERE, "sh", run], capture_output=True, text=True, check=True
        )
        here = [f"client: {line}" for line in done.stdout.splitlines()]
        here += [f"client: {path}" for path in self.run.rglob("*.part")]
        return (*there, *here)

    def end(self) -> None:
        """Kill the clients that are still there, and remove what the run has on its hosts."""
        self._since = None
        for process in self._processes:
            kill(process)
        for path in self.out.glob("*"):
            for host in self.hosts:
                with suppress(subprocess.CalledProcessError):
                    host.as_root("sh", "-c", _END, "sh", path.name)
                    host.remove(path.name)
        for path in self.mounts:
            subprocess.run(["umount", "-l", str(path)], check=False)
        for place in self.mounts_there:
            with suppress(subprocess.CalledProcessError):
                self.host.as_root("umount", place)


_END = """
for file in $(grep -lsF "ENVCOMPARE_RUN=$1" /proc/[0-9]*/environ); do
  pid=${file%/environ}; kill -KILL "${pid#/proc/}"
done 2>/dev/null
:
"""


def check_whole(run: Path) -> int:
    """Refuse a run that lacks a planned block, has one twice, or judges rounds that are not whole.

    Return how many blocks were measured and later overtaken; raises Broken.
    """
    folder = RunFolder.open(run)
    record = folder.read_run()
    held = [sample for sample in folder.read_samples().samples if isinstance(sample, Block)]
    copies = len(held) - len({(block.cell, block.arm, block.t0_ns) for block in held})
    if copies:  # what was measured anew began at another time
        raise Broken(f"{copies} of {len(held)} blocks are copies")
    kept = standing_samples(held, record.design)
    standing = [sample for sample in kept if isinstance(sample, Block)]
    ended = json.loads((run / "comparison.json").read_text())["cells"]
    _check_blocks(standing, record)
    restarts, rounds = record.design.restarts or 0, record.design.rounds or 0
    for cell in ended:
        said = (cell["state"], cell["stopped_by"], cell["restarts"], cell["rounds"])
        if said != ("ok", "planned", restarts, restarts * rounds):
            raise Broken(f"the cell {cell['id']} ended as {said}")
    return len(held) - len(standing)


def _check_blocks(standing: Iterable[Block], record: RunRecord) -> None:
    """Refuse blocks that are lacking or too many, in any restart of any arm."""
    count = Counter((b.cell, b.arm, b.restart, b.generation, b.round) for b in standing)
    expected = Counter(
        (cell.id, arm.id, restart, 0, number)
        for cell in record.cells
        for arm in record.arms
        for restart in range(record.design.restarts or 0)
        for number in range(-1, record.design.rounds or 0)
    )
    lacking, more = expected - count, count - expected
    if more or lacking:
        raise Broken(
            f"{lacking.total()} blocks are lacking and {more.total()} are too many: "
            f"{sorted(lacking)[:3]}, {sorted(more)[:3]}"
        )


def attempted(trial: Callable[[], _T]) -> tuple[_T | None, str]:
    """Return what became of a run in a trial, or why it did not survive, as its record says."""
    try:
        return trial(), ""
    except AssertionError as error:
        return None, _shortened(str(error)) or traceback.format_exc()[-600:]
    except Exception:  # noqa: BLE001 — whatever it is, the run did not survive
        return None, traceback.format_exc()[-600:]


def _shortened(said: str) -> str:
    """Return the first line, which has the cause, and the last seven."""
    lines = said.splitlines()
    return " | ".join((*lines[:1], *lines[1:][-7:]))


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a client with all that it has started here."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def trial(hosts: tuple[Lab, ...], folder: Path, seed: str, **changes: object) -> Iterator[Trial]:
    """Give a trial; whatever came of it, nothing of it runs on afterwards."""
    made = Trial(hosts=hosts, folder=folder, draw=random.Random(seed))
    for name, value in changes.items():
        setattr(made, name, value)
    try:
        yield made
    finally:
        made.end()


def on(lab: Lab, *aliases: str) -> tuple[Lab, ...]:
    """Return lab hosts by name."""
    return tuple(replace(lab, alias=alias) for alias in aliases)


def _lines(path: Path, mark: bytes = b"\n") -> int:
    try:
        return path.read_bytes().count(mark)
    except FileNotFoundError:
        return 0
