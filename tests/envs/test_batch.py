"""N simulators in one call: each plays as if it were alone, also while the arrays grow."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from nvlenv.common.errors import InputError
from nvlenv.envs.batch import RUN_OUT, Batch
from nvlenv.envs.scenario import Episode, Scenario

PARTS = ("racks", "job", "cluster", "mask", "reward", "terms", "totals", "done")


def snapshot(batch: Batch, i: int) -> bytes:
    """All that simulator i shows after a step."""
    clock = batch.sim.clock[i, 0]
    hour, counts = (
        float(clock["now"]),
        [int(clock[name]) for name in ("decisions", "evictions", "failures", "n_running")],
    )
    return pickle.dumps(([getattr(batch, part)[i].tolist() for part in PARTS], hour, counts))


def play(batch: Batch, seeds: Sequence[int], steps: int, reset: bool = True) -> Iterator[list[bytes]]:
    """Snapshots of every step of random legal play; simulator i picks its actions with seeds[i]."""
    pick = [np.random.default_rng(seed) for seed in seeds]
    for _ in range(steps):
        batch.step(np.array([rng.choice(np.flatnonzero(batch.mask[i])) for i, rng in enumerate(pick)]))
        yield [snapshot(batch, i) for i in range(batch.n)]
        for i in np.flatnonzero(batch.done) if reset else ():
            batch.reset(i)


def test_equal_seeds_give_equal_bytes(small: Scenario) -> None:
    first, second, other = (Batch(small, 3, np.random.SeedSequence(seed)) for seed in (1, 1, 2))
    rollouts = [list(play(batch, range(3), 300)) for batch in (first, second, other)]
    assert rollouts[0] == rollouts[1]
    assert rollouts[0] != rollouts[2]


def test_eight_together_play_like_eight_alone(make_small: Callable[..., Scenario]) -> None:
    scenario = make_small("failures={node_mtbf_hours: 200}")
    together = list(play(Batch(scenario, 8, np.random.SeedSequence(4)), range(8), 250))
    for i, child in enumerate(np.random.SeedSequence(4).spawn(8)):
        alone = Batch(scenario, 1, np.random.SeedSequence(0))
        alone.reseed(0, child)
        alone.reset(0)
        assert [step[i] for step in together] == [step[0] for step in play(alone, [i], 250)]


def longer(episode: Episode, times: int) -> Episode:
    """An episode with more jobs and more node events, the same ones again."""
    jobs, events = len(episode.workload), episode.node_events
    again = np.sort(np.tile(np.arange(len(events.time)), times))
    return replace(
        episode,
        workload=episode.workload.select(np.sort(np.tile(np.arange(jobs), times))),
        node_events=replace(events, time=events.time[again], node=events.node[again], kind=events.kind[again]),
    )


def test_growing_arrays_change_nothing_for_the_others(make_small: Callable[..., Scenario]) -> None:
    scenario = make_small("failures={node_mtbf_hours: 200}")
    batch, reference = (Batch(scenario, 3, np.random.SeedSequence(9)) for _ in range(2))
    before = [list(play(b, range(3), 100)) for b in (batch, reference)]
    room = batch.sim.jobs.shape[1]
    long = longer(scenario.draw(np.random.SeedSequence(5)), 4)

    batch.reset(1, long)
    after = [list(play(b, range(3), 150)) for b in (batch, reference)]

    assert batch.sim.jobs.shape[1] > room
    assert batch.sim.events.shape[1] >= len(long.node_events.time)
    assert before[0] == before[1]
    assert all(grown[i] == plain[i] for grown, plain in zip(*after, strict=True) for i in (0, 2))


def test_a_grown_batch_plays_the_long_episode_like_one_made_for_it(small: Scenario) -> None:
    long = longer(small.draw(np.random.SeedSequence(5)), 4)
    small_first, long_first = (Batch(small, 1, np.random.SeedSequence(9)) for _ in range(2))
    long_first.reset(0, long)
    for batch in (small_first, long_first):
        batch.reset(0, long)
    assert list(play(small_first, [3], 400, reset=False)) == list(play(long_first, [3], 400, reset=False))


def test_arrays_keep_their_identity_between_steps(small: Scenario) -> None:
    batch = Batch(small, 2, np.random.SeedSequence(0))
    arrays = [id(getattr(batch, part)) for part in PARTS]
    for _ in play(batch, range(2), 20):
        assert [id(getattr(batch, part)) for part in PARTS] == arrays


def test_a_stagger_spreads_the_first_ends_evenly(small: Scenario) -> None:
    n = 6
    batch = Batch(small, n, np.random.SeedSequence(2), stagger=True)
    ends, horizons = np.zeros(n), batch.sim.clock["horizon"][:, 0].copy()
    for _ in range(2_000):
        batch.step(np.argmax(batch.mask, axis=1))
        for i in np.flatnonzero(batch.done & (ends == 0)):
            ends[i] = batch.sim.clock["now"][i, 0]
        if ends.all():
            break
    share = ends / horizons / (1 - RUN_OUT)
    planned = np.arange(1, n + 1) / n
    assert np.all(share >= planned)
    assert np.all(share - planned < 0.15)  # the first decision after the planned end


def test_only_the_first_episode_of_a_stagger_is_short(small: Scenario) -> None:
    batch = Batch(small, 4, np.random.SeedSequence(2), stagger=True)
    batch.reset(0)
    hours = []
    while not batch.done[0]:
        batch.step(np.argmax(batch.mask, axis=1))
        hours.append(batch.sim.clock["now"][0, 0])
    assert hours[-1] >= (1 - RUN_OUT) * batch.sim.clock["horizon"][0, 0]


def test_resetting_all_staggers_again(small: Scenario) -> None:
    batch, plain = (Batch(small, 4, np.random.SeedSequence(2), stagger=s) for s in (True, False))
    for b in (batch, plain):
        b.reset_all()
    early = []
    for _ in range(2_000):
        batch.step(np.argmax(batch.mask, axis=1))
        plain.step(np.argmax(plain.mask, axis=1))
        early += [(i, bool(plain.done[i])) for i in np.flatnonzero(batch.done)]
        if early:
            break
    assert early == [(0, False)]


def test_a_window_that_ended_leaves_hold_and_time_stands_still(small: Scenario) -> None:
    batch = Batch(small, 1, np.random.SeedSequence(2))
    while batch.sim.clock["current"][0, 0] >= 0:
        batch.step(np.argmax(batch.mask, axis=1))
    hold = np.arange(batch.layout.size) == batch.layout.hold
    end = batch.sim.clock["now"][0, 0]
    assert np.array_equal(batch.mask[0], hold)
    batch.step(np.array([0]))
    assert (batch.reward[0], batch.done[0], batch.sim.clock["now"][0, 0]) == (0.0, True, end)
    assert np.array_equal(batch.mask[0], hold)


def test_scenarios_are_dealt_out_in_turn(small: Scenario, make_small: Callable[..., Scenario]) -> None:
    batch = Batch([small, make_small("cluster.racks=6")], 5, np.random.SeedSequence(0))
    racks = (batch.sim.racks["node1"] > batch.sim.racks["node0"]).sum(axis=1)
    assert racks.tolist() == [4, 6, 4, 6, 4]


@pytest.mark.parametrize("first", ["cluster={racks: 4, blocks: 1}", "cluster={racks: 4, blocks: 4}"])
def test_clusters_of_different_trees_share_a_batch(make_small: Callable[..., Scenario], first: str) -> None:
    scenarios = [make_small(first), make_small("cluster={racks: 7, blocks: 2}"), make_small("cluster.blocks=2")]
    together = list(play(Batch(scenarios, 3, np.random.SeedSequence(4)), range(3), 150))
    for i, child in enumerate(np.random.SeedSequence(4).spawn(3)):
        alone = Batch(scenarios[i], 1, np.random.SeedSequence(0))
        alone.reseed(0, child)
        alone.reset(0)
        counts, own = [pickle.loads(step[i])[1] for step in together], []
        pick = np.random.default_rng(i)
        for _ in range(150):
            wide = np.flatnonzero(alone.mask[0])
            alone.step(np.array([pick.choice(wide)]))
            own.append(pickle.loads(snapshot(alone, 0))[1])
            if alone.done[0]:
                alone.reset(0)
        assert counts == own  # the same legal actions in the same order, whatever the padding


def test_a_cluster_larger_than_the_batch_is_refused(small: Scenario, make_small: Callable[..., Scenario]) -> None:
    batch = Batch(small, 1, np.random.SeedSequence(0))
    with pytest.raises(InputError, match="racks: found 6"):
        batch.reset(0, make_small("cluster.racks=6").draw(np.random.SeedSequence(0)))


def test_clusters_with_other_nodes_do_not_share_a_batch(small: Scenario, make_small: Callable[..., Scenario]) -> None:
    with pytest.raises(InputError, match="gpus_per_node: found 4"):
        Batch([small, make_small("cluster.gpus_per_node=8")], 2, np.random.SeedSequence(0))
