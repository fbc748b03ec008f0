"""Statements over hosts: how far hosts differ is in them, so that it is not taken for an effect."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envcompare.stats.acrosscells import odd_hosts, over_hosts
from envcompare.stats.verdicts import verdict

_RUNS = 2000
_ERROR = 0.004
_MARGIN = 0.02
_VALUES = st.lists(st.floats(-0.5, 0.5), min_size=2, max_size=30)


@pytest.mark.parametrize("hosts", [2, 3, 5, 20])
@pytest.mark.parametrize("tau", [0.0, 0.01, 0.03, 0.1])
def test_planted_spread_of_hosts_is_no_verdict_beyond_alpha(hosts: int, tau: float) -> None:
    """An environment that costs more here and less there is neither slower nor faster."""
    generator = np.random.default_rng(hosts * 1000 + round(tau * 1000))
    wrong = 0
    for _ in range(_RUNS):
        errors = generator.uniform(0.5, 1.5, hosts) * _ERROR
        values = generator.normal(0, tau, hosts) + generator.normal(0, 1, hosts) * errors
        found = over_hosts(values.tolist(), errors.tolist())
        assert found
        ends = found.ends(0.95)
        wrong += verdict(ends.low, ends.high, margin=_MARGIN) in {"slower", "faster"}
    assert wrong / _RUNS <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / _RUNS)


@pytest.mark.parametrize("hosts", [3, 10, 40])
def test_interval_covers_the_mean_of_hosts_like_these(hosts: int) -> None:
    """Also where hosts know their own ratio very differently well."""
    generator = np.random.default_rng(hosts)
    covered = 0
    for _ in range(_RUNS):
        errors = _ERROR * np.exp(generator.normal(0, 1, hosts))
        values = generator.normal(0.05, 0.02, hosts) + generator.normal(0, 1, hosts) * errors
        found = over_hosts(values.tolist(), errors.tolist())
        assert found
        ends = found.ends(0.95)
        covered += ends.low <= 0.05 <= ends.high
    assert covered / _RUNS >= 0.93


def test_spread_between_hosts_is_told_from_their_own_errors() -> None:
    """τ is what remains of the scatter: about what was planted, and 0 where nothing was."""
    generator = np.random.default_rng(7)
    errors = [_ERROR] * 200
    noise = generator.normal(0, _ERROR, 200)
    spread = over_hosts((noise + generator.normal(0, 0.03, 200)).tolist(), errors)
    alike = over_hosts((noise * 0.9).tolist(), errors)
    assert spread
    assert alike
    assert spread.tau == pytest.approx(0.03, rel=0.2)
    assert alike.tau == 0


@given(_VALUES, st.floats(1.01, 10))
def test_interval_widens_with_the_spread_of_hosts(values: list[float], factor: float) -> None:
    """The same errors and a larger spread never give a narrower interval."""
    middle = sum(values) / len(values)
    wider = [middle + factor * (value - middle) for value in values]
    errors = [_ERROR] * len(values)
    found, more = (over_hosts(each, errors) for each in (values, wider))
    assert found
    assert more
    widths = [one.high - one.low for one in (more.ends(0.95), found.ends(0.95))]
    assert widths[0] >= widths[1] * (1 - 1e-9)


@given(_VALUES)
def test_mean_lies_among_the_hosts_and_in_its_interval(values: list[float]) -> None:
    """Whatever the hosts say."""
    found = over_hosts(values, [_ERROR] * len(values))
    assert found
    assert min(values) - 1e-9 <= found.mean <= max(values) + 1e-9
    ends = found.ends(0.95)
    assert ends.low <= ends.mean <= ends.high


def test_one_host_says_nothing_over_hosts() -> None:
    """How far hosts differ is not seen on one of them."""
    assert over_hosts([0.1], [0.01]) is None


def test_host_far_from_the_others_is_named() -> None:
    """Five hosts and more tell an odd one; fewer do not."""
    assert odd_hosts([0.01, 0.012, 0.2, 0.011, 0.009], [0.002] * 5) == (2,)
    assert odd_hosts([0.01, 0.2, 0.01], [0.002] * 3) == ()
