"""Policy files: what is written comes back, anything else is refused, and what a file computes is the network."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from nvlenv.common.errors import InputError
from nvlenv.engine import load_policy
from nvlenv.envs.batch import Batch
from nvlenv.envs.scenario import Scenario, prepare
from nvlenv.policies.inference import LOGIT_GRID, Weights, best_action, compute_logits, work_space
from nvlenv.policies.learned import LARGEST, LearnedPolicy, fingerprint, read_policy_file, save_policy
from nvlenv.policies.observation import N_RACK, schema
from nvlenv.policies.resolver import play
from nvlenv.simulator.decision import Decision
from tests.policies.files import Arrays, Observation, random_arrays, random_observation


def logits_of(arrays: Arrays, observation: Observation) -> NDArray[np.float64]:
    policy, work = LearnedPolicy(arrays), work_space(len(observation[0]), arrays["in_bias"].size)
    work.racks[:], work.job[:], work.cluster[:] = observation
    compute_logits(policy.weights, work)
    return work.logits


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_policy(tmp_path / "policy.npz", random_arrays(), {"metrics": {"cost": 1.25}, "licence": "Apache-2.0"})
    return tmp_path / "policy.npz"


# What a file keeps


def test_what_is_written_comes_back(saved: Path) -> None:
    arrays, manifest = read_policy_file(saved)

    assert {name: array.tobytes() for name, array in arrays.items()} == {
        name: array.tobytes() for name, array in random_arrays().items()
    }
    assert manifest["metrics"] == {"cost": 1.25} and manifest["licence"] == "Apache-2.0"
    assert manifest["schema"] == schema() and manifest["hidden"] == 8
    assert load_policy(saved).manifest == manifest and load_policy(str(saved)).name == "policy"


def test_equal_policies_give_equal_bytes(saved: Path, tmp_path: Path) -> None:
    save_policy(tmp_path / "again.npz", random_arrays(), {"licence": "Apache-2.0", "metrics": {"cost": 1.25}})

    assert saved.read_bytes() == (tmp_path / "again.npz").read_bytes()


def test_a_save_that_fails_leaves_the_old_file(saved: Path) -> None:
    before = saved.read_bytes()

    with pytest.raises(InputError, match="mid_bias"):
        save_policy(saved, {**random_arrays(), "mid_bias": np.full(8, np.nan)})
    with pytest.raises(TypeError):
        save_policy(saved, random_arrays(), {"metrics": object()})

    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == ["policy.npz"]


# What is refused


def rewritten(path: Path, head: Callable[[dict[str, Any]], Any] = lambda head: head, **arrays: Any) -> None:
    """Write the file anew with another manifest (returned by `head`) and other arrays (None: left out)."""
    with np.load(path) as data:
        contents: dict[str, Any] = {name: data[name] for name in data.files}
    contents.update(arrays)
    contents = {name: array for name, array in contents.items() if array is not None}
    if "manifest" not in arrays:
        text = json.dumps(head(json.loads(contents["manifest"].tobytes()))).encode()
        contents["manifest"] = np.frombuffer(text, np.uint8)
    np.savez(path, **contents)


def with_schema(path: Path, **changes: Any) -> None:
    rewritten(path, lambda head: {**head, "schema": {**head["schema"], **changes}})


def renamed(path: Path) -> None:
    names = [name.replace("drain", "drain_time") for name in schema()["racks"]]
    with_schema(path, version=0, racks=names, job=schema()["job"][1:])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def replaced(path: Path, name: str, content: bytes, compression: int = zipfile.ZIP_STORED) -> None:
    """Put other bytes in the place of one array."""
    with zipfile.ZipFile(path) as archive:
        kept = {entry: archive.read(entry) for entry in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for entry, data in {**kept, f"{name}.npy": content}.items():
            archive.writestr(entry, data)


def lying_header(path: Path) -> None:
    """An array whose header promises a petabyte."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": "<f8", "fortran_order": False, "shape": (2**47,)})
    replaced(path, "mid_bias", out.getvalue() + bytes(64))


class Trap:
    """Unpickling this would write a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("sprung"),)


def as_single_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


def fewer_hidden(path: Path) -> None:
    arrays = {**random_arrays(), "in_bias": np.zeros(4)}
    rewritten(path, lambda head: {**head, "sha256": fingerprint(arrays)}, in_bias=arrays["in_bias"])


def heavier(path: Path) -> None:
    rewritten(path, mid_bias=random_arrays()["mid_bias"] + 1e-9)


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (lambda path: path.unlink(), "no such file"),
    "folder": (lambda path: (path.unlink(), path.mkdir()), "not a file"),
    "empty": (lambda path: path.write_bytes(b""), "cannot be read"),
    "text": (lambda path: path.write_text("weights: 1, 2, 3", "utf-8"), "cannot be read"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-200]), "cannot be read"),
    "flipped bit": (flipped, ".npy: found a damaged entry"),
    "single array": (as_single_array, "cannot be read"),
    "bare pickle": (lambda path: path.write_bytes(pickle.dumps(Trap())), "cannot be read"),
    "pickled array": (lambda path: rewritten(path, mid=np.array([Trap()], object)), "allow_pickle=False"),
    "pickled entry": (lambda path: replaced(path, "mid", pickle.dumps(Trap())), "mid: found bytes"),
    "lying header": (lying_header, "cannot be read"),
    "zip bomb": (
        lambda path: replaced(path, "mid", bytes(LARGEST + 1), zipfile.ZIP_DEFLATED),
        f"bytes unpacked, expected at most {LARGEST}",
    ),
    "other npz": (lambda path: np.savez(path, weights=np.zeros(3)), "manifest: found none"),
    "manifest of floats": (lambda path: rewritten(path, manifest=np.zeros(3)), "manifest: found an array of float64"),
    "manifest no JSON": (lambda path: rewritten(path, manifest=np.zeros(3, np.uint8)), "not JSON"),
    "manifest a list": (lambda path: rewritten(path, lambda head: [head]), "format: found 'list'"),
    "other format": (lambda path: rewritten(path, lambda head: {**head, "format": "x"}), "format: found 'x'"),
    "newer format": (
        lambda path: rewritten(path, lambda head: {**head, "format_version": 2}),
        "format_version: found 2",
    ),
    "no schema": (lambda path: rewritten(path, lambda head: {**head, "schema": None}), "schema: found None"),
    "other version": (lambda path: with_schema(path, version=7), "schema: found version 7, expected"),
    "other features": (
        renamed,
        "schema: found version 0; racks: unknown ['drain_time'] and missing ['drain']; job: missing ['present'], exp",
    ),
    "other order": (lambda path: with_schema(path, job=schema()["job"][::-1]), "job: another order"),
    "other actions": (lambda path: with_schema(path, actions=["place[R]", "hold"]), "missing ['open[R]', 'fill']"),
    "array missing": (lambda path: rewritten(path, mid=None), "arrays: found missing ['mid']"),
    "array unknown": (lambda path: rewritten(path, extra=np.zeros(1)), "arrays: found unknown ['extra']"),
    "wrong shape": (lambda path: rewritten(path, pool=np.zeros((8, 8))), "pool: found float64 of shape (8, 8)"),
    "wrong type": (lambda path: rewritten(path, mid_bias=np.zeros(8, int)), "mid_bias: found int64"),
    "mixed widths": (fewer_hidden, f"expected float64 of shape ({N_RACK}, 4)"),
    "no width": (lambda path: rewritten(path, in_bias=np.zeros(0)), "in_bias: found 0 hidden units"),
    "not finite": (lambda path: rewritten(path, mid_bias=np.full(8, np.inf)), "mid_bias: found a number that is not"),
    "changed weight": (heavier, "sha256"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_anything_else_is_refused_in_one_line(
    kind: str, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    damage, message = REFUSED[kind]
    damage(saved)

    with pytest.raises(InputError) as error:
        load_policy(saved)

    text = str(error.value)
    assert text.startswith(str(saved)) and message in text and "expected" in text and "\n" not in text
    assert not Path("sprung").exists()


# What is computed


def reference(arrays: Arrays, observation: Observation) -> NDArray[np.float64]:
    """The network as one would write it down."""
    racks, job, cluster = (part.astype(np.float64) for part in observation)
    w, shared = Weights(**arrays), np.concatenate((job, cluster))

    def pooled(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        real = rows[racks[:, 0] > 0]
        return np.concatenate((real.mean(axis=0), real.max(axis=0)))

    entry = shared @ w.global_in + w.in_bias
    first = np.maximum(racks @ w.rack_in + entry, 0)
    second = np.maximum(first @ w.mid + pooled(first) @ w.pool + w.mid_bias, 0)
    summary = np.concatenate((pooled(second), np.maximum(entry, 0)))
    per_rack = second @ w.rack_head + w.rack_bias + racks @ w.prior_rack + w.prior_rack_bias
    overall = summary @ w.global_head + w.global_bias + shared @ w.prior_global + w.prior_global_bias
    return np.concatenate((per_rack[:, 0], per_rack[:, 1], overall))


@settings(max_examples=40)
@given(racks=st.integers(1, 40), padding=st.integers(0, 5), hidden=st.integers(1, 33), seed=st.integers(0, 1000))
def test_the_kernel_computes_the_network(racks: int, padding: int, hidden: int, seed: int) -> None:
    arrays, (rows, job, cluster) = random_arrays(seed, hidden), random_observation(racks, seed)
    rows = np.concatenate((rows, np.zeros((padding, N_RACK), np.float32)))
    real = [*range(racks), *range(racks + padding, 2 * racks + padding), -2, -1]

    found, expected = logits_of(arrays, (rows, job, cluster)), reference(arrays, (rows, job, cluster))

    np.testing.assert_allclose(found[real], expected[real], rtol=0, atol=1e-11)


@given(
    values=st.lists(st.floats(-50, 50), min_size=2, max_size=30),
    legal=st.integers(1, 2**30 - 1),
    noise=st.floats(-0.4, 0.4),
)
def test_the_best_legal_action_is_taken_the_lowest_on_ties(values: list[float], legal: int, noise: float) -> None:
    grid = np.round(np.array(values)) + noise / LOGIT_GRID
    mask = np.array([bool(legal >> k & 1) for k in range(len(values))])
    mask[0] |= not mask.any()

    action = best_action(grid, mask)

    assert mask[action]
    assert action == np.flatnonzero(mask & (grid == grid[mask].max()))[0]


def test_differences_below_the_grid_decide_nothing() -> None:
    assert best_action(np.array([0.0, 0.3, 0.1]) / LOGIT_GRID, np.ones(3, np.bool_)) == 0
    assert best_action(np.array([0.0, 0.8, 0.1]) / LOGIT_GRID, np.ones(3, np.bool_)) == 1


@pytest.mark.parametrize("racks", [1, 16, 33])
def test_of_equal_racks_the_first_is_taken(racks: int) -> None:
    rows, job, cluster = random_observation(1, seed=racks)
    mask = np.zeros(2 * racks + 2, np.bool_)
    mask[racks // 2 : racks] = True

    observed = (np.repeat(rows, racks, axis=0)[None], job[None], cluster[None])

    assert LearnedPolicy(random_arrays()).act_batch(*observed, mask[None]) == [racks // 2]


def test_observations_of_another_shape_are_refused() -> None:
    rows, job, cluster = (part[None] for part in random_observation(4))
    policy, mask = LearnedPolicy(random_arrays()), np.ones((1, 10), np.bool_)

    with pytest.raises(InputError, match=r"act_batch: masks: found shape \(1, 9\), expected shape \(1, 10\)"):
        policy.act_batch(rows, job, cluster, mask[:, 1:])
    with pytest.raises(InputError, match="racks"):
        policy.act_batch(rows[:, :, 1:], job, cluster, mask)


# What decides on a cluster


def test_decision_by_decision_batch_and_episode_agree(small: Scenario) -> None:
    policy, batch = LearnedPolicy(random_arrays(1)), Batch(small, 1, np.random.SeedSequence(5))
    actions = []
    for _ in range(400):
        action = policy(Decision(batch.view(0), batch.mask[0], batch.layout))
        assert [action] == policy.act_batch(batch.racks, batch.job, batch.cluster, batch.mask).tolist()
        assert batch.mask[0, action]
        actions.append(action)
        batch.step(np.array([action]))
        if batch.done[0]:
            batch.reset(0)
    assert len(set(actions)) > 5


def test_logits_of_a_decision_explain_its_action(small: Scenario) -> None:
    policy, batch = LearnedPolicy(random_arrays(1)), Batch(small, 1, np.random.SeedSequence(5))
    decision = Decision(batch.view(0), batch.mask[0], batch.layout)

    logits = policy.logits(decision)

    assert logits.shape == (batch.layout.size,)
    assert best_action(logits, decision.mask) == policy(decision)


def test_a_compiled_episode_is_the_one_played_decision_by_decision(make_small: Callable[..., Scenario]) -> None:
    scenario = make_small("episode.hours=200")
    policy, episode = LearnedPolicy(random_arrays(3)), scenario.draw(np.random.SeedSequence(2))
    compiled, stepped = prepare(scenario, episode), prepare(scenario, episode)

    play(policy, compiled)
    play(lambda decision: policy(decision), stepped)

    assert int(compiled.clock["decisions"][0]) > 50
    assert compiled.clock.tobytes() == stepped.clock.tobytes()
    assert compiled.jobs.tobytes() == stepped.jobs.tobytes()
