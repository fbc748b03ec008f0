"""Candidates for the cause of a difference between two command lines."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from envcompare.analysis.model import ArmSummary, Comparison
from envcompare.report.wording.linewords import line_causes
from envcompare.run_folder.records import FactDifference
from tests.data.report.builders import FASTER, SLOWER, run_of

ARMS = tuple(
    ArmSummary(
        host="gpu01", arm=arm, environment="line", stack="line", reference=line, state="ok",
        facts={"uid": 0},
    )
    for arm, line in (("vm", "python a.py"), ("docker", "python b.py"))
)  # fmt: skip


@pytest.mark.parametrize("decided", [SLOWER, FASTER])
@pytest.mark.parametrize(
    ("key", "reference", "value", "is_of_slower"),
    [
        ("python.uncompiled", 0, 563, True),
        ("python.uncompiled", 563, 0, False),
        ("cgroup.cpu_quota", "unlimited", 0.5, True),
        ("cgroup.cpu_quota", 0.5, 2, False),
        ("cgroup.memory_limit_bytes", "unlimited", 10**8, True),
        ("container.ports", 0, 900, True),
        ("cpu.affinity", (0, 1), (0,), True),
        ("cpu.affinity", (0,), (0, 1), False),
        ("home.is_writable", True, False, True),
        ("seccomp.mode", 2, 0, False),
    ],
)
def test_what_slows_only_the_faster_line_is_no_candidate(
    decided: Comparison, key: str, reference: Any, value: Any, *, is_of_slower: bool
) -> None:
    """A limit or start-up work of the faster line cannot explain why the other is slower."""
    difference = FactDifference(
        host="gpu01", arm="docker", key=key, reference=reference, value=value,
        fact_class="possible-influence",
    )  # fmt: skip
    run = run_of(msgspec.structs.replace(decided, candidates=(key,)), differences=(difference,))
    run = msgspec.structs.replace(run, arms=ARMS)
    said = " ".join(line_causes(run, run.comparisons))
    assert said.startswith("The lines differ: a.py → b.py.")
    assert ("Candidates" in said) == (is_of_slower == (decided is SLOWER))
    assert ("Nothing else was seen that could" in said) == (is_of_slower != (decided is SLOWER))


def test_difference_that_was_seen_is_not_denied() -> None:
    """Though it is no candidate; without any, nothing differs."""
    felt = FactDifference(
        host="gpu01", arm="docker", key="cgroup.memory_limit_bytes", reference="unlimited",
        value=10**9, fact_class="possible-influence", is_felt=False,
    )  # fmt: skip
    intended = msgspec.structs.replace(felt, key="seccomp.mode", fact_class="varied")
    said = {}
    for differences in ((felt,), (intended,), ()):
        decided = msgspec.structs.replace(SLOWER, candidates=(felt.key,))
        run = msgspec.structs.replace(run_of(decided, differences=differences), arms=ARMS)
        said[differences] = line_causes(run, run.comparisons)[-1]
    explained = (
        "Nothing else was seen that could explain it; the report lists what differs under "
        "Environments."
    )
    assert said[(felt,)] == said[(intended,)] == explained
    assert said[()] == "Nothing else was seen to differ in what envcompare reads."
