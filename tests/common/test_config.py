"""Settings files: found, overridden, and every mistake told in one line, as seen through the shipped scenarios."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import nvlenv.common.config
from nvlenv.common.config import config_names, find_config, shipped
from nvlenv.common.errors import InputError
from nvlenv.envs.scenario import load_scenario

# --- Files and overrides -------------------------------------------------------------------------------------------


def test_installed_settings_are_found_where_the_wheel_puts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "share" / "nvlenv" / "configs" / "scenarios"
    shutil.copytree(find_config("scenarios", "lab-16").parent, installed)
    monkeypatch.setattr(
        nvlenv.common.config, "CONFIG_ROOTS", (tmp_path / "site-packages" / "configs", installed.parent)
    )
    assert find_config("scenarios", "fleet-33") == installed / "fleet-33.yaml"
    assert config_names("scenarios") == [file.stem for file in sorted(installed.glob("*.yaml"))]


def test_settings_are_looked_for_in_the_python_environment() -> None:
    assert Path(sys.prefix) / "share" / "nvlenv" / "configs" in nvlenv.common.config.CONFIG_ROOTS


def test_what_ships_is_found_wherever_the_package_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shipped("checkpoints/release/policy.npz").is_file()
    assert shipped("configs") == find_config("scenarios", "lab-16").parents[1]
    monkeypatch.setattr(nvlenv.common.config, "ROOTS", (tmp_path / "lib", tmp_path / "share"))
    with pytest.raises(InputError, match=r"policy.npz: found no such file, expected it at .*lib or in .*share"):
        shipped("policy.npz")
    (tmp_path / "share").mkdir()
    (tmp_path / "share" / "policy.npz").touch()
    assert shipped("policy.npz") == tmp_path / "share" / "policy.npz"


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("workload.load=0.9", lambda s: s.workload.load == 0.9),
        ("workload.classes.hero.weight=8", lambda s: s.workload.classes[4].weight == 8),
        ("workload.classes.0.weight=8", lambda s: s.workload.classes[0].weight == 8),
        ("workload.classes.hero.sizes={384: 1}", lambda s: s.workload.classes[4].sizes == {384: 1}),
        ("workload.classes.hero.sizes.384=0.49", lambda s: s.workload.classes[4].sizes == {384: 0.49, 512: 0.5}),
        ("actions=[open]", lambda s: s.actions == ("open",)),
        ("failures={}", lambda s: s.failures.node_mtbf_hours == 10_000),
        ("failures.node_mtbf_hours=.inf", lambda s: s.failures.node_mtbf_hours == np.inf),
        ("reward.slowdown=0.5", lambda s: (s.reward.waiting, s.reward.slowdown, s.reward.lost) == (1, 0.5, 1)),
        ("episode.hours=1e2", lambda s: s.episode.hours == 100),
        ("collective=ring", lambda s: s.collective == "ring"),
        ("name=lab=16", lambda s: s.name == "lab=16"),
    ],
)
def test_an_override_changes_one_setting(override: str, read: object) -> None:
    assert read(load_scenario("lab-16", [override]))  # type: ignore[operator]


# --- Mistakes -----------------------------------------------------------------------------------------------------

WRONG_TEXT = {
    "syntax": ("cluster: {racks: 4\nname: x: y\n", "line 2, column 5: found a mistake ("),
    "tab": ("cluster:\n\tracks: 4\n", "line 2, column 1: found a mistake ("),
    "twice the same key": (
        "name: a\nname: b\n",
        "line 2, column 1: found a mistake (the key 'name' a second time), expected",
    ),
    "empty": ("", "found nothing, expected a mapping"),
    "a list": ("- 1\n- 2\n", "found [1, 2], expected a mapping"),
    "control character": ("name: \x00\n", "found unacceptable character"),
    "unknown section": ("clutser: {racks: 4}\n", "clutser: found unknown field 'clutser', expected cluster"),
    "unknown field": ("cluster: {rack: 4}\n", "cluster.rack: found unknown field 'rack', expected racks"),
    "field of another kind": (
        "workload: {arrivals: {process: daily, wandr: 1}}\n",
        "workload.arrivals.wandr: found unknown field 'wandr', expected one of day, process, week",
    ),
    "field of its own kind": (
        "workload: {arrivals: {process: bursty, wandr: 1}}\n",
        "workload.arrivals.wandr: found unknown field 'wandr', expected wander",
    ),
    "two mistakes": (
        "hero_share: 2\ncluster: {rack: 4, block: 2}\n",
        "cluster.rack: found unknown field 'rack', expected racks (and 2 more)",
    ),
    "typo behind a missing field": (
        "queues: [{nam: a}]\n",
        "queues.0.nam: found unknown field 'nam', expected name (and 1 more)",
    ),
    "long value": (f"cluster: {list(range(100))}\n", "cluster: found [0, 1, 2"),
}


@pytest.mark.parametrize("case", WRONG_TEXT)
def test_a_wrong_file_gives_one_line_that_names_it(case: str, tmp_path: Path) -> None:
    text, message = WRONG_TEXT[case]
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_scenario(path)
    told = str(caught.value)
    assert told.startswith(f"{path}: {message}")
    assert "\n" not in told
    assert len(told) < len(str(path)) + 250


WRONG_VALUES = {
    "workload.load=high": "workload.load: found 'high', expected a number",
    "workload.load=-1": "workload.load: found -1, expected a number greater than 0",
    "workload.load=.nan": "workload.load: found nan, expected a finite number",
    "workload.kind=synthetik": "workload.kind: found 'synthetik', expected synthetic",
    "workload.arrivals={}": "workload.arrivals.process: found nothing, expected one of poisson, daily, bursty",
    "workload.classes=5": "workload.classes: found 5, expected a list",
    "workload.classes.hero.shaer=2": "workload.classes.hero.shaer: found unknown field 'shaer', expected share",
    "workload.classes.hero.mode=bound": "workload.classes.hero.mode: found 'bound', expected 'unconstrained', 'prefe",
    "workload.classes.hero.queue=gold": "workload.classes.hero.queue: found 'gold', expected one of the queues",
    "workload={kind: trace}": "workload.path: found nothing, expected a value",
    "workload={kind: trace, path: x, portion: [1, 0]}": "workload: found that portion (1.0, 0.0) is empty, expected s",
    "cluster=null": "cluster: found None, expected a mapping",
    "cluster.racks=0": "cluster.racks: found 0, expected a number greater than or equal to 1 or a list",
    "cluster.racks=2.5": "cluster.racks: found 2.5, expected a whole number or a list",
    "cluster.racks=[18, x]": "cluster.racks.1: found 'x', expected a whole number",
    "cluster.blocks=17": "cluster.blocks: found 17, expected at least 1 block and at most one per rack (16)",
    "cluster.levels=[hostname]": "cluster.levels: found ['hostname'], expected two or more distinct labels",
    "cluster.nvlink_level=clique": "cluster.nvlink_level: found 'clique', expected one of ['block', 'rack']",
    "cluster.cordoned=18": "cluster.cordoned: found 18, expected less than the 18 nodes of the smallest rack",
    "cluster.cordoned=[node-1]": "cluster.cordoned: found 'node-1', expected node names like rack-000-node-00",
    "queues=[]": "queues: found [], expected at least 1 item",
    "queues=[{name: default}, {name: default}]": "queues: found ['default', 'default'], expected distinct names",
    "queues=[{name: default, borrowing_limit: 3}]": "queues.default.borrowing_limit: found 3, expected a cohort",
    "queues=[{name: default, order: LIFO}]": "queues.default.order: found 'LIFO', expected 'StrictFIFO' or 'BestEff",
    "collective=rings": "collective: found 'rings', expected 'recursive-doubling', 'ring' or 'hierarchical'",
    "actions=[open, hodl]": "actions.1: found 'hodl', expected 'open', 'fill' or 'hold'",
    "hero_share=1.5": "hero_share: found 1.5, expected a number less than or equal to 1",
    "episode.warmup_hours=400": "episode.warmup_hours: found 400.0, expected less than the 336 hours in all",
    "reward.wating=1": "reward.wating: found unknown field 'wating', expected waiting",
    "reward.paired=maybe": "reward.paired: found 'maybe', expected true or false",
    "failures.node_mtbf=9": "failures.node_mtbf: found unknown field 'node_mtbf', expected node_mtbf_hours",
    "failures.maintenance=[{start: 0, hours: 2, racks: [99]}]": "failures.maintenance.0.racks: found 99, expected ra",
    "verification={every_hours: 1, duration_hours: 2}": "verification.duration_hours: found 2.0, expected less than 1",
    "workload.classes.herro.share=2": "workload.classes: found 'herro', expected hero",
    "workload.load.x=3": "workload.load: found 0.8, expected a mapping that could hold x",
    "workload.load=[": "line 1, column 2: found a mistake (",
    "workload.load": "found no assignment, expected dotted.path=value",
    "workload..load=1": "found no assignment, expected dotted.path=value",
}


@pytest.mark.parametrize("override", WRONG_VALUES)
def test_a_wrong_override_gives_one_line_that_names_it(override: str) -> None:
    with pytest.raises(InputError) as caught:
        load_scenario("lab-16", [override])
    assert str(caught.value).startswith(f"override {override}: {WRONG_VALUES[override]}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["cluster.racks=4"], "hero.sizes: found 384 GPUs, expected at most 256"),
        (["workload.jobs=5", "workload.hours=5"], "workload: found that jobs and hours are both given"),
        (["cluster.racks=[18, 18, 17]"], "cluster.nodes_per_rack: found 18, expected nothing: racks lists"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused_when_the_file_is_read(
    overrides: list[str], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        load_scenario("lab-16", overrides)
    assert message in str(caught.value)
    assert "lab-16.yaml" in str(caught.value)


def test_an_unknown_name_gets_the_nearest_shipped_ones() -> None:
    with pytest.raises(InputError, match=r"scenarios: found 'lab16', expected a \.yaml file or lab-16"):
        load_scenario("lab16")


def test_a_missing_file_and_one_that_is_not_text_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.yaml: found no such file or directory, expected a readable file"):
        load_scenario(tmp_path / "gone.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"binary\.yaml: found bytes that are not UTF-8"):
        load_scenario(tmp_path / "binary.yaml")
