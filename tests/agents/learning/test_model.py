"""The policy of MaskablePPO has the numbers of sb3-contrib's distribution and acts as a file; freed memory stays."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.distributions import MaskableCategorical
from torch import nn

from agents.learning.model import PlacementPolicy, masked_log_softmax
from agents.learning.network import PlacementNetwork, network_arrays
from nvlenv.envs.env import action_space, observation_space
from nvlenv.envs.sb3 import NVL72VecEnv
from nvlenv.envs.scenario import Scenario
from nvlenv.policies.learned import LearnedPolicy
from tests.agents.decisions import Recorded, perturbed, record

RACKS = 16


@pytest.fixture(scope="module")
def decisions() -> Recorded:
    return record(3_000)


def policy_around(network: PlacementNetwork) -> PlacementPolicy:
    policy = PlacementPolicy(observation_space(RACKS), action_space(RACKS), lambda _: 1e-3, hidden=network.hidden)
    policy.network.load_state_dict(network.state_dict())
    return policy


@pytest.fixture(scope="module")
def policy() -> PlacementPolicy:
    return policy_around(perturbed())


def tensors(decisions: Recorded) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in decisions.observation().items()}


def test_log_probabilities_and_entropy_are_those_of_sb3s_distribution(
    policy: PlacementPolicy, decisions: Recorded
) -> None:
    observed = tensors(decisions)
    actions, values, log_probs = policy(observed, action_masks=decisions.mask)
    theirs = MaskableCategorical(logits=policy.network(*observed.values())[0], masks=decisions.mask)

    evaluated = policy.evaluate_actions(observed, actions, torch.from_numpy(decisions.mask).float())

    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(log_probs, theirs.log_prob(actions), **close)
    torch.testing.assert_close(evaluated[0], values)
    torch.testing.assert_close(evaluated[1], log_probs)
    torch.testing.assert_close(evaluated[2], theirs.entropy(), **close)
    torch.testing.assert_close(policy.predict_values(observed), values)
    distribution = policy.get_distribution(observed, decisions.mask)
    torch.testing.assert_close(distribution.log_prob(actions), log_probs, **close)


def test_actions_are_drawn_as_often_as_their_probability_says() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    mask = np.array([[True, True, False, True]])
    expected = masked_log_softmax(logits, mask).exp()[0]

    class Fixed(nn.Module):
        def forward(self, racks: torch.Tensor, job: torch.Tensor, cluster: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return logits.expand(len(racks), 4), torch.zeros(len(racks))

    policy = policy_around(PlacementNetwork())
    policy.network = Fixed()
    torch.manual_seed(0)
    drawn, _, _ = policy({name: torch.zeros(20_000, 1) for name in ("racks", "job", "cluster")},
                         action_masks=np.repeat(mask, 20_000, axis=0))  # fmt: skip

    assert expected[2] == 0 and expected.sum() == pytest.approx(1)
    np.testing.assert_allclose(np.bincount(drawn.numpy(), minlength=4) / 20_000, expected.numpy(), atol=0.012)


def test_illegal_actions_are_never_drawn_and_get_no_gradient(policy: PlacementPolicy, decisions: Recorded) -> None:
    torch.manual_seed(1)
    actions, _, _ = policy(tensors(decisions), action_masks=decisions.mask)
    logits = torch.randn(64, 2 * RACKS + 2, requires_grad=True)
    mask = decisions.mask[:64]

    log_probs = masked_log_softmax(logits, mask)
    legal = torch.from_numpy(mask)
    (log_probs[legal].sum() - (log_probs.exp() * log_probs).sum()).backward()

    assert decisions.mask[np.arange(len(decisions)), actions.numpy()].all()
    assert logits.grad is not None and logits.grad.isfinite().all()
    assert (logits.grad[~legal] == 0).all() and (logits.grad[legal] != 0).any()


def test_actor_and_critic_take_one_pass(policy: PlacementPolicy, decisions: Recorded) -> None:
    passes: list[int] = []
    handle = policy.network.register_forward_hook(lambda *_: passes.append(1))
    observed = tensors(decisions)

    policy(observed, action_masks=decisions.mask)
    policy.evaluate_actions(observed, torch.zeros(len(decisions)), torch.from_numpy(decisions.mask))

    handle.remove()
    assert len(passes) == 2


def test_deterministic_predictions_are_the_actions_of_the_exported_arrays(
    policy: PlacementPolicy, decisions: Recorded
) -> None:
    exported = LearnedPolicy(network_arrays(policy.network))
    observation = decisions.observation()
    expected = exported.act_batch(*observation.values(), decisions.mask)

    predicted, _ = policy.predict(observation, action_masks=decisions.mask, deterministic=True)
    one, _ = policy.predict({name: array[7] for name, array in observation.items()},
                            action_masks=decisions.mask[7], deterministic=True)  # fmt: skip
    forward, _, _ = policy(tensors(decisions), deterministic=True, action_masks=decisions.mask)

    np.testing.assert_array_equal(predicted, expected)
    np.testing.assert_array_equal(forward.numpy(), expected)
    assert int(one) == expected[7]


def test_ppo_learns_saves_and_loads_it(small: Scenario, tmp_path: Path) -> None:
    env = NVL72VecEnv(small, 4, seed=1)
    model = MaskablePPO(PlacementPolicy, env, n_steps=64, batch_size=64, n_epochs=2, seed=0, device="cpu",
                        policy_kwargs={"hidden": 8})  # fmt: skip
    before = {name: p.clone() for name, p in model.policy.named_parameters()}

    model.learn(256)
    model.save(tmp_path / "model.zip")
    loaded = MaskablePPO.load(tmp_path / "model.zip", device="cpu")

    after = dict(model.policy.named_parameters())
    assert [name for name in before if torch.equal(before[name], after[name])] == []
    assert all(p.isfinite().all() for p in after.values())
    observation, mask = env.reset(), env.action_masks()
    assert loaded.policy.network.hidden == 8
    np.testing.assert_array_equal(
        loaded.predict(observation, action_masks=mask, deterministic=True)[0],
        model.predict(observation, action_masks=mask, deterministic=True)[0],
    )


# Page faults of ten arrays of 64 MB, each freed before the next, after one that is not counted.
PROGRAM = """
import resource, sys
import numpy as np
from agents.learning.model import prepare_process
if sys.argv[1] == "kept":
    prepare_process(threads=1)
np.ones(8_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    np.ones(8_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    return int(subprocess.run([sys.executable, "-c", PROGRAM, how], check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_arrays_made_again_and_again_take_no_new_pages() -> None:
    assert faults("kept") < faults("as it is") / 10
