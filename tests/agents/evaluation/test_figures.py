"""The figures can be drawn of whatever was measured."""

from __future__ import annotations

import warnings

import matplotlib.pyplot as plt

from agents.evaluation.episodes import REFERENCES
from agents.evaluation.figures import cost_terms


def test_a_cost_of_nothing_is_drawn_without_a_warning() -> None:
    """No job waited, none was slowed down and nothing was lost."""
    mean = dict.fromkeys(("cost", "waiting", "slowdown", "lost"), 0.0)
    summary = {
        "reference": "best-fit",
        "references": {name: {"cost": 0.0} for name in REFERENCES},
        "policies": {name: {"mean": mean} for name in ("best-fit", "first-fit")},
    }

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = cost_terms({"summary": summary}, ["best-fit", "first-fit"])

    assert figure.axes[0].get_xlim() == (0.0, 1.0)
    plt.close(figure)
