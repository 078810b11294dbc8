"""Export a trained policy to a file that needs no torch.

    python -m agents.export checkpoints/RUN --out policy.npz [--onnx policy.onnx]

RUN is the folder of a training run, or a model.zip in one. The .npz goes to `nvlenv.engine.load_policy`; the ONNX model
takes racks (1, R, F), job (1, J) and cluster (1, C), with R free, and gives logits (1, 2R + 2).
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from agents.network import PlacementNetwork, load_arrays, network_arrays
from nvlenv.engine.policy_file import read_policy_file, save_policy
from nvlenv.errors import InputError
from nvlenv.files import written_whole
from nvlenv.observation import N_CLUSTER, N_JOB, N_RACK

LICENCE = "Apache-2.0"


def export_policy(network: PlacementNetwork, path: str | Path, manifest: dict[str, Any]) -> None:
    """Write the actor as a policy file, whole or not at all."""
    save_policy(path, network_arrays(network), {"licence": LICENCE, **manifest})


class _Actor(nn.Module):
    """The network without its value, in float64 as the policy file computes it."""

    def __init__(self, network: PlacementNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, racks: Tensor, job: Tensor, cluster: Tensor) -> Tensor:
        return self.network(racks.double(), job.double(), cluster.double())[0]


def export_onnx(network: PlacementNetwork, path: str | Path) -> None:
    """Write the actor as an ONNX model with a free number of racks. Needs the extra `onnx`."""
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise InputError("--onnx", "", "no package onnx", "pip install 'nvlenv[onnx]'") from None
    copy = PlacementNetwork(network.hidden)
    copy.load_state_dict(network.state_dict())
    inputs = (torch.ones(1, 8, N_RACK), torch.zeros(1, N_JOB), torch.zeros(1, N_CLUSTER))
    with written_whole(path) as part, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about its own deprecation
        torch.onnx.export(
            _Actor(copy.double()).eval(),
            inputs,
            str(part),
            input_names=["racks", "job", "cluster"],
            output_names=["logits"],
            dynamic_axes={"racks": {1: "racks"}, "logits": {1: "actions"}},
            opset_version=17,
            dynamo=False,
        )


def load_network(run: Path) -> tuple[PlacementNetwork, dict[str, Any]]:
    """The network of a run's best policy (a folder) or of its latest state (model.zip), and what is known of it."""
    if run.is_dir() and (run / "policy.npz").is_file():
        arrays, manifest = read_policy_file(run / "policy.npz")
        network = PlacementNetwork(arrays["in_bias"].size)
        load_arrays(network, arrays, str(run))
        return network, manifest
    model = run / "model.zip" if run.is_dir() else run
    if model.suffix != ".zip" or not model.is_file():
        raise InputError(run, "", "neither policy.npz nor model.zip", "the folder of a training run")
    from sb3_contrib import MaskablePPO

    try:
        loaded = MaskablePPO.load(model, device="cpu")
    except Exception as error:
        found = f"a file that cannot be read ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
        raise InputError(model, "", found, "model.zip of a training run") from None
    config = model.parent / "config.yaml"
    known = {"config": yaml.safe_load(config.read_text("utf-8"))} if config.is_file() else {}
    network = loaded.policy.network
    assert isinstance(network, PlacementNetwork)
    return network, known


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(prog="python -m agents.export", description=__doc__, allow_abbrev=False)
    out.formatter_class = argparse.RawDescriptionHelpFormatter
    out.add_argument("run", type=Path, metavar="RUN", help="folder of a training run, or its model.zip")
    out.add_argument("--out", type=Path, required=True, metavar="FILE", help="policy file to write (.npz)")
    out.add_argument("--onnx", type=Path, metavar="FILE", help="ONNX model to write as well")
    return out


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    try:
        if arguments.out.suffix != ".npz":
            raise InputError("--out", "", repr(str(arguments.out)), "a name that ends in .npz")
        network, manifest = load_network(arguments.run)
        export_policy(network, arguments.out, manifest)
        print(arguments.out)
        if arguments.onnx is not None:
            export_onnx(network, arguments.onnx)
            print(arguments.onnx)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
