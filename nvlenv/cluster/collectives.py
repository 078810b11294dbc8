"""The cliff: how much longer a job communicates because its ranks do not share one NVLink domain.

A placement is the number of GPUs (ranks) a job holds in each rack; ranks are numbered rack by rack, the larger share
first. Every model gives one number, the communication time relative to the same ranks inside one rack, between 1
(all NVLink) and ``cliff`` = NVLink over network bandwidth (everything at network speed).

=====================  =====================================================================================
recursive-doubling     round r pairs each rank with ``rank xor 2^r``; a round is as slow as its slowest pair
ring                   every step waits for the slowest link, so one crossing slows the whole ring
hierarchical           reduce-scatter inside racks, one share per rack across them, all-gather inside racks
=====================  =====================================================================================

The functions are compiled, check nothing and allocate nothing: the simulator calls them per event.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nvlenv.common.kernel import compiled, kernel

Counts = npt.NDArray[np.int64]
Real = float | npt.NDArray[np.float64]

RECURSIVE_DOUBLING, RING, HIERARCHICAL = 0, 1, 2

MODELS: dict[str, int] = {"recursive-doubling": RECURSIVE_DOUBLING, "ring": RING, "hierarchical": HIERARCHICAL}
"""Name of each collective model, as a scenario writes it -> the id the kernels take."""


@kernel
def ratio_kernel(model_id: int, counts_desc: Counts, k: int, cliff: float) -> float:
    """Communication time relative to one rack, float64 in [1, cliff].

    model_id: a value of `MODELS`; counts_desc: int64, the first k >= 1 entries are GPUs per rack, positive and
    descending; cliff: nvlink / network bandwidth, >= 1.
    """
    if k <= 1:
        return 1.0
    if model_id == RECURSIVE_DOUBLING:
        return _recursive_doubling(counts_desc, k, cliff)
    if model_id == RING:
        return cliff
    return _hierarchical(counts_desc, k, cliff)


@kernel
def ideal_ratio_kernel(
    model_id: int, gpus: int, slice_gpus: int, rack_gpus: int, cliff: float, scratch: Counts
) -> float:
    """Ratio of the shape a job of this size is judged by, float64 in [1, cliff].

    The job comes in chunks: its slice; without one the whole job if a rack holds it, else the largest power of two
    that a rack holds (as for a slice wider than a rack, which belongs to a coarser level). Each rack takes as many
    chunks as it holds, the last one what remains. 512 GPUs in slices of 64 are eight racks of 64.
    scratch: int64, overwritten with the shape, GPUs per rack; 2 * gpus // rack_gpus + 1 entries always suffice.
    """
    if 0 < slice_gpus <= rack_gpus:
        chunk = slice_gpus
    elif gpus <= rack_gpus:
        chunk = gpus
    else:
        chunk = 1
        while 2 * chunk <= rack_gpus:
            chunk *= 2
    share = rack_gpus // chunk * chunk
    racks = 0
    remaining = gpus
    while remaining > 0:
        scratch[racks] = min(share, remaining)
        remaining -= scratch[racks]
        racks += 1
    return ratio_kernel(model_id, scratch, racks, cliff)


@compiled
def speed_kernel(ratio: Real, ideal: Real, comm_fraction: Real) -> Real:
    """Progress per hour relative to the ideal shape, in (0, 1]: 1 / ((1 - c) + c ratio / ideal), at most 1.

    comm_fraction: share c of a step spent communicating at the ideal shape. Scalars, or arrays of one shape.
    """
    return np.minimum(1.0, 1.0 / ((1.0 - comm_fraction) + comm_fraction * ratio / ideal))


@kernel
def _recursive_doubling(counts_desc: Counts, k: int, cliff: float) -> float:
    """Time (I + cliff (R - I)) / R with R = ceil(log2 ranks) rounds, I of them inside racks.

    Round r exchanges inside aligned groups of 2^(r+1) ranks, so it stays on NVLink iff no rack boundary cuts such a
    group: I = the fewest trailing zero bits of any boundary (cumulative rank count), which is that of their OR.
    """
    boundaries, ranks = 0, 0
    for rack in range(k - 1):
        ranks += counts_desc[rack]
        boundaries |= ranks
    ranks += counts_desc[k - 1]
    rounds = 0
    while (1 << rounds) < ranks:
        rounds += 1
    internal = 0
    while internal < rounds and (boundaries >> internal) & 1 == 0:
        internal += 1
    # min: R cliffs over R may round to one bit above the cliff.
    return min(cliff, (internal + cliff * (rounds - internal)) / rounds)


@kernel
def _hierarchical(counts_desc: Counts, k: int, cliff: float) -> float:
    """Time ((G - 1)/G + cliff (k - 1)/(k m)) / ((n - 1)/n) over k racks: G largest, m smallest share, n ranks in all.

    The rounds of an all-reduce of one vector, each as slow as its busiest GPU; time unit: the vector over NVLink.
      1. Reduce-scatter inside racks, a ring: g - 1 rounds of 1/g vector; the largest rack ends last, (G - 1)/G.
      2. Exchange across racks, a ring of racks: 2(k - 1) rounds in which each rack sends one share, 1/k of the vector,
         spread over its GPUs' own links; the smallest rack has the fewest, 2 cliff (k - 1)/(k m).
      3. All-gather inside racks, as long as 1.
    One rack alone needs 2(n - 1)/n; the factor 2 cancels. Where shares are so uneven that the hierarchy is slower than
    a flat ring at network speed (ratio = cliff), the flat ring runs instead.
    """
    ranks = counts_desc[:k].sum()
    largest, smallest = counts_desc[0], counts_desc[k - 1]
    # One integer denominator, so that rounding never takes the ratio below 1.
    inside = k * smallest * (largest - 1)
    across = largest * (k - 1)
    ratio: float = ranks * (inside + cliff * across) / (k * smallest * largest * (ranks - 1))
    return min(cliff, ratio)
