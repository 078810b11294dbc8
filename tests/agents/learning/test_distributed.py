"""Distributed training: workers play what one process would, a run goes on when a machine dies, files are the same."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer

from agents import train as training
from agents.learning.distributed import (
    Arrays,
    DistributedPPO,
    Gradient,
    RemoteEnvs,
    Rollout,
    Worker,
    minibatch_gradient,
    minibatches_of,
)
from agents.learning.model import TrainConfig, make_env, make_model, network_of
from nvlenv.common.errors import InputError
from tests.agents.test_train import SMALL, TINY

CONFIG = TrainConfig(
    scenarios=("lab-16",), overrides=tuple(SMALL), envs=6, hidden=8, steps=4096,
    ppo={"n_steps": 32, "batch_size": 64, "n_epochs": 1},
)  # fmt: skip


def weights_of(model: MaskablePPO) -> Arrays:
    return {name: tensor.detach().numpy() for name, tensor in network_of(model).state_dict().items()}


@pytest.fixture(scope="module")
def model() -> MaskablePPO:
    return make_model(CONFIG, make_env(CONFIG))


class LocalEnvs(RemoteEnvs):
    """The workers of a run in this process, without Ray."""

    def __init__(self, config: TrainConfig, workers: int) -> None:
        one = make_env(config)
        super(RemoteEnvs, self).__init__(config.envs, one.observation_space, one.action_space)
        self.parts = minibatches_of(config)
        self.workers = [Worker(config, rank, config.envs // workers, self.parts) for rank in range(workers)]

    def play(self, weights: Arrays, done_steps: int) -> list[Rollout]:
        return [worker.play(weights, done_steps) for worker in self.workers]

    def gradients(self, weights: Arrays, part: int) -> list[Gradient]:
        answers = [worker.gradient(weights, part) for worker in self.workers]
        return [answer for answer in answers if answer is not None]

    def close(self) -> None:
        self.workers = []


# --- Without Ray ------------------------------------------------------------------------------------------------------


def rollout_of(worker: Worker) -> MaskableDictRolloutBuffer:
    assert worker.model is not None and isinstance(worker.model.rollout_buffer, MaskableDictRolloutBuffer)
    return worker.model.rollout_buffer


def test_a_worker_plays_with_the_weights_it_is_given(model: MaskablePPO) -> None:
    worker, weights = Worker(CONFIG, 0, 3, 2), weights_of(model)
    worker.play(weights, 0)
    changed = {name: array + 0.25 for name, array in weights.items()}

    played = worker.play(changed, 96)

    assert worker.model is not None
    state = network_of(worker.model).state_dict()
    assert all(np.array_equal(state[name].numpy(), changed[name]) for name in changed)
    assert len(played.infos) == 32 and len(played.infos[0]) == 3


def test_no_two_workers_and_no_second_life_see_the_same_workloads(model: MaskablePPO) -> None:
    lives = [(0, 0), (1, 0), (0, 4096), (0, 0)]
    seen = []
    for rank, done_steps in lives:
        worker = Worker(CONFIG, rank, 3, 2)
        assert worker.play(weights_of(model), done_steps).begun_at == done_steps
        seen.append(rollout_of(worker).observations["job"])

    assert np.array_equal(seen[0], seen[3])
    assert not any(np.array_equal(seen[a], seen[b]) for a, b in ((0, 1), (0, 2), (1, 2)))


def test_each_decision_is_learned_from_once_an_epoch(model: MaskablePPO) -> None:
    worker, weights = Worker(CONFIG, 0, 3, 5), weights_of(model)
    worker.play(weights, 0)

    for _ in range(2):
        gradients = [worker.gradient(weights, part) for part in range(5)]
        assert sum(gradient.decisions for gradient in gradients if gradient is not None) == 32 * 3


def test_a_worker_that_lost_its_rollout_has_no_gradient_and_the_others_go_on(model: MaskablePPO) -> None:
    envs = LocalEnvs(CONFIG, 2)
    learner = make_model(CONFIG, envs, DistributedPPO)
    learner.learn(32 * 6)
    before = weights_of(learner)["mid.weight"].copy()
    envs.workers[1] = Worker(CONFIG, 1, 3, envs.parts)  # as Ray starts it again

    assert envs.workers[1].gradient(weights_of(model), 0) is None
    learner.train()

    assert not np.array_equal(weights_of(learner)["mid.weight"], before)


def test_a_run_with_one_worker_is_the_run_without_workers_bit_for_bit() -> None:
    steps = 3 * 32 * 6
    one = make_model(CONFIG, LocalEnvs(CONFIG, 1), DistributedPPO).learn(steps)
    alone = make_model(CONFIG, make_env(CONFIG)).learn(steps)  # after the other: it seeds this process's generators

    trained = weights_of(alone)
    assert one.num_timesteps == alone.num_timesteps == steps
    assert all(np.array_equal(weights, trained[name]) for name, weights in weights_of(one).items())
    assert not np.array_equal(trained["mid.weight"], weights_of(make_model(CONFIG, make_env(CONFIG)))["mid.weight"])


def test_the_mean_of_the_workers_gradients_is_that_of_all_their_decisions(model: MaskablePPO) -> None:
    weights = weights_of(model)
    worker = Worker(CONFIG, 0, 3, 1)
    worker.play(weights, 0)
    buffer = rollout_of(worker)
    buffer.advantages[:] = np.where(np.arange(96).reshape(32, 3) % 2, 1.0, -1.0)  # the same mean and spread in any half
    whole = worker.gradient(weights, 0)
    assert whole is not None

    halves = []
    for first in (0, 48):  # flattened by the first pass
        batch = buffer._get_samples(np.arange(first, first + 48))
        assert worker.model is not None
        halves.append(minibatch_gradient(worker.model, batch))

    for name, array in whole.arrays.items():
        assert (halves[0].arrays[name] + halves[1].arrays[name]) / 2 == pytest.approx(array, rel=2e-2, abs=2e-4)


def test_a_finished_episode_reaches_the_callbacks(model: MaskablePPO) -> None:
    worker, weights = Worker(CONFIG, 0, 2, 1), weights_of(model)
    infos = [info for k in range(12) for step in worker.play(weights, k).infos for info in step if info]

    assert {"episode", "totals", "clock"} <= set(infos[0]) and "terminal_observation" not in infos[0]


@pytest.mark.parametrize("workers", [-1, 0, 7])
def test_more_workers_than_simulators_are_refused(workers: int) -> None:
    with pytest.raises(InputError, match=f"--distributed: found {workers}, expected 1 to 6, the simulators of the run"):
        RemoteEnvs(CONFIG, workers)


def test_the_learner_does_not_step_simulators() -> None:
    envs = LocalEnvs(CONFIG, 2)

    with pytest.raises(NotImplementedError, match="use DistributedPPO"):
        envs.step(np.zeros(6, np.int64))


# --- On a Ray cluster of two nodes ------------------------------------------------------------------------------------

RUN = [*TINY, "--quiet", "--seed", "3", "--distributed", "2"]


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    """A cluster of two nodes on this machine, each with room for one worker, and the node to kill."""
    ray = pytest.importorskip("ray", reason="needs the extra `ray`")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    node = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    # Ray takes 127.0.0.1 for the address of the machine, and would look for the cluster elsewhere.
    head, other = "127.0.0.2", "127.0.0.3"
    cluster = Cluster(
        initialize_head=True, head_node_args={**node, "node_ip_address": head, "include_dashboard": False}
    )
    second = cluster.add_node(**node, node_ip_address=other)
    cluster.wait_for_nodes()
    ray.init(cluster.address, _node_ip_address=head, log_to_driver=False)
    yield cluster, second
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.slow
def test_a_run_survives_the_loss_of_a_machine_and_can_be_resumed_alone(
    two_nodes: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, second = two_nodes
    rollouts: list[list[Rollout]] = []
    original = RemoteEnvs.play
    killer = Thread(target=cluster.remove_node, args=(second,), kwargs={"allow_graceful": False})

    def play(self: RemoteEnvs, weights: Arrays, done_steps: int) -> list[Rollout]:
        if len(rollouts) == 2:
            cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20, node_ip_address="127.0.0.4")
            killer.start()
        elif len(rollouts) == 3:
            killer.join()
            while sum(node["Alive"] for node in self.ray.nodes()) > 2:  # until Ray knows
                time.sleep(0.1)
        rollouts.append(original(self, weights, done_steps))
        return rollouts[-1]

    monkeypatch.setattr(RemoteEnvs, "play", play)
    run = tmp_path / "run"

    assert training.main([*RUN, "--out", str(run)]) == 0

    assert len(rollouts) == 4  # none was played twice
    assert all(len(played.infos) == 64 and len(played.infos[0]) == 4 for both in rollouts for played in both)
    begun = [tuple(played.begun_at for played in both) for both in rollouts]
    assert begun[:2] == [(0, 0), (0, 0)]
    assert sorted(begun[3])[0] == 0 < sorted(begun[3])[1]  # one of the two began anew, the other went on
    assert json.loads((run / "state.json").read_text())["steps"] == 2048

    assert training.main(["--resume", str(run), "steps=4096", "--quiet"]) == 0  # in this process alone
    assert json.loads((run / "state.json").read_text())["steps"] == 4096


@pytest.mark.slow
@pytest.mark.usefixtures("two_nodes")
def test_more_workers_than_cores_are_refused_and_not_waited_for() -> None:
    with pytest.raises(InputError, match="--distributed: found 3, expected at most 2, the cores of the Ray cluster"):
        RemoteEnvs(CONFIG, 3)


@pytest.mark.slow
def test_an_interrupted_run_goes_on_with_workers(two_nodes: tuple[Any, Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert training.main([*TINY, "--quiet", "--out", str(run)]) == 0

    assert training.main(["--resume", str(run), "steps=4096", "--quiet", "--distributed", "2"]) == 0

    assert json.loads((run / "state.json").read_text())["steps"] == 4096
