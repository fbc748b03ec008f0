"""What the report says of threads: how many were set or ran, what stopped them, and of `as-run`."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import CELL, blocks, design, run_record
from msgspec.structs import replace

from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import RunComparison
from envcompare.fingerprint.sentences import other_options, without_option
from envcompare.report.sections.cards import summary_cards
from envcompare.report.wording.causewords import as_run_sentence, thread_lines, threads_text
from envcompare.report.wording.methodwords import threads_sentence
from envcompare.run_folder.records import FingerprintRecord, FingerprintValue
from envcompare.run_folder.results import RunFolder

Facts = dict[str, FingerprintValue]
BOTH: Facts = {"cpu.affinity": (0, 1), "loaded_libraries": ("libgomp.so.1 3",)}


def compared(
    folder: Path,
    *,
    threads: int | None = 1,
    running: dict[str, int] | None = None,
    stopped: dict[str, int] | None = None,
    **facts: Facts,
) -> RunComparison:
    """Return a run of one cell: threads by arm, per mille of a block stopped, facts by arm."""
    made = RunFolder.create(folder, run_record(design=design(threads=threads)))
    for one in blocks({"vm": 1.0, "docker": 1.0, "vm~control": 1.0}):
        count, share = (running or {}).get(one.arm, 1), (stopped or {}).get(one.arm, 0)
        stopped_ns = sum(one.wall_ns) * share // 1000
        made.append_sample(replace(one, running=count, throttled_ns=stopped_ns))
    for arm in ("vm", "docker", "vm~control"):
        found = {**BOTH, **facts.get(arm, {})}
        made.write_fingerprint(FingerprintRecord(host="local", arm=arm, cell=CELL, facts=found))
    made.close()
    return compare_run(made)


def test_one_thread_in_every_arm_is_said_once_and_nothing_else(tmp_path: Path) -> None:
    """No arm has a variable or a quota of its own: `as-run` is not suggested."""
    run = compared(tmp_path)
    assert threads_text(run) == "1 thread"
    assert threads_sentence(run) == "1 thread in every environment (--threads 1)."
    assert (thread_lines(run), as_run_sentence(run)) == ((), "")


def test_threads_that_ran_are_said_of_the_arm_that_differs(tmp_path: Path) -> None:
    """The image's variable took one of them away; the control is the reference again."""
    run = compared(tmp_path, threads=None, running={"vm": 2, "vm~control": 2})
    assert threads_text(run) == "threads as-run"
    assert thread_lines(run) == ("docker: 1 thread ran on 2 CPUs; vm: 2 threads ran on 2 CPUs.",)
    assert thread_lines(run)[0] in [one.text for one in summary_cards(run).cause.items]
    assert "--threads as-run" in threads_sentence(run)
    assert as_run_sentence(run) == ""


@pytest.mark.parametrize("threads", [2, None])
def test_stops_by_a_quota_are_said_as_a_share_of_the_time(
    tmp_path: Path, threads: int | None
) -> None:
    """The kernel adds up the stops of both CPUs: as long as the block is half of the time."""
    everywhere = dict.fromkeys(("vm", "docker", "vm~control"), 2)
    run = compared(
        tmp_path,
        threads=threads,
        running=everywhere,
        stopped={"docker": 1000},
        docker={"cgroup.cpu_quota": 1.0},
    )
    (line,) = thread_lines(run)
    assert line == (
        "docker: 2 threads ran on a quota of 1 CPU, stopped for 50 % of the time; vm: 2 threads "
        "ran on 2 CPUs."
    )


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"env.OMP_NUM_THREADS": "1"}, "docker sets OMP_NUM_THREADS=1"),
        ({"cgroup.cpu_quota": 1.0}, "docker has a quota of 1 CPU on 2 CPUs"),
    ],
)
def test_as_run_is_suggested_where_an_arm_would_have_another_number(
    tmp_path: Path, facts: Facts, words: str
) -> None:
    """Among what to know before one relies on the page."""
    run = compared(tmp_path, docker=facts)
    expected = (
        f"{words}; envcompare set 1 thread in every environment. `--threads as-run` measures each "
        "with its own number."
    )
    assert as_run_sentence(run) == expected
    assert expected in [one.text for one in summary_cards(run).cautions.items]


@pytest.mark.parametrize(
    "facts",
    [
        {"vm": {"env.OMP_NUM_THREADS": "4"}, "docker": {"env.OMP_NUM_THREADS": "4"}},
        {"docker": {"cgroup.cpu_quota": 2.0}},
        {"docker": {"cgroup.cpu_quota": "unlimited"}},
        {"docker": {"env.OMP_NUM_THREADS": "1", "loaded_libraries": ("libz.so.1 4",)}},
    ],
    ids=["the same", "enough", "none", "nothing reads it"],
)
def test_as_run_is_not_suggested_where_it_would_change_nothing(
    tmp_path: Path, facts: dict[str, Facts]
) -> None:
    """What is the same in both arms, or is not felt, is no reason."""
    assert as_run_sentence(compared(tmp_path, **facts)) == ""


def test_a_remedy_gives_the_number_of_threads_once() -> None:
    """What the run was told of threads is replaced and not repeated."""
    line = ("envcompare", "run", "--envs", "vm,docker", "--threads", "as-run", "--quick")
    assert without_option(other_options(line), "--threads") == ("--quick",)
    assert other_options(line) == ("--threads", "as-run", "--quick")
