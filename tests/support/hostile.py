"""A run of everything a report can show, and the same run with every text in it replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from goldenruns import golden_run
from msgspec import inspect
from profilepages import cell_profiles, roofline

from envcompare.analysis.model import (
    ArmSummary,
    CellSummary,
    Decomposition,
    Drift,
    Estimate,
    LadderStep,
    Outcome,
    PickedValue,
    RunComparison,
)
from envcompare.analysis.model.profiling import (
    ArmSizes,
    ArmTraining,
    BatchSweep,
    CellTraining,
    EpochPoint,
    Limit,
    SizeRate,
)
from envcompare.run_folder.records import FactDifference, Goal
from tests.data.report.builders import changed

EVIL: Final = (
    "</script><script>alert(1)</script><img src=x onerror=alert(1)><!-- --!> <![CDATA[]]> &lt;b",
    "\"'><svg onload=alert(1)><b style='color:red'></title></desc></svg></textarea><p id=answer>",
    "{{ 7 * 7 }}{% raw %}{# x #}${7*7} var(--p1) url(x) expression(alert(1)) datum.x !important",
    "ab\u202edcba\u2066\u200b\x00\x1b[31mred\x07\ud800 first line\nsecond\ttab\r\nthird\u2028next",
    "=cmd|' /C calc'!A0 | pipe **bold** _u_ [link](javascript:alert(1)) ![i](x) @all #1 \\",
)
SPECIAL: Final = frozenset("<>\"'&{}%#$`|*_[]()!@~\\=;:?-.+\u202e\u2066\u200b\x00\x1b\x07\ud800")
_KEPT: Final = frozenset(
    {"unit", "precision", "precisions", "page_cache", "preset", "created"}
)  # envcompare's own words, never a user's
_LOOKED_UP: Final = ("gpu.", "kernels.", "mismatch", "unproven", "python.", "torch.")


def harmless(text: str) -> str:
    """Return a text of the same shape in which nothing could be markup."""
    return "".join("x" if char in SPECIAL else char for char in text)


def renamed(run: RunComparison, evil: str) -> RunComparison:
    """Return the run with a text before every name, path, error, kernel, fact and sentence in it.

    What is the same in the run stays the same, so that all that belongs together still does.
    """
    found: RunComparison = _renamed(run, inspect.type_info(RunComparison), before(evil))
    return found


def before(evil: str) -> Callable[[str], str]:
    """Return what puts a text before another one, and leaves no text empty that was none."""

    def rename(text: str) -> str:
        return text if not text or text.startswith(_LOOKED_UP) else f"{evil}{text}"

    return rename


def files_of(run: RunComparison) -> tuple[str, ...]:
    """Return all names of files that the run speaks of, as if they lay beside the page."""
    logs = [
        comparison.failure.log for comparison in run.comparisons if comparison.failure is not None
    ]
    raw = [name for profile in run.profiles for arm in profile.arms for row in arm.passes
           for name in row.raw]  # fmt: skip
    return tuple(dict.fromkeys(name for name in (*logs, *raw, "samples.jsonl") if name))


def full_run() -> RunComparison:
    """Return two environments in a sweep of two workloads with all that is shown of any run."""
    run = golden_run("swept").comparison
    first = run.cells[0]
    primary = next(
        comparison.primary for comparison in run.comparisons if comparison.primary is not None
    )
    profiles = msgspec.structs.replace(
        cell_profiles(first.id, host=first.host, roofline=roofline()),
        ledgers=run.profiles[0].ledgers,
    )
    traced = tuple(
        msgspec.structs.replace(
            arm,
            passes=tuple(
                msgspec.structs.replace(row, raw=(f"profiles/{arm.arm}/{row.name}.csv",))
                for row in arm.passes
            ),
        )
        for arm in profiles.arms
    )
    profiles = msgspec.structs.replace(profiles, arms=traced)
    cells = tuple(
        msgspec.structs.replace(
            cell,
            reason="one block was left out",
            cautions=("the clock jumped once: see the log",),
            drifts=(_drift("docker"), _drift("vm", is_ratio=False)),
        )
        for cell in run.cells
    )
    return changed(
        run,
        title="Two environments",
        command_line=("envcompare", "run", "--hosts", "gpu01"),
        imports=("envcompare import results/x vm=trace.csv",),
        configuration='workloads = ["cnn", "rnn"]\n',
        cells=cells,
        profiles=(profiles, *run.profiles[1:]),
        decompositions=(_decomposition(first.id, first.host, primary),),
        ladder=_ladder(first.id, first.host, primary),
        picked=tuple(_picked(first.id, arm) for arm in ("vm", "docker")),
        differences=(*run.differences, _difference(first.host)),
        failures=tuple(
            msgspec.structs.replace(failure, details="why it failed\nTraceback:\n  line 1")
            for failure in run.course.failures
        ),
        arms=(*run.arms, _gone()),
        batch_sweeps=(_batches(first, run.cells[1]),),
        until=Goal(metric="accuracy", value=0.9, epochs=4),
        training=(CellTraining(cell=first.id, arms=tuple(map(_trained, ("vm", "docker")))),),
        torn_lines=1,
        is_complete=False,
    )


_SIZED: Final[dict[str, Any]] = {
    "best": 16, "knee_low": 8, "knee_high": 16, "knee_restarts": 4, "largest": 20, "beyond": 21,
    "memory_mib": 0, "device": "cuda", "reason": "no more data",
}  # fmt: skip


def _batches(*cells: CellSummary) -> BatchSweep:
    """Return a search over two batches, whose end has another reason in each arm."""
    limits: tuple[tuple[str, Limit], ...] = (("vm", "memory"), ("docker", "workload"))
    return BatchSweep(
        host=cells[0].host,
        workload=cells[0].workload,
        parameters={"optimizer": "sgd"},
        sizes=(8, 16),
        cells=tuple(cell.id for cell in cells),
        is_searched=True,
        arms=tuple(
            ArmSizes(
                arm=arm,
                rates=tuple(_rate(cell.id, 8) for cell in cells),
                limited_by=limit,
                **_SIZED,
            )
            for arm, limit in limits
        ),
    )


def _rate(cell: str, size: int) -> SizeRate:
    return SizeRate(batch=size, cell=cell, samples_per_s=12.5, low=11.5, high=13.5, restarts=4)


def _trained(arm: str) -> ArmTraining:
    return ArmTraining(
        arm=arm,
        restarts=4,
        reached=3,
        epochs=(2, 2, 3),
        most_epochs=4,
        best=0.925,
        training_s=21.5,
        training_low_s=20.5,
        training_high_s=22.5,
        log_ratio=None if arm == "vm" else 0.02,
        ratio_low=None if arm == "vm" else 0.01,
        ratio_high=None if arm == "vm" else 0.03,
        points=(EpochPoint(epoch=1, training_s=10.5, value=0.525, restarts=4),),
    )


def _renamed(value: Any, kind: Any, rename: Callable[[str], str]) -> Any:
    match kind:
        case inspect.Metadata(type=inner):
            return _renamed(value, inner, rename)
        case inspect.UnionType():
            return _renamed(value, _chosen(value, kind), rename)
        case inspect.StructType():
            return _renamed_struct(value, kind, rename)
        case inspect.DictType():
            return {
                _renamed(key, kind.key_type, rename): _renamed(one, kind.value_type, rename)
                for key, one in value.items()
            }
        case inspect.VarTupleType(item_type=inner) | inspect.ListType(item_type=inner):
            return tuple(_renamed(one, inner, rename) for one in value)
        case _:
            return rename(value) if isinstance(kind, inspect.StrType) else value


def _renamed_struct(value: Any, kind: inspect.StructType, rename: Callable[[str], str]) -> Any:
    return msgspec.structs.replace(
        value,
        **{
            field.name: _renamed(getattr(value, field.name), field.type, rename)
            for field in kind.fields
            if field.name not in _KEPT
        },
    )


def _chosen(value: Any, kind: inspect.UnionType) -> Any:
    """Return the type of a union that a value is of."""
    by_type: dict[type, Any] = {str: inspect.StrType, tuple: inspect.VarTupleType}
    for one in kind.types:
        if isinstance(one, inspect.LiteralType) and value in one.values:
            return one
        if isinstance(one, inspect.StructType) and isinstance(value, one.cls):
            return one
        if isinstance(one, by_type.get(type(value), inspect.AnyType)):
            return one
    return inspect.AnyType()


def _drift(arm: str, *, is_ratio: bool = True) -> Drift:
    return Drift(
        arm=arm, is_ratio=is_ratio, slope=0.011, over_generation=0.022, p_value=0.0004,
        generations=8, is_detected=True,
    )  # fmt: skip


def _decomposition(cell: str, host: str, found: Estimate) -> Decomposition:
    half = msgspec.structs.replace(
        found, log_ratio=found.log_ratio / 2, low=None, high=None, is_widened=False
    )
    return Decomposition(
        cell=cell, host=host, workload="cnn", arm="docker", host_arm="docker@host", base="vm",
        base_image="vm@image", total=found, environment=half, stack=half,
        environment_by_image=half, stack_by_base=half, interaction=half,
    )  # fmt: skip


def _ladder(cell: str, host: str, found: Estimate) -> tuple[LadderStep, ...]:
    def step(arm: str, rung: str, outcome: Outcome, **fields: Any) -> LadderStep:
        at = {"cell": cell, "host": host, "workload": "cnn"}
        return LadderStep(arm=arm, rung=rung, outcome=outcome, **at, **fields)

    return (
        step("vm", "plain process", "reference"),
        step("cgroup", "+ cgroup", "not-run", why_not="no cgroup can be made here"),
        step("seccomp", "+ seccomp", "slower", below="vm", step=found, changed=("seccomp.mode",)),
        step("docker", "docker", "slower", below="seccomp", step=found, is_confounded=True),
    )


def _picked(cell: str, arm: str) -> PickedValue:
    is_reference = arm == "vm"
    return PickedValue(
        cell=cell, arm=arm, name="images per second", processes=8, median=812.5, low=799.0,
        high=820.25, log_ratio=None if is_reference else 0.031,
        ratio_low=None if is_reference else 0.02, ratio_high=None if is_reference else 0.042,
    )  # fmt: skip


def _difference(host: str) -> FactDifference:
    return FactDifference(
        host=host, arm="docker", key="made.fact", reference="one build", value="another build",
        fact_class="confounder", sentence="another build of it is loaded.",
        evidence="It is loaded by all steps.", remedy="use one image",
    )  # fmt: skip


def _gone() -> ArmSummary:
    return ArmSummary(
        host="gpu02", arm="docker", environment="docker", stack="image", reference="",
        state="unreachable", reason="connection refused", facts={"made.fact": "a value"},
        identity={"mismatch": "its image has another digest"},
    )  # fmt: skip
