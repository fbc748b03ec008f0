"""Profiles in the report: numbers that add up, reasons for what is missing, hostile names."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from chartpages import place_of, svg_of, texts_of, titled
from msgspec.structs import replace
from profilepages import (
    FPROP,
    WINOGRAD,
    cell_profiles,
    imported_run,
    kernel_diff,
    kernel_row,
    ledger,
    passes,
    point,
    profiled_run,
    quantity,
    roofline,
)
from summaries import markdown, printed, terminal_lines
from traces import lacking

from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import RunComparison
from envcompare.analysis.model.profiling import ArmProfiles, CellProfiles, Ledger, PassState
from envcompare.report import Fold, Line, Table, plain
from envcompare.report.charts import Chart, ChartBudget
from envcompare.report.charts.rendering import ChartsError
from envcompare.report.charts.roofline import roofline_chart
from envcompare.report.page import page, render
from envcompare.report.sections.charted import roofline_blocks, roofline_section
from envcompare.report.sections.profilefolds import (
    left_out,
    missing_passes,
    profile_blocks,
    profiled_cells,
)
from envcompare.report.sections.profiletables import (
    kernel_blocks,
    ledger_blocks,
    quantity_blocks,
    quantity_lines,
    unmeasured,
)
from envcompare.report.wording import (
    TimeScale,
    number_text,
    quantity_text,
    ratio_text,
    time_text,
)
from envcompare.report.wording.headlines import headlines
from envcompare.report.wording.profilewords import (
    NOT_PROFILED,
    is_timed,
    largest_parts,
    missing_sentence,
    quantity_name,
    why_sentences,
)
from envcompare.run_folder.results import RunFolder

RESULTS = Path(__file__).resolve().parents[2] / "results"

HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "\u202egnirts\u0007\x00bell",
    "void f<\"quoted\", &amp;>('x')\nnext line\tand tab",
)


@pytest.fixture(scope="module")
def h200() -> RunComparison:
    """Return the published run on a GPU."""
    return compare_run(RunFolder.open(RESULTS / "h200"))


class Texts(HTMLParser):
    """Collects the words of a page without style and script, and its tags."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._silent = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep a tag."""
        self.tags.append((tag, dict(attrs)))
        self._silent = tag in {"style", "script"}

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002 — as the parser calls it
        """Hear what follows a style or script again."""
        self._silent = False

    def handle_data(self, data: str) -> None:
        """Keep what a reader sees."""
        if not self._silent:
            self.words.append(data)


def read(html: str) -> Texts:
    """Parse a page."""
    parser = Texts()
    parser.feed(html)
    return parser


def text_of(html: str, section: str) -> str:
    """Return the text of a section."""
    part = html.split(f'<section id="{section}"')[1].split("</section>", maxsplit=1)[0]
    joined = re.sub(r'</span>|<span class="nw">', "", part)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", joined)).split())


def with_profiles(**changes: Any) -> RunComparison:
    """Return the example run with other profiles."""
    run = profiled_run()
    return replace(run, profiles=(replace(run.profiles[0], **changes),))


def profiles(**changes: Any) -> CellProfiles:
    """Return the only profiled cell."""
    return with_profiles(**changes).profiles[0]


def kernels_of(arm: str, **changes: Any) -> list[Any]:
    """Return what is told of the kernels of an arm: sentences, tables and folds."""
    diff = next(one for one in profiles(**changes).kernel_diffs if one.arm == arm)
    return list(kernel_blocks(diff, reference="vm", label="cnn", most=25))


def rows_of(blocks: list[Any]) -> list[Any]:
    """Return the cells of each row of the first table among blocks."""
    tables = (block for block in blocks if block.form == "table")
    return [row.cells for table in [*tables][:1] for row in table.rows]


def parts_of(found: Ledger) -> Table:
    """Return the table of a ledger."""
    table, _ = ledger_blocks(found, reference="vm", label="cnn")
    assert isinstance(table, Table)
    return table


def folds_of(run: RunComparison, **settings: Any) -> list[Any]:
    """Return the folds of the profiles of each cell."""
    known: dict[str, Any] = {"are_open": True, **settings}
    blocks = profile_blocks(run, profiled_cells(run), (), **known)
    return [block for block in blocks if isinstance(block, Fold)]


def listings_of(arm: ArmProfiles) -> list[Any]:
    """Return the tables of what ran longest in an arm."""
    (fold,) = folds_of(with_profiles(arms=(arm,), kernel_diffs=(), ledgers=()))
    names = ("GPU activities", "Operators")
    return [block.blocks[0] for block in fold.blocks
            if block.form == "fold" and str(block.summary).startswith(names)]  # fmt: skip


def chart_of(**changes: Any) -> Chart:
    """Return the roofline of the only profiled cell."""
    made = roofline_chart(profiles(**changes), where="cnn")
    assert made is not None
    return made


def missing(reason: str, hint: str = "") -> CellProfiles:
    """Return a cell in which no profile could be taken."""
    refused = PassState(kind="nsys", name="nsys", state="missing", lacks=lacking(reason, hint))
    arms = tuple(ArmProfiles(arm=arm, passes=(refused,)) for arm in ("vm", "docker"))
    cell = profiled_run().cells[0].id
    return CellProfiles(cell=cell, host="lab01", reference="vm", arms=arms)


def test_the_page_has_why_and_roofline_where_there_are_profiles() -> None:
    """They stand between the answer and the start-up, in the order of the report."""
    found = re.findall(r'<section id="([a-z]+)"', render(profiled_run()))
    assert found == [
        "answer", "why", "all", "roofline", "startup", "memory", "power", "environments",
        "failures", "method", "reproduce",
    ]  # fmt: skip


def test_the_ledger_adds_up_and_names_its_largest_part_first() -> None:
    """What the box says is the table's own largest parts."""
    found = ledger()
    table = parts_of(found)
    assert sum(part.change_ns for part in found.parts) == found.change_ns
    assert table.foot[0].cells[3] == Line(strong="+1.94")
    changes = [plain(row.cells[3]) for row in table.rows]
    assert changes == ["+0.16", "+0.11", "+0.12", "0.00", "+1.55"]
    assert largest_parts(found).startswith("+1.94 ms a step on the GPU: GPU idle +1.55 ms (80 %)")


def test_a_ledger_draws_less_to_the_left_and_more_to_the_right() -> None:
    """The middle of the bar is no change."""
    smaller = replace(ledger().parts[0], arm_ns=8_000_000, change_ns=-1_200_000)
    table = parts_of(ledger(parts=(smaller, *ledger().parts[1:])))
    bars: list[Any] = [row.cells[4].change for row in table.rows]  # type: ignore[union-attr]
    assert (bars[0].way, float(bars[0].x) < 60) == ("less", True)
    assert (bars[4].way, bars[4].x) == ("more", "60.0")
    assert bars[3].way == ""


def test_the_box_why_says_where_the_time_goes_instead_of_not_measured() -> None:
    """The first screen names parts and replaced kernels, with a way to the tables."""
    answer = text_of(render(profiled_run()), "answer")
    assert NOT_PROFILED not in answer
    assert "docker, cnn: +1.94 ms a step on the GPU: GPU idle +1.55 ms (80 %)" in answer
    assert "1 kernel replaced and 1 only in docker. " in answer
    same = "singularity, cnn: the same 2 kernels as vm, equally often; kernel time a step"
    assert f"{same} 12.0 ms → 12.0 ms." in answer


def test_a_gpu_that_waits_for_the_host_is_named_where_nothing_was_decided(
    h200: RunComparison,
) -> None:
    """It says on which side to look; one that computes most of the time is not named."""
    run = replace(h200, profiles=tuple(replace(profile, gpu_parts=()) for profile in h200.profiles))
    assert [one.rpartition("; ")[2] for one in why_sentences(run) if ", rnn: " in one] == [
        "the GPU waited for the host for 2.69 ms → 2.20 ms of a traced step of 2.96 ms → 2.46 ms.",
        "the GPU waited for the host for 2.69 ms → 3.55 ms of a traced step of 2.96 ms → 3.82 ms.",
    ]
    assert not any("waited for the host" in one for one in why_sentences(profiled_run()))


def test_kernels_as_long_as_the_step_leave_no_host_part(h200: RunComparison) -> None:
    """That was measured; the rest is too small for it."""
    cells = [
        replace(profile, gpu_parts=tuple(replace(parts, host=None) for parts in profile.gpu_parts))
        for profile in h200.profiles
    ]
    answer = text_of(render(replace(h200, profiles=tuple(cells))), "answer")
    assert "267 → 265 µs too small to tell too small to tell" in answer
    assert "that of kernels is over the steps of one traced start" in answer


def test_a_step_on_a_gpu_is_said_in_two_parts(h200: RunComparison) -> None:
    """Page, terminal and Markdown have kernels and host part, and how new GPUs are here."""
    answer = text_of(render(h200), "answer")
    row = "docker-host rnn −0.6 % no interval from 5 traced steps 267 → 265 µs −2.8 % "
    assert row in answer
    assert "envcompare has been tried on one GPU so far, an NVIDIA H200." in answer
    assert not any("waited for the host" in one for one in why_sentences(h200))
    written = markdown(h200)
    assert "| docker-host | rnn | −0.6 % no interval from 5 traced steps |" in written
    assert "tried on one GPU" in written


def test_parts_of_a_difference_that_was_not_decided_are_not_named_first() -> None:
    """There is no cause to look for yet; the tables are there, one link away."""
    run = profiled_run()
    undecided = tuple(replace(comparison, outcome="inconclusive") for comparison in run.comparisons)
    changed = replace(run, comparisons=undecided)
    assert not any("a step on the GPU" in text for text in why_sentences(changed))
    assert any("1 kernel replaced" in text for text in why_sentences(changed))
    alone = replace(run.profiles[0], kernel_diffs=())
    answer = text_of(render(replace(changed, profiles=(alone,))), "answer")
    assert "Each comparison says where a step spends its time: Why" in answer


def test_without_any_profile_the_box_says_that_none_was_taken() -> None:
    """The folds of comparisons say so too, and none is drawn for profiles that are not there."""
    html = render(profiled_run(profiles=()))
    assert NOT_PROFILED in unescape(text_of(html, "answer"))
    assert f"kernels: {NOT_PROFILED}." in unescape(text_of(html, "why"))
    assert "What the profiles of each cell say" not in html


def test_a_refused_profile_gives_its_reason_and_what_mends_it() -> None:
    """The reader learns why the cause is not known, on the first screen."""
    run = profiled_run(profiles=(missing("no nsys on lab01", "install nsight-systems"),))
    assert why_sentences(run) == ()
    assert missing_sentence(run) == (
        "Where a step spends its time is not measured: no nsys on lab01. "
        "To fix it: install nsight-systems."
    )
    assert "no nsys on lab01. Try: install nsight-systems" in text_of(render(run), "why")


def test_equal_kernels_are_one_sentence_and_a_fold() -> None:
    """The table of what differs is not drawn where nothing differs."""
    sentence, fold = kernels_of("singularity")
    assert sentence.text.startswith("singularity and vm ran the same kernels: 2 kernels")
    assert fold.summary == "2 kernels in both"
    assert len(fold.blocks[0].rows) == 2


def test_a_replaced_kernel_shows_both_names_and_the_rule_that_matched_them() -> None:
    """A reader can judge the match."""
    rows = rows_of(kernels_of("docker"))
    assert rows[0][1].codes == (WINOGRAD, FPROP)
    assert rows[0][0].below == ("by shape and launch order",)
    assert rows[0][4].strong == "−1.740"
    assert [row[0].before[0].text[0] for row in rows] == ["⇄", "+", "=", "="]


def test_a_kernel_that_one_arm_lacks_is_absent_and_not_zero() -> None:
    """Absent is what it is; its launches are none."""
    row = rows_of(kernels_of("docker"))[1]
    assert (row[2], row[3], row[6]) == ("absent", "0.066", "0 → 16")


def test_kernels_without_a_time_have_no_change() -> None:
    """Counters were collected in a way that changes time: nothing is made up."""
    rows = (kernel_row(reference_ns=None, arm_ns=None),)
    blocks = kernels_of(
        "docker", kernel_diffs=(kernel_diff(rows=rows, reference_ns=None, arm_ns=None),)
    )
    (row,) = rows_of(blocks)
    assert (row[2], row[4].strong) == ("not measured", "not measured")
    assert row[5].change is None
    assert "kernel time" not in blocks[0].text


def test_a_long_kernel_name_keeps_its_end() -> None:
    """Instances of one template differ at their end."""
    rows = (kernel_row(reference_name="a" * 400 + "<1>", arm_name="a" * 400 + "<2>"),)
    ((_, cell, *_),) = rows_of(kernels_of("docker", kernel_diffs=(kernel_diff(rows=rows),)))
    names = cell.codes
    assert [name[-3:] for name in names] == ["<1>", "<2>"]
    assert max(map(len, names)) < 200


def test_quantities_stand_side_by_side_with_rule_tool_and_ratio() -> None:
    """Per step where steps are known, the ratio to the reference beside it."""
    line = next(one for one in quantity_lines(profiles()) if one.name.startswith("FLOP, FP32"))
    assert (line.per, line.basis) == ("per step", "sum, ncu 2024.1, all launches")
    assert [cell.text for cell in line.cells] == ["4.58 GFLOP", "5.18 GFLOP", "not measured"]
    assert [(cell.ratio, cell.word) for cell in line.cells] == [
        ("", ""), ("×1.13", "differs"), ("", ""),
    ]  # fmt: skip


def test_what_is_missing_is_never_0_or_blank() -> None:
    """Beside a number of another arm stands that it was not measured; why is told below."""
    lines = quantity_lines(profiles())
    both = next(one for one in lines if one.name == "device memory, both ways")
    assert (both.cells[2].text, both.cells[2].note) == ("not measured", "")
    for line in (*lines, *quantity_lines(profiles(), of_power=True)):
        assert all(cell.text not in {"", "0"} for cell in line.cells)


def test_each_reason_is_told_once_with_all_that_it_keeps_from_being_measured() -> None:
    """The reason is the quantity's own, or that of the pass that would have given it."""
    found = {reason: names for names, reason in unmeasured(profiles())}
    assert found["this chip does not tell reads from writes"] == (
        "device memory, read in vm and docker"
    )
    assert found["ERR_NVGPUCTRPERM: no permission to read counters"] == (
        "device memory, both ways, device memory, read, arithmetic intensity and occupancy "
        "achieved in singularity"
    )
    text = text_of(render(profiled_run()), "why")
    assert text.count("this chip does not tell reads from writes") == 1


def test_what_has_a_fold_of_its_own_stands_there_alone() -> None:
    """Ledger and kernels are told once; those of equivalent arms stand with their cell, folded."""
    run = profiled_run()
    cell = run.profiles[0].cell
    for outcome, count in (("slower", 0), ("equivalent", 2), ("inconclusive", 0), ("failed", 2)):
        told = tuple(
            replace(comparison, outcome=outcome) if comparison.cell == cell else comparison
            for comparison in run.comparisons
        )
        changed = replace(run, comparisons=told)
        (found,) = profiled_cells(changed)
        assert len(found.compared) == count
        (fold,) = folds_of(changed)
        opened = {
            plain(block.summary): block.is_open for block in fold.blocks if block.form == "fold"
        }
        against = [is_open for name, is_open in opened.items() if "against vm" in name]
        assert against == [False] * count
        assert opened["Quantities of cnn"] is (count == 0)
    (fold,) = folds_of(imported_run("vm", "docker"))
    first = next(block for block in fold.blocks if block.form == "fold")
    assert first.is_open
    assert plain(first.summary).startswith("docker against vm vm ")


def test_a_profile_belongs_to_its_host() -> None:
    """The same work on two hosts has two views, each with the verdict of its own host."""
    run = profiled_run()
    first = run.cells[0]
    hosts = {"lab01": "equivalent", "lab02": "slower"}
    ids = {host: f"{host}/{first.workload}/default" for host in hosts}
    told = [comparison for comparison in run.comparisons if comparison.cell == first.id]
    run = replace(
        run,
        cells=tuple(replace(first, id=ids[host], host=host) for host in hosts),
        comparisons=tuple(
            replace(one, cell=ids[host], host=host, outcome=outcome)
            for host, outcome in hosts.items()
            for one in told
        ),
        profiles=tuple(cell_profiles(ids[host], host=host) for host in hosts),
    )
    found = profiled_cells(run)
    assert [one.label for one in found] == ["cnn on lab01", "cnn on lab02"]
    assert [bool(one.compared) for one in found] == [True, False]
    assert len({one.anchor for one in found}) == 2


def test_what_is_to_be_known_of_a_value_stands_with_its_rule() -> None:
    """A guess must not look like a count."""
    guess = quantity("tensor_core_share", 40.0, unit="%", per_step=None, reason="a guess by names")
    arm = ArmProfiles(arm="vm", passes=(), quantities=(guess,))
    (line,) = quantity_lines(profiles(arms=(arm,)))
    assert line.basis.endswith("a guess by names")


def test_each_gpu_has_a_line_of_its_own() -> None:
    """The second would else hide behind the first."""
    both = tuple(
        quantity("busy_ns", 1000.0 * place, scope=f"GPU {place}", gpu=place, per_step=None)
        for place in (1, 2)
    )
    arms = tuple(ArmProfiles(arm=arm, passes=(), quantities=both) for arm in ("vm", "docker"))
    lines = quantity_lines(profiles(arms=arms))
    assert [line.name for line in lines] == ["GPU busy (GPU 1)", "GPU busy (GPU 2)"]
    assert [cell.text for cell in lines[1].cells] == ["2.00 µs", "2.00 µs"]


def test_a_gpu_stands_in_the_label_on_the_terminal_and_in_markdown() -> None:
    """Lines of two GPUs were alike there; one of all GPUs is another line."""
    run = imported_run("vm", "docker")
    alone = (quantity("busy_ns", 1000.0, scope="5 launches", per_step=None),)
    both = tuple(
        quantity("busy_ns", 1000.0 * place, scope=f"GPU {place}", gpu=place, per_step=None)
        for place in (1, 2)
    )
    arms = tuple(
        ArmProfiles(arm=arm, passes=(), quantities=found)
        for arm, found in (("vm", alone), ("docker", both))
    )
    changed = replace(run, profiles=(replace(run.profiles[0], arms=arms),))
    rows = [one.columns for one in terminal_lines(changed) if one.role == "row"]
    names = [row[0].removesuffix(", whole profile") for row in rows]
    assert names == ["GPU busy", "GPU busy (GPU 1)", "GPU busy (GPU 2)"]
    assert "| GPU busy (GPU 2)" in markdown(changed)


def test_profiles_that_are_missing_for_one_reason_are_told_together() -> None:
    """Six refusals of one cause are one sentence."""
    names = ("nsys", "ncu-memory")
    refused = tuple(
        PassState(kind=name, name=name, state="missing", lacks=lacking("no GPU to look into"))
        for name in names
    )
    arms = tuple(ArmProfiles(arm=arm, passes=refused) for arm in ("vm", "docker"))
    ((names_told, _, _),) = missing_passes(profiles(arms=arms))
    assert names_told == "nsys and ncu-memory of vm and docker"
    html = render(with_profiles(arms=arms, ledgers=(), kernel_diffs=()))
    assert html.split('id="why-1"')[1].count("no GPU to look into") == 1
    assert "Profiles of cnn and their files" not in html


def test_a_profile_that_no_cell_has_is_named_once_above_them() -> None:
    """A run on a CPU would repeat it in each cell."""
    lacks = lacking("no GPU to look into")
    refused = PassState(kind="nsys", name="nsys", state="missing", lacks=lacks)
    other = PassState(kind="ncu-memory", name="ncu-memory", state="missing", lacks=lacks)
    run = with_profiles(arms=(ArmProfiles(arm="vm", passes=(refused,)),))
    (cell,) = run.profiles
    both = replace(run, profiles=(cell, replace(cell, cell="other")))
    line, *folds = profile_blocks(both, profiled_cells(both), (), are_open=True)
    assert plain(line) == "Not measured, nsys of vm: no GPU to look into."
    assert not any("no GPU to look into" in str(fold) for fold in folds)
    arms = (ArmProfiles(arm="vm", passes=(other,)),)
    unlike = replace(run, profiles=(cell, replace(cell, cell="other", arms=arms)))
    assert sum("no GPU to look into" in str(fold) for fold in folds_of(unlike)) == 2


def test_of_many_cells_three_are_open_where_no_fold_says_why() -> None:
    """A page that is folded up hides what it is made for."""
    run, names = profiled_run(), [f"cell-{number}" for number in range(4)]
    run = replace(run, profiles=tuple(cell_profiles(name) for name in names), comparisons=())
    assert [one.is_open for one in folds_of(run) if one.anchor] == [True, True, True, False]
    assert not any(one.is_open for one in folds_of(run, are_open=False))


def test_what_no_cell_has_is_said_once_below_them() -> None:
    """Of one cell it is said in its fold."""
    reason = "this chip does not tell reads from writes"
    run, names = profiled_run(), ["cell-1", "cell-2"]
    (alone,) = folds_of(run)
    assert reason in str(alone.blocks)
    both = folds_of(replace(run, profiles=tuple(cell_profiles(name) for name in names)))
    assert [reason in str(fold.blocks) for fold in both] == [False, False, True]


def test_ledgers_for_which_there_is_no_room_are_counted() -> None:
    """What is in comparison.json alone is said where it would stand."""
    run, names = profiled_run(), [f"cell-{number:02}" for number in range(30)]
    run = replace(run, profiles=tuple(cell_profiles(name) for name in names), comparisons=())
    found = profiled_cells(run, explained=frozenset({("cell-00", "docker")}))
    assert sum(len(one.compared) for one in found) == 40
    assert left_out(run, found) == (
        "The cells that moved most are shown; comparison.json holds 6 more. Ledger and kernels of "
        "20 more comparisons are in comparison.json alone."
    )
    assert left_out(profiled_run(), profiled_cells(profiled_run())) == ""


def test_raw_files_of_profilers_come_with_a_caution() -> None:
    """Who hands the folder on should know what is in them."""
    name = "profiles/lab01_cnn/vm/nsys.nsys-rep"
    (first, *others) = passes()
    arms = (ArmProfiles(arm="vm", passes=(replace(first, raw=(name,)), *others)),)
    caution = "Raw files of profilers name the host and the command line."
    assert caution in render(with_profiles(arms=arms), files=(name,))
    assert caution not in render(with_profiles())


def test_shares_are_left_out_where_parts_outweigh_the_whole() -> None:
    """254 % of a change is no help on the first screen; the table has it."""
    parts = (
        replace(ledger().parts[0], change_ns=2_120_000, share=2.54),
        replace(ledger().parts[1], change_ns=-1_330_000, share=-1.6),
    )
    found = ledger(basis="timing", parts=parts, change_ns=833_000)
    assert largest_parts(found) == (
        "+833 µs a step on the clock: GEMM and convolution +2.12 ms and element-wise kernels "
        "−1.33 ms"
    )
    assert parts_of(found).rows[0].cells[5] == "254 %"


def test_whole_profiles_are_compared_only_where_steps_are_not_known_of_all() -> None:
    """A step of one arm never stands beside the whole profile of another."""
    arms = (
        ArmProfiles(arm="vm", passes=passes(), quantities=(quantity("busy_ns", 2e6),)),
        ArmProfiles(
            arm="docker", passes=passes(), quantities=(quantity("busy_ns", 3e6, per_step=None),)
        ),
    )
    line = quantity_lines(profiles(arms=arms))[0]
    assert line.per == "whole profile"
    assert [cell.text for cell in line.cells] == ["2.00 ms", "3.00 ms"]


def test_two_tools_share_a_row_and_each_is_named() -> None:
    """An old log beside a new trace is side by side; each value says where it is from."""
    times = {"nvprof": ("nvprof", 3e6), "nsys": ("nsys 2024.5", 2e6)}
    arms = tuple(
        ArmProfiles(
            arm=arm,
            passes=passes(),
            quantities=(quantity("busy_ns", value, kind="imported", tool=tool, source=source),),
        )
        for arm, (tool, (source, value)) in zip(("vm", "docker"), times.items(), strict=True)
    )
    (line,) = quantity_lines(profiles(arms=arms))
    assert [(cell.text, cell.note) for cell in line.cells] == [
        ("150 µs", "nvprof"), ("100 µs", "nsys 2024.5"),
    ]  # fmt: skip
    both = replace(arms[0], quantities=(*arms[0].quantities, *arms[1].quantities))
    lines = quantity_lines(profiles(arms=(both, arms[1])))
    assert [line.basis.split(", ")[1] for line in lines] == ["nvprof", "nsys 2024.5"]
    assert [cell.text for cell in lines[1].cells] == ["100 µs", "100 µs"]


def test_power_stands_in_a_section_of_its_own() -> None:
    """It is never among the quantities of the work; a quota on CPUs is no power."""
    power = [line.name for line in quantity_lines(profiles(), of_power=True)]
    assert power == ["power", "energy per sample"]
    assert not {*power} & {line.name for line in quantity_lines(profiles())}
    assert quantity_name("throttled_ns") == "stopped by a CPU quota"


def test_activities_have_the_columns_of_nvprof() -> None:
    """Type, share, time, calls, average, least, most and name."""
    listing = listings_of(profiles().arms[0])[0]
    heads = ["Type", "Time (%)", "Time", "Calls", "Avg", "Min", "Max", "Name"]
    assert [column.head for column in listing.columns] == heads
    assert listing.rows[0].cells[:7] == (
        "GPU activities", "50.00 %", "5.42 ms", "39", "139 µs", "1.00 µs", "not measured",
    )  # fmt: skip


def test_operators_have_device_columns_only_where_a_device_took_part() -> None:
    """On a CPU the table is as torch.profiler prints it there."""
    arm = profiled_run().profiles[0].arms[0]
    assert arm.operators is not None
    rows = tuple(
        replace(row, self_device_ns=None, device_ns=None, self_device_percent=None,
                self_cpu_bytes=None, self_device_bytes=None)
        for row in arm.operators.rows
    )  # fmt: skip
    cpu = replace(arm, activities=None, operators=replace(arm.operators, rows=rows))
    (operators,) = listings_of(cpu)
    assert [column.head for column in operators.columns] == [
        "Self CPU %", "Self CPU", "CPU total", "CPU time avg", "# of Calls", "Name",
    ]  # fmt: skip
    assert "Self CUDA" in [column.head for column in listings_of(arm)[1].columns]


def test_operators_of_several_arms_share_a_table() -> None:
    """One that an arm did not call has a dash there; the longest in any arm is first."""
    first = profiles().arms[0]
    assert first.operators is not None
    row = first.operators.rows[0]
    others = (replace(row, name="aten::mine", self_cpu_ns=9e12), row)
    second = replace(first, arm="docker", operators=replace(first.operators, rows=others))
    (fold,) = folds_of(with_profiles(arms=(first, second), kernel_diffs=(), ledgers=()))
    (operators,) = (
        block
        for block in fold.blocks
        if block.form == "fold" and "Operators" in plain(block.summary)
    )
    table, note = operators.blocks
    assert "comparison.json has totals, averages and memory" in note.text
    assert [column.group for column in table.columns][:3] == ["", "vm", "vm"]
    assert table.rows[0].cells[:2] == (Line(codes=("aten::mine",)), "–")
    assert len(table.rows) == len(first.operators.rows) + 1


def test_quantities_that_are_equal_in_all_arms_share_a_sentence() -> None:
    """A table has those that differ."""
    first = profiles().arms[0]
    twin = replace(
        first,
        arm="docker",
        quantities=tuple(
            replace(one, agreement="equal" if one.value else one.agreement, ratio=1.0)
            for one in first.quantities
        ),
    )
    blocks = quantity_blocks(profiles(arms=(first, twin)), label="cnn")
    (items,) = (block for block in blocks if block.form == "items")
    assert items.items[0].startswith("Equal in all: ")
    named = {plain(row.cells[0]) for block in blocks if block.form == "table" for row in block.rows}
    assert not any(name in items.items[0] for name in named)


def test_the_roofline_draws_roofs_in_use_and_points_of_every_arm() -> None:
    """Shapes tell arms apart without colour; what has no place stands in the table alone."""
    svg = svg_of(chart_of())
    texts = texts_of(svg)
    for roof in ("device memory 810 GB/s", "tensor_fp16 101 TFLOP/s", "fp32 14.4 TFLOP/s"):
        assert roof in texts
    assert not any("fp64" in text for text in texts)
    assert [text for text in texts if text in {"vm", "docker", "singularity"}] == [
        "vm",
        "docker",
        "singularity",
    ]
    points = titled(svg)
    assert len(points) == 7
    shapes = {words.partition(",")[0]: mark.get("d", "")[-9:] for mark, words in points}
    assert len(set(shapes.values())) == 3
    unplaced = point("vm", intensity=None, bytes=None)
    two = roofline(points=(point("vm"), unplaced))
    blocks = roofline_blocks(profiles(roofline=two), two, label="cnn", charts=None)
    assert len(titled(svg_of(chart_of(roofline=two)))) == 1
    assert len(blocks[-1].blocks[0].rows) == 2  # type: ignore[union-attr]


def test_a_roofline_that_cannot_be_drawn_here_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that the page is to be small, and its numbers are open."""

    def fail(chart: Chart) -> str:
        raise ChartsError("charts cannot be drawn", details="no renderer")

    monkeypatch.setattr("envcompare.report.charts.drawn", fail)
    several = tuple(profiles(cell=f"lab01/c{place}", roofline=roofline()) for place in range(9))
    section = roofline_section(profiled_run(), several, ChartBudget())
    assert section is not None
    told = [block.text for block in section.blocks if isinstance(block, Line)]
    assert told.count("Not drawn: no renderer.") == 9
    assert not any("to keep the page small" in text for text in told)
    folds = [block for block in section.blocks if isinstance(block, Fold)]
    assert all(fold.is_open for fold in folds)


def test_the_roofline_says_whether_its_roofs_were_measured() -> None:
    """A table's roof is no measurement."""
    assert "Roofs: measured with PyTorch 2.13" in text_of(render(profiled_run()), "roofline")
    table = roofline(is_measured=False, source="data sheet of V100 SXM2")
    html = render(with_profiles(roofline=table))
    assert "Roofs from the table: data sheet of V100 SXM2" in text_of(html, "roofline")


def test_work_without_a_known_intensity_stands_in_the_table_of_the_roofline() -> None:
    """As on a CPU: what was achieved of the roof is told, though no point has a place."""
    step = point("vm", name="a step of the model", intensity=None, bytes=None)
    told = text_of(render(with_profiles(roofline=roofline(points=(step,)))), "roofline")
    assert "Not drawn: no point has a known intensity" in told
    assert "a step of the model" in told
    assert quantity_text(step.flops_per_s, "FLOP/s") in told


def test_no_empty_chart_is_drawn() -> None:
    """Without a point there is the reason and no axes."""
    html = render(with_profiles(roofline=None, roofline_reason="no FLOPs were counted"))
    assert "cnn: not drawn: no FLOPs were counted" in text_of(html, "roofline")
    assert 'id="roofline-lab01' not in html
    html = render(with_profiles(roofline=roofline(points=(), missing=("no work was counted",))))
    assert "cnn: not drawn: no work was counted" in text_of(html, "roofline")


def test_every_point_stands_inside_the_frame_and_below_its_roofs_edge() -> None:
    """Axes hold whole decades around roofs and points."""
    far = (point("vm", intensity=1e-4, flops_per_s=3.0), point("docker", intensity=9e5))
    svg = svg_of(chart_of(roofline=roofline(points=far)))
    places = [place_of(mark) for mark, _ in titled(svg)]
    assert len(places) == 2
    for x, y in places:
        assert 0 <= x <= 580
        assert 0 <= y <= 320


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_kernel_name_is_text_wherever_it_stands(name: str) -> None:
    """No tag, no template and no hidden character comes out of the name of a kernel."""
    run = profiled_run()
    cell = run.profiles[0]
    arm = cell.arms[0]
    assert arm.activities is not None
    assert arm.operators is not None
    activities = replace(arm.activities, rows=(replace(arm.activities.rows[0], name=name),))
    operators = replace(arm.operators, rows=(replace(arm.operators.rows[0], name=name),))
    row = kernel_row(reference_name=name, arm_name=name, op=name)
    hostile = replace(
        cell,
        arms=(replace(arm, activities=activities, operators=operators), *cell.arms[1:]),
        kernel_diffs=(kernel_diff(rows=(row,)),),
        roofline=roofline(points=(point("vm", name=name, is_total=False), point("docker"))),
        betrayed=(replace(cell.betrayed[0], evidence=name, sentence=name),),
        cautions=(name,),
    )  # fmt: skip
    changed = replace(run, profiles=(hostile,))
    html = render(changed)
    before, after = read(render(run)), read(html)
    assert {tag for tag, _ in after.tags} <= {tag for tag, _ in before.tags}
    assert not any(key.startswith("on") or key == "style" for _, keys in after.tags for key in keys)
    assert not set("\u202e\x07\x00") & set("".join(after.words))
    assert "49" not in text_of(html, "why").replace("+1.49", "")
    assert not set("\u202e\x07\x00\t") & set(printed(changed))
    lines = [line for line in printed(changed).splitlines() if line.strip()]
    assert len(lines) == len(terminal_lines(changed))
    assert "<img" not in markdown(changed)


def test_a_run_of_many_profiled_cells_keeps_its_budget() -> None:
    """Tables get shorter where they are many; what is left out is in comparison.json."""
    run = profiled_run()
    first = run.profiles[0]
    arm = first.arms[0]
    assert arm.activities is not None
    long = replace(arm.activities, rows=arm.activities.rows * 13)
    arms = tuple(replace(one, activities=long) for one in first.arms)
    cells = tuple(cell_profiles(f"lab01/work{n}/default", arms=arms) for n in range(300))
    html = render(replace(run, profiles=cells))
    assert len(html.encode()) < 2_000_000
    assert "more lines in comparison.json" in html
    assert "comparison.json holds 276 more" in html


def test_an_imported_run_gives_no_verdict_and_says_so() -> None:
    """Nothing was timed: no interval, no margin, no section about times."""
    html = render(imported_run("vm", "docker"))
    words = " ".join(read(html).words)
    assert "Nothing was timed by envcompare" in text_of(html, "answer")
    assert "The kernels of docker and vm differ: 1 replaced, 1 only in docker, 2 in both" in words
    found = re.findall(r'<section id="([a-z]+)"', html)
    assert found == ["answer", "why", "roofline", "power", "method", "reproduce"]
    for word in ("margin", "slower", "equivalent", "budget", "seed"):
        assert word not in words.lower(), word


def test_an_imported_run_of_one_environment_waits_for_another() -> None:
    """There is nothing to compare, and that is no failure."""
    alone = imported_run("vm")
    assert "Profiles of vm alone were imported" in " ".join(page(alone, ()).warnings)
    assert "was not run" not in render(alone)


def test_the_terminal_shows_the_quantities_of_imported_profiles_side_by_side() -> None:
    """One column an environment; a timed run has its verdicts there instead."""
    lines = terminal_lines(imported_run("vm", "docker"))
    assert next(line for line in lines if line.role == "head").columns == (
        "workload",
        "vm",
        "docker",
    )
    rows = [line.columns for line in lines if line.role == "row"]
    assert ("kernel time, per step", "12.0 ms", "13.6 ms ×1.13") in rows
    assert "| kernel time, per step | 12.0 ms | 13.6 ms ×1.13 |" in markdown(
        imported_run("vm", "docker")
    )
    timed = [one.columns for one in terminal_lines(profiled_run()) if one.role == "row"]
    assert all("kernel time" not in columns[0] for columns in timed)


def test_gaps_on_the_terminal_have_a_reason() -> None:
    """What one environment lacks is told below the table; what all lack stands in the report."""
    run = imported_run("vm", "docker")
    vm, docker = run.profiles[0].arms
    docker = replace(
        docker, quantities=tuple(row for row in docker.quantities if row.name != "occupancy")
    )
    changed = replace(run, profiles=(replace(run.profiles[0], arms=(vm, docker)),))
    gap = "not measured, occupancy achieved in docker: no profile of it says so"
    lines = [one.columns[0] for one in terminal_lines(changed) if one.role == "note"]
    assert [text for text in lines if text.startswith("not measured")] == [gap]
    assert f"- {gap}" in markdown(changed)


def test_quantities_beyond_the_first_are_counted_on_the_terminal() -> None:
    """Nothing is left out in silence; the GPU stands above them."""
    run = imported_run("vm", "docker")
    arms = tuple(
        replace(arm, quantities=tuple(quantity(f"counter_{n}", 1.0) for n in range(23)))
        for arm in run.profiles[0].arms
    )
    changed = replace(run, profiles=(replace(run.profiles[0], arms=arms),))
    rows = [one.columns for one in terminal_lines(changed) if one.role == "row"]
    assert (len(rows), rows[0]) == (22, ("GPU", "not known", "not known"))
    assert rows[-1] == ("and 3 more in report.html", "", "")


def test_notes_tell_what_kernel_names_show() -> None:
    """Another library is a reason to doubt, said beside the numbers."""
    notes = [one.columns[0] for one in terminal_lines(profiled_run()) if one.role == "note"]
    assert any(text.startswith("⚠ docker: Kernel names carry cuDNN 7 names") for text in notes)
    assert any(text.startswith("docker, cnn: +1.94 ms a step on the GPU") for text in notes)


def test_an_untimed_arm_beside_timed_ones_keeps_their_verdicts() -> None:
    """It gets a headline of its own, last, and no row among the verdicts."""
    run = profiled_run()
    added = replace(run.arms[0], arm="old", state="ok", is_timed=False, facts={})
    both = replace(run, arms=(*run.arms, added))
    found = headlines(both)
    assert is_timed(both)
    assert [one.arm for one in found][-1] == "old"
    assert found[-1].badge == "not timed"
    assert [one.verdicts for one in found[:-1]] == [
        headline.verdicts for headline in headlines(run)
    ]


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (4_580_179_968.0, "FLOP", "4.58 GFLOP"),
        (6_331_344_288.0, "B", "6.33 GB"),
        (0.0, "B", "0 B"),
        (999.0, "B", "999 B"),
        (1.53e9, "Hz", "1.53 GHz"),
        (61.54, "%", "61.5 %"),
        (197_854_509.0, "transactions of 32 B", "198 M"),
        (9.0, "switches", "9"),
        (9.0, "W", "9 W"),
        (208.0, "", "208"),
        (1234.5, "ns", "1.23 µs"),
        (None, "ns", "not measured"),
    ],
)
def test_quantities_are_printed_with_a_prefix_that_suits_them(
    value: float | None, unit: str, expected: str
) -> None:
    """Three digits, SI prefixes, and never a 0 for what is missing."""
    assert quantity_text(value, unit) == expected


def test_times_and_ratios_keep_what_matters() -> None:
    """Near 1 a ratio needs its fourth decimal; a table of times has one unit."""
    assert [time_text(ns) for ns in (0.0, 950.0, 1e3, 2.5e6, 3e9)] == [
        "0 ns", "950 ns", "1.00 µs", "2.50 ms", "3.00 s",
    ]  # fmt: skip
    assert [ratio_text(one) for one in (1.0, 1.0013, 3.16, None)] == [
        "×1.0000", "×1.0013", "×3.16", "",
    ]  # fmt: skip
    scale = TimeScale.of(17.7e6)
    assert (scale.unit, scale.number(619_000), scale.signed(-1_900_000)) == ("ms", "0.62", "−1.90")
    assert scale.signed(-400.0) == "0.00"
    assert number_text(-3.0) == "−3"
