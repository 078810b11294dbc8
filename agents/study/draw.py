"""What the pictures of several studies have in common."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, MaxNLocator
from numpy.typing import ArrayLike

from agents.evaluation.figures import OKABE_ITO
from agents.evaluation.statistics import bootstrap


def plain(axis: Axes, title: str) -> None:
    """A title at the left, and no frame above and to the right."""
    axis.set_title(title, loc="left", fontsize=11)
    axis.spines[["top", "right"]].set_visible(False)


def bars_with_intervals(axis: Axes, values: Mapping[str, ArrayLike], title: str, digits: int = 1) -> None:
    """One horizontal bar per label: the mean over workloads, a line for its 95 % interval, the mean as a number."""
    for row, sample in enumerate(values.values()):
        interval = bootstrap(sample)
        axis.barh(row, interval.mean, color=OKABE_ITO[row % len(OKABE_ITO)])
        end = interval.mean
        if interval.high < float("inf"):  # of one workload there is no interval
            axis.plot((interval.low, interval.high), (row, row), color="black", linewidth=1)
            end = interval.high
        axis.text(end, row, f" {interval.mean:.{digits}f}", va="center", fontsize=9)
    axis.set_yticks(range(len(values)), list(values))
    axis.invert_yaxis()
    axis.xaxis.set_major_locator(MaxNLocator(4))
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.margins(x=0.2)
    axis.set_xlim(left=0)
    plain(axis, title)
