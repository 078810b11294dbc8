"""Pictures: every state can be told apart, with and without colour, and every GPU has the colour of its class."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nvlenv.cluster.types import Mode, NodeEventKind, NodeEvents
from nvlenv.envs.batch import Batch
from nvlenv.envs.render import GREY, INK, PALETTE, WHITE, draw_ansi, draw_rgb
from nvlenv.envs.scenario import Scenario, load_scenario
from nvlenv.simulator.load import Rules, load
from nvlenv.simulator.state import Dims, Sim, allocate, view
from nvlenv.simulator.step import advance, step
from tests.simulator.cases import make_cluster, make_workload

NAMES = ("service", "training", "hero")


@pytest.fixture(scope="module")
def scene() -> Sim:
    """Three racks of three nodes with a node in every state, a waiting hero, and a job at hand."""
    cluster = make_cluster([[4, 4, 4]] * 3)
    kinds = NodeEventKind
    happened = [(7, kinds.FAIL), (3, kinds.CORDON), (4, kinds.CORDON), (8, kinds.VERIFY)]
    nodes, what = zip(*happened, strict=True)
    events = NodeEvents(np.full(4, 1.0), np.array(nodes, np.int32), np.array(what, np.int8))
    gang: dict[str, Any] = {"gpus_per_pod": 4, "mode": Mode.REQUIRED}
    jobs = [
        {"gpus": 2, "job_class": 0},
        {**gang, "gpus": 8, "job_class": 1},
        {**gang, "gpus": 4, "job_class": 1},
        {**gang, "gpus": 24, "slice_gpus": 12, "job_class": 2, "submit": 2.0, "priority": 4},
        {"gpus": 1, "job_class": 0, "submit": 2.0},
    ]
    workload = make_workload(jobs)
    sim = view.py_func(allocate(1, Dims.of(cluster, len(workload), 1, 3, 4)), 0)
    load(sim, cluster, workload, Rules(horizon=9.0, slice_nodes=3), (1.0, 1.0, 4.0), (), events)
    assert advance(sim)
    for rack in (0, 0, 1):
        assert step(sim, rack)
    return sim


def plain(text: str) -> list[str]:
    """The lines of a text without its colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()


def test_the_text_tells_every_state_without_colour(scene: Sim) -> None:
    lines = plain(draw_ansi(scene, NAMES))
    assert [line for line in lines if line.startswith(("rack", "node", "whole"))] == [
        "rack    00 01 02",
        "node 00 a2 /b . ",
        "node 01 B  // xx",
        "node 02 B  .  vv",
        "whole    0  1  2",
    ]


def test_the_text_says_what_is_asked(scene: Sim) -> None:
    lines = plain(draw_ansi(scene, NAMES))
    assert lines[0] == "hour 2.0   free GPUs 14 / 36   slots of 3 0   waiting jobs 2"
    assert lines[1].startswith("job 4, service: 1 GPUs, unconstrained, waited 0.0 h; legal: place on 3 racks")
    assert "A  service          running     2 GPUs   waiting     1 GPUs in 1 jobs" in lines
    assert "C  hero             running     0 GPUs   waiting    24 GPUs in 1 jobs" in lines


def test_colour_marks_the_class(scene: Sim) -> None:
    text = draw_ansi(scene, NAMES)
    background = ";".join(map(str, PALETTE[1]))
    assert re.search(rf"48;2;{background}mB \x1b", text)


def test_classes_without_names_are_numbered(scene: Sim) -> None:
    assert any("class 2" in line for line in plain(draw_ansi(scene)))


@pytest.mark.parametrize(("name", "rows"), [("lab-16", 1), ("fleet-33", 1), ("fleet-128", 4)])
def test_the_map_fits_a_terminal(name: str, rows: int) -> None:
    scenario = load_scenario(name, ["episode.hours=2", "episode.warmup_hours=0"])
    lines = plain(draw_ansi(Batch(scenario, 1, np.random.SeedSequence(0)).view(0), scenario.class_names()))
    assert sum(line.startswith("rack ") for line in lines) == rows
    assert max(len(line) for line in lines if not line.startswith("job")) <= 120


def count(picture: np.ndarray, colour: tuple[int, int, int]) -> int:
    return int((picture == colour).all(axis=-1).sum())


def test_every_gpu_has_the_colour_of_its_class(scene: Sim) -> None:
    scale = 9
    picture = draw_rgb(scene, scale, NAMES)
    racks = picture[: 3 * scale * 3 + 70]  # above the queue
    cell = (scale - 1) ** 2
    assert count(racks, PALETTE[0]) == 2 * cell
    assert count(racks, PALETTE[2]) == 0
    hatched = count(racks, PALETTE[1]) - 8 * cell
    assert 2 * cell < hatched < 4 * cell  # the third training node is cordoned, so lines run over it
    assert count(racks, WHITE) > 6 * cell


def test_failed_and_cordoned_gpus_are_not_white(scene: Sim) -> None:
    before = draw_rgb(scene, 9, NAMES)
    scene.nodes["failed"][5], scene.nodes["blocked"][5] = 1, 1
    failed = draw_rgb(scene, 9, NAMES)
    scene.nodes["failed"][5] = 0
    cordoned = draw_rgb(scene, 9, NAMES)
    scene.nodes["blocked"][5] = 0
    gpu = 4 * 8 * 8
    assert count(before, WHITE) - count(failed, WHITE) == gpu
    assert count(failed, INK) - count(before, INK) == gpu
    assert 0 < count(before, WHITE) - count(cordoned, WHITE) < gpu
    assert count(cordoned, GREY) > count(before, GREY)


def test_the_queue_shows_a_block_as_wide_as_the_demand(scene: Sim) -> None:
    picture = draw_rgb(scene, 6, NAMES)
    hero = (picture == PALETTE[2]).all(axis=-1)
    widest = max(int(row.sum()) for row in hero)
    assert widest > 0.4 * (24 / 36) * picture.shape[1]


def test_the_picture_has_one_size_for_the_whole_episode(small: Scenario) -> None:
    batch, rng = Batch(small, 1, np.random.SeedSequence(0)), np.random.default_rng(0)
    shapes, distinct = set(), set()
    for _ in range(60):
        batch.step(np.array([rng.choice(np.flatnonzero(batch.mask[0]))]))
        picture = draw_rgb(batch.view(0), 4, small.class_names())
        assert picture.dtype == np.uint8
        shapes.add(picture.shape)
        distinct.add(picture.tobytes())
    assert len(shapes) == 1
    assert len(distinct) > 40


def test_padding_is_not_drawn(make_small: Callable[..., Scenario]) -> None:
    together = Batch([make_small(), make_small("cluster.racks=6")], 2, np.random.SeedSequence(0))
    for i, racks in enumerate((4, 6)):
        (line,) = [line for line in plain(draw_ansi(together.view(i))) if line.startswith("rack ")]
        assert line.split() == ["rack", *(f"{r:02d}" for r in range(racks))]
        assert draw_rgb(together.view(i)).shape[2] == 3
