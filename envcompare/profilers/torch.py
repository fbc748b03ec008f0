"""PyTorch's profilers in the worker: model FLOPs, and operators with their trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from envcompare.profile_files import read
from envcompare.profile_files.kineto.events import EXCHANGE
from envcompare.profilers import Answer, Pass, convert_answer
from envcompare.run_folder.profiles import Note, Operator, Profile, Quantity

FLOPS: Final = Pass(name="flops")
OPERATORS: Final = Pass(name="torch", file="torch.json.gz")


class _Traced(msgspec.Struct, frozen=True, kw_only=True):
    version: str = ""
    operators: tuple[Operator, ...] = ()


class _Counted(msgspec.Struct, frozen=True, kw_only=True):
    flops: int
    by_op: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class Torch:
    """Counts the FLOPs of operators, and traces them with torch.profiler."""

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Return the FLOP count, and the trace with its operator table."""
        return FLOPS, OPERATORS

    def read(self, answer: Answer) -> Profile | None:
        """Return the count as a quantity, or the operators with the kernels of the trace.

        Raises ProfileError if the values are not those of the worker's profilers.
        """
        if answer.kind == FLOPS:
            return None if answer.values.get("flops") is None else _model_flops(answer)
        if answer.values.get("operators") is None:
            return None
        return _operators(answer)


def has_exchanges(values: dict[str, Any]) -> bool:
    """Return whether the operators of an answer include collectives on the host.

    Raises ProfileError if the values are not those of torch.profiler.
    """
    traced = convert_answer(values, _Traced, what="the operators of torch.profiler")
    return any(EXCHANGE.fullmatch(operator.name) for operator in traced.operators)


def _operators(answer: Answer) -> Profile:
    """Return the complete operator table, together with results of the trace.

    These are GPU work, or the time of collectives on the host.
    """
    traced = convert_answer(answer.values, _Traced, what="the operators of torch.profiler")
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
    """Return the FLOPs requested from PyTorch; an incomplete count gives no value."""
    counted = convert_answer(answer.values, _Counted, what="the count of FLOPs")
    quantity = Quantity(
        name="flops_model",
        value=None if answer.reason else counted.flops,
        unit="FLOP",
        rule="sum",
        source="FlopCounterMode and formulas for recurrent layers",
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
