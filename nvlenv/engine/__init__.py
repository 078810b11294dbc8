"""The placement engine: a policy, trained or not, answers a live cluster.

>>> from nvlenv.engine import PlacementEngine, load_job, load_snapshot
>>> engine = PlacementEngine(load_snapshot("cluster.json"), "best-fit+easy+open")
>>> answer = engine.place(load_job("job.yaml"))  # Placed or Refused, with reasons
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nvlenv.engine.core.engine import PlacementEngine
    from nvlenv.engine.core.whatif import play_forward, usual_arrivals
    from nvlenv.engine.formats.load import load_job, load_snapshot
    from nvlenv.engine.model.answers import Placed, Refused
    from nvlenv.engine.model.settings import Settings
    from nvlenv.policies.learned import load_policy

__all__ = [
    "Placed",
    "PlacementEngine",
    "Refused",
    "Settings",
    "load_job",
    "load_policy",
    "load_snapshot",
    "play_forward",
    "usual_arrivals",
]

_WHERE = {
    "Placed": "nvlenv.engine.model.answers",
    "PlacementEngine": "nvlenv.engine.core.engine",
    "Refused": "nvlenv.engine.model.answers",
    "Settings": "nvlenv.engine.model.settings",
    "load_job": "nvlenv.engine.formats.load",
    "load_policy": "nvlenv.policies.learned",
    "load_snapshot": "nvlenv.engine.formats.load",
    "play_forward": "nvlenv.engine.core.whatif",
    "usual_arrivals": "nvlenv.engine.core.whatif",
}


def __getattr__(name: str) -> Any:
    """Compiled code is imported only when it is asked for, so that --help and importers start at once."""
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
