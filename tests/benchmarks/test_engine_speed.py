"""A large cluster is answered fast: CPU time of a placement on 1,000 racks, everything included.

python -m pytest -m slow -s tests/benchmarks/test_engine_speed.py
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import numpy as np
import pytest

from nvlenv.cluster.types import Mode
from nvlenv.engine.core.engine import PlacementEngine
from nvlenv.engine.model.answers import Placed
from nvlenv.engine.model.snapshot import ClusterSnapshot
from nvlenv.policies.learned import save_policy
from tests.engine.clusters import NOW, cluster, gang, node, nodes_of, tenant
from tests.policies.files import random_arrays

RACKS, PLACEMENTS = 1000, 2000
LIMIT = 20.0  # ms, of the slowest of a hundred
SHAPES = (  # pods, mode, pods of a slice, GPUs of a pod, weight
    (1, Mode.UNCONSTRAINED, 0, 4, 30),
    (1, Mode.UNCONSTRAINED, 0, 1, 30),
    (8, Mode.PREFERRED, 0, 4, 26),
    (16, Mode.REQUIRED, 0, 4, 13),
    (128, Mode.REQUIRED, 16, 4, 1),
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def large() -> ClusterSnapshot:
    """Racks with 0 to 18 nodes in use, by jobs of up to 4 nodes."""
    rng, jobs = random.Random(1), []
    for rack in range(RACKS):
        first, used = 0, rng.randint(0, 18)
        while first < used:
            size = min(rng.choice([1, 2, 4]), used - first)
            names = [node(rack, n) for n in range(first, first + size)]
            jobs.append(tenant(f"{rack}-{first}", names, priority=rng.randint(0, 3)))
            first += size
    return cluster(nodes_of([18] * RACKS, blocks=[r // 16 for r in range(RACKS)], cpu=144_000, pods=110), jobs)


@pytest.mark.parametrize("policy", ["best-fit+fill+easy+open", "learned"])
def test_placements_on_a_thousand_racks(large: ClusterSnapshot, policy: str, tmp_path: Path) -> None:
    if policy == "learned":
        policy = str(tmp_path / "policy.npz")
        save_policy(policy, random_arrays(hidden=32))
    engine, rng = PlacementEngine(large, policy, at=NOW), random.Random(2)
    times, running = [], []
    for number in range(PLACEMENTS + 100):  # the first hundred load compiled code
        pods, mode, slice_pods, gpus, _ = rng.choices(SHAPES, [shape[-1] for shape in SHAPES])[0]
        job = gang(f"job-{number}", pods, mode, slice_pods, gpus, cpu=8_000, priority=rng.randint(0, 4))
        start = time.process_time()
        answer = engine.place(job, at=NOW + number)
        times.append(1e3 * (time.process_time() - start))
        if isinstance(answer, Placed):
            running.append(answer.job)
        if len(running) > 300:
            engine.finish(running.pop(rng.randrange(len(running))), at=NOW + number)
    median, slow = np.percentile(times[100:], [50, 99])
    print(f"{policy.rpartition('/')[2]}: median {median:.2f} ms, p99 {slow:.2f} ms")
    assert slow < LIMIT
