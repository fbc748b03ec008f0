"""Charts: small and safe SVG in the colours of the page, whose marks lie where numbers say."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from xml.etree.ElementTree import Element

import altair as alt  # noqa: TID251 — the schema that charts obey is its own
import pytest
from chartpages import (
    HOSTILE,
    cell_of,
    compared,
    estimate,
    hostile_runs,
    kept_ladder,
    kind_of,
    kinds_of_charts,
    parsed,
    place_of,
    run_of,
    spread_cell,
    spread_run,
    svg_of,
    swept,
    texts_of,
    titled,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from profilepages import cell_profiles, ledger, profiled_run

from envcompare.analysis.model import RunComparison
from envcompare.report.charts import (
    LIGHT,
    PAGE,
    PAPER,
    Chart,
    chart_name,
    clean_svg,
    drawn,
    label,
    paper_files,
    run_styles,
    shown,
    specification,
    styles,
)
from envcompare.report.charts.sweeps import MOST_ROWS, forest_chart, ladder_charts, sweep_charts
from envcompare.report.charts.times import startup_charts, step_chart, time_chart
from envcompare.report.exports import charts_of

ARMS = ("vm", "docker", "singularity")
WORDS = Chart(name="one", title="A & B", description="<none>", declare=lambda _: {})
LINE = re.compile(r"M(-?[\d.]+),(-?[\d.]+)h([\d.]+)v")


def steps_of(run: RunComparison, *arms: str) -> Chart | None:
    """Return the chart of the first cell."""
    return step_chart(run, run.cells[0], arms or tuple(ARMS))


def every_chart() -> list[Chart]:
    """Return a chart of each kind."""
    runs = (profiled_run(), spread_run(vm=0.01, docker=0.011), swept())
    return [*(chart for run in runs for chart in charts_of(run)), *ladder_charts(kept_ladder())]


def marks_by_title(svg: Element) -> dict[str, Element]:
    """Return marks by the first words of what they say."""
    return {words.partition(":")[0]: mark for mark, words in titled(svg)}


def test_each_kind_of_chart_is_checked() -> None:
    """If this fails, add a run that has your chart to `every_chart`."""
    assert {kind_of(chart) for chart in every_chart()} == kinds_of_charts()


@pytest.mark.parametrize("chart", every_chart(), ids=lambda chart: chart.name)
def test_a_chart_is_small_named_and_has_no_style_link_or_script(chart: Chart) -> None:
    """The page's policy allows no style attribute, and a screen reader gets title and text."""
    text = str(drawn(chart))
    svg = parsed(text)
    seen = {element.tag for element in svg.iter()}
    assert seen <= {"svg", "title", "desc", "g", "path", "line", "rect", "circle", "text", "tspan"}
    for element in svg.iter():
        assert not {"style", "class", "href", "clip-path"} & set(element.attrib) - (
            {"class"} if element is svg else set()
        )
        assert not any(key.startswith("on") for key in element.attrib)
    named = {element.get("id"): element.text for element in svg.iter() if element.get("id")}
    assert svg.get("role") == "img"
    assert str(svg.get("aria-labelledby")).split() == list(named)
    assert list(named.values()) == [chart.title, chart.description]
    assert len(text) < 12_000
    assert text == str(drawn(chart))


@pytest.mark.parametrize("chart", every_chart(), ids=lambda chart: chart.name)
def test_every_colour_is_a_variable_of_the_page_and_none_of_a_paper(chart: Chart) -> None:
    """Dark mode changes variables alone, and a paper has no page to take them from."""
    for element in parsed(drawn(chart)).iter():
        for key in ("fill", "stroke"):
            value = element.get(key, "none")
            assert value in {"none", "transparent"} or re.fullmatch(r"var\(--\w+, #\w+\)", value)
    assert "var(" not in paper_files(chart)["svg"].decode()


@pytest.mark.parametrize("chart", every_chart(), ids=lambda chart: chart.name)
def test_what_a_chart_declares_obeys_the_schema_of_vega_lite(chart: Chart) -> None:
    """It is not looked at again when a page is drawn, and what Vega does not know it leaves out."""
    alt.Chart.from_dict(json.loads(json.dumps(specification(chart, PAPER), allow_nan=False)))


def test_charts_of_a_run_have_names_of_their_own() -> None:
    """Names are stems of files and parts of ids in one page."""
    names = [chart.name for chart in every_chart()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in names)
    assert chart_name("steps", "a/b", "c") != chart_name("steps", "a", "b/c")


def test_the_light_colours_are_those_of_the_page() -> None:
    """A file for a paper looks as the page does in its light theme."""
    css = (files("envcompare.report") / "templates" / "report.css").read_text(encoding="utf-8")
    told = dict(re.findall(r"--([\w-]+): light-dark\((#\w+),", css))
    assert {name: told[name] for name in LIGHT} == LIGHT


def test_arms_differ_in_shape_and_dash_beside_their_colour() -> None:
    """No series is told by its colour alone, and an arm looks the same in every chart."""
    found = styles(("vm", "docker", "singularity", "vm~control"))
    assert len({one.shape for one in found.values()}) == 4
    assert len({one.dash for one in found.values()}) == 4
    assert len({PAGE.of(one.place) for one in found.values()}) == 4
    assert run_styles(swept())["docker"] == found["docker"]


def test_a_slower_arms_steps_lie_further_right() -> None:
    """Left is faster: the bar of the middle half stands where the quantiles are."""
    run = spread_run(vm=0.010, docker=0.012, singularity=0.008)
    marks = marks_by_title(svg_of(steps_of(run)))
    starts = {arm: place_of(marks[arm])[0] for arm in ARMS}
    assert starts["singularity"] < starts["vm"] < starts["docker"]
    low, high = run.cells[0].step_edges_s[0], run.cells[0].step_edges_s[-1]
    times = run.cells[0].step_times[0]
    expected = 480 * (times.quantiles_s[3] - low) / (high - low)
    assert starts["vm"] == pytest.approx(expected, abs=0.2)


def test_steps_beyond_the_axis_are_said() -> None:
    """What is not drawn is counted beside the density and in the description."""
    run = run_of((spread_cell({"vm": 0.01, "docker": 0.011}, beyond=3),), ())
    chart = steps_of(run)
    assert texts_of(svg_of(chart)).count("+3 beyond the axis") == 2
    assert chart is not None
    assert "6 steps lie beyond the axis." in chart.description
    assert "100 steps" in texts_of(svg_of(chart))


def test_steps_without_a_histogram_have_no_chart() -> None:
    """A run that was analysed before steps were counted, and arms that took none."""
    run = spread_run(vm=0.01)
    assert steps_of(run, "docker") is None
    bare = replace(run.cells[0], step_edges_s=())
    assert step_chart(run, bare, ARMS) is None
    old = replace(bare.step_times[0], counts=(), quantiles_s=())
    assert step_chart(run, replace(run.cells[0], step_times=(old,)), ARMS) is None


def test_the_parts_of_a_step_follow_each_other_and_carry_letters() -> None:
    """Widths are times on one scale, and the key explains each letter."""
    run, profiles = profiled_run(), cell_profiles("c")
    svg = svg_of(time_chart(run, profiles, ledger()))
    marks = marks_by_title(svg)
    ends = {name: LINE.match(mark.get("d", "")) for name, mark in marks.items()}
    gemm, idle = ends["GEMM and convolution, vm"], ends["GPU idle, docker"]
    slower = ends["GPU idle, vm"]
    assert gemm is not None
    assert idle is not None
    assert slower is not None
    assert float(gemm[1]) == 0
    assert float(idle[3]) / float(gemm[3]) == pytest.approx(4_200_123 / 9_200_000, rel=0.01)
    assert float(idle[2]) > float(slower[2])
    texts = texts_of(svg)
    assert {"A GEMM and convolution", "A 9.20", "E GPU idle", "15.39", "17.32"} <= set(texts)


def test_a_ledger_of_nothing_has_no_chart() -> None:
    """There is no bar without time."""
    run, profiles = profiled_run(), cell_profiles("c")
    assert time_chart(run, profiles, ledger(reference_ns=0, arm_ns=0)) is None
    assert time_chart(run, profiles, ledger(parts=())) is None
    none = tuple(replace(part, reference_ns=0, arm_ns=0) for part in ledger().parts)
    assert time_chart(run, profiles, ledger(parts=none)) is None


def test_a_sweep_rises_where_an_arm_gets_slower() -> None:
    """Up is slower, right is more of the parameter; powers of two stand equally far apart."""
    (chart,) = sweep_charts(swept())
    marks = marks_by_title(svg_of(chart))
    places = [place_of(marks[f"docker, batch={batch}"]) for batch in (1, 4, 16)]
    assert places[0][1] > places[1][1] > places[2][1]
    assert places[2][0] - places[1][0] == pytest.approx(places[1][0] - places[0][0], abs=0.2)
    below = place_of(marks["singularity, batch=16"])
    assert below[1] > place_of(marks["singularity, batch=1"])[1]


def test_a_sweep_that_begins_at_0_has_a_plain_axis() -> None:
    """0 has no logarithm, though the values above it may be powers of two."""
    cells = tuple(cell_of(workers=number) for number in (0, 1, 2))
    compare = tuple(compared("docker", cell, estimate(8, 7, 9)) for cell in cells)
    (chart,) = sweep_charts(run_of(cells, compare))
    marks = marks_by_title(svg_of(chart))
    places = [place_of(marks[f"docker, workers={number}"])[0] for number in (0, 1, 2)]
    assert places[2] - places[1] == pytest.approx(places[1] - places[0], abs=0.2)


def test_a_failed_point_of_a_sweep_is_a_cross_at_the_foot() -> None:
    """What failed never vanishes: it is drawn, keyed, and said with its reason."""
    (chart,) = sweep_charts(swept())
    svg = svg_of(chart)
    lost = marks_by_title(svg)["singularity, batch=4"]
    assert place_of(lost)[1] == pytest.approx(170 - 9, abs=0.5)
    assert "not measured" in texts_of(svg)
    assert "singularity at 4: failed (phase setup, exit code 1): out of memory" in chart.description


def test_what_leaves_the_axis_of_a_sweep_has_an_arrow_at_its_edge() -> None:
    """A point that is held at the edge must not be read as lying there."""
    cells = tuple(cell_of(batch=batch) for batch in (1, 2))
    compare = (
        compared("docker", cells[0], estimate(300, 290, 310)),
        compared("docker", cells[1], estimate(-1, -90, 5), outcome="inconclusive"),
    )
    (chart,) = sweep_charts(run_of(cells, compare))
    svg = svg_of(chart)
    marks = marks_by_title(svg)
    assert place_of(marks["docker, batch=1, beyond the axis"])[1] < 0
    assert 160 < place_of(marks["docker, batch=2, beyond the axis"])[1] < 170
    assert "beyond the axis" in texts_of(svg)
    (plain,) = sweep_charts(swept())
    assert "beyond the axis" not in texts_of(svg_of(plain))


def test_what_leaves_the_axis_of_the_forest_has_an_arrow_beside_it() -> None:
    """To the side on which it leaves."""
    cell = cell_of()
    found = (
        compared("docker", cell, estimate(300, 290, 310)),
        compared("podman", cell, estimate(-1, -90, 5), outcome="inconclusive"),
    )
    chart = forest_chart(run_of((cell,), found))
    arrows = [one for one in svg_of(chart).iter("path") if one.get("d", "").count("M") == 2]
    assert [place_of(one)[0] for one in arrows] == [-5.0, 365.0]


def test_a_line_breaks_at_a_gap() -> None:
    """No line is drawn through a value that was not measured."""
    (chart,) = sweep_charts(swept())
    places = [mark.get("d", "") for mark in svg_of(chart).iter("path") if not len(mark)]
    lines = [one for one in places if one.count("M") == 1 and "L" in one and "Z" not in one]
    assert [line.count("L") for line in lines] == [2]


@pytest.mark.parametrize(
    ("parameters", "count"),
    [
        ([{"batch": 1}, {"batch": 2}], 1),
        ([{"batch": 1}, {"batch": 2, "amp": True}], 0),
        ([{"batch": 1, "width": 8}, {"batch": 2, "width": 16}], 0),
        ([{"amp": True}, {"amp": False}], 0),
        ([{"mode": "a"}, {"mode": "b"}], 0),
        ([{"batch": b, "width": w} for b in (1, 2, 4) for w in (8, 16)], 5),
    ],
)
def test_a_sweep_differs_in_exactly_one_number(
    parameters: list[dict[str, int]], count: int
) -> None:
    """Cells that differ in more, or in no number, have no axis to stand on."""
    cells = tuple(cell_of(**found) for found in parameters)
    compare = tuple(compared("docker", cell, estimate(1, 0, 2)) for cell in cells)
    assert len(sweep_charts(run_of(cells, compare))) == count


def test_the_forest_has_a_row_for_what_failed_and_right_is_slower() -> None:
    """The largest 60 comparisons stand there, and how many do not is said."""
    cell = cell_of()
    found = (
        compared("docker", cell, estimate(8, 7, 9)),
        compared("podman", cell, estimate(-8, -9, -7), outcome="faster"),
        compared("singularity", cell, None),
    )
    chart = forest_chart(run_of((cell,), found))
    svg = svg_of(chart)
    marks = marks_by_title(svg)
    docker, podman = (place_of(marks[f"{arm}, {cell.id}"])[0] for arm in ("docker", "podman"))
    assert podman < docker
    texts = texts_of(svg)
    assert {"singularity, cnn", "failed", "+8.0 % (+7.0 to +9.0 %) slower"} <= set(texts)
    cells = tuple(cell_of(batch=batch) for batch in range(MOST_ROWS + 5))
    many = tuple(compared("docker", one, estimate(place + 1, 0, place + 2))
                 for place, one in enumerate(cells))  # fmt: skip
    long = forest_chart(run_of(cells, many))
    assert long is not None
    assert "5 comparisons that moved less left out" in long.description
    assert len(titled(svg_of(long))) == MOST_ROWS
    assert forest_chart(run_of((cell,), ())) is None


def test_the_start_up_of_each_arm_is_one_bar() -> None:
    """Phases follow each other from 0, the reference first."""
    charts = startup_charts(profiled_run())
    assert charts
    svg = svg_of(charts[0])
    first = next(mark for mark, words in titled(svg) if words.startswith("engine, docker"))
    assert first.get("d", "").startswith("M0,")
    assert [text for text in texts_of(svg) if text in ARMS] == list(ARMS)


def check_harmless(run: RunComparison) -> None:
    """Assert that every chart of a run is a tree of known elements with visible texts."""
    for chart in charts_of(run):
        svg = svg_of(chart)
        tags = {element.tag for element in svg.iter()}
        assert tags <= {"svg", "title", "desc", "g", "path", "line", "rect", "text"}
        assert not set("\u202e\x00\x07\ud800") & set("".join(svg.itertext()))
        assert all(len(text) < 60 for text in texts_of(svg))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_text_wherever_it_stands(name: str) -> None:
    """Vega reads dots, brackets and expressions in names of fields; none of these is one."""
    for run in hostile_runs(name):
        check_harmless(run)
    chart = steps_of(hostile_runs(name)[0], "vm", name)
    assert label(name) in texts_of(svg_of(chart))
    assert chart is not None
    assert shown(name) in chart.description


def test_a_hostile_name_is_written_to_the_files_of_a_paper() -> None:
    """PNG and PDF are made of it as well."""
    name = "".join(HOSTILE[:4])
    chart = steps_of(hostile_runs(name)[0], name)
    assert chart is not None
    made = paper_files(chart)
    assert "⟨U+202E⟩" in made["svg"].decode()
    assert made["png"].startswith(b"\x89PNG")
    assert made["pdf"].startswith(b"%PDF")


@settings(max_examples=8, deadline=None)
@given(st.text(min_size=1, max_size=60))
def test_any_name_can_be_drawn(name: str) -> None:
    """Whatever a user calls an arm, a workload, a host and a parameter."""
    for chart in charts_of(hostile_runs(f"{name}!")[0]):
        parsed(drawn(chart))


def test_only_what_is_listed_gets_through() -> None:
    """Styles, links, scripts, ids, clip paths and empty groups of a drawing are dropped."""
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" width="10.26" height="5" viewBox="0 0 10.26 5">'
        '<defs><clipPath id="clip0"><path d="M0,0"/></clipPath></defs><script>1</script>'
        '<g style="a" class="b" onclick="c"><g id="d"><path d="M1.23456,2" fill="red" style="e" '
        'aria-label="f &lt; g"/></g></g><g><path d="" fill="red"/></g>'
        '<a href="x"><text>y</text></a></svg>'
    )
    root = parsed(clean_svg(svg, WORDS))
    assert [element.tag for element in root.iter()] == [
        "svg",
        "title",
        "desc",
        "g",
        "path",
        "title",
    ]
    (path,) = root.iter("path")
    assert path.attrib == {"d": "M1.2,2", "fill": "red"}
    assert [title.text for title in path] == ["f < g"]
    assert root.get("width") == "10.3"
    assert [element.text for element in root][:2] == ["A & B", "<none>"]
