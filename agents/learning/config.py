"""What a training run is: configs/train/*.yaml, validated; every field says what it does."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agents.evaluation.compare import BASELINE
from nvlenv.common.config import Count, Model, NonNegative, Positive, Share
from nvlenv.envs.scenario import load_scenario
from nvlenv.policies.resolver import baseline_name


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
    baselines, reference = config.evaluation.baselines, config.evaluation.reference
    update = {
        "baselines": tuple(dict.fromkeys(tuned if name == BASELINE else name for name in baselines)),
        "reference": tuned if reference == BASELINE else reference,
    }
    return config.model_copy(update={"evaluation": config.evaluation.model_copy(update=update)})
