"""One episode written down for the replay: every run of every job, every decision and its reasons, the totals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from agents.evaluation.cases import Case
from agents.evaluation.episodes import Metrics, find_policy, loaded, measure
from agents.evaluation.summary import known
from nvlenv.cluster.types import Mode, NodeEventKind
from nvlenv.envs.scenario import Episode
from nvlenv.policies.learned import LearnedPolicy
from nvlenv.simulator.decision import ActionLayout, Decision, Policy
from nvlenv.simulator.state import DONE, RUNNING, SLOT_SIZES, Sim
from nvlenv.simulator.step import advance, apply

KINDS = ("place", "open", "fill", "hold")
ENDS = ("done", "evicted", "moved", "failed", "running")  # how a run ended; the last: it did not
TOTALS = ("waiting", "slowdown", "lost", "stall", "evictions")  # of the simulator's clock
Columns = dict[str, list[Any]]


class Recorder:
    """Watches a simulator at its decisions; everything between two of them is read off its records, exactly."""

    def __init__(self, sim: Sim, policy: Policy) -> None:
        self.sim, self.policy = sim, policy
        self.layout = ActionLayout(len(sim.racks))
        self.jobs = sim.jobs[: int(sim.clock[0]["n_jobs"])]
        self.status, self.start = self.jobs["status"].copy(), self.jobs["start"].copy()
        self.open: dict[int, int] = {}  # running job -> its run
        self.runs: Columns = {"job": [], "start": [], "end": [], "ended": [], "gpus": []}
        self.decisions: Columns = {
            key: [] for key in ("time", "job", "kind", "rack", "places", "opens", "free", "least", "most", "evicted",
                                "moved", "hero", "shadow", "sure")
        }  # fmt: skip
        self.held: set[int] = set()  # jobs whose present wait has been explained
        names = ("time", "free", "slots", *TOTALS)
        self.samples: Columns = {name: [] for name in names}
        self._again = False  # the job of the last decision is up again

    def play(self) -> None:
        """Play the episode to its end."""
        sim = self.sim
        alive = advance(sim)
        self._notice(at_decision=False)
        while alive:
            self._sample()
            self._decide()
            self._sample()
            alive = self._again or bool(advance(sim))
            self._notice(at_decision=False)
        self._sample()
        for run in self.open.values():
            self.runs["end"][run], self.runs["ended"][run] = float(sim.clock[0]["horizon"]), ENDS.index("running")

    def _decide(self) -> None:
        sim, c = self.sim, self.sim.clock[0]
        decision = Decision(sim, sim.mask, self.layout)
        action = int(self.policy(decision))
        kind = KINDS.index(self.layout.describe(action).split("[")[0])
        job, before = int(c["current"]), (int(c["evictions"]), int(c["moves"]))
        if kind == 3 and job in self.held:
            self._again = bool(apply(sim, action))
            self._notice(at_decision=True)
            return
        places, opens = sim.mask[: self.layout.racks], sim.mask[self.layout.racks : self.layout.fill]
        free = sim.cap[: self.layout.racks, 1][places]
        rack = action % self.layout.racks if kind < 2 else -1
        hero = int(c["target"])
        row = {
            "time": _short(c["now"]),
            "job": job,
            "kind": kind,
            "rack": rack,
            "places": int(places.sum()),
            "opens": int(opens.sum()),
            "free": int(sim.cap[rack, 1]) if rack >= 0 else -1,
            "least": int(free.min(initial=10**6)) if len(free) else -1,
            "most": int(free.max(initial=-1)),
            "hero": hero if hero != job else -1,
            "shadow": known(round(float(c["shadow"]), 2)),
            "sure": self._sure(decision, action),
        }
        self._again = bool(apply(sim, action))
        row |= {"evicted": int(c["evictions"]) - before[0], "moved": int(c["moves"]) - before[1]}
        for name, value in row.items():
            self.decisions[name].append(value)
        (self.held.add if kind == 3 else self.held.discard)(job)
        self._notice(at_decision=True)

    def _sure(self, decision: Decision, action: int) -> float | None:
        """The probability that a network gives its action; None for heuristics."""
        if not isinstance(self.policy, LearnedPolicy):
            return None
        logits = np.where(decision.mask, self.policy.logits(decision), -np.inf)
        odds = np.exp(logits - logits.max())
        return round(float(odds[action] / odds.sum()), 2)

    def _notice(self, at_decision: bool) -> None:
        """Write down every run that began or ended since the last look."""
        now = float(self.sim.clock[0]["now"])
        for j in np.flatnonzero((self.jobs["status"] != self.status) | (self.jobs["start"] != self.start)):
            job, runs = self.jobs[j], self.status[j] == RUNNING
            if runs:
                if job["status"] == DONE:
                    self._end(int(j), float(job["finish"]), "done")
                elif job["status"] == RUNNING:
                    self._end(int(j), now, "moved")
                else:
                    self._end(int(j), float(job["queued"]), "evicted" if at_decision else "failed")
            if job["status"] == RUNNING:
                self._begin(int(j), float(job["start"]))
        self.status, self.start = self.jobs["status"].copy(), self.jobs["start"].copy()

    def _begin(self, job: int, start: float) -> None:
        self.open[job] = len(self.runs["job"])
        for name, value in (("job", job), ("start", _short(start)), ("end", None), ("ended", None)):
            self.runs[name].append(value)
        self.runs["gpus"].append(_spans(np.flatnonzero(self.sim.gpu_job == job)))

    def _end(self, job: int, end: float, how: str) -> None:
        run = self.open.pop(job)
        self.runs["end"][run], self.runs["ended"][run] = _short(end), ENDS.index(how)

    def _sample(self) -> None:
        c, times = self.sim.clock[0], self.samples["time"]
        now = _short(c["now"])
        if times and times[-1] == now:  # the last word on an instant counts
            for column in self.samples.values():
                column.pop()
        times.append(now)
        self.samples["free"].append(int(self.sim.cap[-1, 1]))
        self.samples["slots"].append(int(self.sim.slots[0, SLOT_SIZES.index(16)]))
        for name in TOTALS:
            self.samples[name].append(float(f"{float(c[name]):.7g}"))


def record(name: str, case: Case, episode: Episode) -> tuple[dict[str, Any], Metrics]:
    """A policy plays an episode. Returns what the replay shows of it, and its metrics."""
    sim = loaded(case.scenario, episode, case.warm_jobs, sample=False)
    recorder = Recorder(sim, find_policy(name))
    recorder.play()
    what = {"runs": recorder.runs, "decisions": recorder.decisions, "samples": recorder.samples}
    return what, measure(sim, episode.workload.class_names)


def describe_episode(case: Case, episode: Episode) -> dict[str, Any]:
    """What all policies have in common: the cluster, its failures, and the jobs."""
    spec, work, sim = episode.cluster, episode.workload, loaded(case.scenario, episode, case.warm_jobs, sample=False)
    c = sim.clock[0]
    heights = spec.rack_parents.shape[1]
    down = {int(NodeEventKind.FAIL): 1, int(NodeEventKind.REPAIR): -1,
            int(NodeEventKind.CORDON): 1, int(NodeEventKind.UNCORDON): -1}  # fmt: skip
    events = [
        [_short(time), int(node), down[int(kind)]]
        for time, node, kind in zip(
            episode.node_events.time, episode.node_events.node, episode.node_events.kind, strict=True
        )
        if int(kind) in down
    ]
    return {
        "hours": _short(c["horizon"]),
        "from": _short(c["measure_from"]),
        "capacity": spec.gpus,
        "slice": int(c["slice_nodes"]),
        "hero": int(c["hero_gpus"]),
        "width": spec.gpus_per_node,
        "racks": np.bincount(spec.node_rack, minlength=spec.racks).tolist(),
        "blocks": spec.rack_parents[:, -1].tolist() if heights else [0] * spec.racks,
        "node_gpus": spec.node_gpus.tolist(),
        "cordoned": np.flatnonzero(spec.cordoned).tolist(),
        "node_events": events,
        "classes": list(work.class_names),
        "weights": list(case.scenario.class_weights()),
        "jobs": {
            "submit": _rounded(work.submit),
            "gpus": work.gpus.tolist(),
            "class": work.job_class.tolist(),
            "priority": work.priority.tolist(),
            "slice": np.where(work.slice_gpus > 0, work.slice_gpus, work.gpus).tolist(),
            "estimate": _rounded(work.estimate),
        },
        "modes": [mode.name.lower() for mode in Mode],
    }


def _short(hour: float) -> float:
    return round(float(hour), 4)


def _rounded(hours: Iterable[float]) -> list[float]:
    return [_short(hour) for hour in hours]


def _spans(slots: np.ndarray) -> list[int]:
    """Ascending GPU slots as first, count, first, count, ..."""
    breaks = np.flatnonzero(np.diff(slots) > 1) + 1
    return [int(x) for piece in np.split(slots, breaks) if len(piece) for x in (piece[0], len(piece))]
