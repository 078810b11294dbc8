"""The learned policy as arithmetic: the same decision on every machine.

float64 throughout, ReLU as the only non-linearity, sums in a fixed order (inputs outside, outputs inside, so that it
vectorises over outputs without reordering any sum), no BLAS, no fast math. Logits are rounded to a grid before the
argmax, and ties go to the lowest action: racks that look the same are taken in the cluster's rack order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nvlenv.common.kernel import kernel
from nvlenv.policies.observation import N_CLUSTER, N_JOB, N_RACK, RACK

LOGIT_GRID = 2.0**20
Array = NDArray[np.float64]


class Weights(NamedTuple):
    """The arrays of the network of `agents.learning`, inputs first. H: hidden width; global: job and cluster."""

    rack_in: Array  # (F, H)
    global_in: Array  # (J + C, H)
    in_bias: Array  # (H,)
    mid: Array  # (H, H)
    pool: Array  # (2 H, H): mean and maximum over racks
    mid_bias: Array  # (H,)
    rack_head: Array  # (H, 2): place, open
    rack_bias: Array  # (2,)
    global_head: Array  # (3 H, 2): fill, hold from pooled racks and global features
    global_bias: Array  # (2,)
    prior_rack: Array  # (F, 2): the heuristic prior, straight from the features
    prior_rack_bias: Array  # (2,)
    prior_global: Array  # (J + C, 2)
    prior_global_bias: Array  # (2,)


class Work(NamedTuple):
    """Work space of one inference."""

    racks: NDArray[np.float32]  # (R, F)
    job: NDArray[np.float32]  # (J,)
    cluster: NDArray[np.float32]  # (C,)
    first: Array  # (R, H)
    second: Array  # (R, H)
    shared: Array  # (H,): what all racks have in common
    pooled: Array  # (3 H,)
    logits: Array  # (2 R + 2,)


def shapes(hidden: int) -> dict[str, tuple[int, ...]]:
    """The shape of every array of a network of this width."""
    h, f, g = hidden, N_RACK, N_JOB + N_CLUSTER
    return {
        "rack_in": (f, h), "global_in": (g, h), "in_bias": (h,), "mid": (h, h), "pool": (2 * h, h), "mid_bias": (h,),
        "rack_head": (h, 2), "rack_bias": (2,), "global_head": (3 * h, 2), "global_bias": (2,),
        "prior_rack": (f, 2), "prior_rack_bias": (2,), "prior_global": (g, 2), "prior_global_bias": (2,),
    }  # fmt: skip


def work_space(racks: int, hidden: int) -> Work:
    """Zeroed work space for a cluster of so many racks and a network of this width."""
    observed = ((racks, N_RACK), N_JOB, N_CLUSTER)
    layers = ((racks, hidden), (racks, hidden), hidden, 3 * hidden, 2 * racks + 2)
    arrays: Any = (*(np.zeros(shape, np.float32) for shape in observed), *(np.zeros(shape) for shape in layers))
    return Work(*arrays)


@kernel
def _add_product(out, x, matrix, first):
    """out += x @ matrix[first:], input by input; four go together to spare memory traffic, not to reorder the sum."""
    grouped = len(x) - len(x) % 4
    for i in range(0, grouped, 4):
        a, b, c, d, m = x[i], x[i + 1], x[i + 2], x[i + 3], first + i
        for o in range(len(out)):
            total = out[o] + a * matrix[m, o]
            total = total + b * matrix[m + 1, o]
            total = total + c * matrix[m + 2, o]
            out[o] = total + d * matrix[m + 3, o]
    for i in range(grouped, len(x)):
        for o in range(len(out)):
            out[o] += x[i] * matrix[first + i, o]


@kernel
def _pool(rows, racks, pooled):
    """Mean and maximum over the racks that exist."""
    h, count = rows.shape[1], 0
    for o in range(2 * h):
        pooled[o] = 0.0
    for r in range(len(rows)):
        if racks[r, RACK.exists] > 0.0:
            count += 1
            for o in range(h):
                pooled[o] += rows[r, o]
                pooled[h + o] = max(pooled[h + o], rows[r, o])
    for o in range(h):
        pooled[o] /= max(count, 1)


@kernel
def _relu(x):
    for o in range(len(x)):
        x[o] = max(0.0, x[o])


@kernel
def copy(out, x):
    """Overwrite out with x, entry by entry."""
    for o in range(len(x)):
        out[o] = x[o]


@kernel
def compute_logits(w, work):
    """Fill work.logits from work.racks, work.job and work.cluster."""
    n, h = len(work.racks), len(w.in_bias)
    copy(work.shared, w.in_bias)
    _add_product(work.shared, work.job, w.global_in, 0)
    _add_product(work.shared, work.cluster, w.global_in, len(work.job))
    for r in range(n):
        copy(work.first[r], work.shared)
        _add_product(work.first[r], work.racks[r], w.rack_in, 0)
        _relu(work.first[r])
    _pool(work.first, work.racks, work.pooled)
    _relu(work.shared)
    for o in range(h):  # the shared part is kept for the global head; its place is taken by what enters every rack
        work.pooled[2 * h + o] = work.shared[o]
        work.shared[o] = w.mid_bias[o]
    _add_product(work.shared, work.pooled[: 2 * h], w.pool, 0)
    for r in range(n):
        copy(work.second[r], work.shared)
        _add_product(work.second[r], work.first[r], w.mid, 0)
        _relu(work.second[r])
    _pool(work.second, work.racks, work.pooled)
    _rack_logits(w, work)
    out = work.logits[2 * n :]
    for k in range(2):
        out[k] = w.global_bias[k] + w.prior_global_bias[k]
    _add_product(out, work.pooled, w.global_head, 0)
    _add_product(out, work.job, w.prior_global, 0)
    _add_product(out, work.cluster, w.prior_global, len(work.job))


@kernel
def _rack_logits(w, work):
    n = len(work.racks)
    for r in range(n):
        place = w.rack_bias[0] + w.prior_rack_bias[0]
        opened = w.rack_bias[1] + w.prior_rack_bias[1]
        for i in range(work.second.shape[1]):
            place += work.second[r, i] * w.rack_head[i, 0]
            opened += work.second[r, i] * w.rack_head[i, 1]
        for i in range(work.racks.shape[1]):
            place += work.racks[r, i] * w.prior_rack[i, 0]
            opened += work.racks[r, i] * w.prior_rack[i, 1]
        work.logits[r], work.logits[n + r] = place, opened


@kernel
def best_action(logits, mask):
    """The legal action with the largest logit on the grid, the lowest one on ties."""
    best, best_value = len(mask) - 1, -np.inf
    for a in range(len(mask)):
        if mask[a]:
            value = np.floor(logits[a] * LOGIT_GRID + 0.5)
            if value > best_value:
                best, best_value = a, value
    return best


@kernel
def infer(w, work, mask):
    """The action for the observation in work.racks, work.job and work.cluster; its logits are left in work.logits."""
    compute_logits(w, work)
    return best_action(work.logits, mask)
