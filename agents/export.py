"""Export a trained policy to a file that needs no torch.

    python -m agents.export checkpoints/RUN --out policy.npz [--onnx policy.onnx] [--results EVALUATION]

A model card, card.md, is written beside the file, with the numbers of the evaluation (default: the run's own).

RUN is the folder of a training run (its best policy is exported), or a model.zip or policy file. A model.zip is
unpickled: open none that you do not trust. The .npz goes to `nvlenv.engine.load_policy`. The ONNX model takes racks
(B, R, F), job (B, J), cluster (B, C), all float32, and mask (B, 2R + 2) bool, with B and R free; it gives logits
(B, 2R + 2) float64 on the engine's grid, -inf where illegal, so that their argmax is the action.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from agents.evaluation.release import read_results, write_card
from agents.learning.network import export_onnx, export_policy, load_network
from nvlenv.common.commandline import command, option, parse
from nvlenv.common.errors import InputError


@dataclass(frozen=True)
class ExportOptions:
    __doc__ = __doc__

    run: Path = option("folder of a training run, model.zip or .npz", positional=True)
    out: Path = option("policy file to write (.npz)", metavar="FILE")
    results: Path | None = option("evaluation for the card (default: the run's)", default=None, metavar="FOLDER")
    onnx: Path | None = option("ONNX model to write as well", default=None, metavar="FILE")


@command
def main(argv: list[str]) -> None:
    """Write the policy file, its card and the ONNX model, and print their names."""
    options = parse(ExportOptions, argv, "python -m agents.export")
    for name, path, ending in (("--out", options.out, ".npz"), ("--onnx", options.onnx, ".onnx")):
        if path is not None and path.suffix != ending:
            raise InputError(name, "", repr(str(path)), f"a name that ends in {ending}")
    network, manifest = load_network(options.run)
    folder = options.run if options.run.is_dir() else options.run.parent
    source = options.results or (folder if (folder / "metrics.json").is_file() else None)
    results = None if source is None else read_results(source)
    export_policy(network, options.out, manifest)
    print(options.out)
    print(write_card(options.out, results))
    if options.onnx is not None:
        export_onnx(network, options.onnx)
        print(options.onnx)


if __name__ == "__main__":
    sys.exit(main())
