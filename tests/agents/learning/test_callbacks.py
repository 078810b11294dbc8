"""TensorBoard opens on what matters: pictures of validation workloads, and charts in an order that tells a story."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2

from agents import train
from agents.learning.callbacks import IMAGES, LAYOUT
from agents.report import __main__ as report


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, small_overrides: tuple[str, ...]) -> Path:
    run: Path = tmp_path_factory.mktemp("run") / "run"
    overrides = ", ".join(f"'{text}'" for text in small_overrides)
    settings = [
        "steps=512", "envs=4", "ppo.n_steps=64", "ppo.batch_size=64", "ppo.n_epochs=1", f"overrides=[{overrides}]",
        "evaluation={episodes: 2, final_episodes: 2, baselines: [best-fit, best-fit+open], reference: best-fit}",
    ]  # fmt: skip
    assert train.main(["--quiet", "--out", str(run), *settings]) == 0
    return run


@pytest.fixture(scope="module")
def events(run: Path) -> EventAccumulator:
    found = EventAccumulator(str(run / "tensorboard"), size_guidance={"images": 0, "tensors": 0})
    found.Reload()
    return found


def test_every_evaluation_draws_the_figures(events: EventAccumulator) -> None:
    for name in IMAGES:
        pictures = events.Images(name)
        assert len(pictures) >= 2  # before and after
        assert all(picture.encoded_image_string.startswith(b"\x89PNG") for picture in pictures)


def test_the_layout_shows_charts_that_are_logged(events: EventAccumulator) -> None:
    tags = events.Tags()["scalars"]
    layout = layout_pb2.Layout()
    layout.ParseFromString(events.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0])

    assert [category.title for category in layout.category] == list(LAYOUT)
    for category in layout.category:
        for chart in category.chart:
            for pattern in chart.multiline.tag:
                assert any(re.fullmatch(pattern, tag) for tag in tags), (chart.title, pattern)


def test_a_run_can_be_reported(run: Path) -> None:
    assert report.main([str(run), "--out", str(run / "report.html")]) == 0

    text = (run / "report.html").read_text("utf-8")
    assert 'id="replay"' in text and run.name in text
