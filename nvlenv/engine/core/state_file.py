"""The whole state of an engine as JSON data, exact to the GPU: what `PlacementEngine.state` writes.

Beside the cluster in the project's own JSON it has the rows of the simulator, in their order, and which GPUs each of
them holds, in the order in which it got them: an engine that goes on from it decides as the one that wrote it would.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from nvlenv.common.errors import InputError
from nvlenv.engine.core.book import Book, Held
from nvlenv.engine.core.live import ROW_FIELDS, Live, Row, join, seat_again
from nvlenv.engine.formats.load import parse_snapshot
from nvlenv.engine.model.answers import Binding
from nvlenv.engine.model.settings import Settings
from nvlenv.engine.model.snapshot import ClusterSnapshot
from nvlenv.simulator.state import RUNNING

FORMAT = "nvlenv-engine/1"
CLOCK_FIELDS = ("slow_rate", "stall_gpus")  # sums and marks that no row tells


@dataclass(frozen=True)
class Times:
    began: float  # s since 1970
    last: float
    turn: int


@dataclass(frozen=True)
class EngineState:
    """What was read, checked."""

    cluster: ClusterSnapshot
    settings: Settings
    began: float
    last: float
    turn: int
    rows: tuple[Mapping[str, Any], ...]
    placed: Mapping[str, Mapping[str, Any]]
    clock: Mapping[str, float]
    mix: tuple[tuple[float, ...], ...]


def write(cluster: ClusterSnapshot, settings: Settings, times: Times, live: Live, book: Book) -> dict[str, Any]:
    sim = live.sim
    names = sorted((row, job) for job, rows in live.rows.items() for row in rows)
    rows = []
    for row, job in names:
        fields = {name: _number(sim.jobs[name][row].item()) for name in ROW_FIELDS}
        runs = int(sim.jobs["status"][row]) == RUNNING
        rows.append({"job": job, "gpus": live.slots_of(row) if runs else None, "row": fields})
    placed = {
        job: {"speed": held.speed, "bindings": [asdict(binding) for binding in held.bindings]}
        for job, held in book.jobs.items()
        if held.ours
    }
    return {
        "format": FORMAT,
        "times": asdict(times),
        "settings": settings.to_dict(),
        "cluster": cluster.as_json(),
        "rows": rows,
        "placed": placed,
        "order": list(book.jobs),
        "clock": {name: _number(sim.clock[name][0].item()) for name in CLOCK_FIELDS},
        "mix": sim.mix.tolist(),
    }


def read(state: Any) -> EngineState:
    """The parts of a state. `InputError` for what `write` has not written."""
    found = state.get("format") if isinstance(state, dict) else type(state).__name__
    if found != FORMAT:
        raise InputError("engine state", "format", repr(found), repr(FORMAT))
    cluster = parse_snapshot(json.dumps(state["cluster"]), "engine state")
    order = {job: place for place, job in enumerate(state["order"])}
    return EngineState(
        cluster=replace(cluster, jobs=tuple(sorted(cluster.jobs, key=lambda job: order[job.id]))),
        settings=Settings.from_dict(state["settings"]),
        rows=tuple(state["rows"]),
        placed=state["placed"],
        clock={name: float(state["clock"][name]) for name in CLOCK_FIELDS},
        mix=tuple(tuple(row) for row in state["mix"]),
        **asdict(Times(**state["times"])),
    )


@contextmanager
def as_written() -> Iterator[None]:
    """What goes wrong in the block because a state is not as it was written becomes an `InputError`."""
    try:
        yield
    except InputError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError("engine state", "", f"{type(error).__name__}: {error}", "a state as it was written") from None


def restore(state: EngineState, live: Live, book: Book) -> None:
    """Fill an idle cluster with what the state says."""
    sim = live.sim
    for job in state.cluster.jobs:
        kept = state.placed.get(job.id, {"speed": 1.0, "bindings": ()})
        book.add(Held(job, tuple(Binding(**binding) for binding in kept["bindings"]), float(kept["speed"])))
    blank = Row(gpus=1, pod_gpus=1, priority=0, queue=0, estimate=0.0)
    for entry in state.rows:
        row = live.add(entry["job"], [blank])[0]
        sim = live.sim
        _set(sim.jobs, row, entry["row"])
    running = [(row, entry) for row, entry in enumerate(state.rows) if entry["gpus"] is not None]
    first = np.cumsum([0, *(len(entry["gpus"]) for _, entry in running)]).astype(np.int32)
    slots = np.array([slot for _, entry in running for slot in entry["gpus"]], np.int32)
    seat_again(sim, np.array([row for row, _ in running], np.int32), first, slots)
    for row, entry in enumerate(state.rows):
        if entry["gpus"] is None:
            join(sim, row)
        _set(sim.jobs, row, entry["row"])
    for name, value in state.clock.items():
        sim.clock[name] = value
    sim.mix[:] = state.mix


def _set(jobs: Any, row: int, fields: Mapping[str, Any]) -> None:
    for name in ROW_FIELDS:
        jobs[name][row] = float(fields[name])


def _number(value: float) -> float | str:
    """JSON knows no infinity; float() reads it as a text."""
    return value if np.isfinite(value) else str(value)
