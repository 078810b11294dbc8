"""A training run before its first step: its settings (configs/train/*.yaml), environment, model and process.

The model is MaskablePPO with the network as its policy. sb3-contrib's own path builds a distribution object with
validation for every minibatch, and would run actor and critic apart; here both come from one pass, and the masked
log-softmax is written out. A deterministic prediction is what an exported file would do: the engine's arithmetic on the
network's arrays.
"""

from __future__ import annotations

import ctypes
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.distributions import MaskableDistribution
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from agents.evaluation.compare import BASELINE
from agents.evaluation.episodes import split_scenario
from agents.learning.network import PlacementNetwork, load_arrays, network_arrays
from nvlenv.common.config import Count, Model, NonNegative, Positive, Share
from nvlenv.envs.sb3 import NVL72VecEnv
from nvlenv.envs.scenario import load_scenario
from nvlenv.policies.learned import LearnedPolicy, read_policy_file
from nvlenv.policies.resolver import baseline_name

NEVER = -1.0e9  # logit of an illegal action
CALLED_ALIKE = {"n_steps", "batch_size", "n_epochs", "gamma", "gae_lambda", "max_grad_norm", "target_kl"}  # by SB3
# Settings of mallopt(3): the heap is trimmed above as much free memory, and blocks up to this size come from it.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, KEPT = -1, -3, 1 << 30
Masks = NDArray[np.bool_] | Tensor | None
Observations = dict[str, Tensor]


class PPOConfig(Model):
    """MaskablePPO's settings."""

    n_steps: Count = 256  # decisions of each simulator between two updates
    batch_size: Count = 4096
    n_epochs: Count = 4
    gamma: Share = 0.998  # per decision; a hold is paid for over hundreds of them
    gae_lambda: Share = 0.95
    lr_start: Positive = 6e-4
    lr_end: Positive = 2e-5
    entropy: NonNegative = 0.003
    clip: Share = 0.2
    target_kl: Positive | None = 0.03
    value_coef: Positive = 0.5
    max_grad_norm: Positive = 0.5


class EvaluationConfig(Model):
    """How a run is compared with heuristics, always on the validation split. `baseline`: the scenario's tuned one."""

    every_steps: Count = 200_000
    episodes: Count = 12  # workloads of each comparison during training
    final_episodes: Count = 48  # and of the table at the end
    baselines: Annotated[tuple[str, ...], Field(min_length=1)] = (
        "least-allocated",
        "best-fit",
        "best-fit+easy+open",
        "baseline",
        "slurm-block+delay(hours=8)+easy(slices=1,patience=20)+drain+open",
    )
    reference: str = "baseline"  # differences are taken against this one

    @property
    def heuristics(self) -> list[str]:
        """All that a policy is compared with, each once."""
        return list(dict.fromkeys((*self.baselines, self.reference)))


class TrainConfig(Model):
    """One training run."""

    scenarios: Annotated[tuple[str, ...], Field(min_length=1)] = ("lab-16",)  # names or files, dealt out in turn
    overrides: tuple[str, ...] = ()  # of every scenario, such as workload.load=0.9
    steps: Count = 2_000_000  # decisions in all
    envs: Count = 64  # simulators
    seed: Annotated[int, Field(ge=0)] = 0
    threads: Count = 1  # of torch; more than one loses as soon as the cores are shared
    hidden: Count = 32  # width of the network
    prior: bool = True  # begin with the heuristic prior; false: with a network that knows nothing
    init: str = ""  # policy file to start from; "": the heuristic prior
    ppo: PPOConfig = PPOConfig()
    evaluation: EvaluationConfig = EvaluationConfig()


def with_baseline(config: TrainConfig) -> TrainConfig:
    """The config with the tuned heuristic of its first scenario wherever it says `baseline`."""
    tuned = baseline_name(load_scenario(config.scenarios[0], config.overrides).name)
    given = (*config.evaluation.baselines, config.evaluation.reference)
    *names, reference = (tuned if name == BASELINE else name for name in given)
    update = {"baselines": tuple(dict.fromkeys(names)), "reference": reference}
    return config.model_copy(update={"evaluation": config.evaluation.model_copy(update=update)})


def masked_log_softmax(logits: Tensor, masks: Masks) -> Tensor:
    """Log probabilities (B, A); illegal actions have probability zero."""
    if masks is not None:
        legal = torch.as_tensor(masks, dtype=torch.bool).reshape(logits.shape)
        logits = logits.masked_fill(~legal, NEVER)
    return torch.log_softmax(logits, dim=1)


class PlacementPolicy(MaskableActorCriticPolicy):
    """Actor and critic for MaskablePPO. `hidden`: width of the network."""

    def __init__(self, *args: Any, hidden: int = 32, **kwargs: Any) -> None:
        self.hidden = hidden
        super().__init__(*args, **kwargs)

    def _build(self, lr_schedule: Schedule) -> None:
        self.network = PlacementNetwork(self.hidden)
        settings: dict[str, Any] = {"lr": lr_schedule(1), **self.optimizer_kwargs}
        self.optimizer = self.optimizer_class(self.network.parameters(), **settings)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "hidden": self.hidden}

    def _run(self, obs: Observations) -> tuple[Tensor, Tensor]:
        return self.network(obs["racks"], obs["job"], obs["cluster"])  # type: ignore[no-any-return]

    def forward(  # type: ignore[override]
        self, obs: Observations, deterministic: bool = False, action_masks: Masks = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Actions (B,), values (B, 1) and log probabilities (B,) of a batch of observations."""
        logits, values = self._run(obs)
        log_probs = masked_log_softmax(logits, action_masks)
        if deterministic:
            actions = self._predict(obs, deterministic=True, action_masks=action_masks)
        else:
            actions = torch.multinomial(log_probs.exp(), 1).squeeze(1)
        return actions, values, log_probs.gather(1, actions.unsqueeze(1)).squeeze(1)

    def evaluate_actions(  # type: ignore[override]
        self, obs: Observations, actions: Tensor, action_masks: Masks = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Values (B, 1), log probabilities (B,) of given actions, and entropies (B,)."""
        logits, values = self._run(obs)
        log_probs = masked_log_softmax(logits, action_masks)
        entropy = -(log_probs.exp() * log_probs).sum(dim=1)
        return values, log_probs.gather(1, actions.long().reshape(-1, 1)).squeeze(1), entropy

    def predict_values(self, obs: Observations) -> Tensor:  # type: ignore[override]
        """(B, 1) values of a batch of observations."""
        return self._run(obs)[1]

    def get_distribution(  # type: ignore[override]
        self, obs: Observations, action_masks: Masks = None
    ) -> MaskableDistribution:
        """The masked distribution over actions, as sb3-contrib's own code asks for it."""
        distribution = self.action_dist.proba_distribution(action_logits=self._run(obs)[0])
        if action_masks is not None:
            distribution.apply_masking(action_masks)
        return distribution

    def _predict(  # type: ignore[override]
        self, observation: Observations, deterministic: bool = False, action_masks: Masks = None
    ) -> Tensor:
        if not deterministic:
            return self.forward(observation, action_masks=action_masks)[0]
        racks, job, cluster = (observation[name].cpu().numpy() for name in ("racks", "job", "cluster"))
        legal = np.ones((len(racks), 2 * racks.shape[1] + 2), np.bool_)
        if action_masks is not None:
            legal = np.asarray(action_masks, np.bool_).reshape(legal.shape)
        exported = LearnedPolicy(network_arrays(self.network))
        return torch.from_numpy(exported.act_batch(racks, job, cluster, legal))


def network_of(model: BaseAlgorithm) -> PlacementNetwork:
    """The network of a model whose policy is a `PlacementPolicy`."""
    assert isinstance(model.policy, PlacementPolicy)
    return model.policy.network


def make_env(config: TrainConfig, done_steps: int = 0) -> NVL72VecEnv:
    """The training environment. A resumed run continues with workloads it has not seen."""
    scenarios = [split_scenario(load_scenario(name, config.overrides), "train") for name in config.scenarios]
    return NVL72VecEnv(scenarios, config.envs, (config.seed, done_steps), stagger=True)


def make_model(config: TrainConfig, env: VecEnv, algorithm: type[MaskablePPO] = MaskablePPO) -> MaskablePPO:
    """A model before its first step: with the prior or without, or with the policy file that the config names."""
    ppo, start, end = config.ppo, config.ppo.lr_start, config.ppo.lr_end
    model = algorithm(
        PlacementPolicy,
        env,
        learning_rate=lambda left: end + (start - end) * left,  # `left` falls from 1 to 0
        clip_range=ppo.clip,
        ent_coef=ppo.entropy,
        vf_coef=ppo.value_coef,
        **ppo.model_dump(include=CALLED_ALIKE),
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


def prepare_process(threads: int) -> None:
    """Let this process learn with so many threads, and keep the memory of one minibatch for the next.

    Every minibatch makes and frees the same arrays of megabytes. glibc would return each of them to the kernel, which
    clears its pages again at the next use: 8 % of the time of training in one process, 15 % of that of two workers.
    Another C library goes on as it does.
    """
    torch.set_num_threads(threads)
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(M_MMAP_THRESHOLD, KEPT)
        mallopt(M_TRIM_THRESHOLD, KEPT)
