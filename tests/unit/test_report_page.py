"""The page: self-contained, within its policy and its budget, with every section true."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import math
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import CELL, blocks, run_record
from summaries import printed

from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import (
    STEP_PROBABILITIES,
    ArmSummary,
    CellSummary,
    HostSummary,
    MemorySummary,
    RunComparison,
    Tail,
)
from envcompare.report import Filter, Fold, Line, Table, plain, shared_axis
from envcompare.report.page import page, render
from envcompare.report.sections import link
from envcompare.report.sections.comparisons import ComparedRow, comparison_rows
from envcompare.report.sections.environments import HostFacts, differences_table, hosts_facts
from envcompare.report.wording import (
    duration,
    fold_anchor,
    listed,
    paired_times,
    points_interval,
    share_text,
    signed_interval,
    signed_percent,
    size,
    slower_text,
    three_digits,
    unsigned_interval,
    unsigned_percent,
)
from envcompare.report.wording.headlines import headlines
from envcompare.run_folder.records import Event, FactDifference
from envcompare.run_folder.results import RunFolder
from envcompare.text import visible
from tests.data.report.builders import changed

DATA = Path(__file__).resolve().parents[1] / "data" / "report"
EXAMPLE = msgspec.json.decode((DATA / "three-arms.json").read_bytes(), type=RunComparison)
PLACES = tuple(0.5 + one for one in STEP_PROBABILITIES)
LOG = "logs/lab01/lab01_rnn_default/singularity.log"


def many(hosts: int, workloads: int) -> RunComparison:
    """Return a run of the example's first cell repeated over hosts and workloads."""
    first = [comparison for comparison in EXAMPLE.comparisons if comparison.workload == "cnn"]
    cells, comparisons = [], []
    for host in range(hosts):
        for workload in range(workloads):
            place = {"host": f"gpu{host:02}", "workload": f"work{workload:02}"}
            name = f"{place['host']}/{place['workload']}/default"
            cells.append(msgspec.structs.replace(EXAMPLE.cells[0], id=name, **place))
            comparisons += [msgspec.structs.replace(one, cell=name, **place) for one in first]
    return changed(EXAMPLE, cells=tuple(cells), comparisons=tuple(comparisons), failures=())


def tables(run: RunComparison, section: str) -> list[Any]:
    """Return the tables of a section."""
    (made,) = (section_ for section_ in page(run, ()).sections if section_.anchor == section)
    return [block for block in made.blocks if block.form == "table"]


def choice(run: RunComparison) -> list[str]:
    """Return the metrics that a reader can choose."""
    (made,) = (section_ for section_ in page(run, ()).sections if section_.anchor == "all")
    (shown,) = (block for block in made.blocks if isinstance(block, Filter))
    return list(shown.metrics)


def rows_of(run: RunComparison) -> tuple[ComparedRow, ...]:
    """Return all comparisons of a run."""
    return comparison_rows(run, shared_axis(run.comparisons, margin=run.settings.margin))


def text_of(html: str, section: str) -> str:
    """Return the text of a section."""
    part = html.split(f'<section id="{section}"')[1].split("</section>", maxsplit=1)[0]
    return " ".join(re.sub(r"<[^>]+>", " ", part).split())


def test_the_policy_allows_the_one_style_and_the_one_script_by_their_hashes() -> None:
    """A browser runs what the page was drawn with and nothing else."""
    html = render(EXAMPLE)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)
    assert policy is not None
    for tag in ("style", "script"):
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        assert len(found) == 1
        digest = base64.b64encode(hashlib.sha256(found[0].encode()).digest()).decode()
        assert f"{tag}-src &#39;sha256-{digest}&#39;" in policy.group(1)
    assert policy.group(1).startswith("default-src &#39;none&#39;")


def test_the_page_holds_every_section_in_the_order_of_the_report() -> None:
    """A reader finds the sections in one order, whatever the run held."""
    found = re.findall(r'<section id="([a-z]+)"', render(EXAMPLE))
    assert found == [
        "answer", "why", "all", "startup", "memory", "environments", "failures", "method",
        "reproduce",
    ]  # fmt: skip


def test_a_page_keeps_its_budget() -> None:
    """Three environments fit into 100 kB, and 900 comparisons into three megabytes."""
    assert len(render(EXAMPLE).encode()) < 100_000
    html = render(many(10, 30))
    assert html.count("data-outcome=") == 900
    assert len(html.encode()) < 3_000_000


def test_many_comparisons_get_a_row_an_environment_and_an_overview() -> None:
    """The first screen holds the answer of a large run as well."""
    (table,) = tables(many(2, 6), "answer")
    assert [row.cells[0] for row in table.rows] == ["vm", "docker", "singularity"]
    assert table.rows[1].cells[4].text == "12 slower"
    (matrix,) = tables(many(2, 6), "overview")
    assert [column.head for column in matrix.columns] == ["Workload", "docker", "singularity"]
    assert matrix.rows[0].cells[1].after[0].text == "▶⚠ ▶⚠"
    assert "Overview" in render(many(2, 6))


def test_the_overview_has_a_place_for_each_host_and_a_dot_where_none_was_planned() -> None:
    """Symbols below each other are of one host."""
    run = many(3, 4)
    kept = tuple(
        comparison
        for comparison in run.comparisons
        if (comparison.host, comparison.workload) != ("gpu01", "work02")
    )
    fewer = msgspec.structs.replace(run, comparisons=kept)
    (matrix,) = tables(fewer, "overview")
    assert "one symbol for each host, in the order of gpu00, gpu01, gpu02" in render(fewer)
    symbols = [row.cells[2].after[0].text for row in matrix.rows]
    assert symbols == ["≈ ≈ ≈", "≈ ≈ ≈", "≈ · ≈", "≈ ≈ ≈"]


def test_the_overview_says_in_how_many_cells_a_workload_moved() -> None:
    """One way that any cell moved in is said before what is not decided, and both ways together."""
    run = many(3, 4)
    ways = {"gpu00": "faster", "gpu01": "inconclusive", "gpu02": "inconclusive"}
    told = tuple(
        msgspec.structs.replace(comparison, outcome=ways[comparison.host])
        if (comparison.arm, comparison.workload) == ("docker", "work01")
        or ((comparison.arm, comparison.workload, comparison.host) == ("docker", "work02", "gpu00"))
        else comparison
        for comparison in run.comparisons
    )
    (matrix,) = tables(msgspec.structs.replace(run, comparisons=told), "overview")
    cells = [row.cells[1] for row in matrix.rows]
    assert [(cell.style, cell.text) for cell in cells] == [
        ("slower", "slower"),
        ("faster", "1 of 3 faster"),
        ("", "faster and slower"),
        ("slower", "slower"),
    ]


def test_rows_name_their_host_where_there_are_several() -> None:
    """A column for hosts, whose names the workloads then leave out."""
    rows = tables(many(2, 2), "all")[0].rows
    assert [row.cells[:2] for row in rows[:2]] == [("work00", "gpu00"), ("work01", "gpu00")]
    head = '<th scope="col" data-sort>Host</th>'
    assert head in render(many(2, 2))
    assert head not in render(EXAMPLE)


def test_a_row_can_show_each_metric_that_was_measured_and_no_other() -> None:
    """The choice names no metric without a value; the 99th percentile comes without an interval."""
    assert choice(EXAMPLE) == [
        "typical step (net)", "on the clock (wall)", "waiting (stretch)", "CPU time",
    ]  # fmt: skip
    cell = EXAMPLE.cells[0]
    times = tuple(
        msgspec.structs.replace(one, quantiles_s=tuple(place * one.median_s for place in PLACES))
        for one in cell.step_times
    )
    cells = (msgspec.structs.replace(cell, step_times=times), *EXAMPLE.cells[1:])
    run = changed(EXAMPLE, cells=cells)
    assert choice(run)[-1] == "99th percentile of the times"
    part = rows_of(run)[0].figures["p99"]
    assert part is not None
    median = {one.arm: one.median_s for one in times}
    assert float(part.places) == pytest.approx(math.log(median["docker"] / median["vm"]), abs=1e-4)
    assert part.interval == "no interval"


def test_a_figure_is_drawn_from_the_log_ratios_beside_it() -> None:
    """Number, interval and places are of one estimate."""
    part = rows_of(EXAMPLE)[0].figures["net"]
    assert part is not None
    ratio, low, high = map(float, part.places.split())
    assert (part.number, part.interval) == (signed_percent(ratio), signed_interval(low, high))
    assert f'data-places="{part.places}"' in render(EXAMPLE)


TAIL = Tail(
    share=0.021,
    reference_share=0.004,
    difference_low=0.0112,
    difference_high=0.0231,
    p90_log_ratio=math.log(1.12),
    p90_low=math.log(1.1),
    p90_high=math.log(1.14),
)


def parts_rows(run: RunComparison) -> list[list[str]]:
    """Return the cells of the table of typical step, mean and tail; none without it."""
    (made,) = (section_ for section_ in page(run, ()).sections if section_.anchor == "all")
    folds = [block for block in made.blocks if isinstance(block, Fold)]
    shown = [one for one in folds if plain(one.summary) == "Typical step, mean and tail"]
    tables = [block for fold in shown for block in fold.blocks if isinstance(block, Table)]
    return [[plain(cell) for cell in row.cells] for table in tables for row in table.rows]


def with_parts(**fields: Any) -> RunComparison:
    """Return the example with the mean and other fields in its first comparison of an arm."""
    first = next(
        comparison
        for comparison in EXAMPLE.comparisons
        if comparison.primary and not comparison.is_control
    )
    mean = msgspec.structs.replace(first.primary, log_ratio=math.log(1.03), low=None, high=None)
    known = msgspec.structs.replace(first, mean=mean, **fields)
    return changed(EXAMPLE, comparisons=(known,))


def test_typical_step_mean_and_tail_stand_beside_each_other_with_their_intervals() -> None:
    """The change that the verdict rests on is the same as in the table of all comparisons."""
    run = with_parts(tail=TAIL)
    ((_, arm, typical, mean, percentile, _, slow),) = parts_rows(run)
    verdict = rows_of(run)[0].verdict
    assert (arm, typical) == (verdict.arm, f"{verdict.number} {verdict.interval}")
    assert mean == "+3.0 % no interval"
    assert percentile == "+12.0 % +10.0 to +14.0 %"
    assert slow == "0.40 % → 2.1 % +1.12 to +2.31 points"


def test_the_change_that_the_verdict_rests_on_is_bold() -> None:
    """Where the mean decides, it is the mean."""
    for is_by_mean in (False, True):
        html = render(with_parts(is_by_mean=is_by_mean))
        table = html.split("Typical step, mean and tail of each comparison")[1].split("</table>")[0]
        assert ("<strong>+3.0" in table or "<b>+3.0" in table) == is_by_mean


def test_a_tail_of_too_few_steps_is_not_measured() -> None:
    """And never a share of 0."""
    ((*_, percentile, _, slow),) = parts_rows(with_parts())
    assert (percentile, slow) == ("not measured", "not measured")


def test_whole_programs_have_no_table_of_mean_and_tail() -> None:
    """Each process is one time."""
    assert parts_rows(EXAMPLE) == []


def test_shares_of_steps_keep_the_digits_that_tell() -> None:
    """A share that is not 0 is never printed as 0."""
    shares = (0.0, 0.000_01, 0.004, 0.021, 1.0)
    expected = ["0 %", "under 0.01 %", "0.40 %", "2.1 %", "100.0 %"]
    assert [share_text(one) for one in shares] == expected
    assert points_interval(-0.0043, 0.0043) == "−0.43 to +0.43 points"
    assert points_interval(None, None) == "no interval"


def test_a_confounded_row_names_what_is_mixed_with_its_environment() -> None:
    """The reader need not look for it elsewhere; other rows are not blamed for it."""
    rows = {(row.verdict.arm, row.work): row.notes for row in rows_of(EXAMPLE)}
    assert rows["docker", "cnn"][0] == "⚠ the build of Python"
    assert not any("Python" in note for note in rows["singularity", "cnn"])


def test_what_is_mixed_with_the_environment_can_be_hidden_where_anything_is() -> None:
    """No box without a use."""
    assert 'id="unconfounded"' in render(EXAMPLE)
    clean = tuple(
        msgspec.structs.replace(comparison, is_confounded=False)
        for comparison in EXAMPLE.comparisons
    )
    assert 'id="unconfounded"' not in render(changed(EXAMPLE, comparisons=clean))


def test_a_log_is_linked_only_where_it_lies_beside_the_page() -> None:
    """A dead link is not printed; the name stays."""
    assert f'href="./{LOG}"' in render(EXAMPLE, files=(LOG,))
    assert f"<code>{LOG}</code>" in render(EXAMPLE)


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("/etc/passwd", ""),
        ("../secret", ""),
        ("logs/../../x", ""),
        ("javascript:alert(1)", "./javascript%3Aalert%281%29"),
    ],
)
def test_a_link_never_leaves_the_run_folder(name: str, address: str) -> None:
    """A name that points elsewhere is text; a file called javascript:… is a file."""
    found = link(name, (name,))
    assert found is not None
    assert found.href == address


def test_an_interrupted_run_says_so_at_the_top() -> None:
    """The warning stands before the first section."""
    html = render(changed(EXAMPLE, is_complete=False))
    assert html.index("This run is not complete") < html.index('<section id="answer"')


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (HostSummary(host="h1", devices={CELL: "cuda"}, gpus=("NVIDIA H200",)), "NVIDIA H200."),
        (HostSummary(host="h1", devices={CELL: "cuda"}), "GPU on h1: its name is not known."),
        (HostSummary(host="h1", gpus=("NVIDIA H200",)), "GPU on h1: NVIDIA H200."),
        (HostSummary(host="h1", devices={CELL: "cpu"}), "No GPU was found on h1: GPU time"),
        (
            HostSummary(host="h1", devices={CELL: "cpu"}, unused_gpus="Tesla T4"),
            "The GPU of h1 (Tesla T4) was not used (--device cpu): GPU time",
        ),
        (
            HostSummary(host="h1", unused_gpus="Tesla T4"),
            "The GPU of h1 (Tesla T4) was not to be used (--device cpu): GPU time",
        ),
        (HostSummary(host="h1"), "Whether a GPU was used on h1 is not known: GPU time"),
    ],
)
def test_the_gpu_of_a_host_or_what_is_known_of_it_is_named(
    host: HostSummary, expected: str
) -> None:
    """That there is none is said only where a worker computed on the CPU."""
    sections = {
        section.anchor: section for section in page(changed(EXAMPLE, hosts=(host,)), ()).sections
    }
    last = sections["memory"].blocks[-1]
    assert isinstance(last, Line)
    assert expected in last.text


def test_no_worker_that_answered_is_no_property_that_is_alike() -> None:
    """Neither a table that says that nothing differs nor a count of what does."""
    arms = tuple(msgspec.structs.replace(arm, facts={}, identity={}) for arm in EXAMPLE.arms)
    text = text_of(render(changed(EXAMPLE, arms=arms, differences=())), "environments")
    assert "Not measured: no worker answered." in text
    assert "Nothing differs" not in text
    assert "properties differ" not in text


@pytest.mark.parametrize(
    ("silent", "expected"),
    [
        ({"docker"}, "Nothing differs where a worker answered; none did in docker."),
        ({"vm"}, "What differs is not known: no worker answered in vm."),
    ],
)
def test_an_arm_without_facts_is_named_where_nothing_differs(
    silent: set[str], expected: str
) -> None:
    """Without the reference there was nothing to compare."""
    arms = tuple(
        msgspec.structs.replace(arm, facts={}, identity={}) if arm.arm in silent else arm
        for arm in EXAMPLE.arms
    )
    text = text_of(render(changed(EXAMPLE, arms=arms, differences=())), "environments")
    assert expected in text
    assert "0 of" not in text
    assert "All environments" not in text


def test_each_arm_has_its_own_value_where_there_are_several_references() -> None:
    """The first column is not the reference of all others."""
    storage = {"vm~1": "ext4", "docker~1": "overlay", "vm~2": "ext4", "docker~2": "fuse"}
    arms = tuple(
        ArmSummary(
            host="h1", arm=arm, environment=arm[:-2], stack="image", reference="", state="ok",
            facts={"container.storage": value},
        )
        for arm, value in storage.items()
    )  # fmt: skip
    found = FactDifference(
        host="h1", arm="docker~2", key="container.storage", reference="overlay", value="fuse",
        fact_class="confounder",
    )  # fmt: skip
    facts = HostFacts(
        host="h1",
        arms=arms,
        differences=(found,),
        references={arm: f"{arm[:-1]}1" for arm in storage},
    )
    (row,) = differences_table(facts, of=1).rows
    assert [plain(cell) for cell in row.cells[2:]] == ["ext4", "overlay", "same", "fuse"]
    alike = msgspec.structs.replace(found, arm="vm~2", reference="ext4", value="xfs")
    (row,) = differences_table(dataclasses.replace(facts, differences=(alike,)), of=1).rows
    assert [plain(cell) for cell in row.cells[2:]] == ["ext4", "overlay", "xfs", "same as docker~1"]


def test_the_peak_of_a_cgroup_is_never_a_ratio() -> None:
    """Memory shows bytes alone, and what was not measured."""
    text = text_of(render(EXAMPLE), "memory")
    assert "cnn docker 415 MiB 1.15 GiB" in text
    assert "cnn singularity 413 MiB not measured" in text
    assert "%" not in text


def test_peaks_of_cuda_get_columns_where_they_were_measured() -> None:
    """The columns of a GPU appear with their values."""
    memory = (
        MemorySummary(
            cell=EXAMPLE.cells[0].id,
            arm="vm",
            generations=8,
            max_rss_bytes=2**30,
            cuda_allocated_peak_bytes=3 * 2**30,
            cuda_reserved_peak_bytes=4 * 2**30,
        ),
    )
    text = text_of(render(changed(EXAMPLE, memory=memory)), "memory")
    assert "CUDA allocated CUDA reserved cnn vm 1.00 GiB 3.00 GiB 4.00 GiB" in text


def test_the_start_up_of_a_failed_arm_is_not_measured() -> None:
    """A column of an arm without a start-up is there and says so."""
    text = text_of(render(EXAMPLE), "startup")
    assert "engine 41.2 ms 38.7 to 44.9 ms 412 ms 387 to 449 ms 1.28 s 1.20 to 1.40 s" in text
    assert "engine 40.9 ms 38.4 to 44.6 ms 409 ms 384 to 446 ms not measured" in text


def test_properties_that_differ_stand_first_with_confounders_on_top() -> None:
    """The two hashes of the interpreter come before what is varied on purpose."""
    rows = tables(EXAMPLE, "environments")[0].rows
    assert [row.cells[0] for row in rows][:2] == ["python.flags", "python.sha256"]
    classes = [row.cells[1].before[0].style.removeprefix("badge ") for row in rows]
    order = ["confounder", "possible-influence", "host", "varied", "identity"]
    assert classes == sorted(classes, key=order.index)
    assert plain(rows[0].cells[4]) == "same"


def test_the_control_is_no_environment_of_its_own() -> None:
    """The reference under its second label gets neither headline nor column."""
    assert [headline.arm for headline in headlines(EXAMPLE)] == ["docker", "singularity"]
    (facts,) = hosts_facts(EXAMPLE)
    assert [arm.arm for arm in facts.arms] == ["vm", "docker", "singularity"]


def test_a_failure_has_its_three_sentences_phase_code_and_log() -> None:
    """What happened, why, what to try, and where to read on."""
    text = text_of(render(EXAMPLE, files=(LOG,)), "failures")
    assert "✕ failed singularity, rnn, host lab01 phase setup, exit code 4" in text
    assert "error RuntimeError: [enforce fail" in text
    assert "try raise the memory limit" in text


def test_an_arm_that_was_never_reached_stands_among_the_failures() -> None:
    """An unreachable host shows, with its reason, though no comparison speaks of it."""
    gone = ArmSummary(
        host="lab02", arm="docker", environment="docker", stack="image", reference="",
        state="unreachable", reason="connection refused",
    )  # fmt: skip
    text = text_of(render(changed(EXAMPLE, arms=(*EXAMPLE.arms, gone))), "failures")
    assert "unreachable docker on host lab02" in text
    assert "connection refused" in text


def test_a_cell_that_timed_out_stands_among_the_failures() -> None:
    """A cell without any comparison is not dropped."""
    lost = CellSummary(id="lab01/gnn/default", host="lab01", workload="gnn", state="timeout",
                       reason="no answer in 60 s")  # fmt: skip
    text = text_of(render(changed(EXAMPLE, cells=(*EXAMPLE.cells, lost))), "failures")
    assert "timeout lab01/gnn/default" in text


def test_reproduce_holds_the_command_the_seed_and_the_configuration() -> None:
    """What runs the same experiment again stands on the page."""
    text = text_of(render(EXAMPLE), "reproduce")
    assert "envcompare run --hosts lab01 --envs vm,docker,singularity" in text
    assert "seed 20261121" in text
    assert "workloads = [&#34;cnn&#34;, &#34;rnn&#34;]" in text


def test_the_words_container_overhead_are_never_printed() -> None:
    """A difference with another stack is not the container's."""
    assert "overhead" not in render(EXAMPLE).lower()


def test_a_difference_without_confounder_leads_the_box_why() -> None:
    """The largest clean difference is named, with a way to its fold."""
    clean = tuple(
        msgspec.structs.replace(comparison, is_confounded=False)
        for comparison in EXAMPLE.comparisons
    )
    html = render(changed(EXAMPLE, comparisons=clean, differences=()))
    text = text_of(html, "answer")
    assert "Largest difference without a known confounder: 8.4 % slower" in text
    fold = fold_anchor(clean[0].cell, "docker")
    assert f'<a href="#{fold}">docker, cnn</a>' in html
    assert f'id="{fold}"' in html


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (0.04126, 0.0448, "41.3 → 44.8 ms"),
        (0.00852, 0.009999, "8.52 → 10.0 ms"),
        (40e-6, 38.5e-6, "40.0 → 38.5 µs"),
        (0.951, 1.2345, "0.951 → 1.23 s"),
        (0.0412, None, "41.2 ms → not measured"),
        (None, None, "not measured"),
    ],
)
def test_paired_times_have_three_digits_in_one_unit(
    before: float | None, after: float | None, expected: str
) -> None:
    """The longer one chooses the unit, and no exponent is needed."""
    assert paired_times(before, after) == expected


def test_small_formatters() -> None:
    """Durations, sizes and lists read as a person would write them."""
    assert [duration(s) for s in (0.0, 40e-6, 0.0412, 1.284, 75, 900, None)] == [
        "0 s", "40.0 µs", "41.2 ms", "1.28 s", "75.0 s", "15 min", "not measured",
    ]  # fmt: skip
    assert [size(n) for n in (64 << 20, 1180 << 20, None)] == [
        "64.0 MiB",
        "1.15 GiB",
        "not measured",
    ]
    assert [listed(words) for words in ("", "a", "ab", "abc", "abcde")] == [
        "", "a", "a and b", "a, b and c", "a, b, c and 2 more",
    ]  # fmt: skip
    assert three_digits(-0.0412) == "−0.0412"


def test_hidden_characters_are_written_out() -> None:
    """A name cannot turn the text around or end it."""
    assert visible("a\u202eb\x00c\u200bd\n") == "a⟨U+202E⟩b⟨U+0000⟩c⟨U+200B⟩d\n"
    assert visible("modèle 模型") == "modèle 模型"


@pytest.mark.parametrize(
    ("ratios", "number", "interval"),
    [
        ((10.5, 9.5, 10.9), "+950.0 %", "+850.0 to +990.0 %"),
        ((24.0, 22.1, 26.4), "×24", "×22.1 to ×26.4"),
        ((335.0, 301.0, 1234.0), "×335", "×301 to ×1230"),
        ((9.0, 6.0, 14.0), "+800.0 %", "×6.00 to ×14"),
    ],
)
def test_change_beyond_a_thousand_percent_is_a_factor(
    ratios: tuple[float, float, float], number: str, interval: str
) -> None:
    """A number that is cut off at 1000 % is no size; both ends of an interval are of one kind."""
    ratio, low, high = map(math.log, ratios)
    assert signed_percent(ratio) == number
    assert unsigned_percent(ratio) == number.strip("+")
    assert signed_interval(low, high) == interval
    assert unsigned_interval(low, high) == interval.replace("+", "")


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(1.084, "8.4 % slower than vm"), (24.6, "24.6 times as slow as vm")],
)
def test_a_factor_is_said_as_one(ratio: float, expected: str) -> None:
    """Nobody says ×24.6 slower."""
    assert slower_text(math.log(ratio), "vm") == expected
    assert slower_text(math.log(ratio)) == expected.rpartition(" ")[0].rpartition(" ")[0]


@pytest.mark.parametrize(("ratio", "noise"), [(24.6, 0.002), (10.7, 0.1)])
def test_a_far_slower_arm_is_described_in_words_everywhere(
    tmp_path: Path, ratio: float, noise: float
) -> None:
    """First words, table and page give a factor, also if only the upper end needs one."""
    made = RunFolder.create(tmp_path, run_record())
    ratios = {"vm": 1.0, "docker": ratio, "vm~control": 1.0}
    for one in blocks(ratios, generations=3, noise=noise):
        made.append_sample(one)
    made.append_event(Event(t=1.0, what="stopped", host="local", cell=CELL, text="decided"))
    made.close()
    run = compare_run(made)
    said = printed(run)
    assert re.search(r"docker is [12]\d\.\d times as slow as vm in cnn \(×", said)
    assert re.search(r"[12]\d\.\d times as slow \(×", said)
    assert not re.search(r"×[\d.]+ slower", said + render(run))


def test_interval_that_excludes_zero_never_ends_there() -> None:
    """An end that one decimal would round to 0 says on which side it lies."""
    assert signed_interval(math.log(0.93), math.log(0.9997)) == "−7.0 to −0.03 %"
    assert signed_interval(math.log(1.000001), math.log(1.02)) == "under +0.01 to +2.0 %"
    assert signed_interval(math.log(0.9997), math.log(1.02)) == "0.0 to +2.0 %"
    assert unsigned_interval(math.log(0.93), math.log(0.9997)) == "0.03 to 7.0 %"
