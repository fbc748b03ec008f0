"""The faults of allocations by name: each takes job, node or client from a run, which is resumed.

As a program it inflicts all of them, goes on where an earlier call stopped, and writes the page.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
from allocations_page import (
    ABANDONED,
    CANCELLED,
    CLIENT_KILLED,
    OVER,
    Record,
    append_record,
    read_records,
    write_page,
)
from cluster import (
    CANCEL,
    INTERRUPTED,
    JOBS,
    LOGIN,
    LONG,
    NODES,
    UNUSABLE,
    Cluster,
    as_root,
    eventually,
    installed_there,
)
from faults_page import latest, one_of_each_first
from faulttrials import attempted, check_whole
from lab import ROOT, docker_client, missing

from bookkeeping import Places, Watch, commit

LOCKS = ROOT / ".lab"  # where the cluster is, too
ENDLESS = ("--quick", "--restarts", "3", "--rounds", "900", "--steps", "20", "--budget", "900")
# restarts of some seconds, in all longer than the time limit
_SEVERAL_JOBS = (
    *("--quick", "--restarts", "12", "--budget", "580"),
    *("--rounds", "200", "--steps", "20"),
)
_CALM = ("--budget", "240")  # holds the plan of LONG on a busy machine too
KILLED = 137  # as a shell gives it
_KILL_CLIENT = "pkill -KILL -u bench -f '[e]nvcompare run'"
_KILL_MARKED = (
    "for file in $(grep -lsF ENVCOMPARE_RUN= /proc/[0-9]*/environ); do "
    "pid=${file%/environ}; kill -KILL ${pid#/proc/}; done"
)


@dataclass(slots=True, kw_only=True)
class Trial:
    """A run on nodes of a cluster, which a fault may hurt."""

    cluster: Cluster
    out: str
    draw: random.Random
    nodes: int = 1
    at_s: float | None = None
    doing: str | None = None
    exit_code: int | None = None
    kept: int | None = None
    left: list[str] = field(default_factory=list)
    is_finished: bool | None = None
    _arrived: list[dict[str, Any]] = field(default_factory=list)
    _process: subprocess.Popen[str] | None = None
    _listed_s: float = 0.0

    @property
    def node(self) -> str:
        """Return the first node that the run was given."""
        return str(self.cluster.events(self.out, "allocated")[0]["values"]["node"])

    @property
    def job(self) -> str:
        """Return the job of the run."""
        return str(self.cluster.events(self.out, "submitted")[-1]["values"]["job"])

    def start(self, *options: str, limit: str = "00:10:00") -> None:
        """Start the run, and wait until Slurm lists its job."""
        allocation = f"slurm:time={limit}"
        allocation += f",nodes={self.nodes}" * (self.nodes > 1)
        words = (*(options or (*LONG, *_CALM)), "--allocation", allocation)
        self._process = self.cluster.measuring(self.out, *words)
        assert eventually(self.is_listed), "the job was never listed"
        self._listed_s = time.monotonic()

    def measure(self) -> None:
        """Wait until samples of the run have arrived."""
        has_samples = eventually(
            lambda: len(self.cluster.lines(self.out, "samples.jsonl")) > 6, seconds=120
        )
        assert has_samples, "no sample arrived within 120 s"

    def strike(self, hurt: Callable[[], object]) -> None:
        """Note what the run is at and what has arrived, and hurt it."""
        self._arrived = self.cluster.lines(self.out, "samples.jsonl")
        self.doing = self._doing()
        self.at_s = time.monotonic() - self._listed_s
        hurt()

    def finish(self, *codes: int, limit_s: float = 150) -> str:
        """Wait for the client, which must end as its events say or with one of these codes."""
        assert self._process is not None
        try:
            output, _ = self._process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the client has not ended after {limit_s:g} s") from None
        self.exit_code = self._process.returncode
        expected = codes or self._expected()
        said = " | ".join(output.splitlines()[-8:])
        assert self.exit_code in expected, f"exit code {self.exit_code}: {said}"
        return output

    def check(self, *, resumes: int = 1) -> None:
        """Let nothing be left, resume the run, and check it; a kill leaves what --resume removes.

        Where the resumed run may lose its job too, it is resumed so often at most.

        Raises AssertionError where the run has not survived.
        """
        self.kept = self.require_arrived()
        if self.exit_code != KILLED:
            self.require_nothing()
        self._resume(resumes)
        states = [event["state"] for event in self.cluster.events(self.out, "cell-ended")]
        self.is_finished = states == ["ok"] * self.nodes
        assert self.is_finished, f"the cells of the resumed run ended as {states}"
        self.require_arrived()
        self._require_whole()
        self.require_nothing()

    def require_arrived(self) -> int:
        """Refuse the loss of samples since the fault or the last call; return how many it has."""
        samples = self.cluster.lines(self.out, "samples.jsonl")
        assert samples[: len(self._arrived)] == self._arrived, "samples that had arrived were lost"
        self._arrived = samples
        return len(samples)

    def _require_whole(self) -> None:
        """Refuse a resumed run that has not each planned block once."""
        with tempfile.TemporaryDirectory() as folder:
            for name in ("run.json", "samples.jsonl", "comparison.json"):
                (Path(folder) / name).write_text(self.cluster.run(f"cat {self.out}/*/{name}"))
            check_whole(Path(folder))

    def _resume(self, times: int) -> None:
        for more in reversed(range(times)):
            process = self.cluster.start(f"envcompare run --resume {self.out}/*")
            output, _ = process.communicate(timeout=300)
            if process.returncode == 0:
                return
            said = " | ".join(output.splitlines()[-8:])
            assert process.returncode == INTERRUPTED, f"not resumed: {said}"
            assert more, f"resumed {times} times in vain: {said}"
            self.require_nothing()

    def remove(self) -> None:
        """End what a broken trial has left, so that the next one does not meet it."""
        if self._process is not None:
            self._process.kill()
        as_root(LOGIN, f"{_KILL_CLIENT}; {_KILL_MARKED}")
        self.cluster.run(f"{CANCEL}; :")
        self.require_end()
        for node in NODES:
            as_root(node, f"{_KILL_MARKED}; pkill -KILL -u bench")
        self.cluster.run("rm -rf ~/.cache/envcompare/runs/*; :")

    def require_end(self) -> None:
        """Refuse a job that does not end."""
        if not eventually(lambda: not self.is_listed(), seconds=120):
            left = self.cluster.left().splitlines()
            self.left += [line for line in left if line not in self.left]
            raise AssertionError("a job does not end")

    def is_listed(self) -> bool:
        """Tell whether the user has a job."""
        return self.cluster.run(f"{JOBS}; :").strip() != ""

    def require_nothing(self) -> None:
        """Refuse jobs, processes and folders that are left."""
        left = self.cluster.left().splitlines()
        self.left += left
        assert not left, f"left behind: {'; '.join(left)}"

    def _has(self, *kinds: str) -> bool:
        return any(self.cluster.events(self.out, kind) for kind in kinds)

    def _doing(self) -> str:
        if self._process is not None and self._process.poll() is not None:
            return OVER
        if self._has("run-ended"):
            return "ended"
        if self.cluster.lines(self.out, "samples.jsonl"):
            return "measuring"
        return "preparing" if self._has("allocated") else "queued"

    def _expected(self) -> set[int]:
        """Return how the client of a run that lost its job may end."""
        events = self.cluster.lines(self.out, "events.jsonl")
        if events and events[-1]["what"] == "run-ended":
            return {0}
        return {INTERRUPTED} if self._has("allocated") else {UNUSABLE}


Hurt = Callable[[Trial], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is done to a run."""

    hurt: Hurt
    says: str  # in the table
    count: int = 1  # how often at most, but for the cancels


def cancel(trial: Trial) -> None:
    """Cancel all jobs of the user at any time, from the queue to the end."""
    trial.nodes = trial.draw.choice((1, 2))
    pause_s = trial.draw.uniform(0, 30)
    trial.start()
    time.sleep(pause_s)
    trial.strike(partial(trial.cluster.run, CANCEL))
    trial.finish()
    trial.check()


def kill_client(trial: Trial) -> None:
    """Kill the client at any time; the resumed run takes the job's place."""
    pause_s = trial.draw.uniform(0, 20)
    trial.start()
    time.sleep(pause_s)
    trial.strike(partial(as_root, LOGIN, _KILL_CLIENT))
    trial.finish(KILLED, 0)
    trial.check()


def abandon(trial: Trial) -> None:
    """Kill the client and let the job alone: it ends, and `clean` removes the rest."""
    trial.start(*ENDLESS, limit="00:20:00")
    trial.measure()
    trial.strike(partial(as_root, LOGIN, _KILL_CLIENT))
    trial.finish(KILLED)
    run_id = trial.cluster.run(f"basename {trial.out}/*").strip()
    folder = [run_id]  # of the cache, which is left for `clean`
    if not eventually(lambda: trial.cluster.left().splitlines() == folder, seconds=240):
        trial.left += [line for line in trial.cluster.left().splitlines() if line not in folder]
        raise AssertionError(f"left behind: {'; '.join(trial.left) or 'not even its folder'}")
    trial.kept = trial.require_arrived()
    trial.cluster.run(f"envcompare clean --run {trial.out}/*")
    assert trial.require_arrived() == trial.kept, "samples came after the job had ended"
    trial.require_nothing()


def reach_time_limit(trial: Trial) -> None:
    """Let Slurm end the job at its time limit, in the midst of a cell.

    Limits are whole minutes; the user may shorten that of a job which has begun.
    """
    trial.start(*_SEVERAL_JOBS)
    trial.measure()
    shorten = f"scontrol update job={trial.job} timelimit=1"
    trial.strike(partial(trial.cluster.run, shorten))
    assert "the allocation has ended" in trial.finish(INTERRUPTED, limit_s=240)
    trial.check(resumes=8)


def lose_node(trial: Trial, *, how: str, back: str) -> None:
    """Let the node hang, or be gone as without power, until the client has ended."""
    trial.start()
    trial.measure()
    node = trial.node
    trial.strike(partial(_docker, how, node))
    try:
        trial.finish(INTERRUPTED, limit_s=400)
    finally:
        _docker(back, node)
    trial.require_end()
    trial.cluster.run(f"envcompare clean --run {trial.out}/*")
    trial.check()


def preempt(trial: Trial) -> None:
    """Let a job of a partition with a higher priority take the nodes."""
    urgent = "sbatch --partition=urgent --nodes=2 --exclusive --time=5 --output=/dev/null"
    trial.nodes = trial.draw.choice((1, 2))
    pause_s = trial.draw.uniform(0, 10)
    trial.start()
    trial.measure()
    time.sleep(pause_s)
    trial.strike(partial(trial.cluster.run, f"{urgent} --wrap='sleep 300'"))
    trial.finish()
    trial.cluster.run("scancel --me --partition=urgent")
    trial.require_end()
    trial.check()


def _docker(*words: str) -> None:
    subprocess.run((docker_client(), *words), check=True, capture_output=True)


FAULTS = {
    CANCELLED: Fault(hurt=cancel, says="job cancelled at any time"),
    CLIENT_KILLED: Fault(hurt=kill_client, says="`kill -9` of the client at any time", count=5),
    ABANDONED: Fault(hurt=abandon, says="`kill -9` of the client, and nobody resumes"),
    "time-limit": Fault(hurt=reach_time_limit, says="time limit reached"),
    "node-hangs": Fault(
        hurt=partial(lose_node, how="pause", back="unpause"), says="node hangs until the run ends"
    ),
    "node-down": Fault(
        hurt=partial(lose_node, how="kill", back="start"), says="node down until the run ends"
    ),
    "preempted": Fault(hurt=preempt, says="job preempted", count=5),
}


def inflict(cluster: Cluster, name: str, seed: int) -> Record:
    """Inflict one fault on a run of its own; what it leaves is removed, or the record says so."""
    watch, is_removed = Watch.begin(), True
    trial = Trial(cluster=cluster, out=f"{name}-{seed}", draw=random.Random(seed))
    try:
        _, problem = attempted(partial(FAULTS[name].hurt, trial))
    except BaseException:  # stopped by its user: no record of it
        trial.remove()
        raise
    try:
        if problem:
            trial.remove()
        cluster.run(f"rm -rf {trial.out}")
    except Exception as error:  # noqa: BLE001 — the worst failures must not go unrecorded
        said = " ".join(str(error).split()) or type(error).__name__
        problem += f"{' | ' * bool(problem)}what is left could not be removed: {said}"
        is_removed = False
    return Record(
        name=name,
        says=FAULTS[name].says,
        seed=seed,
        nodes=trial.nodes,
        at_s=trial.at_s,
        doing=trial.doing,
        exit_code=trial.exit_code,
        kept=trial.kept,
        left=len(trial.left),
        is_finished=trial.is_finished,
        is_removed=is_removed,
        has_all_checks=True,
        problem=problem,
        conditions=watch.conditions(),
    )


def main() -> int:
    """Inflict, record, write the page; 1 where a run did not survive, 2 where it may not begin."""
    asked = arguments()
    with ExitStack() as stack:
        if reason := lock_cluster(stack):
            click.echo(f"error: {reason}", err=True)
            return 2
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))  # so that a trial is cleaned up
        wheels = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        commit()  # what is measured is what stands here now
        return 1 if inflict_all(asked, wheels) else 0


def lock_cluster(stack: ExitStack) -> str:
    """Keep later calls away from the cluster, or say that another one inflicts faults there.

    The lock ends with the stack, and with this process whatever becomes of it.
    """
    LOCKS.mkdir(exist_ok=True)
    path = LOCKS / "allocations.lock"
    file = stack.enter_context(path.open("a+"))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return (
            f"another script/allocations, process {path.read_text()}, works on the cluster"
            "\n  why: two at once take each other's jobs, and neither's records would be true"
            "\n  try: wait until it has ended"
        )
    file.truncate(0)
    file.write(f"{os.getpid()}")
    file.flush()
    return ""


def arguments() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(prog="script/allocations", description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=50, help="how many cancels (50)")
    parser.add_argument("--only", choices=FAULTS, action="append", help="this fault alone")
    parser.add_argument("--again", action="store_true", help="also those that are recorded")
    return parser.parse_args()


def inflict_all(asked: argparse.Namespace, wheels: Path) -> int:
    """Inflict what is due, and return how many runs did not survive."""
    reason = missing("slurm")
    if reason:
        click.echo(f"error: {reason}", err=True)
        return 1
    places, broken = Places(), 0
    known = {
        record.key
        for record in latest(read_records(places))
        if record.has_all_checks and not record.problem
    }
    due = [key for key in order(asked) if asked.again or key not in known]
    with installed_there(wheels) as cluster:
        for name, seed in due:
            record = inflict(cluster, name, seed)
            append_record(places, record)
            write_page(places)
            broken += bool(record.problem)
            click.echo(f"{name} {seed}: {record.problem or 'survived'}")
            if not record.is_removed:
                click.echo("error: the next trial would meet what this one left", err=True)
                break
    return broken


def order(asked: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """Return each fault as often as it is due, one of each kind first."""
    due = {
        name: asked.count if name == CANCELLED else min(fault.count, asked.count)
        for name, fault in FAULTS.items()
        if name in (asked.only or FAULTS)
    }
    return one_of_each_first(due)


if __name__ == "__main__":
    sys.exit(main())
