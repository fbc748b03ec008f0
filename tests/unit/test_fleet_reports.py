"""The report of a run on many hosts: what they say together, and a page that stays small."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import RunComparison
from envcompare.report.page import render
from envcompare.report.wording import headlines as wording
from envcompare.report.wording.headlines import headlines
from envcompare.run_folder.records import FactDifference
from runfolders import CONTROL, REFERENCE, Arm, Shape, write
from tests.data.report.builders import SLOWER, example, run_of

_HOSTS = tuple(f"gpu{number:03}" for number in range(100))
_LEVEL = 0.2  # by which the times of hosts of one model differ
_PAGE_BYTES = 3_000_000


def spread(
    hosts: tuple[str, ...], arm: str, *, tau: float, seed: int
) -> dict[tuple[str, str], float]:
    """Return hosts that are not equally fast, and on which an arm does not cost the same."""
    generator = np.random.default_rng(seed)
    levels = generator.uniform(-_LEVEL / 2, _LEVEL / 2, len(hosts))
    costs = generator.normal(0, tau, len(hosts))
    each = {(host, one): level for host, level in zip(hosts, levels, strict=True)
            for one in (REFERENCE, CONTROL, arm)}  # fmt: skip
    for host, cost in zip(hosts, costs - costs.mean(), strict=True):
        each[host, arm] += cost
    return each


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> RunComparison:
    """Return a run of 100 hosts and two cells on each, of which one host is far from the others."""
    by_host = spread(_HOSTS, "docker", tau=0.02, seed=3)
    by_host["gpu042", "docker"] += 0.3
    shape = Shape(
        hosts=_HOSTS, arms=(Arm(id="docker", ratio=1.06),), by_host=by_host, restarts=4, rounds=3
    )
    return compare_run(write(tmp_path_factory.mktemp("runs"), shape))


@pytest.mark.parametrize("seed", range(4))
def test_planted_spread_of_hosts_makes_no_headline(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """An environment that costs 5 % more here and 5 % less there is neither slower nor faster."""
    hosts = _HOSTS[:12]
    by_host = spread(hosts, "docker", tau=0.05, seed=seed)
    arms = (Arm(id="docker"),)
    shape = Shape(
        seed=seed + 1, hosts=hosts, workloads=("cnn",), arms=arms, by_host=by_host, restarts=4
    )
    run = compare_run(write(tmp_path_factory.mktemp("runs"), shape))
    assert {one.outcome for one in run.compared} >= {"slower", "faster"}
    (together,) = run.between_hosts.estimates
    assert together.tau == pytest.approx(0.05, rel=0.6)
    (headline,) = headlines(run)
    assert headline.outcome not in {"slower", "faster"}


@pytest.mark.parametrize("has_failed", [True, False])
def test_failed_controls_withdraw_a_statement_over_hosts(
    tmp_path_factory: pytest.TempPathFactory, *, has_failed: bool
) -> None:
    """What a host shows between equal arms, its environments may show without being slower."""
    hosts = _HOSTS[:4]
    by_host = {(host, CONTROL): 0.1 for host in hosts if has_failed}
    arms = (Arm(id="docker", ratio=1.06),)
    shape = Shape(seed=5, hosts=hosts, workloads=("cnn",), arms=arms, by_host=by_host, restarts=4)
    run = compare_run(write(tmp_path_factory.mktemp("runs"), shape))
    assert any(comparison.control_failed for comparison in run.comparisons) == has_failed
    (together,) = run.between_hosts.estimates
    assert together.outcome == ("inconclusive" if has_failed else "slower")


def test_statement_over_hosts_leads_where_there_are_many(fleet: RunComparison) -> None:
    """It has its interval, says how far hosts differ, and names the host far from the others."""
    (headline,) = headlines(fleet)
    assert headline.badge == "slower over hosts"
    assert headline.lead.startswith("Over 100 hosts, cnn in docker is ")
    assert "far from the others: gpu042" in headline.lead


def test_page_of_a_fleet_names_each_host_once_in_its_table(fleet: RunComparison) -> None:
    """The table of hosts begins with the odd one; the page stays in its budget."""
    page = render(fleet)
    assert len(page.encode()) < _PAGE_BYTES
    hosts = page[page.index('id="overview"') : page.index('id="why"')]
    assert hosts.index("gpu042 (far from the others)") < hosts.index(">gpu000<")
    assert all(f">{host}<" in hosts for host in _HOSTS if host != "gpu042")


class _Counted(tuple[FactDifference, ...]):  # noqa: SLOT001 — it needs an attribute
    """Differences that count how often they are gone through."""

    readings: list[int]

    def __iter__(self) -> Iterator[FactDifference]:
        self.readings.append(1)
        return super().__iter__()


def readings(hosts: int) -> int:
    """Return how often the page of a run on so many hosts goes through all differences."""
    names = [f"gpu{number:03}" for number in range(hosts)]
    base = [one for one in example().differences if one.arm == SLOWER.arm]
    keys = tuple(one.key for one in base)
    differences = _Counted(replace(one, host=name) for name in names for one in base)
    differences.readings = []
    compared = [
        replace(SLOWER, host=name, cell=f"{name}/cnn/default", candidates=keys, is_confounded=True)
        for name in names
    ]
    render(run_of(*compared, differences=differences))
    return len(differences.readings)


def test_differences_are_gone_through_no_more_often_with_more_hosts() -> None:
    """Each host has its own, so the page of a large fleet would take the square of its size."""
    assert readings(12) == readings(3) > 0


def test_headlines_are_made_once_for_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many hosts they take longest."""
    made: list[Any] = []
    real = wording.candidates_text
    monkeypatch.setattr(wording, "candidates_text", lambda *asked: made.append(1) or real(*asked))
    run = run_of(SLOWER)
    render(run)
    assert len(made) == 1
