"""Distributed training: workers play what one process would, a run goes on when a machine dies, files are the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from sb3_contrib import MaskablePPO

from agents import distributed
from agents import train as training
from agents.config import TrainConfig
from agents.distributed import DistributedPPO, RemoteEnvs, Rollout, RolloutWorker
from agents.policy import network_of
from agents.train import make_env, make_model
from nvlenv.errors import InputError
from tests.agents.test_train import SMALL, TINY

CONFIG = TrainConfig(
    scenarios=("lab-16",), overrides=tuple(SMALL), envs=6, hidden=8, steps=4096,
    ppo={"n_steps": 32, "batch_size": 64, "n_epochs": 1},
)  # fmt: skip


def weights_of(model: MaskablePPO) -> distributed.Weights:
    return {name: tensor.detach().numpy() for name, tensor in network_of(model).state_dict().items()}


@pytest.fixture(scope="module")
def model() -> MaskablePPO:
    return make_model(CONFIG, make_env(CONFIG))


class LocalEnvs(RemoteEnvs):
    """The workers of a run in this process, without Ray."""

    def __init__(self, config: TrainConfig, workers: int) -> None:
        one = make_env(config)
        super(RemoteEnvs, self).__init__(config.envs, one.observation_space, one.action_space)
        self.workers = [RolloutWorker(config, rank, config.envs // workers) for rank in range(workers)]

    def collect(self, weights: distributed.Weights, done_steps: int) -> list[Rollout]:
        return [worker.collect(weights, done_steps) for worker in self.workers]

    def close(self) -> None:
        self.workers = []


# --- Without Ray ------------------------------------------------------------------------------------------------------


def test_a_rollout_is_what_sb3_collects(model: MaskablePPO) -> None:
    rollout = RolloutWorker(CONFIG, 0, 3).collect(weights_of(model), 0)

    assert rollout.observations["racks"].shape[:2] == (32, 3)
    assert all(rollout.arrays[name].shape[:2] == (32, 3) for name in distributed.ARRAYS)
    actions, masks = rollout.arrays["actions"].astype(int), rollout.arrays["action_masks"]
    assert np.take_along_axis(masks, actions, axis=2).all()
    returns = rollout.arrays["advantages"] + rollout.arrays["values"]
    assert rollout.arrays["returns"] == pytest.approx(returns, abs=1e-5)
    assert len(rollout.infos) == 32 and len(rollout.infos[0]) == 3


def test_a_worker_plays_with_the_weights_it_is_given(model: MaskablePPO) -> None:
    worker, weights = RolloutWorker(CONFIG, 0, 3), weights_of(model)
    worker.collect(weights, 0)
    changed = {name: array + 0.25 for name, array in weights.items()}

    worker.collect(changed, 96)

    assert worker.model is not None
    state = network_of(worker.model).state_dict()
    assert all(np.array_equal(state[name].numpy(), changed[name]) for name in changed)


def test_no_two_workers_and_no_second_life_see_the_same_workloads(model: MaskablePPO) -> None:
    weights = weights_of(model)
    first, second = (RolloutWorker(CONFIG, rank, 3).collect(weights, 0) for rank in (0, 1))
    again, reborn = (RolloutWorker(CONFIG, 0, 3).collect(weights, done) for done in (0, 4096))

    seen = [rollout.observations["job"] for rollout in (first, second, reborn)]
    assert np.array_equal(first.observations["job"], again.observations["job"])
    assert not any(np.array_equal(seen[a], seen[b]) for a, b in ((0, 1), (0, 2), (1, 2)))
    assert (first.begun_at, reborn.begun_at) == (0, 4096)


def test_the_learner_joins_rollouts_side_by_side_and_learns_from_all_of_them() -> None:
    envs = LocalEnvs(CONFIG, 2)
    model = make_model(CONFIG, envs, DistributedPPO)
    before = weights_of(model)["mid.weight"].copy()

    model.learn(2 * 32 * 6)

    buffer = model.rollout_buffer
    assert model.num_timesteps == 2 * 32 * 6
    assert buffer.full and buffer.actions.size == 32 * 6
    assert not np.array_equal(weights_of(model)["mid.weight"], before)


def test_a_run_with_one_worker_is_the_run_without_workers_bit_for_bit() -> None:
    steps = 3 * 32 * 6
    one = make_model(CONFIG, LocalEnvs(CONFIG, 1), DistributedPPO).learn(steps)
    alone = make_model(CONFIG, make_env(CONFIG)).learn(steps)  # after the other: it seeds this process's generators

    trained = weights_of(alone)
    assert all(np.array_equal(weights, trained[name]) for name, weights in weights_of(one).items())
    assert not np.array_equal(trained["mid.weight"], weights_of(make_model(CONFIG, make_env(CONFIG)))["mid.weight"])


def test_a_finished_episode_reaches_the_callbacks(model: MaskablePPO) -> None:
    worker, weights = RolloutWorker(CONFIG, 0, 2), weights_of(model)
    infos = [info for k in range(12) for step in worker.collect(weights, k).infos for info in step if info]

    assert {"episode", "totals", "clock"} <= set(infos[0]) and "terminal_observation" not in infos[0]


@pytest.mark.parametrize("workers", [-1, 7])
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
    """A cluster of two nodes on this machine, either of which has room for both workers, and the node to kill."""
    ray = pytest.importorskip("ray", reason="needs the extra `ray`")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    node = {"num_cpus": 2, "object_store_memory": 100 * 2**20}
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
    original = RemoteEnvs.collect

    def collect(self: RemoteEnvs, weights: distributed.Weights, done_steps: int) -> list[Rollout]:
        if len(rollouts) == 2:
            Thread(target=cluster.remove_node, args=(second,), kwargs={"allow_graceful": False}).start()
        rollouts.append(original(self, weights, done_steps))
        return rollouts[-1]

    monkeypatch.setattr(RemoteEnvs, "collect", collect)
    run = tmp_path / "run"

    assert training.main([*RUN, "--out", str(run)]) == 0

    steps = [rollout.observations["racks"].shape[:2] for played in rollouts for rollout in played]
    assert len(rollouts) == 4 and set(steps) == {(64, 4)}  # every rollout is whole, and none is played twice
    begun = [tuple(rollout.begun_at for rollout in played) for played in rollouts]
    assert begun[:2] == [(0, 0), (0, 0)]
    assert sorted(begun[3])[0] == 0 < sorted(begun[3])[1]  # one of the two began anew, the other went on
    assert json.loads((run / "state.json").read_text())["steps"] == 2048

    assert training.main(["--resume", str(run), "steps=4096", "--quiet"]) == 0  # in this process alone
    assert json.loads((run / "state.json").read_text())["steps"] == 4096


@pytest.mark.slow
@pytest.mark.usefixtures("two_nodes")
def test_more_workers_than_cores_are_refused_and_not_waited_for() -> None:
    with pytest.raises(InputError, match="--distributed: found 5, expected at most 4, the cores of the Ray cluster"):
        RemoteEnvs(CONFIG, 5)


@pytest.mark.slow
def test_an_interrupted_run_goes_on_with_workers(two_nodes: tuple[Any, Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert training.main([*TINY, "--quiet", "--out", str(run)]) == 0

    assert training.main(["--resume", str(run), "steps=4096", "--quiet", "--distributed", "2"]) == 0

    assert json.loads((run / "state.json").read_text())["steps"] == 4096
