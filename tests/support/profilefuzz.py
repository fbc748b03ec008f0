"""Spoil the files profilers write, and ask of every reader: refuse, or say nothing impossible."""

from __future__ import annotations

import gzip
import json
import math
import random
import signal
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import FrameType

from filespoiling import BYTES, DATABASE, TEXT, Change
from kinetotraces import step, write
from nsysexports import plain

from envcompare.errors import ProfileError
from envcompare.profile_files import READERS, read
from envcompare.run_folder.profiles import Profile

DATA = Path(__file__).resolve().parents[1] / "data"
CORPUS = DATA / "fuzz"
LIMIT_S = 10.0
NAMES = tuple(sorted(READERS))


@dataclass(frozen=True, slots=True)
class Seed:
    """A whole file to start from."""

    name: str
    content: bytes


@cache
def seeds(reader: str) -> tuple[Seed, ...]:
    """Return whole files of a reader, small ones: what is kept, and what is made at run time."""
    with tempfile.TemporaryDirectory() as folder:
        made = tuple(_made(reader, Path(folder)))
    kept = sorted((DATA / "profiles").glob(f"{reader}_*.[cl][so][vg]"))
    return made + tuple(Seed(path.name, path.read_bytes()) for path in kept)


def _made(reader: str, folder: Path) -> Iterator[Seed]:
    if reader == "nsys":
        trace = plain(12)
        trace.range("envcompare", 0, 10_000, kind=60)
        for name, one in (("plain.sqlite", plain(12)), ("marked.sqlite", trace)):
            yield Seed(name, one.write(folder / name).read_bytes())
    if reader == "kineto":
        for name in ("step.json", "step.json.gz"):
            yield Seed(name, write(folder / name, [*step(0), *step(1, at=1000.0)]).read_bytes())
        # An event a line, so that a line more or less leaves it a trace.
        lines = ",\n".join(json.dumps(one) for one in (*step(0), *step(1, at=1000.0), {}))
        yield Seed("lines.json", f'{{"schemaVersion": 1, "traceEvents": [\n{lines}\n]}}'.encode())


def changes(reader: str) -> dict[str, Change]:
    """Return what can be done to the files of a reader, by name."""
    return {**BYTES, **(DATABASE if reader == "nsys" else TEXT)}


def spoiled(reader: str, seed: Seed, steps: Sequence[tuple[str, int]]) -> bytes:
    """Return the file after these changes; each is drawn from its own number."""
    content = seed.content
    for name, number in steps:
        draw = random.Random(number)
        if name in TEXT and content.startswith(b"\x1f\x8b"):
            with suppress(OSError, EOFError, zlib.error):
                content = gzip.compress(TEXT[name](gzip.decompress(content), draw))
        else:
            content = changes(reader)[name](content, draw)
    return content


def outcome(reader: str, path: Path) -> Profile | None:
    """Return the profile of a file, or nothing where it is refused.

    Raises AssertionError for any other error, for a profile with an impossible number and for a
    reader that does not come back.
    """
    with limited():
        try:
            profile = read(reader, [path])
        except ProfileError as error:
            refused = error
        else:
            refused = None
    if refused is not None:
        assert refused.brief and refused.details, "a refusal without a reason"  # noqa: PT018
        return None
    check(profile)
    return profile


@contextmanager
def limited() -> Iterator[None]:
    """End what computes for longer than a reader may."""

    def late(_: int, __: FrameType | None) -> None:
        raise AssertionError(f"the reader did not come back within {LIMIT_S:g} s of work")

    # The processor's time: a busy machine makes no reader hang.
    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def check(profile: Profile) -> None:
    """Assert that a profile says nothing impossible."""
    for kernel in profile.kernels:
        assert kernel.calls > 0
        _order(kernel.min_ns, kernel.max_ns, kernel.total_ns)
        for name, value in kernel.metrics.items():
            _possible(name, value)
    for one in (*profile.copies, *profile.api_calls):
        assert one.calls > 0
        _order(one.min_ns, one.max_ns, one.total_ns)
    for operator in profile.operators:
        _order(operator.self_cpu_ns, operator.cpu_ns)
    for quantity in profile.quantities:
        _possible(quantity.name, quantity.value)
        assert (quantity.value is None) == (quantity.status != "ok")
    _order(profile.kernel_busy_ns, profile.busy_ns, profile.span_ns)
    assert all(0 <= place < len(profile.kernels) for place in profile.sequence)


def _possible(name: str, value: float | None) -> None:
    assert value is None or (math.isfinite(value) and value >= 0), f"{name} is {value}"


def _order(*values: float | None) -> None:
    known = [value for value in values if value is not None]
    for value in known:
        _possible("a time", value)
    # Sums of rounded numbers may miss the last digit.
    assert all(one <= other * (1 + 1e-6) + 1e-6 for one, other in pairwise(known)), values
