"""Every number that may stand in a report: what comparison.json holds, as it is printed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from htmltree import Element

from envcompare.analysis.model import RunComparison
from envcompare.analysis.model.profiling import CellProfiles
from envcompare.report import shared_axis
from envcompare.report.wording import (
    MINUS,
    change,
    factor_text,
    margin_percent,
    number_text,
    percent,
    ratio_text,
    rough_time,
    three_digits,
)
from envcompare.report.wording.headlines import headlines, mean_log_ratio

_NUMBER: Final = r"\d+(?:\.\d+)?"
_SIGNED: Final = rf"(?<![\w.=\-])[+{MINUS}±×]?({_NUMBER})"
_UNITS: Final = {  # how many are a second, and how many nanoseconds are one
    "ns": (1e9, 1.0),
    "µs": (1e6, 1e3),
    "ms": (1e3, 1e6),
    "s": (1.0, 1e9),
    "min": (1 / 60, 6e10),
    "h": (1 / 3600, 3.6e12),
}
_SIZES: Final = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_UNIT: Final = "|".join(("%", *_UNITS, *_SIZES))
_FIGURE: Final = re.compile(rf"{_SIGNED}(?: (?:to|→) [+{MINUS}]?({_NUMBER}))? ({_UNIT})(?!\w)")
_DECIMAL: Final = re.compile(rf"{_SIGNED}(?![\w.])")
_PREFIXED: Final = (1e3, 1e6, 1e9, 1e12, 1e15, 1e18)
_RATIOS: Final = frozenset({"log_ratio", "low", "high", "slope", "ratio_low", "ratio_high"})
_RATIOS_TOO: Final = frozenset({"over_generation"})
_CHOSEN: Final = frozenset({"level", "margin", "target"})
_SHARES: Final = frozenset({"share", "time_share"})
# of the method, and said of every run: 95 and 99 % intervals, 5 and 1 % of false alarms
_CONSTANTS: Final = frozenset({"95", "99", "5", "1", "100"})


def shown_numbers(page: Element) -> tuple[set[tuple[str, str]], set[str]]:
    """Return the figures of a page with their units, and the decimal numbers that have none.

    The numbers at the axes of a drawing are of nobody's measurement and are left out.
    """
    text = seen_text(page)
    rest = _FIGURE.sub(" ", text)
    return figures(text), {match[1] for match in _DECIMAL.finditer(rest) if "." in match[1]}


def figures(text: str) -> set[tuple[str, str]]:
    """Return the numbers of a text that have a unit, each with it."""
    return {
        (number, match[3])
        for match in _FIGURE.finditer(text)
        for number in match.groups()[:2]
        if number
    }


def unknown_figures(text: str, run: RunComparison) -> set[tuple[str, str]]:
    """Return the figures of a text that the run does not hold."""
    known = known_figures(run)
    return {(number, unit) for number, unit in figures(text) if number not in known[unit]}


def seen_text(page: Element) -> str:
    """Return what a page says, of drawings their titles and descriptions."""
    parts = list(_seen(page, in_drawing=False))
    return " ".join("".join(parts).split())


def known_figures(run: RunComparison) -> dict[str, set[str]]:
    """Return for each unit the numbers that may stand before it."""
    leaves = tuple(_leaves(msgspec.to_builtins(run)))
    seconds = {abs(value) for value in _seconds(leaves, run)}
    nanoseconds = {abs(value) for value in _nanoseconds(leaves, run)}
    sizes = [value for key, value in leaves if key.endswith("bytes")]
    # a half is rounded as it is worked out: from seconds, or from nanoseconds
    found = {
        unit: {form for one in seconds for form in _forms(one * per)}
        | {form for one in nanoseconds for form in _forms(one / size)}
        for unit, (per, size) in _UNITS.items()
    }
    found |= {
        unit: {form for one in sizes for form in _forms(one / size)}
        for unit, size in _SIZES.items()
    }
    for key, value in leaves:
        if key == "forecast_s":
            number, _, unit = rough_time(value).partition(" ")
            found[unit].add(number)
    found["%"] = _percentages(leaves, run)
    return found


def known_decimals(run: RunComparison) -> set[str]:
    """Return the decimal numbers that may stand without a unit: in a column under its head."""
    leaves = tuple(_leaves(msgspec.to_builtins(run)))
    plain = {form for _, value in leaves for form in _forms(abs(value))}
    plain |= {three_digits(abs(value) / size) for _, value in leaves for size in _PREFIXED
              if abs(value) >= size}  # fmt: skip
    ratios = {ratio_text(value).strip("×") for _, value in leaves}
    changes = [value for key, value in leaves if key in _RATIOS | _RATIOS_TOO]
    changes += [*_means(run), *_far_ends(run)]
    ratios |= {factor_text(value).strip("×") for value in changes}
    p_values = {f"{value:.2g}" for key, value in leaves if key == "p_value"}
    others = {number for numbers in known_figures(run).values() for number in numbers}
    return plain | ratios | p_values | others | _in_texts(run)


def _seen(one: Element, *, in_drawing: bool) -> Iterator[str]:
    if one.tag in {"style", "script"}:
        return
    inside = in_drawing or one.tag == "svg"
    is_said = not inside or one.tag in {"title", "desc"}
    edge = " " * (one.tag not in {"span", "strong", "code", "a"})
    yield edge
    for child in one.children:
        if isinstance(child, Element):
            yield from _seen(child, in_drawing=inside)
        elif is_said:
            yield child
    yield edge


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number with the name of the field it stands in."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _leaves(one, name)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _leaves(one, key)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield key, float(value)


def _in_texts(run: RunComparison) -> set[str]:
    """Return the numbers in names, versions and sentences of the run."""
    return set(re.findall(_NUMBER, msgspec.json.encode(run).decode(errors="replace")))


def _seconds(leaves: tuple[tuple[str, float], ...], run: RunComparison) -> Iterator[float]:
    yield from (value for key, value in leaves if key.endswith("_s"))
    yield sum(cell.waited_s for cell in run.cells)


def _nanoseconds(leaves: tuple[tuple[str, float], ...], run: RunComparison) -> Iterator[float]:
    yield from (1e9 * value for value in _seconds(leaves, run))
    yield from (value for key, value in leaves if key.endswith("_ns"))
    for one in run.profiles:
        yield from _of_profiles(one)


def _of_profiles(found: CellProfiles) -> Iterator[float]:
    """Yield what a report works out of the times in profiles: changes, and times of one call."""
    for diff in found.kernel_diffs:
        yield from ((row.arm_ns or 0.0) - (row.reference_ns or 0.0) for row in diff.rows)
    for arm in found.arms:
        for row in arm.quantities:
            if row.unit == "ns":
                yield from (one or 0.0 for one in (row.value, row.per_step, row.per_sample))
        for call in arm.operators.rows if arm.operators else ():
            yield (call.cpu_ns or 0.0) / (call.calls or 1)


def _forms(value: float) -> set[str]:
    """Return a number with three digits, and with the decimals of a column."""
    return {three_digits(value), number_text(value), *(f"{value:.{n}f}" for n in range(4))}


def _percentages(leaves: tuple[tuple[str, float], ...], run: RunComparison) -> set[str]:
    ratios = [value for key, value in leaves if key in _RATIOS | _RATIOS_TOO]
    found = {percent(change(value)) for value in (*ratios, *_means(run), *_far_ends(run))}
    found |= {_near_zero(change(value)) for value in ratios if percent(change(value)) == "0.0"}
    chosen = {margin_percent(value)[:-2] for key, value in leaves if key in _CHOSEN}
    shares = {f"{100 * abs(value):.{n}f}" for key, value in leaves if key in _SHARES
              for n in range(2)}  # fmt: skip
    plain = {f"{value:.2f}" for key, value in leaves if key.endswith("percent")}
    plain |= {number_text(row.value) for profile in run.profiles for arm in profile.arms
              for row in arm.quantities if row.unit == "%" and row.value is not None}  # fmt: skip
    shared = shared_axis(run.comparisons, margin=run.settings.margin)
    margin = math.log1p(run.settings.margin)
    chosen |= {percent(change(margin)), percent(change(-margin))}
    ends = {label.strip(f"+{MINUS} %") for label in (shared.low_label, shared.high_label)}
    return found | chosen | shares | plain | ends | _CONSTANTS


def _near_zero(fraction: float) -> str:
    """Return the end of an interval that excludes 0, where one decimal would print it as 0."""
    return f"{max(100 * abs(fraction), 0.01):.2f}"


def _means(run: RunComparison) -> Iterator[float]:
    """Yield the means of log ratios that a report prints.

    They are of an environment, of it without what is confounded, and of it in each workload.
    """
    workloads = {comparison.cell: comparison.workload for comparison in run.comparisons}
    for one in headlines(run):
        groups = [
            one.verdicts,
            tuple(v for v in one.verdicts if not v.is_confounded),
            *(
                tuple(v for v in one.verdicts if workloads[v.cell_id] == workload)
                for workload in set(workloads.values())
            ),
        ]
        yield from (mean for group in groups if (mean := mean_log_ratio(group)) is not None)


def _far_ends(run: RunComparison) -> Iterator[float]:
    """Yield the log ratios of quantiles of step times to those of the reference."""
    for cell in run.cells:
        times = {one.arm: one.quantiles_s for one in cell.step_times}
        before = times.get(run.reference_arm, ())
        for found in times.values():
            yield from (math.log(b / a) for a, b in zip(before, found, strict=False))
