"""An exported policy decides, beside the same network in stable-baselines3 and in ONNX Runtime."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from agents.learning.model import TrainConfig, make_model, network_of
from agents.learning.network import export_onnx, export_policy
from nvlenv.engine import load_policy
from nvlenv.envs.sb3 import NVL72VecEnv
from nvlenv.envs.scenario import load_scenario
from nvlenv.policies.observation import N_CLUSTER, N_JOB, N_RACK, observe
from nvlenv.simulator.decision import ActionLayout, Decision
from tests.benchmarks.support.figures import Figure, fastest
from tests.benchmarks.support.work import in_use, seconds

pytestmark = [pytest.mark.slow, pytest.mark.benchmark(timer=time.process_time)]
TARGETS = {16: (336.0, 30.0), 1000: (24.0, 1000.0)}  # racks -> hours of the episode, microseconds
REPEATS = 50


def microseconds(call: Any) -> float:
    """Of one call, the fastest of five times many."""
    call()
    return 1e6 * min(seconds(lambda: [call() for _ in range(REPEATS)]) for _ in range(5)) / REPEATS


@pytest.mark.parametrize("racks", TARGETS)
def test_a_decision(racks: int, tmp_path: Path, benchmark: Any, figures: list[Figure]) -> None:
    hours, target = TARGETS[racks]
    torch.set_num_threads(1)
    size = (f"cluster.racks={racks}", f"cluster.blocks={max(1, racks // 16)}", f"episode.hours={hours:g}")
    model = make_model(TrainConfig(), NVL72VecEnv(load_scenario("lab-16", size), 1))
    export_policy(network_of(model), tmp_path / "policy.npz", {})
    export_onnx(network_of(model), tmp_path / "policy.onnx")
    policy, sim = load_policy(tmp_path / "policy.npz"), in_use(racks, hours)
    decision = Decision(sim, sim.mask, ActionLayout(racks))

    action = benchmark.pedantic(policy, args=(decision,), rounds=20, iterations=REPEATS, warmup_rounds=1)

    ours = 1e6 * fastest(benchmark)
    observation = {
        "racks": np.zeros((racks, N_RACK), np.float32),
        "job": np.zeros(N_JOB, np.float32),
        "cluster": np.zeros(N_CLUSTER, np.float32),
    }
    observe(sim, observation["racks"], observation["job"], observation["cluster"])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx", options, providers=["CPUExecutionProvider"])
    feed = {name: array[None] for name, array in {**observation, "mask": sim.mask}.items()}

    def predict() -> int:
        return int(model.predict(observation, action_masks=sim.mask, deterministic=True)[0])

    def run_onnx() -> int:
        return int(np.argmax(session.run(["logits"], feed)[0][0]))

    assert predict() == run_onnx() == action
    name, unit = f"exported policy, {racks} racks, observing too", "us"
    for rival, call in (("model.predict", predict), ("ONNX Runtime, 1 thread, float64", run_onnx)):
        figures.append(Figure(name, ours, unit, target, "less", rival, microseconds(call)))
