"""Inflict all faults on lab hosts, go on where an earlier call stopped, and write the page."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
from faultkinds import FAULTS, Fault
from faults_page import Record, append_record, latest, one_of_each_first, read_records, write_page
from faulttrials import Outcome, attempted, on, trial
from lab import Lab
from lab import lab as running_lab
from runs import BASE
from software import sif_of

from bookkeeping import Places, Watch
from envcompare.environments.oci import image_store
from envcompare.stack import Progress, image
from envcompare.transport import LOCAL
from envcompare.transport.hosts import connect, parse_hosts


def main() -> int:
    """Inflict, record, write the page; 1 where a run did not survive."""
    asked = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))  # so that a trial is cleaned up
    places = Places()
    known = {record.key for record in latest(read_records(places)) if not record.problem}
    lab = running_lab()
    if lab is None:
        click.echo("error: the lab is not up\n  try: script/lab up 3", err=True)
        return 2
    broken = 0
    for name, number in order(asked.only, asked.count):
        if (name, asked.seed, number) in known:
            continue
        record = inflict(name, number, asked.seed, on(lab, *asked.hosts.split(",")))
        append_record(places, record)
        write_page(places)
        broken += bool(record.problem)
        told = (
            record.problem or f"survived, {record.lost} lost, next after {record.next_s or 0:.1f} s"
        )
        click.echo(f"{name} {number}: {told}")
    return 1 if broken else 0


def arguments() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(prog="script/faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=FAULTS, action="append", help="this fault alone")
    parser.add_argument("--count", type=int, help="how often each; else as the list says")
    parser.add_argument("--hosts", default="lab-h3,lab-h2", help="the one to hurt, and a jump host")
    return parser.parse_args()


def order(only: list[str] | None, count: int | None) -> Iterator[tuple[str, int]]:
    """Return each fault as often as it is due, one of each kind first."""
    names = only or list(FAULTS)
    due = {name: FAULTS[name].count if count is None else count for name in names}
    return one_of_each_first(due)


def inflict(name: str, number: int, seed: int, hosts: tuple[Lab, ...]) -> Record:
    """Inflict one fault on a run of its own."""
    fault, watch = FAULTS[name], Watch.begin()
    with tempfile.TemporaryDirectory(prefix="envcompare-fault-") as folder:
        words = (fault, Path(folder), f"{seed}/{name}/{number}", hosts)
        outcome, problem = attempted(lambda: survive(*words))
    return Record(
        name=name,
        says=fault.says,
        seed=seed,
        number=number,
        problem=problem,
        lost=outcome and outcome.lost,
        left=outcome and len(outcome.left),
        next_s=outcome and outcome.next_s,
        conditions=watch.conditions(),
    )


def survive(fault: Fault, folder: Path, seed: str, hosts: tuple[Lab, ...]) -> Outcome:
    """Hurt a run and check it."""
    with trial(hosts[: fault.hosts], folder, seed) as hurt:
        if fault.needs_sif:
            hurt.arms = (*hurt.arms, f"sif=singularity:{sif(hosts[0])}")
        fault.hurt(hurt)
        return hurt.check()


def sif(host: Lab) -> str:
    """Return the SIF of the base image on a host, made there where it is missing."""
    base = image.find(image_store(LOCAL), BASE)
    assert base is not None, f"{BASE} is not here; script/lab up makes it"
    transport = connect(parse_hosts([host.alias])[0])
    try:
        there = image.deliver(
            image_store(transport), base, local=image_store(LOCAL), progress=Progress(str)
        )
        return sif_of(transport, there, say=str).path
    finally:
        transport.close()


if __name__ == "__main__":
    sys.exit(main())
