"""The report in a real browser: it loads by itself, the slider moves the picture, and its numbers are the results'."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents import evaluate
from agents.evaluation.release import read_results
from agents.learning.network import PlacementNetwork, export_policy
from agents.report.__main__ import main
from agents.report.replay import replay_of
from nvlenv.common.errors import InputError
from nvlenv.policies.resolver import baseline_name

POLICIES = ("best-fit", "best-fit+easy+open", "least-allocated")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, small_overrides: tuple[str, ...]) -> Path:
    path = tmp_path_factory.mktemp("report")
    options = ["--policies", *POLICIES, "--set", *small_overrides, "workload.load=1.0", "--episodes", "4", "--quiet"]
    assert evaluate.main([*options, "--shifts", "load+20", "--out", str(path)]) == 0
    assert main([str(path), "--out", str(path / "report.html"), "--workload", "2"]) == 0
    return path


@pytest.fixture(scope="module")
def text(folder: Path) -> str:
    return (folder / "report.html").read_text("utf-8")


def test_one_file_asks_for_nothing_else(text: str) -> None:
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)""", text)
    assert "http://" not in text.replace("http://www.w3.org", "") and "https://" not in text
    assert "@import" not in text and "url(" not in text


def test_the_same_results_make_the_same_file(folder: Path, text: str) -> None:
    again = folder / "again.html"

    assert main([str(folder), "--out", str(again), "--workload", "2"]) == 0

    assert again.read_text("utf-8") == text


def test_every_set_and_policy_is_in_the_tables(folder: Path, text: str) -> None:
    results = read_results(folder)

    for label in results["labels"]:
        assert f"<caption>{label}" in text
        for row in results["sets"][label]["summary"]["policies"].values():
            assert f"<td>{row['mean']['cost']:.3f}</td>" in text
    assert baseline_name("lab-16") in text and results["config_sha256"] in text


def test_a_report_can_do_without_a_replay(folder: Path) -> None:
    assert main([str(folder), "--out", str(folder / "short.html"), "--no-replay"]) == 0

    assert 'id="replay"' not in (folder / "short.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["nowhere"], "nowhere"),
        (["{folder}", "--replay", "best-fit", "first-fit"], "'first-fit'"),
        (["{folder}", "--workload", "4"], "--workload"),
    ],
)
def test_mistakes_are_told_in_one_line(
    options: list[str], said: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "report.html")]

    assert main([option.format(folder=folder) for option in options] + out) == 2

    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ") and said in error and "\n" not in error
    assert not (tmp_path / "report.html").exists()


def test_results_that_the_code_no_longer_gives_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = json.loads((folder / "results.json").read_text("utf-8"))
    results["sets"]["lab-16"]["workloads"]["best-fit"]["cost"][2] += 0.5
    (tmp_path / "results.json").write_text(json.dumps(results), "utf-8")

    assert main([str(tmp_path), "--out", str(tmp_path / "r.html"), "--workload", "2"]) == 2
    assert "evaluate again" in capsys.readouterr().err


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory, small_overrides: tuple[str, ...]) -> Path:
    """An evaluation in which a learned policy, runs/mine, has met heuristics."""
    root = tmp_path_factory.mktemp("learned")
    run = root / "runs" / "mine"
    run.mkdir(parents=True)
    export_policy(PlacementNetwork(), run / "policy.npz", {})
    options = ["--policies", str(run), "best-fit", "baseline", "--set", *small_overrides, "--episodes", "2", "--quiet"]
    assert evaluate.main([*options, "--out", str(root)]) == 0
    return root


def test_a_policy_is_replayed_by_any_name_of_it(learned: Path, tmp_path: Path) -> None:
    """As evaluated, as in the table, by its file, and by another file of the same arrays, even if the first is gone."""
    run, copy = learned / "runs" / "mine", tmp_path / "policy.npz"
    shutil.copy(run / "policy.npz", copy)
    results = read_results(learned)

    for wanted in (str(run), "mine", str(run / "policy.npz"), str(copy)):
        replay = replay_of(results, [wanted, "best-fit"], 0)
        assert [policy["name"] for policy in replay["policies"]] == [str(run), "best-fit"]
        assert [policy["label"] for policy in replay["policies"]] == ["mine", "best-fit"]

    results = json.loads(json.dumps(results).replace(str(run), "moved/mine"))
    assert replay_of(results, [str(copy), baseline_name("lab-16")], 0)["policies"][1]["name"] == "baseline"


def test_a_policy_without_a_recorded_fingerprint_is_found_by_that_of_its_file(learned: Path, tmp_path: Path) -> None:
    """A training run records names alone."""
    results = read_results(learned)
    results["policies"] = dict.fromkeys(results["policies"], "")
    shutil.copy(learned / "runs" / "mine" / "policy.npz", tmp_path / "policy.npz")

    replay = replay_of(results, [str(tmp_path / "policy.npz"), "best-fit"], 0)

    assert replay["policies"][0]["name"] == str(learned / "runs" / "mine")


def test_a_file_of_another_policy_is_not_replayed(learned: Path, tmp_path: Path) -> None:
    other, damaged = tmp_path / "other.npz", tmp_path / "damaged.npz"
    export_policy(PlacementNetwork(hidden=8), other, {})
    damaged.write_text("not a policy")
    results = read_results(learned)

    with pytest.raises(InputError, match=r"other\.npz', expected one of best-fit, baseline, .*mine, its name"):
        replay_of(results, [str(other), "best-fit"], 0)
    with pytest.raises(InputError, match=r"damaged\.npz: "):
        replay_of(results, [str(damaged), "best-fit"], 0)


# --------------------------------------------------------------------------------------------------------------------
# In the browser
# --------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install 'nvlenv[test]'")
    binary = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("needs a browser: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1440,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()


@pytest.fixture
def opened(browser: Any, folder: Path) -> Any:
    browser.get((folder / "report.html").as_uri())
    return browser


def picture(browser: Any, selector: str) -> str:
    found: str = browser.execute_script(f"return document.querySelector('{selector}').toDataURL()")
    return found


def test_it_loads_without_a_word_on_the_console(opened: Any) -> None:
    assert opened.get_log("browser") == []
    assert opened.execute_script(
        "return [...document.images].every((image) => image.complete && image.naturalWidth > 0)"
    )


def test_the_slider_moves_the_picture(opened: Any) -> None:
    before = picture(opened, ".panel canvas")

    opened.execute_script(
        "const s = document.getElementById('time'); s.value = 40; s.dispatchEvent(new Event('input'))"
    )

    assert picture(opened, ".panel canvas") != before
    assert "40.0 h" in opened.find_element("id", "clock").text


def test_its_numbers_are_those_of_the_results(opened: Any, folder: Path) -> None:
    each = read_results(folder)["sets"]["lab-16"]
    names = opened.execute_script("return data.policies.map((policy) => policy.name)")
    opened.execute_script("replay.seek(replay.episode.hours)")

    shown = opened.execute_script("return replay.panels.map((panel) => panel.numbers(replay.t))")

    for name, numbers in zip(names, shown, strict=True):
        for key, metric in (("cost", "cost"), ("heroWait", "hero_wait"), ("otherWait", "other_wait")):
            assert numbers[key] == pytest.approx(each["workloads"][name][metric][2], rel=1e-3, abs=1e-4), (name, metric)
        cost = f"{each['workloads'][name]['cost'][2]:.3f}"
        assert cost in [cell.text for cell in opened.find_elements("css selector", ".stats b")]


def test_queue_and_free_gpus_are_those_of_the_simulator(opened: Any) -> None:
    """At the moments that were recorded, the picture's own account of free GPUs and slots is the simulator's."""
    samples = opened.execute_script("return replay.recordings.map((r) => r.samples)")

    for k, recorded in enumerate(samples):
        for at in range(5, len(recorded["time"]) - 1, len(recorded["time"]) // 9):
            numbers = opened.execute_script(
                "return replay.panels[arguments[0]].numbers(arguments[1])", k, recorded["time"][at] + 1e-6
            )

            assert (numbers["free"], numbers["slots"]) == (recorded["free"][at], recorded["slots"][at])


def test_the_keyboard_works(opened: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    body = opened.find_element("tag name", "body")
    opened.execute_script("replay.seek(10)")

    body.send_keys(Keys.ARROW_RIGHT)
    assert opened.execute_script("return replay.t") == 11
    body.send_keys(Keys.SHIFT + Keys.ARROW_RIGHT)
    assert opened.execute_script("return replay.t") == 23
    body.send_keys(Keys.HOME)
    assert opened.execute_script("return replay.t") == 0
    body.send_keys("h")
    assert opened.execute_script("return replay.heroes.includes(replay.t)")
    body.send_keys(" ")
    assert opened.execute_script("return replay.playing")
    body.send_keys(" ")
    assert not opened.execute_script("return replay.playing")


def test_a_job_can_be_followed_in_both_panels(opened: Any) -> None:
    opened.execute_script("replay.seek(30)")
    before = [picture(opened, f".panel:nth-child({k}) canvas") for k in (1, 2)]
    job = opened.execute_script(
        "const [a, b] = replay.recordings.map((r) => new Set(r.runsAt(30, 0).now.map((run) => r.runs.job[run])));"
        "return [...a].find((job) => b.has(job))"
    )

    opened.execute_script("replay.choose(arguments[0])", job)

    after = [picture(opened, f".panel:nth-child({k}) canvas") for k in (1, 2)]
    assert all(a != b for a, b in zip(before, after, strict=True))


def test_decisions_are_explained(opened: Any) -> None:
    opened.execute_script("replay.seek(replay.episode.hours)")

    log = opened.find_element("css selector", ".log").text

    assert re.search(r"GPUs?: (to rack|opens|waits|spread)", log) and "(" in log


def test_it_prints(opened: Any) -> None:
    printed = opened.print_page()

    assert len(printed) > 10_000  # base64 of a PDF with pictures
