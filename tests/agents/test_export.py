"""What leaves training acts as it did there: policy file, ONNX model, command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.envs import IdentityEnv

from agents import export
from agents.learning.model import PlacementPolicy
from agents.learning.network import OPSET, PlacementNetwork, export_onnx, export_policy, load_network
from nvlenv.engine import load_policy
from nvlenv.envs.env import action_space, observation_space
from nvlenv.envs.sb3 import NVL72VecEnv
from nvlenv.envs.scenario import Scenario
from nvlenv.policies.inference import LOGIT_GRID
from nvlenv.policies.learned import LearnedPolicy
from nvlenv.policies.observation import N_CLUSTER, N_JOB, N_RACK
from tests.agents.decisions import Recorded, perturbed, record


def exported(network: PlacementNetwork, folder: Path) -> LearnedPolicy:
    export_policy(network, folder / "policy.npz", {"steps": 7})
    return load_policy(folder / "policy.npz")


def actions_of(policy: LearnedPolicy, decisions: Recorded) -> np.ndarray:
    return policy.act_batch(*decisions.observation().values(), decisions.mask)


def torch_actions(network: PlacementNetwork, decisions: Recorded) -> np.ndarray:
    """Argmax over legal logits, in torch's float64 and rounded to the engine's grid."""
    with torch.no_grad():
        logits = network.double()(*decisions.tensors())[0].numpy()
    network.float()
    return np.where(decisions.mask, np.floor(logits * LOGIT_GRID + 0.5), -np.inf).argmax(axis=1)


# The policy file


@pytest.mark.parametrize(
    ("n", "seed"), [(3_000, 0), pytest.param(100_000, 1, marks=pytest.mark.slow)], ids=["3000", "100000"]
)
def test_exported_and_live_policy_take_the_same_actions(n: int, seed: int, tmp_path: Path) -> None:
    network, decisions = perturbed(seed, size=2.0), record(n)
    live = PlacementPolicy(observation_space(16), action_space(16), lambda _: 1e-3)
    live.network.load_state_dict(network.state_dict())

    actions = actions_of(exported(network, tmp_path), decisions)

    predicted, _ = live.predict(decisions.observation(), action_masks=decisions.mask, deterministic=True)
    np.testing.assert_array_equal(actions, predicted)
    np.testing.assert_array_equal(actions, torch_actions(network, decisions))
    prior = torch_actions(PlacementNetwork(), decisions)
    choices = decisions.mask.sum(axis=1) > 2
    assert (actions != prior)[choices].mean() > 0.3


@pytest.mark.parametrize(("scenario", "racks"), [("lab-16", 8), ("fleet-33", None)])
def test_weights_of_one_cluster_act_on_another(scenario: str, racks: int | None, tmp_path: Path) -> None:
    network, decisions = perturbed(3), record(400, scenario, racks)

    actions = actions_of(exported(network, tmp_path), decisions)

    np.testing.assert_array_equal(actions, torch_actions(network, decisions))


# The ONNX model


def test_the_onnx_model_takes_the_same_actions_on_any_number_of_racks(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    network = perturbed(2)
    export_onnx(network, tmp_path / "policy.onnx")
    policy = exported(network, tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx", providers=["CPUExecutionProvider"])

    for decisions in (record(400, "lab-16", 8), record(600), record(400, "fleet-33")):
        logits = session.run(None, {**decisions.observation(), "mask": decisions.mask})[0]
        one = session.run(None, {"racks": decisions.racks[:1], "job": decisions.job[:1],
                                 "cluster": decisions.cluster[:1], "mask": decisions.mask[:1]})[0]  # fmt: skip

        assert logits.dtype == np.float64 and (np.isneginf(logits) == ~decisions.mask).all()
        np.testing.assert_array_equal(logits.argmax(axis=1), actions_of(policy, decisions))
        np.testing.assert_array_equal(one, logits[:1])


def test_the_onnx_model_is_valid_and_its_shapes_are_free(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    export_onnx(PlacementNetwork(8), tmp_path / "policy.onnx")

    model = onnx.load(tmp_path / "policy.onnx")
    onnx.checker.check_model(model, full_check=True)

    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    assert shapes == {
        "racks": ["batch", "racks", N_RACK],
        "job": ["batch", N_JOB],
        "cluster": ["batch", N_CLUSTER],
        "mask": ["batch", "actions"],
        "logits": ["batch", "actions"],
    }
    assert model.opset_import[0].version == OPSET


def test_exporting_leaves_the_network_as_it_is(tmp_path: Path) -> None:
    network = perturbed(4).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}

    export_onnx(network, tmp_path / "policy.onnx")
    export_policy(network, tmp_path / "policy.npz", {})

    assert network.training
    assert all(torch.equal(before[name], value) and value.dtype == torch.float32
               for name, value in network.state_dict().items())  # fmt: skip


# The command line


@pytest.fixture
def run_folder(small: Scenario, tmp_path: Path) -> Path:
    """A run in its first minutes: a state, but no best policy yet."""
    model = MaskablePPO(PlacementPolicy, NVL72VecEnv(small, 1), policy_kwargs={"hidden": 8}, device="cpu")
    model.policy.network.load_state_dict(perturbed(5, hidden=8).state_dict())
    run = tmp_path / "run"
    run.mkdir()
    model.save(run / "model.zip")
    (run / "config.yaml").write_text("seed: 11\n", "utf-8")
    return run


def test_a_run_is_exported_from_its_state_until_it_has_a_best_policy(run_folder: Path, tmp_path: Path) -> None:
    target, onnx = tmp_path / "out" / "policy.npz", tmp_path / "out" / "policy.onnx"

    assert export.main([str(run_folder), "--out", str(target), "--onnx", str(onnx)]) == 0
    first = load_policy(target)
    export_policy(perturbed(6), run_folder / "policy.npz", {"steps": 3})
    assert export.main([str(run_folder), "--out", str(target)]) == 0
    second = load_policy(target)

    decisions = record(600)
    assert first.manifest["config"] == {"seed": 11} and first.manifest["licence"] == "Apache-2.0"
    np.testing.assert_array_equal(actions_of(first, decisions), torch_actions(perturbed(5, hidden=8), decisions))
    assert onnx.stat().st_size > 1000
    assert second.manifest["steps"] == 3
    np.testing.assert_array_equal(actions_of(second, decisions), torch_actions(perturbed(6), decisions))


@pytest.mark.parametrize("name", ["model.zip", "policy.npz"])
def test_a_single_file_of_a_run_is_exported_too(name: str, run_folder: Path, tmp_path: Path) -> None:
    export_policy(perturbed(5, hidden=8), run_folder / "policy.npz", {})

    assert export.main([str(run_folder / name), "--out", str(tmp_path / "copy.npz")]) == 0

    loaded, _ = load_network(tmp_path / "copy.npz")
    expected = perturbed(5, hidden=8).state_dict()
    actor = {key: value for key, value in loaded.state_dict().items() if not key.startswith("value")}
    assert all(torch.equal(value, expected[key]) for key, value in actor.items())


def foreign_model(folder: Path) -> Path:
    MaskablePPO("MlpPolicy", IdentityEnv(dim=2), n_steps=8, batch_size=8, device="cpu").save(folder / "foreign.zip")
    return folder / "foreign.zip"


def foreign_arrays(folder: Path) -> Path:
    np.savez(folder / "foreign.npz", weights=np.zeros(3))
    return folder / "foreign.npz"


def no_zip(folder: Path) -> Path:
    (folder / "model.zip").write_text("nothing", "utf-8")
    return folder / "model.zip"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "nowhere", "nowhere: found no such file or folder"),
        (lambda folder: folder, "found neither policy.npz nor model.zip"),
        (no_zip, "model.zip: found a file that cannot be read"),
        (foreign_model, "foreign.zip: found a model with the policy MaskableActorCriticPolicy"),
        (foreign_arrays, "foreign.npz: manifest: found none"),
    ],
    ids=["missing", "empty folder", "no zip", "model of another policy", "other arrays"],
)
def test_what_is_no_run_is_told_in_one_line(make, message, tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    assert export.main([str(make(tmp_path)), "--out", str(tmp_path / "policy.out.npz")]) == 2

    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ") and message in error and "expected" in error and "\n" not in error
    assert not (tmp_path / "policy.out.npz").exists()


def test_the_output_must_be_a_policy_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export.main([str(tmp_path), "--out", "policy.onnx"]) == 2

    assert "--out: found 'policy.onnx', expected a name that ends in .npz" in capsys.readouterr().err


def test_without_onnx_the_option_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    export_policy(PlacementNetwork(8), tmp_path / "policy.npz", {})

    assert export.main([str(tmp_path), "--out", str(tmp_path / "a.npz"), "--onnx", str(tmp_path / "a.onnx")]) == 2

    assert "nvlenv[onnx]" in capsys.readouterr().err


def test_help_names_every_option() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "agents.export", "--help"], capture_output=True, text=True, check=True
    ).stdout

    for word in ("RUN", "--out", "--onnx", "load_policy", "mask (B, 2R + 2)"):
        assert word in shown
