"""The statistics report a planted worse policy as worse, an equal one as a tie, and their intervals cover."""

from __future__ import annotations

import numpy as np
import pytest

from agents.evaluation.statistics import (
    bootstrap,
    gap_closed,
    iqm_over_seeds,
    paired,
    probability_of_improvement,
)

RNG = np.random.default_rng(5)
LUCK = RNG.lognormal(0.0, 0.8, 64)  # how hard each workload is, for every policy alike


def test_a_planted_worse_policy_is_reported_as_worse_although_luck_is_much_larger() -> None:
    worse = LUCK + 0.05 + 0.05 * RNG.standard_normal(64)

    difference = paired(worse, LUCK)

    assert LUCK.std() > 10 * 0.05
    assert difference.verdict == "higher"
    assert difference.low < 0.05 < difference.high


def test_a_planted_equal_policy_is_reported_as_a_tie() -> None:
    verdicts = [paired(LUCK + 0.05 * RNG.standard_normal(64), LUCK, seed=k).verdict for k in range(20)]

    assert verdicts.count("tie") >= 17


def test_a_policy_ties_with_itself_exactly() -> None:
    difference = paired(LUCK, LUCK)

    assert (difference.mean, difference.low, difference.high, difference.verdict) == (0.0, 0.0, 0.0, "tie")


def test_the_interval_covers_the_true_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    intervals = [bootstrap(rng.normal(1.0, 1.0, 40), seed=k, resamples=1_000) for k in range(200)]

    covered = np.mean([i.low <= 1.0 <= i.high for i in intervals])

    assert 0.88 <= covered <= 0.99


def test_the_same_seed_gives_the_same_interval() -> None:
    assert bootstrap(LUCK, seed=3) == bootstrap(LUCK, seed=3)
    assert bootstrap(LUCK, seed=3) != bootstrap(LUCK, seed=4)


def test_one_workload_says_nothing_about_the_next() -> None:
    assert bootstrap([2.0]).low == float("-inf")


@pytest.mark.parametrize(("policy", "share"), [(1.0, 0.0), (0.75, 0.5), (0.5, 1.0), (1.25, -0.5)])
def test_gap_closed_is_zero_at_the_reference_and_one_at_the_bound(policy: float, share: float) -> None:
    assert gap_closed([policy], [1.0], [0.5]).mean == pytest.approx(share)


def test_without_a_gap_no_share_of_it_is_claimed() -> None:
    assert np.isnan(gap_closed([0.4], [0.5], [0.5]).mean)


def test_the_share_of_the_gap_has_an_interval_around_it() -> None:
    half = gap_closed(LUCK + 0.5, LUCK + 1.0, LUCK)

    assert half.mean == pytest.approx(0.5)
    assert half.low == pytest.approx(0.5) and half.high == pytest.approx(0.5)  # the same on every workload


def test_what_does_not_exist_is_left_out_of_the_mean_and_its_interval() -> None:
    holes = np.where(np.arange(64) % 3 == 0, np.nan, LUCK)

    assert bootstrap(holes) == bootstrap(LUCK[np.arange(64) % 3 != 0])


def test_the_interquartile_mean_ignores_one_bad_seed() -> None:
    assert iqm_over_seeds([[1.0, 2.0, 3.0, 1000.0]]).mean == 2.5
    assert iqm_over_seeds([[0.0, 1.0], [2.0, 3.0]]).mean == 1.5


def test_seeds_that_are_all_better_are_reported_as_better() -> None:
    seeds = LUCK + np.array([[-0.2], [-0.1], [-0.15]])

    difference = iqm_over_seeds(seeds - LUCK)

    assert difference.verdict == "lower"
    assert probability_of_improvement(seeds, LUCK) == probability_of_improvement(seeds - 5.0, LUCK)
    assert probability_of_improvement(seeds, LUCK).mean == 1.0


def test_seeds_that_scatter_around_the_reference_are_a_tie() -> None:
    seeds = LUCK + 0.1 * np.random.default_rng(1).standard_normal((4, 64))

    chance = probability_of_improvement(seeds, LUCK)

    assert iqm_over_seeds(seeds - LUCK).verdict == "tie"
    assert chance.low < 0.5 < chance.high


def test_an_equal_policy_improves_half_of_the_time() -> None:
    assert probability_of_improvement([LUCK, LUCK], LUCK).mean == 0.5
