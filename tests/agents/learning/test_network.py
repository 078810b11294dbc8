"""The network knows no order and no number of racks, and untrained it is the heuristic that its prior describes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.learning.network import PARAMETERS, PlacementNetwork, load_arrays, network_arrays
from nvlenv.common.errors import InputError
from nvlenv.envs.batch import Batch
from nvlenv.envs.scenario import load_scenario
from nvlenv.policies.observation import JOB_FEATURES, N_CLUSTER, N_JOB, N_RACK, RACK_FEATURES
from nvlenv.policies.resolver import resolve_policy
from nvlenv.simulator.decision import Decision
from tests.agents.decisions import perturbed, record

FEATURE = {f.name: k for k, f in enumerate(RACK_FEATURES)}
ROOM = FEATURE["room_left"]
JOB = {f.name: k for k, f in enumerate(JOB_FEATURES)}
EXACT = {"rtol": 0.0, "atol": 1e-10}


def observation(racks: int, seed: int = 0, batch: int = 3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random features in float64; every rack exists."""
    random = torch.Generator().manual_seed(seed)
    rows = 2 * torch.rand(batch, racks, N_RACK, generator=random, dtype=torch.float64) - 1
    rows[:, :, FEATURE["exists"]] = 1.0
    job, cluster = (torch.rand(batch, n, generator=random, dtype=torch.float64) for n in (N_JOB, N_CLUSTER))
    return rows, job, cluster


@settings(max_examples=30)
@given(racks=st.integers(1, 40), seed=st.integers(0, 1000))
def test_permuting_racks_permutes_their_logits_and_nothing_else(racks: int, seed: int) -> None:
    network = perturbed(seed % 3).double()
    rows, job, cluster = observation(racks, seed)
    order = torch.randperm(racks, generator=torch.Generator().manual_seed(seed))
    logits, value = network(rows, job, cluster)

    permuted, permuted_value = network(rows[:, order], job, cluster)

    torch.testing.assert_close(permuted[:, :racks], logits[:, :racks][:, order], **EXACT)
    torch.testing.assert_close(permuted[:, racks:-2], logits[:, racks:-2][:, order], **EXACT)
    torch.testing.assert_close(permuted[:, -2:], logits[:, -2:], **EXACT)
    torch.testing.assert_close(permuted_value, value, **EXACT)


@settings(max_examples=30)
@given(racks=st.integers(1, 40), padding=st.integers(1, 40), seed=st.integers(0, 1000))
def test_padded_racks_change_nothing(racks: int, padding: int, seed: int) -> None:
    network = perturbed(seed % 3).double()
    rows, job, cluster = observation(racks, seed)
    logits, value = network(rows, job, cluster)

    padded, padded_value = network(torch.nn.functional.pad(rows, (0, 0, 0, padding)), job, cluster)

    kept = [*range(racks), *range(racks + padding, 2 * racks + padding), -2, -1]
    torch.testing.assert_close(padded[:, kept], logits, **EXACT)
    torch.testing.assert_close(padded_value, value, **EXACT)


def test_the_same_cluster_twice_is_worth_the_same() -> None:
    network = perturbed().double()
    rows, job, cluster = observation(9)
    logits, value = network(rows, job, cluster)

    doubled, doubled_value = network(torch.cat((rows, rows), dim=1), job, cluster)

    torch.testing.assert_close(doubled[:, -2:], logits[:, -2:], **EXACT)
    torch.testing.assert_close(doubled_value, value, **EXACT)


@pytest.mark.parametrize("racks", [1, 8, 16, 33, 128])
def test_one_set_of_weights_serves_any_number_of_racks(racks: int) -> None:
    logits, value = perturbed()(*(part.float() for part in observation(racks, batch=5)))

    assert logits.shape == (5, 2 * racks + 2) and value.shape == (5,)
    assert logits.dtype == value.dtype == torch.float32
    assert logits.isfinite().all() and value.isfinite().all()


def test_job_cluster_and_other_racks_matter_to_every_action() -> None:
    rows, job, cluster = observation(4)
    inputs = [part.requires_grad_() for part in (rows, job, cluster)]
    logits, value = perturbed().double()(*inputs)

    for output in (*logits[0], value[0]):
        for gradient in torch.autograd.grad(output, inputs, retain_graph=True):
            assert (gradient[0] != 0).any(dim=-1).all() if gradient.dim() == 3 else (gradient[0] != 0).any()


def test_it_is_small() -> None:
    assert 5_000 < sum(p.numel() for p in PlacementNetwork().parameters()) < 10_000


def test_the_first_gradient_step_reaches_every_parameter() -> None:
    network = PlacementNetwork()
    decisions = record(600)
    logits, value = network(*decisions.tensors(torch.float32))
    chosen = torch.log_softmax(logits.masked_fill(~torch.from_numpy(decisions.mask), -1e9), 1)

    (chosen[:, ::3].clamp(min=-50).mean() + value.square().mean()).backward()

    dead = [name for name, p in network.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert dead == []


def test_untrained_it_keeps_capacity_for_the_most_urgent_job_and_opens_the_cheapest_racks() -> None:
    network = PlacementNetwork()
    rule = resolve_policy("slurm-block+delay(hours=8)+easy(slices=1,patience=20)+drain+open")
    batch = Batch(load_scenario("lab-16"), 1, np.random.SeedSequence(3))
    kinds, compromises = {"place": 0, "open": 0, "hold": 0}, 0
    drains, patience = (JOB[name] for name in ("drains", "patience"))

    for _ in range(6_000):
        legal = batch.mask[0]
        logits, _ = network(*(torch.from_numpy(part[:1]) for part in (batch.racks, batch.job, batch.cluster)))
        favourite = int(np.where(legal, logits[0].detach().numpy(), -np.inf).argmax())
        expected = rule(Decision(batch.view(0), legal, batch.layout))
        spreads = (batch.racks[0, legal[:16], FEATURE["fits"]] < 1).any()
        if favourite != expected:
            waits = abs(batch.job[0, drains] - 0.27) < 0.1 or batch.job[0, patience] > 0  # longer or shorter
            places = max(favourite, expected) < 16
            tied = places and batch.racks[0, favourite, ROOM] == batch.racks[0, expected, ROOM]
            assert waits or tied or (spreads and places), batch.layout.describe(favourite)
            compromises += not tied
        kinds[batch.layout.describe(expected).split("[")[0]] += 1
        batch.step(np.array([expected]))
        if batch.done[0]:
            batch.reset(0)

    assert min(kinds.values()) >= 15
    assert compromises <= 300


@pytest.mark.parametrize(
    ("action", "first", "second"),
    [("place", "room_left", "left"), ("open", "open_gpus", "open_lost")],
)
def test_a_tie_breaker_decides_ties_and_only_ties(action: str, first: str, second: str) -> None:
    rows, job, cluster = observation(3, batch=1)
    rows[:] = rows[:, :1]
    rows[0, :, FEATURE[first]] = torch.tensor([0.5, 0.5, 0.5 - 1 / 72]).double()
    rows[0, :, FEATURE[second]] = torch.tensor([1 / 4096, 0.0, 1.0]).double()

    logits, _ = PlacementNetwork().double()(rows, job, cluster)

    same, fewer, smaller = logits[0, :3] if action == "place" else logits[0, 3:6]
    assert smaller > fewer > same


def test_hold_fill_and_needless_opening_start_rare() -> None:
    network, decisions = PlacementNetwork(), record(3_000)
    racks = decisions.racks.shape[1]
    allowed = decisions.mask[:, :racks] & (decisions.racks[:, :, FEATURE["conflicts"]] == 0)
    unhurried = (decisions.job[:, JOB["drains"]] > 0) | (decisions.job[:, JOB["patience"]] > 0)
    placeable = allowed.any(axis=1) & ~unhurried
    logits, _ = network(*decisions.tensors(torch.float32))
    chances = torch.softmax(logits.masked_fill(~torch.from_numpy(decisions.mask), -1e9), 1).detach().numpy()

    assert placeable.sum() > 1_000
    assert chances[placeable, -1].mean() < 0.02 and chances[placeable, -1].max() < 0.15
    assert chances[placeable, -2].mean() < 0.02


def test_arrays_of_a_policy_file_are_the_actor() -> None:
    source, target = perturbed(1), perturbed(2)
    before = target.value_head[0].weight.detach().clone()

    load_arrays(target, network_arrays(source), "here")

    inputs = [part.float() for part in observation(7)]
    assert torch.equal(target(*inputs)[0], source(*inputs)[0])
    assert torch.equal(target.value_head[0].weight, before)
    assert set(PARAMETERS.values()) == {name for name in source.state_dict() if not name.startswith("value_head")}


def test_without_its_prior_a_network_begins_with_all_actions_alike() -> None:
    network = PlacementNetwork(8)
    network.forget_prior()
    logits, _ = network(*(part.float() for part in observation(7)))
    assert not logits.any()


@pytest.mark.parametrize("hidden", [1, 5, 32])
def test_a_narrower_file_is_the_same_function_in_a_wider_network(hidden: int) -> None:
    torch.manual_seed(hidden)
    narrow, wide = PlacementNetwork(hidden), perturbed(2)
    with torch.no_grad():
        for p in narrow.parameters():
            p.add_(0.3 * torch.randn_like(p))

    load_arrays(wide, network_arrays(narrow), "here")

    inputs = [part.float() for part in observation(7)]
    torch.testing.assert_close(wide(*inputs)[0], narrow(*inputs)[0], rtol=1e-5, atol=1e-4)


def test_arrays_of_a_wider_network_are_refused() -> None:
    with pytest.raises(InputError, match="hidden: found 32, expected at most 16"):
        load_arrays(PlacementNetwork(16), network_arrays(PlacementNetwork(32)), "policy.npz")
