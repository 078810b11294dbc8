"""A network out of training and back: policy file, ONNX model, the state of a run.

The ONNX model takes racks (B, R, F), job (B, J), cluster (B, C), all float32, and mask (B, 2R + 2) bool, with B and R
free; it gives logits (B, 2R + 2) float64 on the engine's grid, -inf where illegal, so that their argmax is the action.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
import yaml
from sb3_contrib import MaskablePPO
from torch import Tensor, nn

from agents.learning.network import PlacementNetwork, load_arrays, network_arrays
from nvlenv.common.errors import InputError
from nvlenv.common.files import written_whole
from nvlenv.policies.inference import LOGIT_GRID
from nvlenv.policies.learned import read_policy_file, save_policy
from nvlenv.policies.observation import N_CLUSTER, N_JOB, N_RACK

LICENCE = "Apache-2.0"
OPSET = 17  # of ONNX; read by onnxruntime >= 1.13


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
    with written_whole(path) as part, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about its own deprecation
        torch.onnx.export(
            _Actor(network),
            example,
            str(part),
            input_names=["racks", "job", "cluster", "mask"],
            output_names=["logits"],
            dynamic_axes=axes,
            opset_version=OPSET,
            dynamo=False,
        )


def load_network(run: Path) -> tuple[PlacementNetwork, dict[str, Any]]:
    """The network of a run's best policy (a folder or policy file) or of its state (model.zip), and its manifest.

    Raises `InputError` if there is none.
    """
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
