"""From classes to the columns of a `Workload`: what every job has from its class alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nvlenv.types import FloatArray
from nvlenv.workload.mix import JobTraits
from nvlenv.workload.shape import Room


class ClassColumns:
    """The columns that depend on the class alone, one value per class (C,), and the names that number them."""

    def __init__(self, classes: Sequence[JobTraits], room: Room) -> None:
        for traits in classes:
            room.check(traits)
        self.class_names = tuple(dict.fromkeys(traits.name for traits in classes))
        self.queue_names = tuple(dict.fromkeys(traits.queue for traits in classes))
        hours = [np.inf if t.checkpoint_interval_h is None else t.checkpoint_interval_h for t in classes]
        self._columns: dict[str, NDArray[Any]] = {
            "mode": np.array([t.placement for t in classes], np.int8),
            "height": np.array([room.height(t) for t in classes], np.int8),
            "comm_fraction": np.array([t.comm_fraction for t in classes], np.float64),
            "priority": np.array([t.priority for t in classes], np.int32),
            "queue": np.array([self.queue_names.index(t.queue) for t in classes], np.int32),
            "job_class": np.array([self.class_names.index(t.name) for t in classes], np.int32),
            "preemptible": np.array([t.preemptible for t in classes], np.bool_),
            "movable": np.array([t.movable for t in classes], np.bool_),
            "checkpoint_interval": np.array(hours, np.float64),
            "restart_time": np.array([t.restart_time_h for t in classes], np.float64),
        }

    def take(self, index: NDArray[np.integer]) -> dict[str, Any]:
        """Those columns for jobs whose classes are `index` (n,), and the names."""
        picked: dict[str, Any] = {name: column[index] for name, column in self._columns.items()}
        return picked | {"class_names": self.class_names, "queue_names": self.queue_names}


def noisy(duration: FloatArray, sigma: float, rng: np.random.Generator) -> FloatArray:
    """What users or a predictor say of run times: right in the median, lognormal with `sigma` around it."""
    return duration * np.exp(sigma * rng.standard_normal(len(duration)))
