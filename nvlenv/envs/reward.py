"""What is scored: named cost terms, and the twin on the same workload that the reward is paired with.

Every term is a cost in GPU-hours since the last decision, divided by the GPUs of the cluster:

    waiting   GPU-hours that jobs wait, weighted by class
    slowdown  GPU-hours lost because jobs run in a shape worse than their best
    lost      GPU-hours of work lost to evictions, moves and failures
    twin      minus the weighted waiting GPU-hours of the twin over the same time

    reward = -scale * (w_waiting * (waiting + twin) + w_slowdown * slowdown + w_lost * lost)

The twin is the same workload on one pooled cluster without topology (nvlenv.simulator.pooled). What it costs depends on
the workload alone, so subtracting it changes no policy's rank; it takes out the luck of the draw (who arrives when),
which otherwise drowns the effect of a single decision.
"""

from __future__ import annotations

from nvlenv.common.kernel import inlined

TERMS = ("waiting", "slowdown", "lost", "twin")


@inlined
def read_totals(sim, twin_times, twin_costs, points, paired, out):
    """Write the four terms, summed since the start of the episode, into out (4,)."""
    c = sim.clock[0]
    out[0], out[1], out[2], out[3] = c.waiting, c.slowdown, c.lost, 0.0
    if paired:
        out[3] = -_interpolate(twin_times, twin_costs, points, c.now)
    for k in range(4):
        out[k] /= c.capacity


@inlined
def _interpolate(times, values, points, t):
    """The piecewise linear curve through the first `points` points at t; flat beyond its ends."""
    if t >= times[points - 1]:
        return values[points - 1]
    low, high = 0, points - 1
    while high - low > 1:
        middle = (low + high) // 2
        if times[middle] <= t:
            low = middle
        else:
            high = middle
    return values[low] + (values[high] - values[low]) * (t - times[low]) / (times[high] - times[low])


@inlined
def score(terms, weights, scale):
    """The reward of one step from its four terms and the weights (3,) of waiting, slowdown and lost."""
    return -scale * (weights[0] * (terms[0] + terms[3]) + weights[1] * terms[1] + weights[2] * terms[2])
