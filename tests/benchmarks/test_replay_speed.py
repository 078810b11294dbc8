"""A trace of 60,000 jobs is replayed, and the first of them by AccaSim too."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nvlenv.envs.scenario import load_scenario, prepare
from nvlenv.policies.heuristics.choose import play_rule
from nvlenv.policies.heuristics.rule import parse_rule
from tests.benchmarks.support.figures import Figure, fastest
from tests.benchmarks.support.work import RULE, play, replay_of, run_python, seconds, write_swf

pytestmark = [pytest.mark.slow, pytest.mark.benchmark(timer=time.process_time)]
JOBS, RIVAL_JOBS, RACKS, NODES, GPUS = 60_000, 3_000, 16, 288, 4


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lab's job mix as an SWF file."""
    path = tmp_path_factory.mktemp("trace") / "lab.swf"
    write_swf(path, load_scenario("lab-16", [f"workload.jobs={JOBS}"]).draw(np.random.SeedSequence(1)).workload)
    return path


def first_lines(trace: Path, lines: int) -> Path:
    path = trace.with_name(f"first-{lines}.swf")
    path.write_text("".join(trace.read_text().splitlines(keepends=True)[:lines]))
    return path


def accasim_seconds(trace: Path) -> float:
    script = Path(__file__).parent / "support" / "rival_accasim.py"
    took, jobs = run_python(str(script), str(trace), str(NODES), str(GPUS), cwd=trace.parent).split()
    assert int(jobs) == RIVAL_JOBS
    return float(took)


def test_replay(trace: Path, benchmark: Any, figures: list[Figure]) -> None:
    reading = seconds(lambda: replay_of(trace, RACKS))
    scenario, episode = replay_of(trace, RACKS)
    assert len(episode.workload) == JOBS
    rule = parse_rule(RULE)

    def fresh() -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (prepare(scenario, episode, sample=False), rule), {}

    decisions = benchmark.pedantic(play_rule, setup=fresh, rounds=5)

    assert decisions >= JOBS
    figures.append(Figure("replay of 60,000 SWF jobs, 16 racks", fastest(benchmark), "s", 1.0, "less"))
    figures.append(Figure("reading and mapping that file", reading, "s", better="less"))


def test_replay_beside_accasim(trace: Path, figures: list[Figure]) -> None:
    short = first_lines(trace, RIVAL_JOBS)
    ours = RIVAL_JOBS / min(play(*replay_of(short, RACKS)) for _ in range(10))
    theirs, rival = None, "AccaSim: not installed (pip install 'nvlenv[benchmark]')"
    if find_spec("accasim"):
        theirs, rival = RIVAL_JOBS / accasim_seconds(short), "AccaSim 1.1.3, FIFO + best fit"
    name = f"replay of the first {RIVAL_JOBS:,} SWF jobs"
    figures.append(Figure(name, ours, "jobs/s", rival=rival, rival_value=theirs))
