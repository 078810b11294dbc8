"""The placement engine: a policy, trained or not, answers a live cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nvlenv.engine.policy_file import load_policy

__all__ = ["load_policy"]


def __getattr__(name: str) -> Any:
    """Compiled code is imported only when it is asked for, so that --help and importers start at once."""
    if name == "load_policy":
        from nvlenv.engine.policy_file import load_policy

        return load_policy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
