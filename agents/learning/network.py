"""The network, and its files: one scorer shared by all racks, with what they have in common pooled (Deep Sets).

Any number of racks, and equivariant to their order. The first layer is split, so that job and cluster features are
multiplied once and not once per rack; the encoder is shared by actor and critic.

On top of it a *prior*, linear in the features, makes the untrained network's favourite the best known simple heuristic:
best fit, racks and GPUs kept for the most urgent waiting job of a slice or more, racks opened where they are cheapest.
What is learned is the residual, and the prior itself may move.

It goes into policy files and into ONNX models, whose inputs and outputs `python -m agents.export --help` names.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO
from torch import Tensor, nn

from nvlenv.common.errors import InputError
from nvlenv.common.files import written_whole
from nvlenv.policies.inference import LOGIT_GRID
from nvlenv.policies.learned import read_policy_file, save_policy
from nvlenv.policies.observation import CLUSTER_FEATURES, JOB_FEATURES, N_CLUSTER, N_JOB, N_RACK, RACK_FEATURES

Array = NDArray[np.float64]
LICENCE = "Apache-2.0"
OPSET = 17  # of ONNX; read by onnxruntime >= 1.13
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


def export_policy(network: PlacementNetwork, path: str | Path, manifest: dict[str, Any]) -> None:
    """Write the actor as a policy file, whole or not at all."""
    save_policy(path, network_arrays(network), {"licence": LICENCE, **manifest})


class _Actor(nn.Module):
    """The network without its value, in float64 and rounded as the policy file computes it."""

    def __init__(self, network: PlacementNetwork) -> None:
        super().__init__()
        self.network = PlacementNetwork(network.hidden)
        self.network.load_state_dict(network.state_dict())
        self.double().eval()

    def forward(self, racks: Tensor, job: Tensor, cluster: Tensor, mask: Tensor) -> Tensor:
        logits, _ = self.network(racks.double(), job.double(), cluster.double())
        rounded: Tensor = torch.floor(logits * LOGIT_GRID + 0.5) / LOGIT_GRID
        return rounded.masked_fill(~mask, float("-inf"))


def export_onnx(network: PlacementNetwork, path: str | Path) -> None:
    """Write the actor as an ONNX model with any number of racks. Needs the extra `onnx`."""
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise InputError("--onnx", "", "no package onnx", "pip install 'nvlenv[onnx]'") from None
    example = (torch.ones(2, 8, N_RACK), torch.zeros(2, N_JOB), torch.zeros(2, N_CLUSTER), torch.ones(2, 18).bool())
    axes = {
        "racks": {0: "batch", 1: "racks"}, "job": {0: "batch"}, "cluster": {0: "batch"},
        "mask": {0: "batch", 1: "actions"}, "logits": {0: "batch", 1: "actions"},
    }  # fmt: skip
    *inputs, output = axes
    with written_whole(path) as part, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about its own deprecation
        torch.onnx.export(
            _Actor(network), example, str(part), input_names=inputs, output_names=[output], dynamic_axes=axes,
            opset_version=OPSET, dynamo=False,
        )  # fmt: skip


def load_network(run: Path) -> tuple[PlacementNetwork, dict[str, Any]]:
    """The network of a run's folder (its best policy, else its state), policy file or model.zip, and its manifest."""
    candidates = [run / "policy.npz", run / "model.zip"] if run.is_dir() else [run]
    source = next((file for file in candidates if file.is_file()), None)
    if source is None:
        found = "neither policy.npz nor model.zip" if run.is_dir() else "no such file or folder"
        raise InputError(run, "", found, "the folder of a training run")
    if source.suffix == ".zip":
        return _load_model(source)
    arrays, manifest = read_policy_file(source)
    network = PlacementNetwork(arrays["in_bias"].size)
    load_arrays(network, arrays, str(source))
    return network, manifest


def _load_model(model: Path) -> tuple[PlacementNetwork, dict[str, Any]]:
    try:
        policy = MaskablePPO.load(model, device="cpu").policy
    except Exception as error:  # whatever unpickling a foreign file leads to
        found = f"a file that cannot be read ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
        raise InputError(model, "", found, "model.zip of a training run") from None
    network = getattr(policy, "network", None)
    if not isinstance(network, PlacementNetwork):
        raise InputError(model, "", f"a model with the policy {type(policy).__name__}", "model.zip of a training run")
    config = model.parent / "config.yaml"
    return network, {"config": yaml.safe_load(config.read_text("utf-8"))} if config.is_file() else {}
