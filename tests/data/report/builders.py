"""Runs made by hand or drawn at random, so that a test of the report says only what matters."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import strategies as st

from envcompare.analysis.model import (
    CellSummary,
    Comparison,
    Estimate,
    FailureRow,
    Reason,
    RunComparison,
    StepTimes,
)
from envcompare.report.wording.headlines import Headline, headlines
from envcompare.run_folder.records import Failure
from envcompare.stats.verdicts import verdict as judge

EXAMPLE = Path(__file__).resolve().parent / "three-arms.json"


def example() -> RunComparison:
    """Return the example run: three arms, two workloads, a failure and a failed control."""
    return msgspec.json.decode(EXAMPLE.read_bytes(), type=RunComparison)


def estimate(change: float, low: float | None, high: float | None, **fields: Any) -> Estimate:
    """Return an estimate of 8 generations from changes in percent."""
    known: dict[str, Any] = {
        "metric": "net",
        "level": 0.98,
        "unit": "round",
        "restarts": 4,
        "generations": 8,
        "rounds": 32,
        "is_widened": True,
    }
    ends = (None if end is None else math.log1p(end / 100) for end in (change, low, high))
    ratio, lower, upper = ends
    assert ratio is not None
    return Estimate(log_ratio=ratio, low=lower, high=upper, **{**known, **fields})


def comparison(
    outcome: str, primary: Estimate | None = None, *, reason: str = "", **fields: Any
) -> Comparison:
    """Return docker against vm on the cnn; `reason` is what failed."""
    known: dict[str, Any] = {
        "cell": "gpu01/cnn/default",
        "host": "gpu01",
        "workload": "cnn",
        "arm": "docker",
        "environment": "docker",
        "stack": "image",
        "reason": Reason(kind="failed", brief=reason) if reason else None,
    }
    return Comparison(outcome=outcome, primary=primary, **{**known, **fields})  # type: ignore[arg-type]


def changed(run: RunComparison, **fields: Any) -> RunComparison:
    """Return a run with other values for fields of itself or of one of its parts."""
    for name in ("settings", "course", "between_hosts", "views"):
        part = getattr(run, name)
        inner = set(part.__struct_fields__) - set(run.__struct_fields__)
        changes = {key: fields.pop(key) for key in inner & set(fields)}
        fields.setdefault(name, msgspec.structs.replace(part, **changes))
    return msgspec.structs.replace(run, **fields)


def run_of(*comparisons: Comparison, **fields: Any) -> RunComparison:
    """Return a run that holds the comparisons and little else."""
    known: dict[str, Any] = {"cells": (), "arms": (), "differences": (), "failures": ()}
    return changed(example(), comparisons=comparisons, **{**known, **fields})


def headline(*comparisons: Comparison, **fields: Any) -> Headline:
    """Return the headline of the only environment of a run."""
    found = headlines(run_of(*comparisons, **fields))
    assert len(found) == 1
    return found[0]


SLOWER = comparison("slower", estimate(8.4, 8.0, 8.7))
FASTER = comparison("faster", estimate(-4.5, -4.8, -4.2))
EQUAL = comparison("equivalent", estimate(0.3, -0.2, 0.8))
OPEN = comparison("inconclusive", estimate(1.1, -0.9, 3.1), leaning="slower", forecast_restarts=11)


def on(workload: str, one: Comparison, **fields: Any) -> Comparison:
    """Return the comparison moved to another workload."""
    cell = f"gpu01/{workload}/default"
    return msgspec.structs.replace(one, workload=workload, cell=cell, **fields)


BASE = example()
BARE = changed(BASE, arms=(), differences=(), startup=(), memory=(), failures=(), configuration="")
HOSTILE = st.sampled_from(
    [
        "</script><script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        '"><b style="color:red">',
        "{{ 7 * 7 }}{% raw %}",
        "ab\u202edcba\u2066\u200b",
        "a\x00b\x1b[31mred\x07",
        "line\nbreak\ttab | pipe `code` **bold** [link](javascript:alert(1)) @all #1",
        "javascript:alert(1)",
        "../../../etc/passwd",
        "\ud800 lone",
        "x" * 5000,
        "ünïcödé 模型 🚀",
    ]
) | st.text(max_size=30)
PLAIN = st.from_regex(r"[a-z][a-z0-9]{1,7}", fullmatch=True)


@st.composite
def random_estimates(draw: st.DrawFn, metric: str = "net") -> Estimate:
    """Return an estimate, wide or narrow, sometimes without an interval."""
    mean = draw(st.floats(-0.5, 0.8))
    half = draw(st.floats(0.0005, 0.3))
    is_open = draw(st.booleans()) and draw(st.booleans())
    return Estimate(
        metric=metric,  # type: ignore[arg-type]
        log_ratio=mean,
        low=None if is_open else mean - half,
        high=None if is_open else mean + half,
        level=0.98,
        unit=draw(st.sampled_from(["restart", "round"])),
        restarts=draw(st.integers(1, 9)),
        generations=draw(st.integers(1, 40)),
        rounds=draw(st.integers(1, 200)),
        is_widened=metric == "net",
    )


@st.composite
def random_comparisons(
    draw: st.DrawFn, *, texts: st.SearchStrategy[str], **known: Any
) -> Comparison:
    """Return a comparison whose outcome fits its interval, or that failed or was not run."""
    state = draw(st.sampled_from(["measured", "measured", "measured", "failed", "not-run"]))
    fields: dict[str, Any] = {"is_confounded": draw(st.booleans()), **known}
    if state != "measured":
        failure = Failure(
            phase="step", brief=draw(texts), details=draw(texts), hint=draw(texts),
            exit_code=draw(st.none() | st.integers(0, 255)), log=draw(texts),
        )  # fmt: skip
        return Comparison(
            outcome=state,  # type: ignore[arg-type]
            reason=Reason(kind="failed", brief=draw(texts)),
            failure=failure if state == "failed" else None,
            **fields,
        )
    primary = draw(random_estimates())
    lean = "slower" if primary.log_ratio > 0 else "faster"
    return Comparison(
        outcome=judge(primary.low, primary.high, margin=BASE.settings.margin),
        leaning=lean,  # type: ignore[arg-type]
        primary=primary,
        secondary=tuple(draw(random_estimates(metric)) for metric in ("wall", "stretch", "cpu")),
        forecast_restarts=draw(st.none() | st.integers(1, 400)),
        control_failed=draw(st.booleans()),
        **fields,
    )


@st.composite
def runs(draw: st.DrawFn, *, names: st.SearchStrategy[str] = PLAIN) -> RunComparison:
    """Return a run of up to four environments in up to four workloads on one or two hosts."""
    arms = draw(st.lists(names.filter(lambda n: n != "vm"), min_size=1, max_size=4, unique=True))
    workloads = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    hosts = draw(st.lists(names, min_size=1, max_size=2, unique=True))
    found: list[Comparison] = []
    cells: list[CellSummary] = []
    for host, workload in itertools.product(hosts, workloads):
        cell = f"{host}/{workload}/default"
        own = [
            draw(
                random_comparisons(
                    texts=names, cell=cell, host=host, workload=workload, arm=arm,
                    environment=arm, stack="image",
                )
            )
            for arm in arms
        ]  # fmt: skip
        found += own
        times = [
            StepTimes(arm=arm, steps=9, median_s=draw(st.floats(1e-5, 9)), p05_s=1e-5, p95_s=9.0)
            for arm in ("vm", *(one.arm for one in own if one.primary is not None))
        ]
        cells.append(
            CellSummary(
                id=cell, host=host, workload=workload, state="ok", reason=draw(names),
                noise_floor=draw(st.none() | random_estimates()), step_times=tuple(times),
            )
        )  # fmt: skip
    return changed(
        BARE,
        title=draw(names),
        comparisons=tuple(found),
        cells=tuple(cells),
        failures=tuple(
            FailureRow(
                t=0.0, host=one.host, cell=one.cell, arm=one.arm, phase=one.failure.phase,
                brief=one.failure.brief, details=one.failure.details, hint=one.failure.hint,
                exit_code=one.failure.exit_code, log=one.failure.log,
            )
            for one in found
            if one.failure is not None
        ),
    )  # fmt: skip
