"""How the cost of a decision grows: with racks, with jobs, with simulators; one thread, CPU time.

python -m tests.benchmarks.scaling --out docs/pictures
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agents.evaluation.figures import OKABE_ITO, STYLE, save
from nvlenv.common.commandline import command
from nvlenv.envs.batch import Batch
from nvlenv.envs.scenario import load_scenario, prepare
from nvlenv.policies.heuristics.choose import play_rule
from nvlenv.policies.heuristics.rule import parse_rule
from nvlenv.policies.observation import N_CLUSTER, N_JOB, N_RACK, observe
from nvlenv.simulator.state import Sim
from tests.benchmarks.support.figures import shown
from tests.benchmarks.support.work import RULE, choices, in_use, lab, seconds

RACKS = (8, 16, 32, 64, 128, 256, 512, 1000, 2000, 5000, 10_000)
JOBS = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
SIMULATORS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
JOBS_PER_RACK = 3  # of an episode on many racks: the cluster fills once and turns over
FEWEST_JOBS = 3_000
OBSERVATIONS = 100_000  # racks observed in one measurement, at most
STEPS = 6_000  # decisions of a batch in one measurement, at least
MICRO = 1.0e6


def per_decision(racks: int, jobs: int) -> float:
    """Microseconds per decision of best fit over an episode, the simulator included."""
    scenario, episode = lab(racks, 1.0e6, f"workload.jobs={jobs}")
    times = []
    for _ in range(3):
        sim = prepare(scenario, episode, sample=False)
        decisions = [0]

        def play(sim: Sim = sim, decisions: list[int] = decisions) -> None:
            decisions[0] = play_rule(sim, parse_rule(RULE))

        times.append(seconds(play) / decisions[0])
    return MICRO * min(times)


def per_observation(racks: int) -> float:
    """Microseconds per observation of a cluster in use of which nothing changes."""
    sim = in_use(racks, 336.0 if racks < 1000 else 24.0)
    rows, job, cluster = (np.zeros(shape, np.float32) for shape in ((racks, N_RACK), (N_JOB,), (N_CLUSTER,)))
    times = max(3, OBSERVATIONS // racks)

    def many() -> None:
        for _ in range(times):
            observe(sim, rows, job, cluster)

    return MICRO * min(seconds(many) for _ in range(3)) / times


def per_step(simulators: int) -> float:
    """Microseconds per decision of a batch, with observations, masks and rewards."""
    batch = Batch(load_scenario("lab-16"), simulators, np.random.SeedSequence(1), stagger=True)
    best = np.inf
    for _ in range(3):
        taken = 0.0
        steps = max(20, STEPS // simulators)
        for _ in range(steps):
            for i in np.flatnonzero(batch.done):
                batch.reset(i)
            actions = choices(batch)
            taken += seconds(lambda actions=actions: batch.step(actions))  # type: ignore[misc]
        best = min(best, taken / (steps * simulators))
    return MICRO * best


def draw() -> Figure:
    with plt.rc_context(STYLE):
        figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
        decisions = [per_decision(racks, max(FEWEST_JOBS, JOBS_PER_RACK * racks)) for racks in RACKS]
        observed = [time + per_observation(racks) for time, racks in zip(decisions, RACKS, strict=True)]
        _line(left, RACKS, observed, 1, "with observation")
        _line(left, RACKS, decisions, 0, "best fit, simulator included")
        _finish(left, "racks", "Linear in racks")
        _line(middle, JOBS, [per_decision(16, jobs) for jobs in JOBS], 0, "best fit, 16 racks")
        _finish(middle, "jobs of the workload", "Flat in jobs")
        _line(right, SIMULATORS, [per_step(simulators) for simulators in SIMULATORS], 1, "with observation, 16 racks")
        _finish(right, "simulators stepped by one call", "Nearly flat in simulators")
        left.set_ylabel("microseconds per decision")
    return figure


def _line(axes: Axes, x: Sequence[int], y: Sequence[float], k: int, label: str) -> None:
    axes.plot(x, y, color=OKABE_ITO[k], linestyle="-" if k == 0 else "--", marker="os"[k], markersize=4, label=label)
    for at, side in ((0, 9), (-1, -14 if k == 0 else 7)):  # the first and the last, off the other line
        place = {"xytext": (0, side), "textcoords": "offset points", "ha": "center", "fontsize": 8}
        axes.annotate(shown(y[at]), (x[at], y[at]), **place)
    print(f"{label}: " + ", ".join(f"{a:,}: {b:.3g} us" for a, b in zip(x, y, strict=True)))


def _finish(axes: Axes, x: str, title: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(x)
    axes.set_title(title)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 1.0), max(high, 20.0) * 1.5)
    axes.margins(x=0.08)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="upper left")


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(prog="python -m tests.benchmarks.scaling", description=__doc__, allow_abbrev=False)
    out.formatter_class = argparse.RawDescriptionHelpFormatter
    out.add_argument(
        "--out", type=Path, default=Path("docs/pictures"), help="folder of scaling.png (default %(default)s)"
    )
    return out


@command
def main(argv: list[str]) -> None:
    arguments = parser().parse_args(argv)
    print(save(draw(), arguments.out / "scaling.png"))


if __name__ == "__main__":
    sys.exit(main())
