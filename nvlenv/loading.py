"""An episode goes into a simulator: settings and array sizes."""

from __future__ import annotations

from nvlenv.scenario import Episode, Scenario
from nvlenv.simulator.load import Rules, load
from nvlenv.simulator.state import Dims, Sim, allocate

MOSTLY_FILLED = 0.9  # a workload whose submits reach so far into the window fills it


def horizon_of(scenario: Scenario, episode: Episode) -> float:
    """When the window ends: after the scenario's hours, or with the last submit of a much shorter trace."""
    last = float(episode.workload.submit[-1]) if len(episode.workload) else 0.0
    return last if 0 < last < MOSTLY_FILLED * scenario.episode.hours else scenario.episode.hours


def warmup_of(scenario: Scenario, episode: Episode) -> float:
    """When counting starts: the scenario's warm-up, and the same share of a shorter window."""
    return scenario.episode.warmup_hours * horizon_of(scenario, episode) / scenario.episode.hours


def rules_of(scenario: Scenario, episode: Episode) -> Rules:
    """The simulator's settings that a scenario asks for."""
    return Rules(
        horizon=horizon_of(scenario, episode),
        measure_from=warmup_of(scenario, episode),
        sample_every=scenario.episode.sample_every_hours,
        collective=scenario.collective,
        slice_nodes=scenario.slice_nodes,
        hero_share=scenario.hero_share,
        max_evictions=scenario.max_evictions_per_job,
        allow_open="open" in scenario.actions,
        allow_fill="fill" in scenario.actions,
        allow_hold="hold" in scenario.actions,
        verify_counted=scenario.verification is not None and scenario.verification.counted,
    )


def dims_of(scenario: Scenario, episode: Episode, samples: int = 0) -> Dims:
    """The arrays that one episode needs."""
    jobs, classes = len(episode.workload), len(episode.workload.class_names)
    return Dims.of(episode.cluster, jobs, len(episode.queues), classes, len(episode.node_events.time), samples)


def load_episode(sim: Sim, scenario: Scenario, episode: Episode) -> None:
    """Fill one simulator (a view) with an episode, the clock at 0."""
    load(
        sim,
        episode.cluster,
        episode.workload,
        rules_of(scenario, episode),
        scenario.class_weights(),
        episode.queues,
        episode.node_events,
    )


def prepare(scenario: Scenario, episode: Episode, sample: bool = True) -> Sim:
    """A simulator filled with an episode; with `sample`, the time series of the whole window are kept."""
    rows = int(scenario.episode.hours / scenario.episode.sample_every_hours) + 1 if sample else 0
    sim = Sim(*(array[0] for array in allocate(1, dims_of(scenario, episode, rows))))
    load_episode(sim, scenario, episode)
    return sim
