"""A policy file takes the same action on every machine, whatever BLAS, threads, processor or packages it has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nvlenv.policies.learned import LearnedPolicy, save_policy
from tests.policies.files import random_arrays, random_observation

ACT = """
import sys, numpy as np
from nvlenv.engine import load_policy
policy, data = load_policy(sys.argv[1]), np.load(sys.argv[2])
print(*policy.act_batch(data["racks"], data["job"], data["cluster"], data["mask"]))
"""
BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "stable_baselines3", "sb3_contrib"):
            raise ImportError("blocked: " + name)
sys.meta_path.insert(0, Block())
"""


def run_python(code: str, *arguments: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, **environment}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.fixture(scope="module")
def close_calls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A policy file, a thousand observations in which racks come in near-equal pairs, and what is done here."""
    folder = tmp_path_factory.mktemp("machines")
    observations = [random_observation(16, seed) for seed in range(1000)]
    for rows, _, _ in observations:
        rows[8:] = rows[:8]
        rows[8:, 20] += np.float32(1 / 4096)
    racks, job, cluster = (np.stack(parts) for parts in zip(*observations, strict=True))
    mask = np.random.default_rng(0).random((1000, 34)) < 0.7
    mask[:, -1] = True
    arrays = random_arrays(9, hidden=32)
    save_policy(folder / "policy.npz", arrays)
    np.savez(folder / "observations.npz", racks=racks, job=job, cluster=cluster, mask=mask)
    actions = LearnedPolicy(arrays).act_batch(racks, job, cluster, mask)
    assert len(np.unique(actions)) > 10
    return folder / "policy.npz", folder / "observations.npz", " ".join(map(str, actions))


@pytest.mark.parametrize(
    "environment",
    [
        {"OPENBLAS_CORETYPE": "Haswell", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"},
        {"OPENBLAS_CORETYPE": "Prescott", "OMP_NUM_THREADS": "2", "NUMBA_NUM_THREADS": "2"},
    ],
    ids=["Haswell, one thread", "Prescott, two threads"],
)
def test_blas_kernels_and_threads_change_no_action(
    environment: dict[str, str], close_calls: tuple[Path, Path, str]
) -> None:
    policy, observations, expected = close_calls

    assert run_python(ACT, policy, observations, **environment).strip() == expected


def test_a_processor_without_wide_vectors_takes_the_same_actions(
    close_calls: tuple[Path, Path, str], tmp_path: Path
) -> None:
    policy, observations, expected = close_calls
    environment = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path)}

    assert run_python(ACT, policy, observations, **environment).strip() == expected


def test_a_policy_file_needs_no_learning_library(close_calls: tuple[Path, Path, str]) -> None:
    policy, observations, expected = close_calls

    assert run_python(BLOCK + ACT, policy, observations).strip() == expected


def test_importing_the_engine_compiles_nothing() -> None:
    code = "import sys, nvlenv.engine; print([m for m in ('numba', 'torch', 'gymnasium') if m in sys.modules])"

    assert run_python(code).strip() == "[]"
