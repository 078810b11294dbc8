"""Episodes over many processes, each kept as soon as it is played, so that an interrupted evaluation goes on."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

import numpy as np
from tqdm import tqdm

import nvlenv
from agents.evaluation.cases import Case
from agents.evaluation.episodes import REFERENCES, TRUE_DURATIONS, Metrics, Played, find_policy, play_workload
from agents.evaluation.fanout import Mapper, fan_out
from nvlenv.common.errors import InputError
from nvlenv.common.files import make_folder
from nvlenv.policies.learned import LearnedPolicy
from nvlenv.policies.resolver import baseline_name
from nvlenv.simulator.state import SAMPLE_FIELDS

BASELINE = "baseline"  # a policy by this name is the tuned baseline of each scenario
STORE = "cells.sqlite"
PLAYED_BY = ("episodes.py",)  # files beside this one that decide what an episode gives
Cell = tuple[Metrics, np.ndarray]  # metrics and time series of one policy on one workload


def resolve(name: str, case: Case) -> str:
    """The policy that is meant: "baseline" is the tuned one of the case's scenario."""
    plain = name.removesuffix(TRUE_DURATIONS)
    suffix = name[len(plain) :]
    return (baseline_name(case.base) if plain == BASELINE else plain) + suffix


def fingerprint(name: str) -> str:
    """What makes a policy the same one: the arrays of a file, the name of a heuristic."""
    policy = find_policy(name)
    suffix = TRUE_DURATIONS if name.endswith(TRUE_DURATIONS) else ""
    return str(policy.manifest["sha256"]) + suffix if isinstance(policy, LearnedPolicy) else name


@cache
def code_digest() -> str:
    """SHA-256 over all sources that a result depends on."""
    home = Path(nvlenv.__file__).parent
    sources = [*sorted(home.rglob("*.py")), *(Path(__file__).with_name(name) for name in PLAYED_BY)]
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()


class Store:
    """Played cells in one SQLite file. A cell is found again only for the same code, scenario, workload and policy."""

    def __init__(self, path: Path) -> None:
        make_folder(path.parent)
        self.database = sqlite3.connect(path)
        try:
            self.database.execute("CREATE TABLE IF NOT EXISTS cells (key TEXT PRIMARY KEY, metrics TEXT, series BLOB)")
        except sqlite3.DatabaseError as error:
            raise InputError(path, "", str(error), "a store of played episodes, or no such file") from None

    def get(self, key: str) -> Cell | None:
        found = self.database.execute("SELECT metrics, series FROM cells WHERE key = ?", (key,)).fetchone()
        if found is None:
            return None
        series = np.frombuffer(zlib.decompress(found[1]), np.float64).reshape(-1, len(SAMPLE_FIELDS))
        return json.loads(found[0]), series

    def put(self, key: str, cell: Cell) -> None:
        row = (key, json.dumps(cell[0]), zlib.compress(np.ascontiguousarray(cell[1], np.float64).tobytes(), 1))
        self.database.execute("INSERT OR REPLACE INTO cells VALUES (?, ?, ?)", row)

    def commit(self) -> None:
        self.database.commit()


class Stage:
    """Where cases are played: the store, the processes, and the progress bar."""

    def __init__(self, store: Store | None = None, mapped: Mapper = map, quiet: bool = True) -> None:
        self.store, self.mapped, self.quiet = store, mapped, quiet
        self.episodes = 0  # played, not found in the store

    def play(self, case: Case, names: Sequence[str], seeds: Sequence[np.random.SeedSequence]) -> list[Played]:
        """All policies and references on every workload of the case, in the order of the seeds."""
        meant = {name: resolve(name, case) for name in (*names, *REFERENCES)}
        keys = {name: self._key(case, name) for name in dict.fromkeys(meant.values())}
        known = [self._known(keys, seed) for seed in seeds]
        missing = [[name for name in keys if name not in cells] for cells in known]
        tasks = [(k, names) for k, names in enumerate(missing) if names]
        for (k, _), played in zip(tasks, self._played(case, [(seeds[k], names) for k, names in tasks]), strict=True):
            for name in played.metrics:
                known[k][name] = played.metrics[name], played.series.get(name, np.empty((0, len(SAMPLE_FIELDS))))
                if self.store is not None:
                    self.store.put(_hash(keys[name], seeds[k]), known[k][name])
            if self.store is not None:
                self.store.commit()
        return [
            Played(*({name: cells[meant[name]][part] for name in meant} for part in (0, 1)))  # type: ignore[arg-type]
            for cells in known
        ]

    def _key(self, case: Case, name: str) -> str:
        by = baseline_name(case.base) if name in REFERENCES else fingerprint(name)
        return _hash(code_digest(), case.scenario.digest(), case.warm_jobs, name in REFERENCES and name, by)

    def _known(self, keys: dict[str, str], seed: np.random.SeedSequence) -> dict[str, Cell]:
        if self.store is None:
            return {}
        found = {name: self.store.get(_hash(key, seed)) for name, key in keys.items()}
        return {name: cell for name, cell in found.items() if cell is not None}

    def _played(self, case: Case, tasks: list[tuple[np.random.SeedSequence, list[str]]]) -> Iterable[Played]:
        task = partial(_play, case=case)
        self.episodes += sum(len(names) for _, names in tasks)
        return tqdm(self.mapped(task, tasks), case.label, len(tasks), disable=self.quiet or not tasks, file=sys.stderr)  # type: ignore[no-any-return]


@contextmanager
def stage(out: Path | None, workers: int, quiet: bool, ray: bool = False) -> Iterator[Stage]:
    """A stage with a store in the folder `out` (None: nothing is kept), whose processes end with it."""
    store = Store(out / STORE) if out is not None else None
    try:
        with fan_out(workers, ray) as mapped:
            yield Stage(store, mapped, quiet)
    finally:
        if store is not None:
            store.commit()
            store.database.close()


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
