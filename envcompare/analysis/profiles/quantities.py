"""The quantities of the arms of a cell: per step, per sample, and relative to the reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final, Literal

from msgspec.structs import replace

from envcompare.analysis.model.profiling import QuantityRow, Unlike
from envcompare.analysis.profiles.armprofiles import is_of_program, profile_of, usable
from envcompare.gpu import tensor_pipes
from envcompare.gpu.kernelnames import UNCOUNTED_TENSORS, ran_uncounted
from envcompare.run_folder.profiles import (
    Dim,
    PassName,
    Profile,
    ProfileRecord,
    Quantity,
    Rule,
    Tool,
)
from envcompare.text import counted

_PER_STEP: Final[tuple[Rule, ...]] = ("sum", "union", "difference")
# How well one program on one device repeats: counts exactly, counted traffic nearly, times less.
_TOLERANCES: Final[tuple[tuple[str, float], ...]] = (
    ("flops_model", 1e-9),
    ("flops_", 1e-3),
    ("launch_count", 1e-9),
    ("dram_", 0.02),
    ("l2_", 0.02),
    ("arithmetic_intensity", 0.02),
    ("occupancy", 0.02),
    ("warp_efficiency", 0.02),
    ("tensor_core_share", 0.02),
)
# Linux samples user and system time at each tick; below 1 s there are too few samples
_BY_TICKS: Final = frozenset({"user_ns", "sys_ns"})
_ENOUGH_NS: Final = 1e9
_BYTES_OF_COPIES: Final = 1e-9
_OTHERWISE: Final = 0.05
_LAUNCHES: Final = "launch_count"
Rows = tuple[QuantityRow, ...]
Key = tuple[str, str, Tool | None, int | None, int | None, int]
"""Name, pass, tool, GPU, rank, and a number for repetitions within one profile."""
_INTENSITY: Final = "arithmetic_intensity"
_FLOPS: Final = ("flops_fp64", "flops_fp32", "flops_fp16", "flops_tensor")
_BYTES: Final = "dram_bytes"


def _tolerance(name: str) -> float:
    """Return how far the ratio of two equal values may be from 1."""
    if name.startswith(("memcpy_", "memset_")) and name.endswith("_bytes"):
        return _BYTES_OF_COPIES
    if name.endswith("_per_s"):
        return _OTHERWISE  # a rate varies like its time
    return next((most for start, most in _TOLERANCES if name.startswith(start)), _OTHERWISE)


def quantity_rows(
    by_arm: Mapping[str, Iterable[ProfileRecord]],
    timed: Mapping[str, Iterable[Quantity]],
    *,
    reference: str,
    partial: Container[tuple[str, str]] = (),
) -> dict[str, Rows]:
    """Return the rows of each arm, from its profiles and from `timed` readings of the timing pass.

    `partial` are the arms and records that lack launches of their steps.

    A quantity is compared with the same name, pass, tool and GPU in the reference. There is no
    ratio if the tool, page or averaging rule differs.
    """
    held = {arm: tuple(records) for arm, records in by_arm.items()}
    rows = {arm: _rows(records, partial) for arm, records in held.items()}
    covers = {arm: _traced_steps(records) for arm, records in held.items()}
    for arm, quantities in timed.items():
        rows.setdefault(arm, {}).update(
            (_key(one, "timing", None), _row(one, "timing")) for one in quantities
        )
    rows = {
        arm: found | _absent_copies(found, rows, covered=covers.get(arm, {}))
        for arm, found in rows.items()
    }
    against = rows.get(reference, {})
    return {
        arm: tuple(
            replace(row, agreement="reference")
            if arm == reference
            else _with_ratio(row, key, against)
            for key, row in found.items()
        )
        for arm, found in rows.items()
    }


def _traced_steps(records: Iterable[ProfileRecord]) -> dict[tuple[str, Tool], int | None]:
    """Return the steps of each trace by pass and tool; a trace contains all copies."""
    traces = (record for record in usable(records) if is_of_program(record))
    profiles = ((record.kind, profile_of(record)) for record in traces)
    return {(kind, profile.tool): profile.steps for kind, profile in profiles}


def _absent_copies(
    rows: Mapping[Key, QuantityRow],
    others: Mapping[str, Mapping[Key, QuantityRow]],
    *,
    covered: Mapping[tuple[str, Tool], int | None],
) -> dict[Key, QuantityRow]:
    """Return 0 for copies and memsets of other arms, if a trace would contain them."""
    found = {}
    for key, row in ((key, row) for of in others.values() for key, row in of.items()):
        name, kind, tool, gpu, *_ = key
        is_copied = name.startswith(("memcpy_", "memset_")) and gpu is None
        is_known = row.value is not None and key not in rows
        if is_copied and is_known and tool is not None and (kind, tool) in covered:
            steps = covered[kind, tool]
            zero = replace(row, value=0.0, per_step=0.0 if steps else None, per_sample=None)
            found[key] = replace(zero, scope="none was traced", status="ok", reason="")
    return found


def _with_ratio(row: QuantityRow, key: Key, against: Mapping[Key, QuantityRow]) -> QuantityRow:
    """Return a row with its ratio, or with the reason it cannot be compared."""
    same = against.get(key)
    if same is not None:
        row = replace(row, reference_value=same.value, reference_per_step=same.per_step)
    if row.value is None:
        return row
    if same is not None and same.value is not None:
        unlike = _unlike(row, same)
        return replace(row, unlike=unlike) if unlike else _compare(row, same)
    name, kind, tool, *where, _ = key
    is_known = any(
        other.value is not None
        for (of, pass_name, by, *there, _), other in against.items()
        if (of, pass_name, there) == (name, kind, where) and by != tool
    )
    return replace(row, unlike="tool") if is_known else row


def _unlike(row: QuantityRow, other: QuantityRow) -> Unlike:
    """Return why two numbers are not comparable; launches always are."""
    if row.rule != other.rule:
        return "rule"
    return "page" if row.page != other.page and row.name != _LAUNCHES else ""


def clashes(
    records: Iterable[ProfileRecord], partial: Container[tuple[str, str]]
) -> dict[Key, str]:
    """Return the contradictions between records of one arm, pass and tool, as sentences."""
    first: dict[Key, tuple[str, QuantityRow]] = {}
    clashing: dict[Key, str] = {}
    for record in usable(records):
        for key, row in _of_record(record, partial):
            if row.value is None:
                continue
            name, earlier = first.setdefault(key, (record.name, row))
            if not _agree(earlier, row):
                first_value = f"{name} has {earlier.value:.6g} {earlier.unit}"
                clashing.setdefault(
                    key,
                    f"{first_value}, but {record.name} has {row.value:.6g}",
                )
    return clashing


def _rows(
    records: Iterable[ProfileRecord], partial: Container[tuple[str, str]]
) -> dict[Key, QuantityRow]:
    """Return the first value of each quantity; none if another record contradicts it."""
    rows: dict[Key, QuantityRow] = {}
    held = usable(records)
    for record in held:
        for key, row in _of_record(record, partial):
            if key not in rows or rows[key].value is None:
                rows[key] = row
    clashing = clashes(held, partial)
    if not clashing:
        return _with_intensity(rows, [profile_of(record) for record in held])
    refused = {
        key: replace(
            rows[key], status="refused", reason=reason, value=None, per_step=None, per_sample=None
        )
        for key, reason in clashing.items()
    }
    return rows | refused


def _of_record(
    record: ProfileRecord, partial: Container[tuple[str, str]]
) -> Iterable[tuple[Key, QuantityRow]]:
    """Yield the quantities of one record as rows; a partial record has no values per step."""
    profile = profile_of(record)
    # pages of Nsight Compute round and average differently
    page = " + ".join(sorted(set(profile.pages)))
    steps = None if (record.arm, record.name) in partial else profile.steps
    seen: Counter[Key] = Counter()
    for quantity in profile.quantities:
        first = _key(quantity, record.kind, profile.tool)
        key = _key(quantity, record.kind, profile.tool, place=seen[first])
        seen[first] += 1
        row = _row(quantity, record.kind, steps=steps, batch=record.batch)
        yield key, replace(row, page=page, tool=profile.tool)


def _agree(row: QuantityRow, other: QuantityRow) -> bool:
    """Return whether two records agree within the tolerance of the quantity."""
    compared = _compare(other, row)
    if compared.agreement == "unknown":
        return row.value == other.value or _is_coarse(row, other)
    return compared.agreement == "equal"


def _key(quantity: Quantity, kind: str, tool: Tool | None, *, place: int = 0) -> Key:
    return (quantity.name, kind, tool, quantity.gpu, quantity.rank, place)


def _with_intensity(
    rows: dict[Key, QuantityRow], profiles: list[Profile]
) -> dict[Key, QuantityRow]:
    """Replace missing intensities of two passes with their joint intensity."""
    lacking = [key for key in rows if key[0] == _INTENSITY and rows[key].value is None]
    joined = _joined_intensity(profiles) if lacking else None
    if joined is None:
        return rows
    key, *others = lacking
    kept = {one: row for one, row in rows.items() if one not in others}
    row = replace(_row(joined, rows[key].kind), tool=rows[key].tool)
    return kept | {key: row}


def _row(
    quantity: Quantity,
    kind: PassName | Literal["timing"],
    *,
    steps: int | None = None,
    batch: int | None = None,
) -> QuantityRow:
    value = quantity.value if quantity.status == "ok" else None
    per_step = None
    if value is not None and steps and quantity.rule in _PER_STEP:
        per_step = value / steps
    return QuantityRow(
        name=quantity.name,
        unit=quantity.unit,
        rule=quantity.rule,
        source=quantity.source,
        scope=quantity.scope,
        gpu=quantity.gpu,
        rank=quantity.rank,
        kind=kind,
        status=quantity.status,
        reason=quantity.reason,
        value=value,
        per_step=per_step,
        per_sample=per_step / batch if per_step is not None and batch else None,
        tolerance=_tolerance(quantity.name),
    )


def _compare(row: QuantityRow, other: QuantityRow) -> QuantityRow:
    if (row.per_step is None) != (other.per_step is None):
        return row
    value = row.value if row.per_step is None else row.per_step
    base = other.value if other.per_step is None else other.per_step
    if value is None or base is None or _is_coarse(row, other):
        return row
    if not base:
        return replace(row, agreement="equal" if not value else "differs")
    is_equal = abs(value / base - 1) <= row.tolerance
    return replace(row, ratio=value / base, agreement="equal" if is_equal else "differs")


def _is_coarse(row: QuantityRow, other: QuantityRow) -> bool:
    """Return whether two times are too short for tick counting."""
    longest = max(row.value or 0.0, other.value or 0.0)
    return row.name in _BY_TICKS and longest < _ENOUGH_NS


def _joined_intensity(profiles: Sequence[Profile]) -> Quantity | None:
    """Return FLOPs per byte of device memory over two profiles; None if they do not match.

    They match if one tool recorded the same launches of the same kernels and shapes. There is no
    value if tensor cores were used and not counted.
    """
    moved = next((one for one in profiles if _values(one).get(_BYTES)), None)
    computed = next((one for one in profiles if _values(one).keys() & set(_FLOPS)), None)
    if moved is None or computed is None or moved is computed or moved.tool != computed.tool:
        return None
    launches = _launches_by_shape(moved)
    if launches != _launches_by_shape(computed):
        return None
    total = counted(sum(launches.values()), "launch", "launches")
    flops = {name: value for name, value in _values(computed).items() if name in _FLOPS}
    lacking = [name for name in _FLOPS if name not in flops]
    intensity = Quantity(
        name=_INTENSITY,
        value=sum(flops.values()) / _values(moved)[_BYTES],
        unit="FLOP/B",
        rule="ratio of sums",
        source=f"{moved.tool} {moved.version}".strip(),
        scope=f"device memory, two passes over {total}",
        reason=f"without {', '.join(lacking)}, which are not counted" if lacking else "",
    )
    is_uncounted = any(
        ran_uncounted(kernel, tensor_pipes(one.devices))
        for one in (moved, computed)
        for kernel in one.kernels
    )
    if "flops_tensor" in flops or not is_uncounted:
        return intensity
    return replace(intensity, value=None, status="missing", reason=UNCOUNTED_TENSORS)


def _values(profile: Profile) -> dict[str, float]:
    return {one.name: one.value for one in profile.quantities if one.value is not None}


def _launches_by_shape(profile: Profile) -> dict[tuple[str, Dim | None, Dim | None], int]:
    return {(one.name, one.grid, one.block): one.calls for one in profile.kernels}
