"""`worker.py --prepare DIR`: makes the data of a workload and says its hash in one JSON line."""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import sys
from typing import Any, Sequence

from harness.attempts import text_hash
from harness.failures import PhaseError, failure_reply, phase
from harness.formats.data import Source, prepare
from harness.loading import UnknownWorkloadError, bundled, declared, load_class
from harness.wire import encode, send


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
    parser.add_argument("--workload", required=True, help="a bundled name or FILE.py:CLASS")
    parser.add_argument("--params", default="{}", help="parameters of the workload, as JSON")
    parser.add_argument("--download", action="store_true", help="real data, not the small made one")
    return parser


def _source(name: str) -> Source:
    """Return where the data of a workload comes from.

    A class names a module with a `SOURCE` as its `DATA`, or has a static `make(folder)`.
    """
    module = declared(name, "DATA")
    if module is not None:
        source: Source = importlib.import_module(module).SOURCE
        return source
    with phase("import"):
        kind = load_class(name)
    make = getattr(kind, "make", None)
    if make is None and name not in bundled():
        print(f"{name} has no make(folder): its data folder stays empty", file=sys.stderr)  # noqa: T201
    recipe = kind.__name__
    if make is not None and name in bundled():  # kept between runs, and remade where it changes
        recipe += f" {text_hash(inspect.getsource(make))[:12]}"
    return Source(recipe=recipe, make=make or _make_nothing, download=_refuse)


def _make_nothing(_folder: str) -> None:
    """Write no file."""


def _refuse(_folder: str) -> None:
    raise UnknownWorkloadError("only bundled workloads download data; write it in make(folder)")
