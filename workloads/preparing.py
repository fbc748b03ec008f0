"""`worker.py --prepare DIR`: makes the data of a workload and says its hash in one JSON line."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Sequence

import digits
import reviews
from data import Source, prepare
from failures import PhaseError, failure_reply, phase
from loading import BUNDLED, UnknownWorkloadError, load_class
from wire import encode, send

SOURCES = {"cnn": digits.SOURCE, "rnn": reviews.SOURCE}


def main(argv: Sequence[str], sink: int) -> int:
    """Prepare data as the arguments say; write the reply to `sink` and return the exit code."""
    options = _parser().parse_args(argv)
    reply: dict[str, Any]
    try:
        with phase("data"):
            if not isinstance(json.loads(options.params), dict):
                raise TypeError(f"--params must be a JSON object, not {options.params}")
            source = _source(options.workload)
            found_hash = prepare(options.prepare, source, download=options.download)
            reply = {"op": "prepare", "ok": True, "data_hash": found_hash}
    except PhaseError as error:
        reply = failure_reply("prepare", error)
    send(sink, encode(reply))
    return 0 if reply["ok"] else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("worker.py", description=__doc__)
    parser.add_argument("--prepare", metavar="DIR", required=True, help="folder to make whole")
    parser.add_argument("--workload", required=True, help="cnn, rnn or FILE.py:CLASS")
    parser.add_argument("--params", default="{}", help="parameters of the workload, as JSON")
    parser.add_argument("--download", action="store_true", help="real data, not the small made one")
    return parser


def _source(name: str) -> Source:
    """Return where the data of a workload comes from; a class may have a static `make(folder)`."""
    if name in BUNDLED:
        return SOURCES[name]
    kind = load_class(name)
    make = getattr(kind, "make", None)
    if make is None:
        print(f"{name} has no make(folder): its data folder stays empty", file=sys.stderr)  # noqa: T201
    return Source(recipe=kind.__name__, make=make or _make_nothing, download=_refuse)


def _make_nothing(_folder: str) -> None:
    """Write no file."""


def _refuse(_folder: str) -> None:
    raise UnknownWorkloadError("only bundled workloads download data; write it in make(folder)")
