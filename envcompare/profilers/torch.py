"""PyTorch's own profilers in the worker: model FLOPs, and operators with their trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from envcompare.profile_files import read
from envcompare.profile_files.kineto.events import EXCHANGE
from envcompare.profilers import Answer, Pass, converted
from envcompare.run_folder.profiles import Note, Operator, Profile, Quantity

FLOPS: Final = Pass(name="flops")
OPERATORS: Final = Pass(name="torch", file="torch.json.gz")
_FLOPS_SOURCE = "FlopCounterMode and formulas for recurrent layers"


class _Traced(msgspec.Struct, frozen=True, kw_only=True):
    version: str = ""
    operators: tuple[Operator, ...] = ()


class _Counted(msgspec.Struct, frozen=True, kw_only=True):
    flops: int
    by_op: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class Torch:
    """Counts the FLOPs of operators, and lets torch.profiler trace them."""

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Return the count, and the trace that comes with a table of operators."""
        return FLOPS, OPERATORS

    def read(self, answer: Answer) -> Profile | None:
        """Return the count as a quantity, or the operators with the kernels of the trace.

        Raises ProfileError where the values are not what the worker's profilers give.
        """
        if answer.kind == FLOPS:
            return None if answer.values.get("flops") is None else _model_flops(answer)
        if answer.values.get("operators") is None:
            return None
        return _operators(answer)


def has_exchanges(values: dict[str, Any]) -> bool:
    """Tell whether the operators of an answer hold exchanges between processes by the host.

    Raises ProfileError where the values are not those of torch.profiler.
    """
    traced = converted(values, _Traced, what="the operators of torch.profiler")
    return any(EXCHANGE.fullmatch(one.name) for one in traced.operators)


def _operators(answer: Answer) -> Profile:
    """Return the table of operators, which is whole, with what the trace tells beside it.

    That is the work of the GPU, or how long processes exchanged data by the host.
    """
    traced = converted(answer.values, _Traced, what="the operators of torch.profiler")
    table = Profile(
        tool="torch",
        version=traced.version,
        format="torch.profiler key_averages",
        operators=traced.operators,
        steps=answer.steps,
    )
    if answer.trace is None:
        return table
    kernels = read("kineto", (answer.trace,))
    if kernels.quantities and not (kernels.kernels or kernels.copies):
        files, quantities = (answer.trace.name,), kernels.quantities
        return msgspec.structs.replace(table, quantities=quantities, files=files)
    return msgspec.structs.replace(
        kernels,
        version=table.version or kernels.version,
        operators=table.operators,
        steps=table.steps,
        files=(answer.trace.name,),
    )


def _model_flops(answer: Answer) -> Profile:
    """Return the FLOPs that PyTorch was asked for; a count that lacks something is none."""
    counted = converted(answer.values, _Counted, what="the count of FLOPs")
    quantity = Quantity(
        name="flops_model",
        value=None if answer.reason else counted.flops,
        unit="FLOP",
        rule="sum",
        source=_FLOPS_SOURCE,
        scope=f"{answer.steps} steps",
        status="missing" if answer.reason else "ok",
        reason=answer.reason,
    )
    notes = tuple(
        Note(kind="flops-of-operator", values={"operator": op, "flops": flops})
        for op, flops in sorted(counted.by_op.items())
    )
    return Profile(
        tool="torch", format="model FLOPs", quantities=(quantity,), steps=answer.steps, notes=notes
    )
