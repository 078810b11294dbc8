"""Why not: a refusal in one sentence, and rack by rack."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nvlenv.engine.answers import Cause
from nvlenv.engine.live import Live
from nvlenv.engine.live_kernels import count_states
from nvlenv.engine.reserves import SCARCE, Reserves
from nvlenv.engine.shapes import Part
from nvlenv.types import IntArray, Mode

TAKEN = 0  # state of a node in `count_states`


def room(live: Live, part: Part, limits: IntArray | None) -> NDArray[np.int64]:
    """(M,) units of a part that fit each node now."""
    nodes = live.sim.nodes
    units = np.where(nodes["blocked"] == 0, nodes["free"] // part.row.pod_gpus, 0).astype(np.int64)
    return units if limits is None else np.minimum(units, limits)


def by_size(live: Live, reserves: Reserves, part: Part) -> str:
    """Why a part could not have its nodes if the whole cluster were empty and up; empty if it could.

    Nobody may wait for what never comes: racks would be kept for it for ever.
    """
    spec, row, most = live.spec, part.row, reserves.most(part)
    together = (row.slice_gpus or row.gpus) // row.pod_gpus if row.mode == Mode.REQUIRED else 1
    domains = live.sim.ancestors[: spec.racks, row.height][spec.node_rack]
    slices = int((np.bincount(domains - domains.min(), most) // together).sum())
    if slices * together >= part.units:
        return ""
    what = _units(part, live.node_size)
    found = f"{int(most.sum())} {what} that it could ever use"
    return found if together == 1 else f"{found}, {slices} times {together} {what} in one {_level(live, part)}"


def by_shape(
    live: Live, reserves: Reserves, part: Part, row: int, limits: IntArray | None, declined: bool
) -> tuple[Cause, str, dict[str, str]]:
    """Cause, sentence and reasons by rack for a part that does not fit. `declined`: it could by evictions."""
    spec, fits = live.spec, room(live, part, limits)
    in_rack = np.bincount(spec.node_rack, fits, minlength=spec.racks).astype(np.int64)
    against = _against(live, reserves, part, row, limits)
    asked, free = part.units, int(fits.sum())
    what = _units(part, live.node_size)
    if free < asked:
        said = f"it asks for {asked} {what}, {free} are free for it"
        cause = Cause.CAPACITY
    else:
        said = f"{free} {what} are free for it, but {_promise(live, part)}; the best {_best(live, part, in_rack)}"
        cause = Cause.SHAPE
    racks = _by_rack(spec.rack_names, f"of {_in_one_rack(part)} {what} free", in_rack, against)
    return cause, said + (", and the policy evicts nobody for it" if declined else ""), racks


def _against(
    live: Live, reserves: Reserves, part: Part, row: int, limits: IntArray | None
) -> dict[str, NDArray[np.int64]]:
    """Nodes of each rack (R,) that are of no use, by what speaks against them."""
    nodes = live.sim.nodes
    found = {"failed or cordoned": _per_rack(live, nodes["blocked"] > 0)}
    if part.row.pod_gpus == live.node_size:
        counts = np.zeros((live.spec.racks, 4), np.int64)
        count_states(live.sim, row, counts)
        taken = counts[:, TAKEN] - found["failed or cordoned"]
        found = {"held by work that may not be evicted": taken, **found}
    if limits is not None:
        idle = (nodes["blocked"] == 0) & (nodes["free"] // part.row.pod_gpus > limits)
        scarce = reserves.scarcest(part)
        for number, name in enumerate(SCARCE):
            found[f"idle, but without {name} for it"] = _per_rack(live, idle & (scarce == number))
    return found


def _per_rack(live: Live, nodes: NDArray[np.bool_]) -> NDArray[np.int64]:
    return np.bincount(live.spec.node_rack, nodes, minlength=live.spec.racks).astype(np.int64)


def _by_rack(
    names: tuple[str, ...], asked: str, in_rack: NDArray[np.int64], against: dict[str, NDArray[np.int64]]
) -> dict[str, str]:
    said: dict[tuple[int, ...], str] = {}  # there are many racks, and few ways to be full
    columns = np.stack([in_rack, *against.values()], axis=1).tolist()
    for counts in map(tuple, columns):
        if counts not in said:
            also = [f"{count} {text}" for count, text in zip(counts[1:], against, strict=True) if count]
            said[counts] = "; ".join([f"{counts[0]} {asked}", *also])
    return {name: said[tuple(counts)] for name, counts in zip(names, columns, strict=True)}


def _units(part: Part, size: int) -> str:
    return "nodes" if part.row.pod_gpus == size else f"pods of {part.row.pod_gpus} GPUs"


def _in_one_rack(part: Part) -> int:
    """Units that want to be in one rack together."""
    row = part.row
    return (row.slice_gpus or row.gpus) // row.pod_gpus if row.mode == Mode.REQUIRED and row.height == 0 else 1


def _promise(live: Live, part: Part) -> str:
    row, level = part.row, _level(live, part)
    together = (row.slice_gpus or row.gpus) // row.pod_gpus
    slices = part.units // together
    within = f", all in one {part.within}" if part.within and part.strict else ""
    if slices > 1:
        return f"it wants {slices} slices of {together} in one {level} each{within}"
    return f"it wants all {together} in one {level}{within}"


def _best(live: Live, part: Part, in_rack: NDArray[np.int64]) -> str:
    """What the best domains of its level have."""
    height = part.row.height
    domains = live.sim.ancestors[: live.spec.racks, height]
    sums = np.bincount(domains - domains.min(), in_rack)
    together = (part.row.slice_gpus or part.row.gpus) // part.row.pod_gpus
    if part.units > together:
        return f"racks together hold {int((sums // together).sum())} slices"
    return f"{_level(live, part)} has {int(sums.max())}"


def _level(live: Live, part: Part) -> str:
    place = len(live.spec.levels) - 2 - part.row.height
    return live.spec.levels[place] if place >= 0 else "cluster"


def by_quota(live: Live, queue: int, gpus: int) -> str:
    """Why quota refuses so many GPUs to a queue."""
    spec, state = live.queues[queue], live.sim.queues[queue]
    cohort = live.sim.cohorts[state["cohort"]]
    said = f"queue {spec.name} uses {int(state['used'])} of {spec.nominal} GPUs"
    if int(state["used"]) + gpus > int(state["limit"]):
        return f"{said} and may borrow {spec.borrowing_limit}; the job asks for {gpus} more"
    if spec.cohort:
        said += f", its cohort {spec.cohort} {int(cohort['used'])} of {int(cohort['nominal'])}"
    return f"{said}; the job asks for {gpus} more"
