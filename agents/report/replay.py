"""What the replay shows: two policies play one workload of the results again, and every step is written down.

First it is chosen who plays what, then played with a recorder, which notes every run of every job, every decision with
its reasons, and the totals; assets/state.js reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agents.evaluation.compare import name_on_case, policy_fingerprint
from agents.evaluation.episodes import Case, Metrics, find_policy, loaded, make_case, measure, split_seeds
from agents.evaluation.figures import class_colours
from agents.evaluation.statistics import known
from agents.evaluation.tables import candidates, short_name, typical_workload
from nvlenv.cluster.types import Mode, NodeEventKind, Workload
from nvlenv.common.errors import InputError
from nvlenv.envs.scenario import Episode
from nvlenv.policies.learned import LearnedPolicy
from nvlenv.simulator.decision import ActionLayout, Decision, Policy
from nvlenv.simulator.state import DONE, RUNNING, SLOT_SIZES, Sim
from nvlenv.simulator.step import advance, apply

Json = dict[str, Any]
KINDS = ("place", "open", "fill", "hold")
ENDS = ("done", "evicted", "moved", "failed", "running")  # how a run ended; the last: it did not
TOTALS = ("waiting", "slowdown", "lost", "stall", "evictions")  # of the simulator's clock
RUN = ("job", "start", "end", "ended", "gpus")
DECISION = (
    "time", "job", "kind", "rack", "places", "opens", "free", "least", "most", "evicted", "moved", "hero", "shadow",
    "sure",
)  # fmt: skip
SAMPLE = ("time", "free", "slots", *TOTALS)
# Nodes that take no pods any more.
DOWN = {NodeEventKind.FAIL: 1, NodeEventKind.REPAIR: -1, NodeEventKind.CORDON: 1, NodeEventKind.UNCORDON: -1}


def replay_of(results: Json, wanted: Sequence[str] = (), workload: int | None = None) -> dict[str, Any]:
    """What the replay shows: one workload of the first set, played again by two policies.

    Raises `InputError` if a policy is not there any more, or does not give what the results say.
    """
    label = results["labels"][0]
    each = results["sets"][label]
    case = make_case(each["source"], each["overrides"], results["split"])
    chosen = _who_plays(results, each, wanted, case)
    k = typical_workload(each, *(name for name, _ in chosen)) if workload is None else workload
    if not 0 <= k < results["episodes"]:
        raise InputError("--workload", "", k, f"0 to {results['episodes'] - 1}")
    if case.scenario.digest() != each["scenario_digest"]:
        raise InputError("results", label, "a scenario whose settings have changed since", "evaluate again")
    episode = case.scenario.draw(split_seeds(results["seed"], results["split"], k + 1)[k])
    policies = []
    for name, played in chosen:
        recording, metrics = record(played, case, episode)
        recorded = each["workloads"][name]["cost"][k]
        if abs(metrics["cost"] - recorded) > 1e-6 * max(1.0, abs(recorded)):
            found = f"cost {metrics['cost']:.7g} on workload {k}, now"
            raise InputError("results", f"{label}, {name}", found, f"{recorded:.7g}, as recorded: evaluate again")
        policies.append({"label": short_name(name), "name": name, **recording})
    describe = describe_episode(case, episode)
    return {
        "episode": describe,
        "policies": policies,
        "colours": class_colours(episode.workload.class_names),
        "start": _opening(policies[1], episode.workload, int(describe["hero"]), float(describe["from"])),
        "workload": k,
        "note": _note(case, label, k, workload is None, len(episode.workload)),
    }


def _who_plays(results: Json, each: Json, wanted: Sequence[str], case: Case) -> list[tuple[str, str]]:
    """The two policies of the replay: those asked for, else the cheapest and the reference (or the next one).

    Of each, how the results call it, and the heuristic or file that is played.
    """
    names = candidates(each["summary"])
    if wanted:
        return [_asked_for(name, names, results["policies"], case) for name in wanted]
    best, reference = names[0], each["summary"]["reference"]
    other = reference if best != reference else names[min(1, len(names) - 1)]
    return [(name, name_on_case(name, case)) for name in (best, other)]


def _asked_for(wanted: str, names: Sequence[str], recorded: Json, case: Case) -> tuple[str, str]:
    """A policy by its name in the results, by that in their tables, or by a file (or heuristic) that is the same."""
    called = [name for name in names if name == wanted] or [name for name in names if short_name(name) == wanted]
    if len(called) == 1:
        return called[0], name_on_case(called[0], case)
    mine = _fingerprint(wanted)
    for name in called or names:
        if mine and mine == (recorded.get(name) or _fingerprint(name_on_case(name, case))):
            return name, wanted
    expected = f"one of {', '.join(names)}, its name in the table, or a file or folder with the same policy"
    raise InputError("--replay", "", repr(wanted), expected)


def _fingerprint(name: str) -> str:
    """What makes a policy the same one; "": there is none of this name. Raises `InputError` for a damaged file."""
    try:
        return policy_fingerprint(name)
    except InputError:
        if Path(name).is_file():
            raise
        return ""


def _note(case: Case, label: str, k: int, typical: bool, jobs: int) -> str:
    """What the reader of the replay sees."""
    chosen = "on which the two differ about as much as on average" if typical else "chosen by hand"
    spec = case.scenario.cluster_spec()
    nodes = int(np.bincount(spec.node_rack).max())
    return (
        f"Workload {k} of {label}, {chosen}. Each column is a rack of {nodes} nodes, each node a row of "
        f"{spec.gpus_per_node} GPUs. Both policies see the same {jobs:,} jobs; the pointers above the racks show the "
        "last decision."
    )


def _opening(policy: Json, jobs: Workload, hero: int, after: float) -> float:
    """The hour at which the replay opens: halfway through the longest wait of a hero under the second policy."""
    runs = policy["runs"]
    starts = dict(zip(reversed(runs["job"]), reversed(runs["start"]), strict=True))  # the first start of each job
    waits = [
        (start - jobs.submit[job], -job, (start + jobs.submit[job]) / 2)
        for job, start in starts.items()
        if jobs.gpus[job] >= hero and jobs.submit[job] >= after
    ]
    return round(float(max(waits)[2]), 1) if waits else after


class Recorder:
    """Watches a simulator at its decisions; everything between two of them is read off its records, exactly."""

    def __init__(self, sim: Sim, policy: Policy) -> None:
        self.sim, self.policy = sim, policy
        self.layout = ActionLayout(len(sim.racks))
        self.jobs = sim.jobs[: int(sim.clock[0]["n_jobs"])]
        self.status, self.start = self.jobs["status"].copy(), self.jobs["start"].copy()
        self.runs: list[Json] = []
        self.decisions: list[Json] = []
        self.samples: list[Json] = []
        self.open: dict[int, Json] = {}  # running job -> its run
        self.held: set[int] = set()  # jobs whose present wait has been explained
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
            run |= {"end": float(sim.clock[0]["horizon"]), "ended": ENDS.index("running")}

    def _decide(self) -> None:
        sim, c = self.sim, self.sim.clock[0]
        decision = Decision(sim, sim.mask, self.layout)
        action = int(self.policy(decision))
        kind = KINDS.index(self.layout.describe(action).split("[")[0])
        job, evictions, moves = int(c["current"]), int(c["evictions"]), int(c["moves"])
        told = kind < 3 or job not in self.held
        row = self._row(decision, action, kind) if told else {}
        self._again = bool(apply(sim, action))
        if told:
            row |= {"evicted": int(c["evictions"]) - evictions, "moved": int(c["moves"]) - moves}
            self.decisions.append(row)
        (self.held.add if kind == 3 else self.held.discard)(job)
        self._notice(at_decision=True)

    def _row(self, decision: Decision, action: int, kind: int) -> Json:
        """What a decision was made from."""
        sim, c = self.sim, self.sim.clock[0]
        job, hero = int(c["current"]), int(c["target"])
        places, opens = sim.mask[: self.layout.racks], sim.mask[self.layout.racks : self.layout.fill]
        free = sim.cap[: self.layout.racks, 1][places]
        rack = action % self.layout.racks if kind < 2 else -1
        return {
            "time": _short(c["now"]),
            "job": job,
            "kind": kind,
            "rack": rack,
            "places": int(places.sum()),
            "opens": int(opens.sum()),
            "free": int(sim.cap[rack, 1]) if rack >= 0 else -1,
            "least": int(free.min()) if len(free) else -1,
            "most": int(free.max(initial=-1)),
            "hero": hero if hero != job else -1,
            "shadow": known(round(float(c["shadow"]), 2)),
            "sure": self._sure(decision, action),
        }

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
                gpus = _spans(np.flatnonzero(self.sim.gpu_job == j))
                self.open[int(j)] = {"job": int(j), "start": _short(job["start"]), "gpus": gpus}
                self.runs.append(self.open[int(j)])
        self.status, self.start = self.jobs["status"].copy(), self.jobs["start"].copy()

    def _end(self, job: int, end: float, how: str) -> None:
        self.open.pop(job).update(end=_short(end), ended=ENDS.index(how))

    def _sample(self) -> None:
        c = self.sim.clock[0]
        row: Json = {name: float(f"{float(c[name]):.7g}") for name in TOTALS}
        row |= {"time": _short(c["now"]), "free": int(self.sim.cap[-1, 1])}
        row["slots"] = int(self.sim.slots[0, SLOT_SIZES.index(16)])
        if self.samples and self.samples[-1]["time"] == row["time"]:  # the last word on an instant counts
            self.samples.pop()
        self.samples.append(row)


def record(name: str, case: Case, episode: Episode) -> tuple[dict[str, Any], Metrics]:
    """A policy plays an episode. Returns what the replay shows of it, and its metrics."""
    sim = loaded(case.scenario, episode, case.warm_jobs, sample=False)
    recorder = Recorder(sim, find_policy(name))
    recorder.play()
    kept = {
        "runs": (RUN, recorder.runs),
        "decisions": (DECISION, recorder.decisions),
        "samples": (SAMPLE, recorder.samples),
    }
    columns = {what: {name: [row[name] for row in rows] for name in names} for what, (names, rows) in kept.items()}
    return columns, measure(sim, episode.workload.class_names)


def describe_episode(case: Case, episode: Episode) -> dict[str, Any]:
    """What all policies have in common: the cluster, its failures, and the jobs."""
    spec, work, sim = episode.cluster, episode.workload, loaded(case.scenario, episode, case.warm_jobs, sample=False)
    c, events = sim.clock[0], episode.node_events
    return {
        "hours": _short(c["horizon"]),
        "from": _short(c["measure_from"]),
        "capacity": spec.gpus,
        "slice": int(c["slice_nodes"]),
        "hero": int(c["hero_gpus"]),
        "width": spec.gpus_per_node,
        "racks": np.bincount(spec.node_rack, minlength=spec.racks).tolist(),
        "blocks": spec.rack_parents[:, -1].tolist() if spec.rack_parents.shape[1] else [0] * spec.racks,
        "node_gpus": spec.node_gpus.tolist(),
        "cordoned": np.flatnonzero(spec.cordoned).tolist(),
        "node_events": [
            [_short(time), int(node), DOWN[NodeEventKind(kind)]]
            for time, node, kind in zip(events.time, events.node, events.kind, strict=True)
            if kind in DOWN
        ],
        "classes": list(work.class_names),
        "weights": list(case.scenario.class_weights()),
        "jobs": {
            "submit": [_short(hour) for hour in work.submit],
            "gpus": work.gpus.tolist(),
            "class": work.job_class.tolist(),
            "priority": work.priority.tolist(),
            "slice": np.where(work.slice_gpus > 0, work.slice_gpus, work.gpus).tolist(),
            "estimate": [_short(hour) for hour in work.estimate],
        },
        "modes": [mode.name.lower() for mode in Mode],
    }


def _short(hour: float) -> float:
    return round(float(hour), 4)


def _spans(slots: np.ndarray) -> list[int]:
    """Ascending GPU slots as first, count, first, count, ..."""
    breaks = np.flatnonzero(np.diff(slots) > 1) + 1
    return [int(x) for piece in np.split(slots, breaks) if len(piece) for x in (piece[0], len(piece))]
