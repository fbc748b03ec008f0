"""The page: self-contained, within its policy and its budget, with every section true."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envcompare.analysis.model import ArmSummary, CellSummary, MemorySummary, RunComparison
from envcompare.report.links import link
from envcompare.report.numbers import duration, listed, milliseconds, size, three_digits
from envcompare.report.page import render
from envcompare.report.view import page
from envcompare.texts import visible

DATA = Path(__file__).resolve().parents[1] / "data" / "report"
EXAMPLE = msgspec.json.decode((DATA / "three-arms.json").read_bytes(), type=RunComparison)
LOG = "logs/lab01/lab01_rnn_default/singularity.log"


def changed(**fields: Any) -> RunComparison:
    """Return the example with other fields."""
    return msgspec.structs.replace(EXAMPLE, **fields)


def many(hosts: int, workloads: int) -> RunComparison:
    """Return a run of the example's first cell repeated over hosts and workloads."""
    first = [one for one in EXAMPLE.comparisons if one.workload == "cnn"]
    cells, comparisons = [], []
    for host in range(hosts):
        for workload in range(workloads):
            place = {"host": f"gpu{host:02}", "workload": f"work{workload:02}"}
            name = f"{place['host']}/{place['workload']}/default"
            cells.append(msgspec.structs.replace(EXAMPLE.cells[0], id=name, **place))
            comparisons += [msgspec.structs.replace(one, cell=name, **place) for one in first]
    return changed(cells=tuple(cells), comparisons=tuple(comparisons), failures=())


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
        "answer", "all", "startup", "memory", "environments", "failures", "method", "reproduce",
    ]  # fmt: skip


def test_the_usual_page_keeps_its_budget() -> None:
    """A page of three environments stays far below half a megabyte."""
    assert len(render(EXAMPLE).encode()) < 100_000


def test_a_page_of_900_comparisons_keeps_its_budget() -> None:
    """Ten hosts, thirty workloads and three arms stay below three megabytes."""
    html = render(many(10, 30))
    assert html.count("data-outcome=") == 900
    assert len(html.encode()) < 3_000_000


def test_many_comparisons_get_a_row_an_environment_and_an_overview() -> None:
    """The first screen holds the answer of a large run as well."""
    found = page(many(2, 6), ())
    assert [row.headline.arm for row in found.arm_rows] == ["docker", "singularity"]
    assert found.arm_rows[0].counts == "12 slower"
    assert found.overview is not None
    assert found.overview.arms == ("docker", "singularity")
    assert found.overview.rows[0][1][0].symbols == "▶⚠ ▶⚠"
    assert "Overview" in render(many(2, 6))


def test_a_log_is_linked_only_where_it_lies_beside_the_page() -> None:
    """A dead link is not printed; the name stays."""
    assert f'href="./{LOG}"' in render(EXAMPLE, files=(LOG,))
    assert f"<code>{LOG}</code>" in render(EXAMPLE)


@pytest.mark.parametrize("name", ["/etc/passwd", "../secret", "logs/../../x"])
def test_a_link_never_leaves_the_run_folder(name: str) -> None:
    """A name that points elsewhere is text."""
    found = link(name, (name,))
    assert found is not None
    assert found.href == ""


def test_a_link_cannot_become_another_scheme() -> None:
    """A file called javascript:… is a file."""
    found = link("javascript:alert(1)", ("javascript:alert(1)",))
    assert found is not None
    assert found.href == "./javascript%3Aalert%281%29"


def test_an_interrupted_run_says_so_at_the_top() -> None:
    """The warning stands before the first section."""
    html = render(changed(is_complete=False))
    assert html.index("This run is not complete") < html.index('<section id="answer"')


def test_without_a_gpu_one_line_says_so_and_names_the_host() -> None:
    """There is no empty chart."""
    assert "No GPU was found on lab01" in text_of(render(EXAMPLE), "memory")


def test_a_gpu_is_named() -> None:
    """With a GPU its name stands there instead."""
    arms = tuple(
        msgspec.structs.replace(one, facts={**one.facts, "gpu.name": "NVIDIA H200"})
        for one in EXAMPLE.arms
    )
    assert "GPU on lab01: NVIDIA H200." in text_of(render(changed(arms=arms)), "memory")


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
    text = text_of(render(changed(memory=memory)), "memory")
    assert "CUDA allocated CUDA reserved cnn vm 1.00 GiB 3.00 GiB 4.00 GiB" in text


def test_the_start_up_of_a_failed_arm_is_not_measured() -> None:
    """A column of an arm without a start-up is there and says so."""
    text = text_of(render(EXAMPLE), "startup")
    assert "engine 41.2 ms 38.7 to 44.9 ms 412 ms 387 to 449 ms 1.28 s 1.20 to 1.40 s" in text
    assert "engine 40.9 ms 38.4 to 44.6 ms 409 ms 384 to 446 ms not measured" in text


def test_properties_that_differ_stand_first_with_confounders_on_top() -> None:
    """The two hashes of the interpreter come before what is varied on purpose."""
    rows = page(EXAMPLE, ()).hosts[0].differing
    assert [row.key for row in rows][:2] == ["python.flags", "python.sha256"]
    assert [row.fact_class for row in rows] == sorted(
        (row.fact_class for row in rows),
        key=["confounder", "possible-influence", "host", "varied", "identity"].index,
    )
    assert rows[0].values[2] == "same"


def test_the_control_is_no_environment_of_its_own() -> None:
    """The reference under its second label gets neither headline nor column."""
    found = page(EXAMPLE, ())
    assert [one.arm for one in found.headlines] == ["docker", "singularity"]
    assert found.hosts[0].arms == ("vm", "docker", "singularity")


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
    text = text_of(render(changed(arms=(*EXAMPLE.arms, gone))), "failures")
    assert "unreachable docker on host lab02" in text
    assert "connection refused" in text


def test_a_cell_that_timed_out_stands_among_the_failures() -> None:
    """A cell without any comparison is not dropped."""
    lost = CellSummary(id="lab01/gnn/default", host="lab01", workload="gnn", state="timeout",
                       reason="no answer in 60 s")  # fmt: skip
    text = text_of(render(changed(cells=(*EXAMPLE.cells, lost))), "failures")
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
    """The largest clean difference is named."""
    clean = tuple(msgspec.structs.replace(one, is_confounded=False) for one in EXAMPLE.comparisons)
    text = text_of(render(changed(comparisons=clean, differences=())), "answer")
    assert "Largest difference without a known confounder: docker, cnn, 8.4 % slower" in text


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(1.2345, "1230"), (0.4124, "412"), (0.04126, "41.3"), (0.00852, "8.52"), (0.009999, "10.0")],
)
def test_step_times_have_three_significant_digits(seconds: float, expected: str) -> None:
    """In ms, without an exponent."""
    assert milliseconds(seconds) == expected


def test_small_formatters() -> None:
    """Durations, sizes and lists read as a person would write them."""
    assert [duration(s) for s in (0.0412, 1.284, 75, 900, None)] == [
        "41.2 ms", "1.28 s", "75.0 s", "15 min", "not measured",
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
