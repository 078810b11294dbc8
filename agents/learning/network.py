"""The network: one scorer shared by all racks, with what they have in common pooled (Deep Sets).

Any number of racks, and equivariant to their order. The first layer is split, so that job and cluster features are
multiplied once and not once per rack; the encoder is shared by actor and critic.

On top of it a *prior*, linear in the features, makes the untrained network's favourite the best known simple heuristic:
best fit, racks and GPUs kept for the most urgent waiting job of a slice or more, racks opened where they are cheapest.
What is learned is the residual, and the prior itself may move.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nvlenv.common.errors import InputError
from nvlenv.policies.observation import CLUSTER_FEATURES, JOB_FEATURES, N_CLUSTER, N_JOB, N_RACK, RACK_FEATURES

Array = NDArray[np.float64]
PLACE, OPEN, FILL, HOLD = 0, 1, 0, 1  # columns of the two heads

# Logits of the prior: what it multiplies each feature with, and a constant for every action. Its favourite is what
# slurm-block+delay(hours=8)+easy(slices=1,patience=20)+drain+open does, but for compromises where a slice must spread.
# A weight that breaks ties is smaller than one GPU of 72 is worth to the weight before it.
PRIOR_RACK = (
    (PLACE, "in_block", 16.0),  # all of the job in one block, as Slurm does
    (PLACE, "room_left", -14.0),  # best fit
    (PLACE, "left", -0.1),  # of equal ones that with fewer free GPUs
    (PLACE, "fits", 4.0),  # a spread takes as much as it can in each rack
    (PLACE, "conflicts", -64.0),  # EASY: rather hold than delay the target
    (OPEN, "open_gpus", -6.0),  # the cheapest rack: fewest GPUs evicted
    (OPEN, "open_lost", -0.06),  # of equal ones that which loses least work
)
PRIOR_GLOBAL = (
    (HOLD, "drains", 125.0),  # wait rather than keep GPUs from the target for more than about 4 h
    (HOLD, "patience", 52.0),  # wait about 8 h for one domain
)
PRIOR_CONSTANT = {"place": -20.0, "open": -6.0, "fill": -46.0, "hold": -42.0}


class PlacementNetwork(nn.Module):
    """Observation -> logits (B, 2R + 2) in the action layout, and value (B,). `hidden`: width of both layers.

    Logits of padded racks mean nothing; the mask has none of their actions.
    """

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.hidden = hidden
        shared = N_JOB + N_CLUSTER
        self.rack_in = nn.Linear(N_RACK, hidden, bias=False)
        self.global_in = nn.Linear(shared, hidden)
        self.mid = nn.Linear(hidden, hidden)
        self.pool = nn.Linear(2 * hidden, hidden, bias=False)
        self.rack_head = nn.Linear(hidden, 2)
        self.global_head = nn.Linear(3 * hidden, 2)
        self.value_head = nn.Sequential(nn.Linear(3 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        self.prior_rack = nn.Linear(N_RACK, 2)
        self.prior_global = nn.Linear(shared, 2)
        for layer in (self.rack_head, self.global_head, self.prior_rack, self.prior_global):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        self._set_prior()

    def _set_prior(self) -> None:
        of_rack, of_all = ([f.name for f in each] for each in (RACK_FEATURES, JOB_FEATURES + CLUSTER_FEATURES))
        with torch.no_grad():
            for action, name, weight in PRIOR_RACK:
                self.prior_rack.weight[action, of_rack.index(name)] = weight
            for action, name, weight in PRIOR_GLOBAL:
                self.prior_global.weight[action, of_all.index(name)] = weight
            self.prior_rack.bias[:] = torch.tensor([PRIOR_CONSTANT["place"], PRIOR_CONSTANT["open"]])
            self.prior_global.bias[:] = torch.tensor([PRIOR_CONSTANT["fill"], PRIOR_CONSTANT["hold"]])

    def forget_prior(self) -> None:
        """Begin from nothing: all actions alike."""
        with torch.no_grad():
            for parameter in (*self.prior_rack.parameters(), *self.prior_global.parameters()):
                parameter.zero_()

    def forward(self, racks: Tensor, job: Tensor, cluster: Tensor) -> tuple[Tensor, Tensor]:
        """racks (B, R, F), job (B, J), cluster (B, C) float -> logits (B, 2R + 2), value (B,)."""
        shared = torch.cat((job, cluster), dim=1)
        entry = self.global_in(shared)
        exists = racks[:, :, :1]
        first = torch.relu(self.rack_in(racks) + entry.unsqueeze(1)) * exists
        context = self.pool(_pooled(first, exists)).unsqueeze(1)
        second = torch.relu(self.mid(first) + context) * exists
        summary = torch.cat((_pooled(second, exists), torch.relu(entry)), dim=1)
        per_rack = self.rack_head(second) + self.prior_rack(racks)
        overall = self.global_head(summary) + self.prior_global(shared)
        logits = torch.cat((per_rack[:, :, PLACE], per_rack[:, :, OPEN], overall), dim=1)
        return logits, self.value_head(summary).squeeze(1)


def _pooled(rows: Tensor, exists: Tensor) -> Tensor:
    """Mean and maximum over the racks that exist: (B, R, H) -> (B, 2H). Rows are >= 0, and 0 for padding."""
    count = exists.sum(dim=1).clamp(min=1.0)
    return torch.cat((rows.sum(dim=1) / count, rows.amax(dim=1)), dim=1)


# Array of a policy file -> parameter of the network; matrices are stored inputs first.
PARAMETERS = {
    "rack_in": "rack_in.weight", "global_in": "global_in.weight", "in_bias": "global_in.bias", "mid": "mid.weight",
    "pool": "pool.weight", "mid_bias": "mid.bias", "rack_head": "rack_head.weight", "rack_bias": "rack_head.bias",
    "global_head": "global_head.weight", "global_bias": "global_head.bias", "prior_rack": "prior_rack.weight",
    "prior_rack_bias": "prior_rack.bias", "prior_global": "prior_global.weight",
    "prior_global_bias": "prior_global.bias",
}  # fmt: skip


def network_arrays(network: PlacementNetwork) -> dict[str, Array]:
    """The actor's arrays as a policy file keeps them."""
    state = network.state_dict()
    return {name: state[key].detach().double().numpy().T.copy() for name, key in PARAMETERS.items()}


def load_arrays(network: PlacementNetwork, arrays: dict[str, Array], source: str) -> None:
    """Set the actor to the arrays of a policy file, the critic stays.

    A narrower file fills the first units; the others keep what they are but reach neither these nor any logit, so that
    the function is the file's. Raises `InputError` for a wider one.
    """
    hidden = arrays["in_bias"].size
    if hidden > network.hidden:
        raise InputError(source, "hidden", hidden, f"at most {network.hidden}, as the run's `hidden` says")
    state, own = network.state_dict(), network_arrays(network)
    for name, key in PARAMETERS.items():
        state[key] = torch.from_numpy(_embedded(arrays[name], own[name], hidden, network.hidden).T.copy()).float()
    network.load_state_dict(state)


def _embedded(narrow: Array, wide: Array, hidden: int, room: int) -> Array:
    """`narrow` inside `wide`, both inputs first: on an axis of units a run of `hidden` of them takes `room` places."""
    out, places = wide.copy(), [np.arange(size) for size in narrow.shape]
    for axis, at in enumerate(places):
        if narrow.shape[axis] != wide.shape[axis]:
            places[axis] = at // hidden * room + at % hidden
    out[..., places[-1]] = 0.0  # from no unit but the file's
    out[np.ix_(*places)] = narrow
    return out
