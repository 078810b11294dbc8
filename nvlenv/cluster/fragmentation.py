"""Fragmentation: how much of the free capacity no job can use, as pure functions of plain arrays.

They serve a simulator state and a snapshot of a live cluster alike (`nvlenv.engine.core.fragmentation`). Common arguments:

free_nodes_per_rack   (R,) integers: wholly free, usable nodes of each rack (one rack = one NVLink domain)
free_gpus_per_node    (N,) integers: free GPUs of each node
node_rack             (N,) integers >= 0: the rack each node stands in
slice_nodes           positive integer: nodes of a slice, which never spans racks; a slot is room for one slice

Negative, fractional or mismatched input raises `InputError`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nvlenv.common.errors import InputError

MixEntry = tuple[int, int, float]
"""One kind of job in a mix: its pods, GPUs per pod, and the probability that the next job is of this kind."""


# --- Slots: whole free nodes, rack by rack ----------------------------------------------------------------------------


def free_slots(free_nodes_per_rack: npt.ArrayLike, slice_nodes: int) -> int:
    """How many slices of this size could start right now, each inside one rack: sum of floor(free / slice).

    >>> free_slots([18, 17, 15, 8], 16), free_slots([18, 17, 15, 8], 8)
    (2, 6)
    """
    free = _counts("free_nodes_per_rack", free_nodes_per_rack)
    return int((free // _positive("slice_nodes", slice_nodes)).sum())


def free_slot_table(free_nodes_per_rack: npt.ArrayLike, sizes: Iterable[int] = (1, 2, 4, 8, 16, 18)) -> dict[int, int]:
    """How many slices of each size could start right now: slice nodes -> free slots, each size on its own."""
    return {size: free_slots(free_nodes_per_rack, size) for size in sizes}


def whole_racks_free(free_nodes_per_rack: npt.ArrayLike, nodes_per_rack: npt.ArrayLike) -> int:
    """How many racks are completely empty, ready for a hero's slice or for maintenance.

    nodes_per_rack: usable nodes, one number for all racks or (R,); a rack without usable nodes is not a free rack.
    """
    free = _counts("free_nodes_per_rack", free_nodes_per_rack)
    nodes = _counts("nodes_per_rack", np.atleast_1d(nodes_per_rack))
    if nodes.size not in (1, free.size):
        raise _error("nodes_per_rack", f"{nodes.size} racks", f"one number or one per rack ({free.size})")
    if np.any(free > nodes):
        rack = int(np.argmax(free > nodes))
        raise _error(f"free_nodes_per_rack[{rack}]", free[rack], "at most the nodes of the rack")
    return int(np.count_nonzero((free == nodes) & (nodes > 0)))


def largest_slice(free_nodes_per_rack: npt.ArrayLike) -> int:
    """The largest job, in nodes, that could start right now with all its traffic on NVLink."""
    return int(_counts("free_nodes_per_rack", free_nodes_per_rack).max(initial=0))


def largest_sliced_job(free_nodes_per_rack: npt.ArrayLike, slice_nodes: int) -> int:
    """The largest job, in nodes, that could start right now if it comes in slices of this size, over any racks."""
    return free_slots(free_nodes_per_rack, slice_nodes) * slice_nodes


def fragmentation_index(free_nodes_per_rack: npt.ArrayLike, slice_nodes: int) -> float:
    """The share of slices that the free nodes would hold, were they all side by side, but that the racks do not.

    1 - slots / floor(sum(free) / slice), in [0, 1]: 0 nothing lost, 1 no slice fits although the nodes are there.
    0 also when the aggregate is too small for one slice: the cluster is then full, not fragmented.
    """
    slots = free_slots(free_nodes_per_rack, slice_nodes)
    side_by_side = int(np.sum(free_nodes_per_rack)) // slice_nodes
    return 1.0 - slots / side_by_side if side_by_side else 0.0


def fragmentation_stall(
    total_free_gpus: int,
    free_nodes_per_rack: npt.ArrayLike,
    demand_slices: int,
    slice_nodes: int,
    node_gpus: int,
) -> bool:
    """Whether a job waits for shape alone: enough GPUs are free in total, but too few of its slices fit inside racks.

    total_free_gpus: all free GPUs, part-used nodes included; node_gpus: GPUs of a node; the job is demand_slices
    slices of slice_nodes whole nodes.
    """
    slices = _positive("demand_slices", demand_slices)
    slots = free_slots(free_nodes_per_rack, slice_nodes)
    demand_gpus = slices * slice_nodes * _positive("node_gpus", node_gpus)
    return _whole("total_free_gpus", total_free_gpus) >= demand_gpus and slots < slices


def expected_start(
    rack_release_hours: Sequence[npt.ArrayLike] | npt.NDArray[np.float64], slice_nodes: int, slices: int
) -> float:
    """The earliest hour at which this many slices fit, if running jobs end when expected and nothing else starts.

    rack_release_hours: per rack, the hour each of its nodes is released, in any order: 0 free now, inf never. A list
    of racks of any lengths, or a matrix (R, nodes) padded with inf. Returns inf if the slices never fit.

    A rack has its j-th slot when j * slice_nodes of its nodes are released; the answer is the slices-th smallest of
    these times over all racks.
    """
    size, wanted = _positive("slice_nodes", slice_nodes), _positive("slices", slices)
    racks = [_hours(f"rack_release_hours[{rack}]", hours) for rack, hours in enumerate(rack_release_hours)]
    release = np.full((len(racks), max(map(len, racks), default=0)), np.inf)
    for row, hours in zip(release, racks, strict=True):
        row[: len(hours)] = hours
    slot_hours = np.sort(release, axis=1)[:, size - 1 :: size].ravel()
    if slot_hours.size < wanted:
        return float("inf")
    return float(np.partition(slot_hours, wanted - 1)[wanted - 1])


# --- Free GPUs that a job cannot use ----------------------------------------------------------------------------------


def stranded_gpus(free_gpus_per_node: npt.ArrayLike, node_rack: npt.ArrayLike, pod_gpus: int, pods: int) -> int:
    """Free GPUs that are of no use to a job of this shape when it must stay inside one rack.

    pods: pods of the job; pod_gpus: GPUs of each, all on one node. A rack where the pods do not all fit strands all
    its free GPUs; one where they fit strands those in nodes with fewer than pod_gpus free.
    """
    free, rack = _nodes(free_gpus_per_node, node_rack)
    return _stranded(free, rack, _positive("pod_gpus", pod_gpus), _positive("pods", pods))


def rack_fgd(free_gpus_per_node: npt.ArrayLike, node_rack: npt.ArrayLike, mix: Sequence[MixEntry]) -> float:
    """Free GPUs that the next job, drawn from the usual mix and confined to a rack, is expected not to be able to use.

    mix: (pods, gpus_per_pod, probability) of each kind of job. The probabilities total at most 1; the rest of the mix,
    if any, is jobs that strand nothing.

    Source: the fragmentation measure of Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with
    Fragmentation Gradient Descent", USENIX ATC '23, taken from the node to the rack: see `stranded_gpus`.
    """
    free, rack = _nodes(free_gpus_per_node, node_rack)
    expected = total = 0.0
    for index, (pods, pod_gpus, probability) in enumerate(mix):
        if not 0.0 <= probability <= 1.0:
            raise _error(f"mix[{index}] probability", probability, "a probability in [0, 1]")
        shape = _positive(f"mix[{index}] gpus_per_pod", pod_gpus), _positive(f"mix[{index}] pods", pods)
        expected += probability * _stranded(free, rack, *shape)
        total += probability
    if total > 1.0 + 1e-9:
        raise _error("mix", f"probabilities that total {total:g}", "a total of at most 1")
    return expected


def unreachable_gpus(free_gpus_per_node: npt.ArrayLike, blocked: npt.ArrayLike) -> int:
    """GPUs that look idle but no pod can reach: their node is out of cpu, memory or pods, cordoned, or failed.

    blocked: (N,) booleans.
    """
    free, barred = _counts("free_gpus_per_node", free_gpus_per_node), np.asarray(blocked)
    if barred.size == 0:
        barred = barred.astype(bool)
    if barred.dtype != np.bool_:
        raise _error("blocked", f"values of {barred.dtype}", "booleans")
    _same_nodes("blocked", barred, free)
    return int(free[barred].sum())


# --- All of them at once ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fragmentation:
    """What fragmentation costs a cluster at one moment; slices are of `slice_nodes` nodes, except in the table."""

    free_gpus: int  # without a pod, on nodes that take pods
    unreachable_gpus: int  # without a pod, but no pod can get them: `unreachable_gpus`
    free_slots: dict[int, int]  # slices of each size that could start right now: `free_slot_table`
    whole_racks: int  # ready for a hero's slice or for maintenance: `whole_racks_free`
    largest_slice: int  # nodes; largest job with all its traffic on NVLink: `largest_slice`
    largest_job: int  # nodes; largest job that comes in slices: `largest_sliced_job`
    index: float  # share of the slices that the free nodes would hold side by side, but the racks do not
    hero_stalled: bool  # a hero of `hero_slices` slices would wait for shape alone: `fragmentation_stall`
    hero_start: float  # h from now until that hero could start, by the estimates of what runs: `expected_start`


def fragmentation(
    free_gpus_per_node: npt.ArrayLike,
    node_gpus: npt.ArrayLike,
    node_rack: npt.ArrayLike,
    blocked: npt.ArrayLike,
    release_hours: npt.ArrayLike | None = None,
    slice_nodes: int = 16,
    hero_slices: int = 8,
) -> Fragmentation:
    """Every metric of a cluster at one moment.

    node_gpus: (N,) GPUs of each node; only nodes with as many as the largest hold whole-node pods. blocked: (N,) True:
    takes no pods. release_hours: (N,) h from now until each node is wholly free, 0 if it is, inf if never; None: only
    what is free now will ever be.
    """
    free, rack = _nodes(free_gpus_per_node, node_rack)
    gpus, barred = _counts("node_gpus", node_gpus), np.asarray(blocked, np.bool_)
    _same_nodes("node_gpus", gpus, free)
    _same_nodes("blocked", barred, free)
    most = int(gpus.max(initial=1))
    racks = int(rack.max(initial=-1)) + 1
    usable = ~barred & (gpus == most)
    whole = np.bincount(rack[usable & (free == most)], minlength=racks)
    hours = np.where(free == gpus, 0.0, np.inf) if release_hours is None else _hours("release_hours", release_hours)
    _same_nodes("release_hours", hours, free)
    hours = np.where(usable, hours, np.inf)
    open_gpus = int(free[~barred].sum())
    return Fragmentation(
        free_gpus=open_gpus,
        unreachable_gpus=unreachable_gpus(free, barred),
        free_slots=free_slot_table(whole),
        whole_racks=whole_racks_free(whole, np.bincount(rack[usable], minlength=racks)),
        largest_slice=largest_slice(whole),
        largest_job=largest_sliced_job(whole, slice_nodes),
        index=fragmentation_index(whole, slice_nodes),
        hero_stalled=fragmentation_stall(open_gpus, whole, hero_slices, slice_nodes, most),
        hero_start=expected_start([hours[rack == r] for r in range(racks)], slice_nodes, hero_slices),
    )


def _stranded(free: npt.NDArray[np.int64], rack: npt.NDArray[np.int64], pod_gpus: int, pods: int) -> int:
    room = np.zeros(rack.max(initial=-1) + 1, dtype=np.int64)
    np.add.at(room, rack, free // pod_gpus)
    usable = (room[rack] >= pods) & (free >= pod_gpus)
    return int(free[~usable].sum())


# --- Validation -------------------------------------------------------------------------------------------------------


def _error(field: str, found: object, expected: str) -> InputError:
    return InputError("fragmentation", field, found, expected)


def _counts(field: str, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
    array = np.asarray(values)
    if array.ndim != 1:
        raise _error(field, f"{array.ndim} dimensions", "one")
    if array.size and array.dtype.kind not in "iu":
        raise _error(field, f"values of {array.dtype}", "integers")
    if np.any(array < 0):
        index = int(np.argmax(array < 0))
        raise _error(f"{field}[{index}]", array[index], "at least 0")
    return array.astype(np.int64)


def _nodes(
    free_gpus_per_node: npt.ArrayLike, node_rack: npt.ArrayLike
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    free, rack = _counts("free_gpus_per_node", free_gpus_per_node), _counts("node_rack", node_rack)
    _same_nodes("node_rack", rack, free)
    return free, rack


def _same_nodes(field: str, values: npt.NDArray[np.generic], free: npt.NDArray[np.int64]) -> None:
    if values.shape != free.shape:
        raise _error(field, f"shape {values.shape}", f"one value per node, shape {free.shape}")


def _hours(field: str, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    hours = np.asarray(values, dtype=np.float64)
    if hours.ndim != 1:
        raise _error(field, f"{hours.ndim} dimensions", "one list of hours per rack")
    if not np.all(hours >= 0.0):
        raise _error(field, hours[~(hours >= 0.0)][0], "hours from now, at least 0")
    return hours


def _whole(field: str, value: int, least: int = 0) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise _error(field, repr(value), "an integer") from None
    if number < least:
        raise _error(field, number, f"an integer of at least {least}")
    return number


def _positive(field: str, value: int) -> int:
    return _whole(field, value, least=1)
