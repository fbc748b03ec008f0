"""Whatever profiles hold, the page is drawn, and shows their names as text."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, given, settings
from msgspec.structs import replace
from profilepages import imported_run, profiled_run, roofline
from summaries import markdown, printed

from envcompare.analysis.model import RunComparison
from envcompare.analysis.model.profiling import (
    ActivityTable,
    ArmProfiles,
    CellProfiles,
    KernelDiff,
    Ledger,
    PassState,
    QuantityRow,
    Roof,
    Roofline,
    RooflinePoint,
)
from envcompare.report.charts import PAGE, specification
from envcompare.report.charts.roofline import roofline_chart
from envcompare.report.page import render
from envcompare.report.wording import (
    TimeScale,
    bytes_text,
    quantity_text,
    ratio_text,
    time_text,
)

# an example is a whole page, about a second; unshrunk ones are told from each other well enough
SETTINGS = settings(
    max_examples=15, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate)
)
NOTHING = ("nan", "inf", "None", "Undefined")  # what a slip in a template prints
NAMES = st.one_of(
    st.text(max_size=300).filter(lambda text: text.strip() not in NOTHING),
    st.sampled_from(["</script><b>", "{{ x }}", "\u202e\x00", "{% raw %}", "a" * 900, "`code`"]),
)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
POSITIVE = st.floats(min_value=1e-14, max_value=1e26)
ARMS = ("vm", "docker", "singularity")


@pytest.fixture(autouse=True, scope="module")
def _drawn_by_type() -> Iterator[None]:
    """Draw names that could do harm and numbers that JSON can hold, in this module alone."""
    st.register_type_strategy(str, NAMES)
    st.register_type_strategy(float, NUMBERS)
    yield
    st.register_type_strategy(str, st.text())
    st.register_type_strategy(float, st.floats())


def made(kind: Any, **fields: Any) -> st.SearchStrategy[Any]:
    """Return any value of a type; whatever has no field of its own here is drawn by its type."""
    return st.builds(kind, **fields)


def several(kind: Any, *, most: int = 3, **fields: Any) -> st.SearchStrategy[Any]:
    """Return some values of a type."""
    return st.lists(made(kind, **fields), max_size=most).map(tuple)


def points(arm: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Return points of which most have a place on the chart."""
    fields = {"intensity": st.none() | POSITIVE, "flops_per_s": POSITIVE | NUMBERS}
    return st.lists(made(RooflinePoint, arm=arm, **fields), min_size=1, max_size=4).map(tuple)


def roofs() -> st.SearchStrategy[Any]:
    """Return roofs, with and without a ridge."""
    fields = {"flops_per_s": POSITIVE, "ridge": st.none() | POSITIVE}
    return st.lists(made(Roof, **fields), max_size=3).map(tuple)


@st.composite
def cells(draw: st.DrawFn, cell: str) -> CellProfiles:
    """Return any profiles of three arms."""
    arm = st.sampled_from(ARMS)
    arms = tuple(
        draw(
            made(
                ArmProfiles,
                arm=st.just(name),
                passes=several(PassState),
                quantities=several(QuantityRow, most=5),
                activities=st.none() | made(ActivityTable),
            )
        )
        for name in ARMS
    )
    return draw(
        made(
            CellProfiles,
            cell=st.just(cell),
            host=st.just("lab01"),
            reference=st.just("vm"),
            arms=st.just(arms),
            kernel_diffs=several(KernelDiff, most=2, arm=arm),
            ledgers=several(Ledger, most=2, arm=arm),
            roofline=st.none() | made(Roofline, points=points(arm), roofs=roofs()),
        )
    )


@st.composite
def runs(draw: st.DrawFn) -> RunComparison:
    """Return a timed or an imported run with any profiles."""
    run = draw(st.sampled_from([profiled_run(), imported_run(*ARMS)]))
    return replace(run, profiles=(draw(cells(run.profiles[0].cell)),))


def is_shown(char: str) -> bool:
    """Say whether a reader sees a character, or it parts lines and words."""
    return unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Co", "Cn"} or char in "\n\t"


@SETTINGS
@given(runs())
def test_any_profiles_are_drawn_with_nothing_hidden_and_no_tag_of_their_own(
    run: RunComparison,
) -> None:
    """No number of a profile stops the report, and no name becomes markup."""
    html = render(run)
    assert all(map(is_shown, html))
    body = html.partition("<body>")[2].partition("<script")[0]
    known = "a|body|br|button|caption|circle|code|dd|desc|details|div|dl|dt|fieldset|footer|form|g"
    known += "|h1|h2|h3|header|i|input|label|legend|li|line|main|nav|p|path|pre|rect|section|small"
    known += "|option|select|span|strong|summary|svg|table|tbody|td|text|tfoot|th|thead|title|tr|ul"
    assert not re.sub(rf"</?({known})[ />]|</?({known})$", "", body).count("</")
    for text in NOTHING:
        assert f">{text}<" not in body
    assert all(is_shown(char) and char != "\t" for char in printed(run).replace("\n", ""))
    assert all(map(is_shown, markdown(run)))


@given(NUMBERS, NUMBERS)
def test_any_number_has_a_text(value: float, other: float) -> None:
    """No value is too large, too small or too negative to be printed."""
    scale = TimeScale.of(other)
    for text in (
        time_text(value),
        bytes_text(value),
        ratio_text(value),
        scale.number(value),
        scale.signed(value),
        *(quantity_text(value, unit) for unit in ("ns", "B", "FLOP/s", "%", "")),
    ):
        assert text.strip()
        assert "-" not in text.replace("e-", "")


@settings(max_examples=400, deadline=None)
@given(points(st.sampled_from(ARMS)), roofs(), st.none() | POSITIVE | NUMBERS)
def test_every_point_of_any_roofline_stands_inside_its_frame(
    drawn: tuple[RooflinePoint, ...], bounds: tuple[Roof, ...], bandwidth: float | None
) -> None:
    """Axes reach around whatever was measured, with few enough numbers to be read."""
    run = profiled_run()
    made_up = replace(roofline(), points=drawn, roofs=bounds, bytes_per_s=bandwidth)
    chart = roofline_chart(replace(run.profiles[0], roofline=made_up), where="cnn")
    if chart is None:
        return
    declared = json.loads(json.dumps(specification(chart, PAGE), allow_nan=False))
    layers = declared["vconcat"][0]["layer"]
    for layer in (one for one in layers if one["mark"]["type"] != "text"):
        axes = {axis: layer["encoding"][axis] for axis in ("x", "y")}
        for row in json.loads(layer["data"]["values"]):
            for axis, told in axes.items():
                low, high = told["scale"]["domain"]
                assert low * 0.99 <= row[axis] <= high * 1.01
                assert len(told["axis"]["values"]) <= 14
