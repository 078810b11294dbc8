"""The pool without topology, queued by EASY: held to a slow and obvious one, and its promise to heroes kept."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from agents.evaluation.episodes import BOUND, play_policy, play_workload, pooled_easy, split_seeds
from agents.evaluation.statistics import paired
from nvlenv.envs.scenario import Episode, Scenario, load_scenario, prepare
from nvlenv.simulator.pooled import waiting_in_pool


def obvious_easy(
    episode: Episode, weights: tuple[float, ...], horizon: float, least: int, patience: float = 0.0
) -> float:
    """EASY on one pool: at every event all waiting jobs are tried in order, from the start after every success."""
    w, now, cost = episode.workload, 0.0, 0.0
    free, waiting, running, next_job = episode.cluster.gpus, [], [], 0
    price = np.array(weights)[w.job_class] * w.gpus

    def predicted(job: int, start: float) -> float:
        run = float(w.estimate[job])
        while start + run <= now:
            run = max(1 / 60, 1.5 * run)
        return start + run

    def promise(head: int) -> tuple[float, int]:
        room, when = free, now
        for end, gpus in sorted((predicted(job, start), int(w.gpus[job])) for job, start, _ in running):
            if room >= w.gpus[head] and end > when:
                break
            room, when = (room + gpus, end) if room < w.gpus[head] or end == when else (room, when)
        return when, room - int(w.gpus[head])

    while True:
        times = [end for _, _, end in running] + ([float(w.submit[next_job])] if next_job < len(w) else [])
        t = min([*times, horizon])
        cost += (t - now) * float(sum(price[job] for job in waiting))
        now = t
        if now >= horizon:
            return cost
        free += sum(int(w.gpus[job]) for job, _, end in running if end <= now)
        running = [entry for entry in running if entry[2] > now]
        while next_job < len(w) and w.submit[next_job] <= now:
            waiting.append(next_job)
            next_job += 1
        waiting.sort(key=lambda job: (-w.priority[job], job))
        started = True
        while started:
            started = False
            large = [job for job in waiting if w.gpus[job] >= least]
            if patience:
                large.sort(key=lambda job: -weights[w.job_class[job]] / (w.estimate[job] + patience))
            head = next(iter(large), None)
            shadow, extra = (np.inf, 2**40) if head is None else promise(head)
            for job in waiting:
                fits = w.gpus[job] <= free
                if fits and (job == head or now + w.estimate[job] <= shadow or w.gpus[job] <= extra):
                    waiting.remove(job)
                    running.append((job, now, now + float(w.duration[job])))
                    free -= int(w.gpus[job])
                    started = True
                    break


@pytest.mark.parametrize("index", range(6))
def test_it_is_easy_backfilling_on_one_pool(small: Scenario, index: int) -> None:
    episode = small.draw(split_seeds(0, "validation", 6)[index])
    sim = prepare(small, episode)
    least, horizon = int(sim.clock["hero_gpus"][0]), float(sim.clock["horizon"][0])

    assert pooled_easy(sim, "best-fit+easy+open") == pytest.approx(
        obvious_easy(episode, small.class_weights(), horizon, least), rel=1e-9
    )


@pytest.mark.parametrize("index", range(4))
def test_the_most_urgent_job_may_be_the_one_that_gpus_are_kept_for(small: Scenario, index: int) -> None:
    episode = small.draw(split_seeds(0, "validation", 4)[index])
    sim = prepare(small, episode)
    slice_gpus, horizon = int(sim.clock["slice_nodes"][0]) * 4, float(sim.clock["horizon"][0])

    assert pooled_easy(sim, "best-fit+easy(slices=1,patience=20)") == pytest.approx(
        obvious_easy(episode, small.class_weights(), horizon, slice_gpus, 20.0), rel=1e-9
    )


def test_a_share_reserves_for_smaller_jobs_too(make_small: Callable[..., Scenario]) -> None:
    small = make_small("workload.load=1.0")
    costs = {
        rule: [pooled_easy(prepare(small, small.draw(seed)), rule) for seed in split_seeds(0, "validation", 8)]
        for rule in ("best-fit+easy", "best-fit+easy(share=0.1)", "kueue-tas")
    }

    assert costs["best-fit+easy"] != costs["best-fit+easy(share=0.1)"]
    assert costs["best-fit+easy"] == costs["kueue-tas"]  # which reserves nothing: every hero


def test_heroes_starve_in_the_twin_but_not_in_the_bound(make_small: Callable[..., Scenario]) -> None:
    scenario = make_small("workload.load=1.0", "workload.classes.hero.weight=20")
    episodes = [scenario.draw(seed) for seed in split_seeds(0, "validation", 12)]

    easy = sum(pooled_easy(prepare(scenario, episode), "best-fit+easy") for episode in episodes)
    fcfs = sum(waiting_in_pool(prepare(scenario, episode)) for episode in episodes)

    assert easy < fcfs


def test_topology_costs_something_on_average() -> None:
    scenario, rule = load_scenario("lab-16"), "best-fit+easy"
    played = [play_workload(seed, scenario, [rule], baseline=rule).metrics for seed in split_seeds(0, "validation", 12)]

    assert paired([p[rule]["cost"] for p in played], [p[BOUND]["cost"] for p in played]).verdict == "higher"


def test_policies_may_be_told_the_true_run_times(make_small: Callable[..., Scenario]) -> None:
    noisy, exact = make_small("workload.estimate_sigma=1.0"), make_small("workload.estimate_sigma=0.0")
    seed = split_seeds(0, "validation", 1)[0]

    told = play_policy("best-fit+easy+open@true", noisy, noisy.draw(seed))
    easy = play_policy("best-fit+easy+open", exact, exact.draw(seed))

    assert (noisy.draw(seed).workload.estimate != noisy.draw(seed).workload.duration).any()
    assert told.clock["waiting"][0] == easy.clock["waiting"][0]
