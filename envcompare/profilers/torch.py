"""PyTorch's own profilers in the worker: model FLOPs, and operators with a trace of the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from envcompare.profile_files import read
from envcompare.profilers import Answer, Pass, converted
from envcompare.run_folder.profiles import Note, Operator, Profile, Quantity

FLOPS: Final = Pass(name="flops")
OPERATORS: Final = Pass(name="torch", file="torch.json.gz")
_FLOPS_SOURCE = "FlopCounterMode and formulas for recurrent layers"


class _Traced(msgspec.Struct, frozen=True, kw_only=True):
    version: str = ""
    operators: tuple[Operator, ...] = ()


class _Counted(msgspec.Struct, frozen=True, kw_only=True):
    flops: int | None = None
    by_op: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class Torch:
    """Counts the FLOPs of operators, and lets torch.profiler trace them."""

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Return the count, and the trace that comes with a table of operators."""
        return FLOPS, OPERATORS

    def read(self, answer: Answer) -> Profile | None:
        """Return the count as a quantity, or the operators with the kernels of the trace."""
        values, steps, trace = answer.values, answer.steps, answer.trace
        if answer.kind == FLOPS:
            if values.get("flops") is None:
                return None
            return model_flops(values, steps=steps, reason=answer.reason)
        if values.get("operators") is None:
            return None
        table = operators(values, steps=steps, file=trace.name if trace else "")
        return with_kernels(table, read("kineto", (trace,))) if trace else table


def operators(values: dict[str, Any], *, steps: int, file: str = "") -> Profile:
    """Return the table of operators that torch.profiler made; `file` is its trace.

    Raises ProfileError where the values are not what the worker's profiler gives.
    """
    traced = converted(values, _Traced, what="the operators of torch.profiler")
    return Profile(
        tool="torch",
        version=traced.version,
        format="torch.profiler key_averages",
        files=(file,) if file else (),
        operators=traced.operators,
        steps=steps,
    )


def model_flops(values: dict[str, Any], *, steps: int, reason: str = "") -> Profile:
    """Return the FLOPs that PyTorch was asked for; `reason` says what the count lacks, or why.

    Raises ProfileError where the values are not what the worker's count gives.
    """
    counted = converted(values, _Counted, what="the count of FLOPs")
    is_whole = counted.flops is not None and not reason
    quantity = Quantity(
        name="flops_model",
        value=counted.flops if is_whole else None,
        unit="FLOP",
        rule="sum",
        source=_FLOPS_SOURCE,
        scope=f"{steps} steps",
        status="ok" if is_whole else "missing",
        reason="" if is_whole else reason or "the worker counted nothing",
    )
    notes = tuple(
        Note(kind="flops-of-operator", values={"operator": op, "flops": flops})
        for op, flops in sorted(counted.by_op.items())
    )
    return Profile(
        tool="torch", format="model FLOPs", quantities=(quantity,), steps=steps, notes=notes
    )


def with_kernels(table: Profile, traced: Profile) -> Profile:
    """Return what a trace tells of the GPU with the table of operators, which tells it whole."""
    return msgspec.structs.replace(
        traced,
        version=table.version or traced.version,
        operators=table.operators,
        steps=table.steps,
        files=table.files,
    )
