"""The network as a policy of MaskablePPO.

sb3-contrib's own path builds a distribution object with validation for every minibatch, and would run actor and critic
apart; here both come from one pass, and the masked log-softmax is written out.
A deterministic prediction is what an exported file would do: the engine's arithmetic on the network's arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib.common.maskable.distributions import MaskableDistribution
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.type_aliases import Schedule
from torch import Tensor

from agents.learning.network import PlacementNetwork, network_arrays
from nvlenv.policies.learned import LearnedPolicy

NEVER = -1.0e9  # logit of an illegal action
Masks = NDArray[np.bool_] | Tensor | None
Observations = dict[str, Tensor]


def masked_log_softmax(logits: Tensor, masks: Masks) -> Tensor:
    """Log probabilities (B, A); illegal actions have probability zero."""
    if masks is not None:
        legal = torch.as_tensor(masks, dtype=torch.bool).reshape(logits.shape)
        logits = logits.masked_fill(~legal, NEVER)
    return torch.log_softmax(logits, dim=1)


class PlacementPolicy(MaskableActorCriticPolicy):
    """Actor and critic for MaskablePPO.

    Parameters
    ----------
    hidden : width of the network.
    """

    def __init__(self, *args: Any, hidden: int = 32, **kwargs: Any) -> None:
        self.hidden = hidden
        super().__init__(*args, **kwargs)

    def _build(self, lr_schedule: Schedule) -> None:
        self.network = PlacementNetwork(self.hidden)
        self.optimizer = self.optimizer_class(
            self.network.parameters(),
            lr=lr_schedule(1),
            **self.optimizer_kwargs,  # type: ignore[call-arg]
        )

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "hidden": self.hidden}

    def _run(self, obs: Observations) -> tuple[Tensor, Tensor]:
        logits, values = self.network(obs["racks"], obs["job"], obs["cluster"])
        return logits, values

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
