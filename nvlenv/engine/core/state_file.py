"""The whole state of an engine as JSON data, exact to the GPU: what `PlacementEngine.state` writes.

Beside the cluster in the project's own JSON it has the rows of the simulator, in their order, and which GPUs each of
them holds, in the order in which it got them: an engine that goes on from it decides as the one that wrote it would.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np

from nvlenv.common.errors import InputError
from nvlenv.engine.core.book import Book
from nvlenv.engine.core.live import Live, Part
from nvlenv.engine.formats.load import parse_snapshot
from nvlenv.engine.model.answers import Binding
from nvlenv.engine.model.settings import Settings
from nvlenv.engine.model.snapshot import ClusterSnapshot
from nvlenv.simulator.events import run
from nvlenv.simulator.queues import enqueue
from nvlenv.simulator.state import RUNNING

STATE_FORMAT = "nvlenv-engine/1"
CLOCK_FIELDS = ("slow_rate", "stall_gpus")  # sums and marks that no row tells
RENAMED = {"noise": "estimate_error", "unit_pods": "slice_pods", "units": "slices"}  # key of a state -> field of JOB
ROW_KEYS = (  # what a row is, wherever it stands; fields of JOB, some of them by the names that they once had
    *("submit", "duration", "noise", "comm", "ideal", "checkpoint", "restart"),
    *("gpus", "pod_gpus", "unit_pods", "units", "priority", "queue", "klass", "mode", "height"),
    *("preemptible", "movable", "evictions", "work", "queued", "start", "predicted", "speed"),
    *("first_start", "waited", "lost"),
)


class Times(NamedTuple):
    """An engine's clock."""

    began: float  # s since 1970
    last: float  # s since 1970, of the last call
    turn: int  # number of the last decision


def state_of(cluster: ClusterSnapshot, settings: Settings, times: Times, live: Live, book: Book) -> dict[str, Any]:
    """The state of an engine."""
    sim = live.sim
    rows = []
    for row, job in sorted((row, job) for job, rows in live.rows.items() for row in rows):
        fields = {key: _number(sim.jobs[RENAMED.get(key, key)][row].item()) for key in ROW_KEYS}
        runs = int(sim.jobs["status"][row]) == RUNNING
        rows.append({"job": job, "gpus": live.slots_of(row) if runs else None, "row": fields})
    return {
        "format": STATE_FORMAT,
        "times": times._asdict(),
        "settings": settings.to_dict(),
        "cluster": cluster.as_json(),
        "rows": rows,
        "placed": {
            job.id: {"speed": job.speed, "bindings": [asdict(binding) for binding in job.bindings]}
            for job in book.jobs.values()
            if job.ours
        },
        "order": list(book.jobs),
        "clock": {name: _number(sim.clock[name][0].item()) for name in CLOCK_FIELDS},
        "mix": sim.mix.tolist(),
    }


@contextmanager
def as_written() -> Iterator[None]:
    """What goes wrong in the block because a state is not as it was written becomes an `InputError`."""
    try:
        yield
    except InputError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError("engine state", "", f"{type(error).__name__}: {error}", "a state as it was written") from None


def read_engine_state(state: Any) -> tuple[ClusterSnapshot, Settings, Times]:
    """What an engine begins with; its jobs are in the order in which they came. `InputError` for another format."""
    found = state.get("format") if isinstance(state, dict) else type(state).__name__
    if found != STATE_FORMAT:
        raise InputError("engine state", "format", repr(found), repr(STATE_FORMAT))
    cluster = parse_snapshot(json.dumps(state["cluster"]), "engine state")
    order = {job: place for place, job in enumerate(state["order"])}
    placed: dict[str, dict[str, Any]] = {  # by this engine
        job: {"bindings": tuple(Binding(**binding) for binding in kept["bindings"]), "speed": float(kept["speed"])}
        for job, kept in state["placed"].items()
    }
    in_order = sorted(cluster.jobs, key=lambda job: order[job.id])
    jobs = [replace(job, **placed.get(job.id, {})) for job in in_order]
    return replace(cluster, jobs=tuple(jobs)), Settings.from_dict(state["settings"]), Times(**state["times"])


def restore(state: Mapping[str, Any], cluster: ClusterSnapshot, live: Live, book: Book) -> None:
    """Fill the idle engine of a cluster that was read with the jobs that the state has."""
    for job in cluster.jobs:
        book.add(job)
    rows = state["rows"]
    blank = Part(gpus=1, gpus_per_pod=1, priority=0, queue=0, estimate=0.0)
    for entry in rows:
        _set(live, live.add(entry["job"], [blank])[0], entry["row"])
    sim = live.sim
    for row, entry in enumerate(rows):
        if entry["gpus"] is None:
            enqueue(sim, row)
        else:
            live.set_slots(row, entry["gpus"])
            run(sim, row)
        _set(live, row, entry["row"])
    for name in CLOCK_FIELDS:
        sim.clock[name] = float(state["clock"][name])
    sim.mix[:] = state["mix"]


def _set(live: Live, row: int, fields: Mapping[str, Any]) -> None:
    for key in ROW_KEYS:
        live.sim.jobs[RENAMED.get(key, key)][row] = float(fields[key])


def _number(value: float) -> float | str:
    """JSON knows no infinity; float() reads it as a text."""
    return value if np.isfinite(value) else str(value)
