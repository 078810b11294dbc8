"""Policies compared on the same workloads: played over many processes, each episode kept, so that it can go on later.

    with open_player(folder, workers=2, quiet=False) as player:
        played = player.play(case, ["baseline", "best-fit"], split_seeds(0, "validation", 64))

A cell is one policy on one workload. `compare_on_case` turns the cells of a case into what results.json says about it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import sqlite3
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
from tqdm import tqdm

import nvlenv
from agents.evaluation.episodes import (
    REFERENCES,
    TRUE_DURATIONS,
    Case,
    Metrics,
    Played,
    find_policy,
    loaded,
    play_workload,
    split_seeds,
    warm_started,
)
from agents.evaluation.fanout import Mapper, fan_out
from agents.evaluation.statistics import Json, describe_played
from nvlenv.common.errors import InputError
from nvlenv.common.files import make_folder
from nvlenv.envs.scenario import Scenario
from nvlenv.policies.learned import LearnedPolicy
from nvlenv.policies.resolver import baseline_name
from nvlenv.simulator.decision import ActionLayout, Decision
from nvlenv.simulator.state import SAMPLE_FIELDS
from nvlenv.simulator.step import advance, step

BASELINE = "baseline"  # a policy by this name is the tuned baseline of each scenario
STORE = "cells.sqlite"
PLAYED_BY = ("episodes.py",)  # beside nvlenv, what decides what an episode gives
VERSIONED = ("nvlenv", "numpy", "numba", "gymnasium", "torch", "stable-baselines3", "sb3-contrib")
DECISIONS = 1_000  # whose latency is measured,
FIRST = 20  # after these: code is loaded, caches are cold
Cell = tuple[Metrics, np.ndarray]  # metrics and time series (T, len(SAMPLE_FIELDS)) of one policy on one workload


# Which policy, which code


def name_on_case(name: str, case: Case) -> str:
    """The policy that is meant: "baseline" is the tuned one of the case's scenario."""
    plain = name.removesuffix(TRUE_DURATIONS)
    return baseline_name(case.base) + name[len(plain) :] if plain == BASELINE else name


def policy_fingerprint(name: str) -> str:
    """What makes a policy the same one: the arrays of a file, the name of a heuristic."""
    policy = find_policy(name)
    if not isinstance(policy, LearnedPolicy):
        return name
    return str(policy.manifest["sha256"]) + (TRUE_DURATIONS if name.endswith(TRUE_DURATIONS) else "")


def versions() -> dict[str, str]:
    """Versions of everything that may change a figure."""
    found = {"python": platform.python_version()}
    for name in VERSIONED:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


@cache
def code_digest() -> str:
    """SHA-256 over all sources that a result depends on."""
    home, digest = Path(nvlenv.__file__).parent, hashlib.sha256()
    for source in [*sorted(home.rglob("*.py")), *(Path(__file__).with_name(name) for name in PLAYED_BY)]:
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()


# Played


class Store:
    """Played cells in one SQLite file (None: in memory), found again for the same code, scenario, workload and policy.

    Raises `InputError` for a file that is something else.
    """

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            make_folder(path.parent)
        self.database = sqlite3.connect(path or ":memory:")
        try:
            self.database.execute("CREATE TABLE IF NOT EXISTS cells (key TEXT PRIMARY KEY, metrics TEXT, series BLOB)")
        except sqlite3.DatabaseError as error:
            raise InputError(path or STORE, "", str(error), "a store of played episodes, or no such file") from None

    def get(self, key: str) -> Cell | None:
        """The cell kept under a key, if there is one."""
        found = self.database.execute("SELECT metrics, series FROM cells WHERE key = ?", (key,)).fetchone()
        if found is None:
            return None
        series = np.frombuffer(zlib.decompress(found[1]), np.float64).reshape(-1, len(SAMPLE_FIELDS))
        return json.loads(found[0]), series

    def put(self, cells: Mapping[str, Cell]) -> None:
        """Keep cells under their keys, all or none."""
        rows = [
            (key, json.dumps(metrics), zlib.compress(np.ascontiguousarray(series, np.float64).tobytes(), 1))
            for key, (metrics, series) in cells.items()
        ]
        with self.database:
            self.database.executemany("INSERT OR REPLACE INTO cells VALUES (?, ?, ?)", rows)


@dataclass(frozen=True)
class CasePlayer:
    """Plays cases: over the processes of `mapped`, with a progress bar, and never what the store already has."""

    store: Store
    mapped: Mapper
    quiet: bool

    def play(self, case: Case, names: Sequence[str], seeds: Sequence[np.random.SeedSequence]) -> list[Played]:
        """All policies and references on every workload of the case, in the order of the seeds."""
        meant = {name: name_on_case(name, case) for name in (*names, *REFERENCES)}
        keys = {name: self._key(case, name) for name in dict.fromkeys(meant.values())}
        known = [{n: cell for n, key in keys.items() if (cell := self.store.get(_hash(key, s)))} for s in seeds]
        missing = [[name for name in keys if name not in cells] for cells in known]
        todo = [k for k, names in enumerate(missing) if names]
        results = self.mapped(partial(_play, case=case), [(seeds[k], missing[k]) for k in todo])
        bar = tqdm(results, case.label, len(todo), disable=self.quiet or not todo, file=sys.stderr)
        for k, played in zip(todo, bar, strict=True):
            for name in played.metrics:
                known[k][name] = played.metrics[name], played.series.get(name, np.empty((0, len(SAMPLE_FIELDS))))
            self.store.put({_hash(keys[name], seeds[k]): known[k][name] for name in played.metrics})
        return [
            Played(*({name: cells[meant[name]][part] for name in meant} for part in (0, 1)))  # type: ignore[arg-type]
            for cells in known
        ]

    def _key(self, case: Case, name: str) -> str:
        by = baseline_name(case.base) if name in REFERENCES else policy_fingerprint(name)
        return _hash(code_digest(), case.scenario.digest(), case.warm_jobs, name in REFERENCES and name, by)


@contextmanager
def open_player(out: Path | None, workers: int, quiet: bool, ray: bool = False) -> Iterator[CasePlayer]:
    """A player with a store in the folder `out` (None: nothing is kept), whose processes end with it."""
    store = Store(None if out is None else out / STORE)
    with closing(store.database), fan_out(workers, ray) as mapped:
        yield CasePlayer(store, mapped, quiet)


def _play(task: tuple[np.random.SeedSequence, list[str]], case: Case) -> Played:
    seed, names = task
    policies = [name for name in names if name not in REFERENCES]
    references = [name for name in names if name in REFERENCES]
    return play_workload(seed, case.scenario, policies, references, case.warm_jobs, baseline_name(case.base))


def _hash(*parts: object) -> str:
    text = "\0".join(
        f"{part.entropy} {part.spawn_key}" if isinstance(part, np.random.SeedSequence) else str(part) for part in parts
    )
    return hashlib.sha256(text.encode()).hexdigest()


# Compared


def compare_on_case(
    case: Case, names: Sequence[str], settings: Json, player: CasePlayer,
    groups: Mapping[str, Sequence[str]] | None = None,
) -> Json:  # fmt: skip
    """All about one set of workloads, as results.json says it: what it is, and what the policies make of it.

    `settings` has split, seed, episodes and reference; `groups`: label -> policies of one recipe, trained with several
    seeds.
    """
    played = player.play(case, names, split_seeds(settings["seed"], settings["split"], settings["episodes"]))
    return {
        "scenario": case.base,
        "source": case.source,
        "overrides": list(case.overrides),
        "scenario_digest": case.scenario.digest(),
        "warm_jobs": case.warm_jobs,
        "baseline": name_on_case(BASELINE, case),
        **describe_played(played, names, settings["reference"], groups),
    }


def compare_on_scenario(
    scenario: Scenario, names: Sequence[str], episodes: int, reference: str | None = None, quiet: bool = False
) -> Json:
    """The results of all policies on the same validation workloads of one scenario."""
    for name in names:
        find_policy(name)
    settings = {"split": "validation", "seed": 0, "episodes": episodes, "reference": reference or names[0]}
    played_scenario, warm_jobs = warm_started(scenario, "validation")
    case = Case(scenario.name, scenario.name, (), played_scenario, scenario.name, warm_jobs)
    with open_player(None, 1, quiet) as player:
        each = compare_on_case(case, names, settings, player)
    del settings["reference"]  # it is in the summary
    return {**settings, "versions": versions(), **each}


def decision_latency(
    name: str, case: Case, seed: np.random.SeedSequence, decisions: int = DECISIONS
) -> dict[str, float]:
    """p50 and p99 of the time per decision (microseconds), observation and all, over the first decisions of a workload.

    Asked from Python one at a time, as a placement engine asks: a figure of this machine at this moment.
    """
    sim, policy = loaded(case.scenario, case.scenario.draw(seed), sample=False), find_policy(name)
    layout = ActionLayout(len(sim.racks))
    taken: list[int] = []
    alive = advance(sim)
    while alive and len(taken) < decisions + FIRST:
        decision = Decision(sim, sim.mask, layout)
        start = time.perf_counter_ns()
        action = policy(decision)
        taken.append(time.perf_counter_ns() - start)
        alive = step(sim, action)
    counted = np.array(taken[FIRST:] or taken or [0]) / 1e3
    p50, p99 = np.quantile(counted, (0.5, 0.99))
    return {"p50_us": round(float(p50), 1), "p99_us": round(float(p99), 1), "decisions": len(counted)}
