"""The placement engine: a policy, trained or not, answers a live cluster.

>>> from nvlenv.engine import PlacementEngine, load_job, load_snapshot
>>> engine = PlacementEngine(load_snapshot("cluster.json"), "best-fit+easy+open")
>>> answer = engine.place(load_job("job.yaml"))  # Placed or Refused, with reasons
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nvlenv.engine.answers import Placed, Refused
    from nvlenv.engine.engine import PlacementEngine
    from nvlenv.engine.jobs import load_job
    from nvlenv.engine.policy_file import load_policy
    from nvlenv.engine.settings import Settings
    from nvlenv.engine.snapshot import load_snapshot

__all__ = ["Placed", "PlacementEngine", "Refused", "Settings", "load_job", "load_policy", "load_snapshot"]

_WHERE = {
    "Placed": "answers",
    "PlacementEngine": "engine",
    "Refused": "answers",
    "Settings": "settings",
    "load_job": "jobs",
    "load_policy": "policy_file",
    "load_snapshot": "snapshot",
}


def __getattr__(name: str) -> Any:
    """Compiled code is imported only when it is asked for, so that --help and importers start at once."""
    if name in _WHERE:
        return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
