"""The typical ratio of rounds and its interval: equivariant, honest, and wider where it must be."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envcompare.stats.intervals import look_factor
from envcompare.stats.typical import (
    MIN_ROUNDS,
    PRIOR_SPREAD,
    PRIOR_WEIGHT,
    ROUNDS_FOR_MEDIAN,
    Groups,
    RoundEvidence,
    Spread,
    _median_variance,
    centre,
    contrast,
    correlation_factor,
    error_share,
    expected_half_width,
    is_look,
    jackknife,
    own_spread,
    ratio_of_sums,
    spread,
    spread_of_rounds,
)

log_ratios = st.floats(-0.3, 0.3, allow_subnormal=False)
restarts_of_rounds = st.lists(
    st.lists(log_ratios, min_size=6, max_size=12).map(tuple), min_size=2, max_size=5
).map(tuple)


def evidence(groups: Groups, **changes: float) -> RoundEvidence:
    """Return what the rounds of a comparison alone in its cell say."""
    return RoundEvidence(groups=groups, spread=spread([groups]), generations=len(groups), **changes)


def drawn(*sizes: int, seed: int = 1, mean: float = 0.0, restart: float = 0.0) -> Groups:
    """Draw restarts of so many rounds that scatter by 3 %, heavy tails among them."""
    generator = np.random.default_rng(seed)
    return tuple(
        tuple(mean + generator.normal(0, restart) + 0.03 * generator.standard_t(3, size))
        for size in sizes
    )


@given(restarts_of_rounds, st.floats(-0.5, 0.5))
def test_shift_of_all_rounds_shifts_the_estimate_and_nothing_else(
    groups: Groups, shift: float
) -> None:
    """An arm that is slower throughout has the interval of an equal one around another middle."""
    here = evidence(groups).interval(level=0.95)
    moved = tuple(tuple(value + shift for value in group) for group in groups)
    there = evidence(moved).interval(level=0.95)
    assert there.mean == pytest.approx(here.mean + shift, abs=1e-12)
    assert there.half_width == pytest.approx(here.half_width, rel=1e-6, abs=1e-9)


@given(restarts_of_rounds)
def test_exchange_of_arm_and_reference_turns_the_sign_alone(groups: Groups) -> None:
    """Who is the reference says nothing of how sure a difference is."""
    here = evidence(groups).interval(level=0.95)
    turned = evidence(tuple(tuple(-value for value in group) for group in groups))
    there = turned.interval(level=0.95)
    assert there.mean == pytest.approx(-here.mean, abs=1e-15)
    assert there.half_width == pytest.approx(here.half_width, rel=1e-6, abs=1e-9)


def test_estimate_is_the_median_over_all_rounds_of_all_restarts() -> None:
    """The rounds are pooled first: a restart with more of them counts more."""
    groups = ((0.0,) * 4, (0.1,) * 9)
    assert evidence(groups).mean == 0.1


def test_few_wild_rounds_leave_estimate_and_interval() -> None:
    """A tenth of the rounds may be anything."""
    calm = drawn(30, 30)
    wild = ((*calm[0][:27], *[5.0] * 3), (*calm[1][:27], *[5.0] * 3))
    here, there = (evidence(one).interval(level=0.95) for one in (calm, wild))
    assert there.mean == pytest.approx(here.mean, abs=0.01)
    assert there.half_width < 2 * here.half_width


def covered(*sizes: int, restart: float, cells: int = 250) -> float:
    """Return how often 95 % intervals of three equal arms hold 0; they share a reference."""
    generator = np.random.default_rng(29)
    hits = []
    for _ in range(cells):
        launched = [generator.normal(0, restart / math.sqrt(2), (4, 1)) for _ in sizes]
        times = [
            at_start + 0.03 * generator.standard_t(3, (4, size))
            for at_start, size in zip(launched, sizes, strict=True)
        ]
        arms = [tuple(tuple(one[arm] - one[0]) for one in times) for arm in (1, 2, 3)]
        common = spread(arms)
        for groups in arms:
            alone = RoundEvidence(groups=groups, spread=common, generations=len(sizes))
            found = alone.interval(level=0.95)
            hits.append(abs(found.mean) <= found.half_width)
    return float(np.mean(hits))


@pytest.mark.parametrize("restart", [0.0, 0.005])
@pytest.mark.parametrize("sizes", [(30, 30), (30,) * 4], ids=["2 restarts", "4 restarts"])
def test_interval_covers_the_truth_in_93_of_100_cells_and_more(
    sizes: tuple[int, ...], restart: float
) -> None:
    """At 95 %, with restarts that differ by half a percent and restarts that do not."""
    assert covered(*sizes, restart=restart) >= 0.93


@pytest.mark.parametrize("sizes", [(30, 6), (30, 30, 30, 4)], ids=["of 2", "of 4"])
def test_interval_covers_no_less_where_a_restart_was_cut_short(sizes: tuple[int, ...]) -> None:
    """What its restart adds averages out less, and the interval knows it."""
    assert covered(*sizes, restart=0.005) >= 0.93


def test_rounds_of_one_restart_are_worth_less_than_those_of_two() -> None:
    """The same rounds give a wider interval where most of them are of one restart."""
    rounds = drawn(48)[0]
    common = Spread()
    even, uneven = (
        RoundEvidence(groups=(rounds[:cut], rounds[cut:]), spread=common, generations=2)
        for cut in (24, 42)
    )
    assert uneven.interval(level=0.95).half_width > even.interval(level=0.95).half_width


@pytest.mark.parametrize("groups", [drawn(40), drawn(6, MIN_ROUNDS - 7), ((0.1,) * 3,) * 3])
def test_one_restart_and_few_rounds_give_no_interval(groups: Groups) -> None:
    """What a restart adds, or what a round does, is then unknown."""
    found = evidence(groups)
    assert found.interval(level=0.95).half_width == math.inf
    assert (found.interval(level=0.95).low, found.p_value) == (None, 1.0)


def test_spread_of_restarts_is_the_prior_where_nothing_is_known() -> None:
    """Neither a cell without rounds nor one with a single restart tells it."""
    assert spread([]) == spread([drawn(40)]) == Spread()
    assert (Spread().variance, Spread().df) == (PRIOR_SPREAD**2, PRIOR_WEIGHT)


def test_spread_of_calm_restarts_is_shrunk_towards_the_prior() -> None:
    """Three arms of four equal restarts weigh 3 · (1 + 2/2) against the prior's four."""
    calm = (tuple(np.linspace(-0.05, 0.05, 20)),) * 4
    found = spread([calm] * 3)
    assert found.own_excess <= 0
    assert found.own_df == 6.0
    assert found.df == PRIOR_WEIGHT + 6
    assert found.variance == pytest.approx(PRIOR_SPREAD**2 * PRIOR_WEIGHT / (PRIOR_WEIGHT + 6))


def test_spread_is_pooled_over_the_arms_of_a_cell() -> None:
    """The excess of the cell is the median of theirs: one loud arm does not widen the others."""
    restarts = (0.05, 0.05, 0.5)
    arms = [drawn(30, 30, 30, 30, seed=2 + n, restart=one) for n, one in enumerate(restarts)]
    alone = [spread([arm]).own_excess for arm in arms]
    assert spread(arms).own_excess == pytest.approx(np.median(alone))


def test_spread_of_an_arm_is_its_own_where_that_is_wider() -> None:
    """Restarts of one environment scatter where those of the others do not."""
    calm = [drawn(30, 30, 30, 30, seed=seed) for seed in (2, 3)]
    loud = drawn(30, 30, 30, 30, seed=4, restart=0.1)
    pooled = spread([*calm, loud])
    assert not own_spread(calm[0], pooled).is_wide
    assert not pooled.is_wide
    found = own_spread(loud, pooled)
    assert found.is_wide
    assert math.sqrt(found.variance) > 0.03


def test_restarts_far_apart_by_the_noise_of_their_rounds_are_seldom_wide() -> None:
    """Few rounds of 7 % put medians of restarts apart; a fixed factor called one in seven wide."""
    generator = np.random.default_rng(7)
    wide = []
    for _ in range(100):
        rounds = generator.normal(0, 0.07, (4, 4, 20))
        arms = [tuple(map(tuple, one.tolist())) for one in rounds]
        pooled = spread(arms)
        wide += [own_spread(arm, pooled).is_wide and not pooled.is_wide for arm in arms]
    assert np.mean(wide) < 0.04


def test_arm_of_a_cell_with_wide_restarts_keeps_its_spread() -> None:
    """What is known of the cell is not lost where the arm alone would show less."""
    arms = [drawn(40, 40, 40, 40, 40, 40, seed=seed, restart=0.05) for seed in range(4)]
    pooled = spread(arms)
    assert pooled.is_wide
    assert all(own_spread(arm, pooled) == pooled for arm in arms)


def test_few_restarts_must_show_more_before_they_are_wide() -> None:
    """Of three, chance makes 1.3 %; a host that is known for it needs none."""
    seen = Spread(variance=0.013**2, own_df=2.0)
    assert not seen.is_wide
    assert replace(seen, own_df=20.0).is_wide
    assert replace(seen, own_df=2.0, prior_variance=0.011**2).is_wide


def test_spread_finds_how_far_restarts_scatter() -> None:
    """With many restarts the prior no longer counts."""
    found = spread([drawn(*[40] * 60, seed=seed, restart=0.03) for seed in range(3)])
    assert math.sqrt(found.variance) == pytest.approx(0.03, rel=0.2)


@given(st.lists(restarts_of_rounds, min_size=1, max_size=4))
def test_spread_lies_between_the_prior_and_what_was_seen(arms: list[Groups]) -> None:
    """Shrinking never leaves the two, and a variance is never below 0."""
    found = spread(arms)
    low, high = sorted([PRIOR_SPREAD**2, max(0.0, found.own_excess)])
    assert low * (1 - 1e-9) <= found.variance <= high * (1 + 1e-9)
    assert found.df > PRIOR_WEIGHT


def test_prior_of_a_host_takes_the_place_of_the_shipped_one() -> None:
    """A host that is known to be calm gives narrower intervals."""
    arms = [drawn(30, 30)]
    calm = Spread(variance=0.003**2, df=20.0)
    assert spread(arms, calm).variance < spread(arms).variance
    assert spread([], calm) == calm


@pytest.mark.parametrize("restarts", [4, 6])
def test_wide_spread_makes_restarts_the_units(restarts: int) -> None:
    """Where launches differ by 10 % only their own values are honest, however few there are."""
    groups = drawn(*[30] * restarts, restart=0.1, seed=5)
    assert spread([groups]).is_wide
    assert evidence(groups).interval(level=0.95).unit == "restart"


def test_units_of_the_only_arm_are_moderated_by_nothing() -> None:
    """The spread of its cell is its own, which would count twice."""
    found = evidence(drawn(*[30] * 4, restart=0.1, seed=5))
    assert found.spread.is_wide
    strict = replace(found, is_strict=True).interval(level=0.95)
    assert found.interval(level=0.95).half_width == pytest.approx(strict.half_width)


def test_few_units_are_moderated_by_the_other_arms_of_their_cell() -> None:
    """By one degree of freedom beside two other arms: Smyth's variance, by hand."""
    arms = [drawn(*[30] * 4, restart=0.1, seed=seed) for seed in (5, 6, 7)]
    groups, pooled = arms[0], spread(arms)
    medians, errors = zip(*map(centre, groups), strict=True)
    prior = correlation_factor(groups) * np.mean(np.square(errors)) + pooled.variance
    variance = (prior + 3 * np.var(medians, ddof=1)) / 4
    half = 2.776445 * math.sqrt(variance / 4)  # Student's, 4 degrees of freedom
    found = RoundEvidence(groups=groups, spread=own_spread(groups, pooled), generations=4)
    interval = found.interval(level=0.95)
    assert interval.more_df == pytest.approx(1)
    assert (interval.unit, interval.mean) == ("restart", pytest.approx(np.mean(medians)))
    assert interval.half_width == pytest.approx(half)


def test_an_arm_that_scatters_alone_is_moderated_by_its_cell() -> None:
    """By two degrees of freedom, and the spread of all arms: its own would count twice."""
    calm = [drawn(*[40] * 4, seed=seed) for seed in (1, 2)]
    groups = drawn(*[40] * 4, restart=0.1, seed=5)
    pooled = spread([groups, *calm])
    own = own_spread(groups, pooled)
    assert (own.is_wide, pooled.is_wide) == (True, False)
    assert own.of_cell == pooled.variance < own.variance
    medians, errors = zip(*map(centre, groups), strict=True)
    prior = correlation_factor(groups) * np.mean(np.square(errors)) + pooled.variance
    variance = (2 * prior + 3 * np.var(medians, ddof=1)) / 5
    half = 2.570582 * math.sqrt(variance / 4)  # Student's, 5 degrees of freedom
    found = RoundEvidence(groups=groups, spread=own, generations=4).interval(level=0.95)
    assert found.half_width == pytest.approx(half)


def test_narrow_spread_leaves_rounds_the_units() -> None:
    """Six calm restarts say more by their rounds."""
    found = evidence(drawn(*[30] * 6))
    assert not found.spread.is_wide
    assert found.interval(level=0.95).unit == "round"


def test_strict_rests_on_restarts_always() -> None:
    """However calm they are; each is the median of its own rounds."""
    groups = drawn(20, 20, 20)
    found = evidence(groups, is_strict=True).interval(level=0.95)
    values = [np.median(group) for group in groups]
    half = 4.302653 * np.std(values, ddof=1) / math.sqrt(3)  # Student's, 2 degrees of freedom
    assert (found.unit, found.mean) == ("restart", pytest.approx(np.mean(values)))
    assert found.half_width == pytest.approx(half)


def test_restart_that_was_cut_short_is_no_unit_of_its_own() -> None:
    """Its median is that of a few rounds, and nothing says how far that is off."""
    whole = drawn(20, 20, 20)
    cut = evidence((*whole, (9.0,) * (ROUNDS_FOR_MEDIAN - 1)), is_strict=True).interval(level=0.95)
    assert cut.restarts == 3
    assert cut == replace(evidence(whole, is_strict=True).interval(level=0.95), generations=4)


def test_printed_interval_pays_for_looks_only_where_they_were_planned() -> None:
    """By the factor of its normal interval; at the whole error nothing is added."""
    groups, factor = drawn(30, 30), look_factor(0.04, 0.2)
    looked, single = (evidence(groups, widening=one).printed(alpha=0.05) for one in (factor, 1.0))
    normal = statistics.NormalDist()
    assert factor == pytest.approx(normal.inv_cdf(0.2 * 0.02) / normal.inv_cdf(0.02))
    assert looked.half_width == pytest.approx(factor * single.half_width)
    assert looked.level == single.level == pytest.approx(0.96)
    assert look_factor(0.04, 1.0) == 1


@pytest.mark.parametrize("planned", [2, 4, 6])
@pytest.mark.parametrize("last", [2, 3, 4, 7, 8, 40])
def test_all_looks_together_spend_no_more_than_the_error(planned: int, last: int) -> None:
    """Each a fifth of what is left, and the end of the budget the rest."""
    looks = [count for count in range(last) if is_look(count, planned)]
    shares = [error_share(is_out_of_budget=False, restarts=n, planned=planned) for n in looks]
    rest = error_share(is_out_of_budget=True, restarts=last, planned=planned)
    assert shares == pytest.approx([0.2 * 0.8**number for number in range(len(looks))])
    assert sum(shares) + rest == pytest.approx(1)


def test_a_number_of_restarts_fixed_before_is_no_look() -> None:
    """Nothing could have ended the cell sooner."""
    assert error_share(is_out_of_budget=False, restarts=9, planned=2, is_fixed=True) == 1


def test_expected_half_width_is_that_of_rounds_and_restarts_as_they_were_expected() -> None:
    """Many normal rounds in restarts that add nothing, at the spread of the prior."""
    groups = tuple(
        tuple(np.random.default_rng(number).normal(0, 0.03, 5000)) for number in range(4)
    )
    found = evidence(groups).interval(level=0.99).half_width
    expected = expected_half_width(
        np.asarray([4.0]),
        np.asarray([20_000.0]),
        round_spread=spread_of_rounds(groups) or 0.0,
        restart_spread=math.sqrt(spread([groups]).variance),
        comparisons=1,
        level=0.99,
    )
    assert found == pytest.approx(expected[0], rel=0.02)


@given(restarts_of_rounds, st.lists(st.floats(1e-6, 0.999), min_size=2, max_size=8))
def test_printed_interval_is_never_wider_at_a_looser_level(
    groups: Groups, alphas: list[float]
) -> None:
    """So what is selected at one level is not open at a looser one."""
    found = evidence(groups)
    widths = [found.printed(alpha=alpha).half_width for alpha in sorted(alphas)]
    assert all(later <= one * (1 + 1e-9) for one, later in itertools.pairwise(widths))


def test_interval_lies_on_order_statistics_where_the_level_is_theirs() -> None:
    """Between two of them it is linear; the spread of restarts is left out."""
    rounds = np.sort(np.random.default_rng(3).standard_t(2, 40))
    for place in (8, 12, 15):
        tail = sum(math.comb(40, below) for below in range(place)) / 2**40
        score = -statistics.NormalDist().inv_cdf(tail)
        half = score * math.sqrt(_median_variance(rounds, alpha=2 * tail))
        assert half == pytest.approx((rounds[40 - place] - rounds[place - 1]) / 2)


@pytest.mark.parametrize(
    ("halves", "widening", "expected"),
    [(1.19, 1.2, False), (1.21, 1.2, True), (1.21, 1.0, False)],
)
def test_difference_ends_a_cell_only_well_beyond_its_interval(
    halves: float, *, widening: float, expected: bool
) -> None:
    """Beyond 1.2 half-widths, and at a look only."""
    groups = drawn(30, 30)
    half = evidence(groups, widening=widening).printed(alpha=0.05).half_width
    shift = halves * half - evidence(groups).mean
    moved = tuple(tuple(value + shift for value in group) for group in groups)
    assert evidence(moved, widening=widening).printed(alpha=0.05).is_decided == expected


@given(
    seed=st.integers(0, 10**6),
    mean=st.floats(-0.05, 0.05),
    restarts=st.integers(2, 4),
    is_strict=st.booleans(),
)
def test_p_value_is_the_error_at_which_the_printed_interval_ends_at_zero(
    seed: int, mean: float, restarts: int, *, is_strict: bool
) -> None:
    """At that error it excludes 0, at a little less it does not."""

    def excludes_zero(alpha: float) -> bool:
        printed = found.printed(alpha=alpha)
        return abs(printed.mean) > printed.half_width

    found = evidence(drawn(*[15] * restarts, seed=seed, mean=mean), is_strict=is_strict)
    assert excludes_zero(found.p_value) == (found.p_value < 1)
    if found.p_value > 1e-11:
        assert not excludes_zero(found.p_value * (1 - 1e-6))


def test_p_value_falls_with_the_difference() -> None:
    """The same scatter around a larger difference is surer."""
    found = [evidence(drawn(20, 20, mean=mean)).p_value for mean in (0.0, 0.02, 0.04, 0.08)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.05 > found[-1]


def test_spread_of_rounds_is_that_of_normal_ones_seen_by_a_median() -> None:
    """√(π/2) of their standard deviation; unknown below twelve."""
    rounds = tuple(np.random.default_rng(4).normal(0, 0.02, 6000))
    assert spread_of_rounds((rounds,)) == pytest.approx(0.02 * math.sqrt(math.pi / 2), rel=0.06)
    assert spread_of_rounds(((0.1,) * 5, (0.2,) * 6)) is None


columns = st.integers(1, 20).flatmap(
    lambda rounds: st.lists(
        st.lists(st.floats(10, 20), min_size=rounds, max_size=rounds), min_size=4, max_size=4
    )
)


@given(columns)
def test_contrasts_of_arms_add_up(logarithms: list[list[float]]) -> None:
    """The whole is environment and stack, by either path, and both differ by the interaction."""
    data = np.asarray(logarithms)  # base, host_arm, arm, base_image
    total, environment, stack, by_image, by_base, interaction = (
        contrast(data, weights).mean
        for weights in (
            (-1, 0, 1, 0), (-1, 1, 0, 0), (0, -1, 1, 0),
            (0, 0, 1, -1), (-1, 0, 0, 1), (1, -1, 1, -1),
        )
    )  # fmt: skip
    assert total == pytest.approx(environment + stack, abs=1e-9)
    assert total == pytest.approx(by_image + by_base, abs=1e-9)
    assert interaction == pytest.approx(by_image - environment, abs=1e-9)


@given(columns, st.floats(-3, 3))
def test_contrast_is_blind_to_what_slows_a_whole_round(
    logarithms: list[list[float]], slowed: float
) -> None:
    """A neighbour that all arms of a round met cancels."""
    data = np.asarray(logarithms)
    moved = data + np.linspace(0, slowed, data.shape[1])
    here, there = (contrast(one, (1, -1, 0, 0)).mean for one in (data, moved))
    assert there == pytest.approx(here, abs=1e-9)


@given(columns)
def test_ratios_of_sums_add_up(times: list[list[float]]) -> None:
    """The ratio of wall times is that of net times and that of their stretch."""
    wall, reference_wall, net, reference_net = (np.asarray(one) for one in times)
    whole = ratio_of_sums([wall, reference_wall]).mean
    without = ratio_of_sums([net, reference_net]).mean
    stretch = ratio_of_sums([wall, reference_wall, net, reference_net]).mean
    assert whole == pytest.approx(without + stretch, abs=1e-12)


def test_ratio_of_sums_has_everything_in() -> None:
    """One round that takes 11 times as long as the other nine makes it twice as long."""
    slow = np.asarray([1.0] * 9 + [11.0])
    assert ratio_of_sums([slow, np.ones(10)]).mean == pytest.approx(math.log(2))


def test_jackknife_of_a_mean_is_its_standard_error() -> None:
    """The textbook's example of it, over eight stretches of one value."""
    values = np.random.default_rng(6).normal(0, 1, 8)
    without = [float(np.delete(values, one).mean()) for one in range(8)]
    found = jackknife(without, float(values.mean()))
    assert found.error == pytest.approx(values.std(ddof=1) / math.sqrt(8))
    assert found.df == 7


def test_mean_of_fewer_rounds_than_stretches_has_no_interval() -> None:
    """Nothing is left out of so few."""
    found = ratio_of_sums([np.ones(7), np.full(7, 2.0)])
    assert (found.mean, found.error) == (pytest.approx(-math.log(2)), math.inf)


def test_interval_of_the_mean_pays_for_what_restarts_add() -> None:
    """Its rounds may agree to the last bit, and it still rests on so many launches."""
    found = ratio_of_sums([np.ones(16), np.ones(16)])
    few, many = (
        found.interval(
            level=0.95, spread=Spread(), groups=((0.0,) * (16 // count),) * count, generations=1
        )
        for count in (2, 4)
    )
    assert found.error == 0
    assert 0 < many.half_width < few.half_width
    assert few.half_width == pytest.approx(math.sqrt(2) * many.half_width)
    wider = replace(Spread(), variance=4 * PRIOR_SPREAD**2)
    doubled = found.interval(level=0.95, spread=wider, groups=((0.0,) * 8,) * 2, generations=1)
    assert doubled.half_width == pytest.approx(2 * few.half_width)


def correlated(generator: np.random.Generator, *, restarts: int, rounds: int) -> Groups:
    """Draw an arm whose ratios scatter by 11 %, half of it AR(1) at 0.8, as on the H200."""
    drawn = []
    for _ in range(restarts):
        level = generator.standard_normal()
        levels = [level := 0.8 * level + noise for noise in generator.normal(0, 0.6, rounds)]
        drawn.append(np.asarray(levels) + generator.standard_normal(rounds))
    return tuple(tuple(0.11 / 2 * one) for one in drawn)


def test_intervals_of_rounds_that_resemble_each_other_cover_too() -> None:
    """Of three arms that share a reference; taken as independent their rounds cover too rarely."""
    generator = np.random.default_rng(3)
    covered = []
    for _ in range(300):
        reference, *arms = (correlated(generator, restarts=2, rounds=130) for _ in range(4))
        ratios = [
            tuple(tuple(np.subtract(*both)) for both in zip(arm, reference, strict=True))
            for arm in arms
        ]
        spread_of_arm = own_spread(ratios[0], spread(ratios))
        found = RoundEvidence(groups=ratios[0], spread=spread_of_arm, generations=2)
        interval = found.interval(level=0.95)
        covered.append(abs(interval.mean) <= interval.half_width)
    assert np.mean(covered) >= 0.92


def test_correlation_factor_is_that_of_the_law_of_the_rounds() -> None:
    """1 + 2 Σ (2 ÷ π) asin r_k for the signs of normal values, 3.6 here, and 1 without any."""
    generator = np.random.default_rng(4)
    law = 1 + 2 * sum(2 / math.pi * math.asin(0.5 * 0.8**lag) for lag in range(1, 60))
    groups = correlated(generator, restarts=4, rounds=2000)
    assert correlation_factor(groups) == pytest.approx(law, rel=0.15)
    independent = tuple(tuple(one) for one in generator.standard_normal((4, 2000)))
    assert correlation_factor(independent) == correlation_factor(((0.1,) * 40,) * 2) == 1
