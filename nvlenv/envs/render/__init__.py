"""Pictures of a simulator as it is now, as text and as pixels; in both, a class of jobs has the same colour."""

from __future__ import annotations

from nvlenv.envs.render.ansi import draw_ansi
from nvlenv.envs.render.rgb import draw_rgb

__all__ = ["draw_ansi", "draw_rgb"]
