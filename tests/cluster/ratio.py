"""The cost of a placement as its owner would say it: GPUs per rack, the name of a model, bandwidths."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from nvlenv.cluster.collectives import MODELS, ratio_kernel


def communication_ratio(
    gpus_per_rack: Iterable[int], model: str = "recursive-doubling", nvlink: float = 900.0, network: float = 50.0
) -> float:
    """Communication time relative to the same GPUs inside one rack; the order of the racks does not matter."""
    counts = np.array(sorted(gpus_per_rack, reverse=True), np.int64)
    return float(ratio_kernel(MODELS[model], counts, len(counts), nvlink / network))
