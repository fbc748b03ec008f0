"""The headline of an environment, word for word."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from summaries import markdown, terminal_lines

from envcompare.analysis.model import Comparison, FailureRow, RunComparison
from envcompare.analysis.model.profiling import CellProfiles, Ledger, LedgerPart
from envcompare.analysis.timing.surroundings import of_cells
from envcompare.report.page import render
from envcompare.report.wording.causewords import candidates_text
from envcompare.report.wording.headlines import Headline, headlines
from envcompare.run_folder.records import FactDifference, Failure
from tests.data.report.builders import (
    EQUAL,
    FASTER,
    OPEN,
    SLOWER,
    changed,
    comparison,
    estimate,
    example,
    headline,
    on,
    run_of,
)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (headline(SLOWER), "docker is 8.4 % slower than vm in cnn (8.0 to 8.7 %)."),
        (headline(FASTER), "docker takes 4.5 % less time than vm in cnn (4.2 to 4.8 %)."),
        (
            headline(EQUAL),
            "docker is equivalent to vm within ±2 % in cnn (+0.3 %, −0.2 to +0.8 %).",
        ),
        (
            headline(SLOWER, on("rnn", comparison("slower", estimate(4.0, 3.0, 5.0)))),
            (
                "docker is slower than vm in both cnn and rnn: 6.2 % on average, "
                "4.0 % in rnn to 8.4 % in cnn."
            ),
        ),
        (
            headline(FASTER, on("rnn", FASTER), on("llm", FASTER)),
            "docker takes less time than vm in all 3 cells: 4.5 % in each.",
        ),
        (
            headline(EQUAL, on("rnn", EQUAL)),
            "docker is equivalent to vm within ±2 % in both cnn and rnn: +0.3 % in each.",
        ),
        (
            headline(OPEN, on("rnn", OPEN)),
            (
                "docker against vm is inconclusive in both cnn "
                "(leaning slower, +1.1 %, −0.9 to +3.1 %) "
                "and rnn (leaning slower, +1.1 %, −0.9 to +3.1 %)."
            ),
        ),
        (
            headline(OPEN),
            (
                "docker against vm is inconclusive, leaning slower in cnn "
                "(+1.1 %, −0.9 to +3.1 %); about 11 more restarts would decide (ran 4)."
            ),
        ),
        (
            headline(comparison("failed", reason="no image")),
            "docker failed in cnn: no image.",
        ),
        (
            headline(comparison("not-run", reason="no Docker"), on("rnn", comparison("not-run"))),
            "docker was not run in both cnn and rnn: no Docker.",
        ),
    ],
)
def test_the_headline_leads_with_the_mean_where_all_cells_agree(
    found: Headline, expected: str
) -> None:
    """One outcome in all cells is one sentence, with nothing left to add."""
    assert (found.lead, found.rest) == (expected, "")


def test_reference_that_fails_too_is_named() -> None:
    """Otherwise the headline blames the other arm alone."""
    failed = comparison("failed", failure=Failure(phase="step", brief="x", exit_code=1))
    row = FailureRow(
        t=1.0, host="lab01", cell=failed.cell, arm="vm", phase="step", brief="x", details="",
        hint="", exit_code=1, log="",
    )  # fmt: skip
    run = changed(run_of(failed), failures=(row,))
    lead = "docker failed in cnn (phase step, exit code 1): x."
    assert headlines(run)[0].lead == f"vm and {lead}"
    other = changed(run, failures=(msgspec.structs.replace(row, cell="other"),))
    assert headlines(other)[0].lead == lead


def test_the_headline_leads_with_the_workloads_that_moved() -> None:
    """Where cells disagree the mean would hide it: the moved cells lead, the others follow."""
    found = headline(
        SLOWER,
        on("rnn", FASTER),
        on("llm", EQUAL),
        on("gnn", comparison("failed", failure=Failure(phase="step", brief="x", exit_code=1))),
        on("vit", comparison("not-run", reason="excluded")),
    )
    assert found.badge == "slower in 1 of 5"
    assert found.lead == (
        "docker is slower than vm in cnn (8.4 %, 8.0 to 8.7 %); "
        "it takes less time than vm in rnn (4.5 %, 4.2 to 4.8 %)."
    )
    assert found.rest == (
        "Equivalent within ±2 % in llm (+0.3 %, −0.2 to +0.8 %); "
        "failed in gnn (phase step, exit code 1); not run in vit."
    )


def test_the_headline_leads_with_what_moved_most_in_either_direction() -> None:
    """A gain of 10 % is not hidden behind a loss of 4 %."""
    gain = comparison("faster", estimate(-10.0, -11.0, -9.0))
    found = headline(comparison("slower", estimate(4.0, 3.0, 5.0)), on("rnn", gain))
    assert found.badge == "faster in 1 of 2"
    assert found.lead.startswith("docker takes less time than vm in rnn (10.0 %")


def test_an_arm_without_any_comparison_has_a_headline() -> None:
    """An environment that was never reached is told as well."""
    run = example()
    arms = (msgspec.structs.replace(run.arms[1], state="skipped", reason="no socket"),)
    found = headline(arms=arms)
    assert found.lead == "docker was not run: no socket."


def test_the_arm_that_moved_most_stands_first() -> None:
    """The reader meets the largest difference before the equal ones."""
    run = run_of(EQUAL, msgspec.structs.replace(SLOWER, arm="singularity"))
    assert [one.arm for one in headlines(run)] == ["singularity", "docker"]


def test_hosts_and_parameters_are_named_only_where_they_differ() -> None:
    """Two hidden sizes on two hosts tell the cells apart; a common batch size does not."""
    cells = [
        msgspec.structs.replace(
            EQUAL,
            cell=f"{host}/rnn/batch=64,hidden={hidden}",
            host=host,
            workload="rnn",
            parameters={"hidden": hidden, "batch": 64},
        )
        for host in ("a", "b")
        for hidden in (40, 80)
    ]
    assert [verdict.cell for verdict in headline(*cells).verdicts] == [
        "rnn hidden=40 on a",
        "rnn hidden=80 on a",
        "rnn hidden=40 on b",
        "rnn hidden=80 on b",
    ]


def influence(key: str, *, value: str = "on", **fields: Any) -> FactDifference:
    """Return a property of docker that vm does not have, a possible influence unless told."""
    known: dict[str, Any] = {"fact_class": "possible-influence", "reference": None}
    return FactDifference(host="gpu01", arm="docker", key=key, value=value, **{**known, **fields})


def with_candidates(one: Comparison, *found: FactDifference) -> RunComparison:
    """Return a run of one comparison whose analysis found these candidates."""
    keys = tuple(fact.key for fact in found)
    return run_of(msgspec.structs.replace(one, candidates=keys), differences=found)


@pytest.mark.parametrize("decided", [SLOWER, FASTER])
def test_a_decided_difference_names_every_influence_beside_its_verdict(decided: Comparison) -> None:
    """Three by name and how many more; page, terminal and Markdown say the same sentence."""
    found = [influence(f"env.TUNED_{number}") for number in range(5)]
    run = with_candidates(decided, *found)
    sentence = (
        "Besides the environment, TUNED_0 none → on, TUNED_1 none → on, TUNED_2 none → on and 2 "
        "more differ and may be a cause; all are listed under Environments."
    )
    assert sentence in headlines(run)[0].candidates
    assert sentence in re.sub(r"<[^>]+>", "", render(run))
    assert sentence in markdown(run).replace("\\", "")
    assert any(sentence in line.columns[0] for line in terminal_lines(run))


def test_an_influence_follows_the_confounders_and_says_what_was_seen() -> None:
    """What is known to count is named first; what nobody uses is told apart."""
    seen = "1 thread computes on the one CPU."
    run = with_candidates(
        msgspec.structs.replace(SLOWER, is_confounded=True),
        influence("cuda.cudnn", fact_class="confounder", is_felt=True),
        influence("cgroup.cpu_weight", evidence=seen),
        influence("env.NUMEXPR_MAX", is_felt=False),
    )
    (found,) = headlines(run)
    assert found.caution.startswith("Besides the environment, cuDNN none → on differs.")
    assert found.candidates == (
        f"In addition, the CPU weight none → on differs and may be a cause. {seen} NUMEXPR_MAX "
        "none → on differs too."
    )


def test_a_decided_difference_without_a_candidate_says_so() -> None:
    """Nothing differs, or nothing is known of what differs: two sentences, never none."""
    none = with_candidates(SLOWER)
    assert headlines(none)[0].candidates == (
        "No recorded difference can act here: envcompare may not record the cause."
    )
    on_purpose = run_of(
        msgspec.structs.replace(SLOWER, candidates=()), differences=(FILTER, OTHER_PLACE)
    )
    assert headlines(on_purpose)[0].candidates == (
        "docker differs by design in the file system of the packages and seccomp; see Environments."
    )
    unknown = run_of(msgspec.structs.replace(SLOWER, candidates=None))
    assert headlines(unknown)[0].candidates == (
        "What else differs is not known: there is no fingerprint for docker."
    )


@pytest.mark.parametrize(("used_ns", "is_named"), [(5_000_000, True), (50_000, False)])
def test_a_program_that_worked_beside_a_slower_workload_is_named(
    used_ns: int, *, is_named: bool
) -> None:
    """Where it used at least a tenth of what the step takes longer."""
    ledger = Ledger(
        arm="docker", basis="timing", whole="a step", rule="", parts=(),
        reference_ns=4_000_000, arm_ns=14_000_000, change_ns=10_000_000,
        helpers={"squashfuse_ll": used_ns},
    )  # fmt: skip
    profiles = CellProfiles(
        cell=SLOWER.cell, host=SLOWER.host, reference="vm", arms=(), ledgers=(ledger,)
    )
    run = msgspec.structs.replace(with_candidates(SLOWER), profiles=(profiles,))
    said = "Outside the workload, squashfuse_ll used 5.00 ms of CPU time a step for docker in cnn."
    assert (said in headlines(run)[0].candidates) == is_named


MORE_FILES = msgspec.structs.replace(
    influence("limits.nofile"), fact_class="varied", reference=1024, value=1048576
)
LONGER = "Inside the kernel a step in docker takes 6.00 ms longer in cnn."
FILTER = msgspec.structs.replace(
    influence("seccomp.mode"), fact_class="varied", reference=0, value=2
)
OTHER_PLACE = msgspec.structs.replace(
    influence("mount.packages"), fact_class="varied", reference="ext4 rw", value="overlay rw"
)
ACTS = "Possible causes there: a system call filter (seccomp)"
LADDER = "; `--envs ladder` measures each part of a container."


def in_kernel(
    *differences: FactDifference, cells: int = 1, longer_ns: int = 6_000_000, **fields: Any
) -> str:
    """Return what the first screen says after its candidates of slower cells.

    A step takes 10 ms longer, in the first cell mostly so inside the kernel.
    """
    names = (SLOWER.cell, *(f"gpu01/more{number}/default" for number in range(1, cells)))
    compared = [
        msgspec.structs.replace(SLOWER, cell=name, candidates=(), **fields) for name in names
    ]
    profiles = []
    for number, name in enumerate(names):
        ns = longer_ns - 100_000 * number
        part = LedgerPart(
            part="system", label="on a CPU, inside the kernel", reference_ns=1_000_000,
            arm_ns=1_000_000 + ns, change_ns=ns, share=ns / 1e7,
        )  # fmt: skip
        ledger = Ledger(
            arm="docker", basis="timing", whole="a step", rule="", parts=(part,),
            reference_ns=4_000_000, arm_ns=14_000_000, change_ns=10_000_000,
            kernel_error_ns=1_900_000,
        )  # fmt: skip
        found = CellProfiles(
            cell=name, host=SLOWER.host, reference="vm", arms=(), ledgers=(ledger,)
        )
        profiles.append(found)
    run = msgspec.structs.replace(
        run_of(*compared, differences=differences), profiles=tuple(profiles)
    )
    before, inside, after = candidates_text(run, tuple(compared)).partition("Inside the kernel")
    assert before
    return inside + after


@pytest.mark.parametrize(
    ("differences", "said"),
    [
        ((FILTER,), f"{LONGER} {ACTS}{LADDER}"),
        (
            (FILTER, OTHER_PLACE),
            f"{LONGER} {ACTS} and another file system for the packages (overlay){LADDER}",
        ),
        (
            (FILTER, MORE_FILES),
            f"{LONGER} {ACTS} and a higher limit of open files (1024 → 1048576){LADDER}",
        ),
        ((msgspec.structs.replace(MORE_FILES, value=512),), LONGER),
        ((), LONGER),
        ((msgspec.structs.replace(FILTER, value=None),), LONGER),
        ((msgspec.structs.replace(OTHER_PLACE, value=None),), LONGER),
        ((msgspec.structs.replace(OTHER_PLACE, value="ext4 ro"),), LONGER),
        ((msgspec.structs.replace(FILTER, host="other"),), LONGER),
        ((msgspec.structs.replace(FILTER, reference=2, value=0),), LONGER),
    ],
    ids=[
        "a filter", "a file system too", "more files", "fewer files", "nothing differs",
        "a filter is not known",
        "a file system is not known", "the same kind", "of another host", "the reference's filter",
    ],
)  # fmt: skip
def test_a_step_that_is_longer_inside_the_kernel_says_what_acts_there(
    differences: tuple[FactDifference, ...], said: str
) -> None:
    """Only what is known to be in the arm and not in the reference."""
    assert in_kernel(*differences) == said


def test_only_what_is_sure_and_most_of_it_is_said_to_be_inside_the_kernel() -> None:
    """At least half of a slowdown, and three times the error of the ticks."""
    assert in_kernel(longer_ns=5_700_000) != ""
    assert in_kernel(longer_ns=5_690_000) == ""  # of which the error is 1.9 ms
    assert in_kernel(outcome="faster") == ""
    of_many = in_kernel(FILTER, cells=3, longer_ns=9_000_000)
    assert "takes longer in 3 cells, most in gpu01/cnn/default (9.00 ms)." in of_many


def test_facts_that_are_missing_in_one_cell_leave_the_candidates_unknown() -> None:
    """Nothing was found in one cell and nothing is known in another: "no candidate" claims both."""
    known = msgspec.structs.replace(SLOWER, candidates=())
    other = msgspec.structs.replace(SLOWER, cell="other", candidates=None)
    assert headlines(run_of(known, other))[0].candidates == (
        "What else differs is not known: there is no fingerprint for docker in some cells."
    )


def test_a_cell_names_a_candidate_with_evidence_of_its_own() -> None:
    """What another cell was seen to use says nothing about this one."""
    used = influence("cgroup.cpu_weight", is_felt=True, evidence="The CNN was seen to use it.")
    unused = msgspec.structs.replace(used, is_felt=False, evidence="")
    cnn = msgspec.structs.replace(SLOWER, candidates=(used.key,))
    rnn = msgspec.structs.replace(cnn, cell="rnn")
    cells = {"rnn": (unused,)}
    run = run_of(cnn, rnn, differences=(used,), cell_differences=cells)
    assert "The CNN was seen to use it." in candidates_text(run, (cnn,))
    assert candidates_text(run, (rnn,)) == "The CPU weight none → on differs too."
    assert of_cells({cnn.cell: (used,), "rnn": (unused,)}, shared=(used,)) == cells


def test_an_image_that_is_compared_is_named_before_what_came_with_it() -> None:
    """Nothing is mixed with the environment, which is the same."""
    other = influence("libc.version", reference="2.35", value="2.36")
    old, new = (next(arm for arm in example().arms if arm.arm == name) for name in ("vm", "docker"))
    arms = tuple(
        msgspec.structs.replace(one, environment="docker", reference=reference)
        for one, reference in ((old, "app:1"), (new, "app:2"))
    )
    judged = msgspec.structs.replace(SLOWER, candidates=(other.key,))
    run = run_of(judged, differences=(other,), arms=arms)
    assert candidates_text(run, (judged,)) == (
        "The arms differ in the image (app:1 → app:2), which this run compares. With it, the C "
        "library 2.35 → 2.36 differs and may be a cause."
    )
    alone = run_of(msgspec.structs.replace(SLOWER, candidates=()), arms=arms)
    assert candidates_text(alone, alone.comparisons).endswith(
        "Nothing else that envcompare recorded can act here."
    )


@pytest.mark.parametrize("open_", [EQUAL, OPEN])
def test_what_is_not_decided_looks_for_no_candidate(open_: Comparison) -> None:
    """There is no difference to explain."""
    assert headlines(with_candidates(open_, influence("cgroup.cpu_weight")))[0].candidates == ""
