"""One row of the simulator is decided by a policy, slice by slice, or everything stays as it was."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvlenv.engine.answers import Step
from nvlenv.engine.judge import judge
from nvlenv.engine.live import Live
from nvlenv.engine.live_kernels import begin, join, restrict, unrestrict
from nvlenv.simulator.dynamics import stop
from nvlenv.simulator.scan import apply
from nvlenv.simulator.state import Sim
from nvlenv.types import ActionLayout, Decision, IntArray, Policy

NOTHING, NO_QUOTA = 0, 1  # what `begin` says if there is nothing to decide


@dataclass(frozen=True)
class Outcome:
    """What became of a row."""

    placed: bool
    begun: int  # what `begin` said
    steps: tuple[Step, ...]
    could_place: bool  # the last decision had a rack for it without eviction
    before: Sim | None  # the arrays before the first eviction, where there was one


def decide(
    live: Live, policy: Policy, row: int, turn: int, shown: int, preempt: bool = False, limits: IntArray | None = None
) -> Outcome:
    """Let the policy decide about a waiting row. If it is not placed, the arrays are as before.

    Parameters
    ----------
    turn : a number that no decision had before.
    shown : candidates to be listed in each step.
    preempt : racks may be opened even where the free GPUs would not suffice.
    limits : (M,) pods that each node could take; None: as many as its GPUs allow.
    """
    hidden = np.zeros(live.spec.nodes, np.int32)
    if limits is not None:
        restrict(live.sim, limits, int(live.sim.jobs["pod_gpus"][row]), hidden)
    outcome = _decide(live, policy, row, turn, shown, preempt)
    if limits is not None:
        unrestrict(live.sim, hidden)
        if outcome.before is not None and outcome.before is not live.sim:
            unrestrict(outcome.before, hidden)
    return outcome


def _decide(live: Live, policy: Policy, row: int, turn: int, shown: int, preempt: bool) -> Outcome:
    begun = begin(live.sim, row, turn, preempt)
    if begun in (NOTHING, NO_QUOTA):
        return Outcome(False, begun, (), False, None)
    racks, layout = live.spec.rack_names, ActionLayout(live.spec.racks)
    steps: list[Step] = []
    before: Sim | None = None
    again = True
    while again:
        sim = live.sim
        verdict = judge(policy, Decision(sim, sim.mask, layout), racks, live.name_of, shown)
        kind = layout.describe(verdict.action).partition("[")[0]
        if kind == "open" and before is None:
            before = live.save().sim
        left = _left(live, row)
        again = bool(apply(sim, verdict.action))
        pods = left - (_left(live, row) if int(sim.clock["current"][0]) == row else 0) if kind != "hold" else 0
        rack = racks[verdict.action % layout.racks] if kind in ("place", "open") else ""
        steps.append(Step(kind, rack, pods, verdict.rule, verdict.legal, verdict.candidates))
    placed = steps[-1].action != "hold" and bool((live.sim.gpu_job == row).any())
    outcome = Outcome(placed, begun, tuple(steps), verdict.could_place, before)
    if not placed and before is not None:
        undo(live, row, outcome)
    return outcome


def undo(live: Live, row: int, outcome: Outcome) -> None:
    """A row that was decided waits again, and nobody was evicted for it."""
    if outcome.before is None:
        stop(live.sim, row)
        join(live.sim, row)
    else:  # the row is still at hand there, perhaps with slices that went to free racks
        live.sim = outcome.before
        apply(live.sim, ActionLayout(live.spec.racks).hold)


def _left(live: Live, row: int) -> int:
    """Pods of the row at hand still to be placed."""
    c = live.sim.clock
    return int((c["units_left"][0] - 1) * live.sim.jobs["unit_pods"][row] + c["pods_left"][0])
