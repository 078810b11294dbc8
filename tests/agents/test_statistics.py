"""The statistics report a planted worse policy as worse, an equal one as a tie, and their intervals cover."""

from __future__ import annotations

import numpy as np
import pytest

from agents.statistics import bootstrap, gap_closed, paired

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
    assert gap_closed([policy], [1.0], [0.5]) == pytest.approx(share)


def test_without_a_gap_no_share_of_it_is_claimed() -> None:
    assert np.isnan(gap_closed([0.4], [0.5], [0.5]))
