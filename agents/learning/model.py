"""Environment and model of a training run, before its first step."""

from __future__ import annotations

from collections.abc import Callable

from sb3_contrib import MaskablePPO
from stable_baselines3.common.vec_env import VecEnv

from agents.evaluation.episodes import split_scenario
from agents.learning.config import TrainConfig
from agents.learning.network import load_arrays
from agents.learning.policy import PlacementPolicy, network_of
from nvlenv.envs.sb3 import NVL72VecEnv
from nvlenv.envs.scenario import load_scenario
from nvlenv.policies.learned import read_policy_file


def linear(start: float, end: float) -> Callable[[float], float]:
    """A schedule that falls from start to end while SB3's remaining progress falls from 1 to 0."""
    return lambda remaining: end + (start - end) * remaining


def make_env(config: TrainConfig, done_steps: int = 0) -> NVL72VecEnv:
    """The training environment. A resumed run continues with workloads it has not seen."""
    scenarios = [split_scenario(load_scenario(name, config.overrides), "train") for name in config.scenarios]
    return NVL72VecEnv(scenarios, config.envs, (config.seed, done_steps), stagger=True)


def make_model(config: TrainConfig, env: VecEnv, algorithm: type[MaskablePPO] = MaskablePPO) -> MaskablePPO:
    """A model before its first step: with the prior or without, or with the policy file that the config names."""
    ppo = config.ppo
    model = algorithm(
        PlacementPolicy,
        env,
        learning_rate=linear(ppo.lr_start, ppo.lr_end),
        n_steps=ppo.n_steps,
        batch_size=ppo.batch_size,
        n_epochs=ppo.n_epochs,
        gamma=ppo.gamma,
        gae_lambda=ppo.gae_lambda,
        clip_range=ppo.clip,
        ent_coef=ppo.entropy,
        vf_coef=ppo.value_coef,
        max_grad_norm=ppo.max_grad_norm,
        target_kl=ppo.target_kl,
        policy_kwargs={"hidden": config.hidden},
        seed=config.seed,
        device="cpu",
    )
    if not config.prior:
        network_of(model).forget_prior()
    if config.init:
        arrays, _ = read_policy_file(config.init)
        load_arrays(network_of(model), arrays, config.init)
    return model
