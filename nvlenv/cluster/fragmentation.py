"""Fragmentation: how much of the free capacity no sliced job can use.

The functions serve a simulator state and a live cluster alike. Their arguments:

free_nodes_per_rack   (R,) integers >= 0: wholly free, usable nodes of each rack (one rack = one NVLink domain)
slice_nodes           positive integer: nodes of a slice, which never spans racks; a slot is room for one slice

Negative, fractional or mismatched input raises `InputError`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from nvlenv.common.errors import InputError


def free_slots(free_nodes_per_rack: npt.ArrayLike, slice_nodes: int) -> int:
    """How many slices of this size could start right now, each inside one rack: sum of floor(free / slice).

    >>> free_slots([18, 17, 15, 8], 16), free_slots([18, 17, 15, 8], 8)
    (2, 6)
    """
    return int((_nodes(free_nodes_per_rack) // _size(slice_nodes)).sum())


def free_slot_table(free_nodes_per_rack: npt.ArrayLike, sizes: Iterable[int]) -> dict[int, int]:
    """How many slices of each size could start right now: slice nodes -> free slots, each size on its own."""
    return {size: free_slots(free_nodes_per_rack, size) for size in sizes}


def largest_slice(free_nodes_per_rack: npt.ArrayLike) -> int:
    """The largest job, in nodes, that could start right now with all its traffic on NVLink."""
    return int(_nodes(free_nodes_per_rack).max(initial=0))


def fragmentation_index(free_nodes_per_rack: npt.ArrayLike, slice_nodes: int) -> float:
    """The share of slices that the free nodes would hold, were they all side by side, but that the racks do not.

    1 - slots / floor(sum(free) / slice), in [0, 1]: 0 nothing lost, 1 no slice fits although the nodes are there.
    0 also when the aggregate is too small for one slice: the cluster is then full, not fragmented.
    """
    slots = free_slots(free_nodes_per_rack, slice_nodes)
    side_by_side = int(np.sum(free_nodes_per_rack)) // slice_nodes
    return 1.0 - slots / side_by_side if side_by_side else 0.0


def _nodes(free_nodes_per_rack: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """The argument as an array, once it is what it should be."""
    array = np.asarray(free_nodes_per_rack)
    if array.ndim != 1:
        raise _error("free_nodes_per_rack", f"{array.ndim} dimensions", "one")
    if array.size and array.dtype.kind not in "iu":
        raise _error("free_nodes_per_rack", f"values of {array.dtype}", "integers")
    if np.any(array < 0):
        index = int(np.argmax(array < 0))
        raise _error(f"free_nodes_per_rack[{index}]", array[index], "at least 0")
    return array.astype(np.int64)


def _size(slice_nodes: int) -> int:
    try:
        number = operator.index(slice_nodes)
    except TypeError:
        raise _error("slice_nodes", repr(slice_nodes), "an integer") from None
    if number < 1:
        raise _error("slice_nodes", number, "an integer of at least 1")
    return number


def _error(field: str, found: object, expected: str) -> InputError:
    return InputError("fragmentation", field, found, expected)
