"""The command line: tables, JSON, exit codes, and how soon help comes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nvlenv.engine.__main__ import COMMANDS, main
from nvlenv.engine.commands.slots import SIZES
from nvlenv.engine.formats.kueue import parse_assignment
from nvlenv.simulator.state import SLOT_SIZES

CASES = Path(__file__).parents[2] / "cases" / "engine"
KUBERNETES = ["--cluster", str(CASES / "kubernetes/kubectl.json"), str(CASES / "kubernetes/kueue.yaml")]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A cluster of three racks with 18, 12 and 4 free nodes, and jobs."""
    racks = {f"rack-{name}": [4] * free + [0] * (18 - free) for name, free in (("a", 18), ("b", 12), ("c", 4))}
    (tmp_path / "cluster.json").write_text(json.dumps({"racks": racks}))
    jobs = {"fits": {"gpus": 48, "mode": "required"}, "hero": {"gpus": 128, "slice_pods": 16, "priority": 4}}
    for name, job in jobs.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"name": name, **job}))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, Any]:
    code, out, _ = run(capsys, *arguments, "--json")
    return code, json.loads(out)


def test_place_prints_where_and_why(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    code, out, _ = run(capsys, "place", "--cluster", files / "cluster.json", "--job", files / "fits.json")

    assert code == 0
    assert out.startswith("placed default/fits: 48 GPUs on 12 nodes in 1 racks")
    assert "rack-b     12    48  rack-b-node-[00-11]" in out
    assert "why: best-fit+easy+open: the rack with the fewest free GPUs that fits" in out


def test_place_refuses_with_reasons_and_code_3(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    arguments = ("place", "--cluster", files / "cluster.json", "--job", files / "hero.json")
    code, out, _ = run(capsys, *arguments)
    json_code, answer = run_json(capsys, *arguments)

    assert (code, json_code) == (3, 3)
    assert "refused default/hero (shape): 34 nodes are free for it, but it wants 2 slices of 16 in one rack each" in out
    assert answer["placed"] is False
    assert answer["racks"]["rack-c"] == "4 of 16 nodes free; 14 held by work that may not be evicted"


def test_from_kubectl_to_an_explained_placement(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    job = CASES.parent / "engine_job.yaml"
    more = tmp_path / "more.yaml"
    more.write_text(job.read_text().replace("cpu: 8", "cpu: 32"))

    code, out, _ = run(capsys, "place", "--cluster", CASES / "kubernetes/kubectl.json", "--job", job)
    refused, said, _ = run(capsys, "place", "--cluster", CASES / "kubernetes/kubectl.json", "--job", more)

    assert (code, refused) == (0, 3)
    assert "block-b/rack-b1      3    12  rack-b1-n[0-2]" in out
    assert "block-b/rack-b1  0 of 3 nodes free; 3 idle, but without cpu for it" in said
    assert "12 idle GPUs unreachable: job data/job/etl leaves too little cpu on 3 nodes in 1 of 4 racks" in said


def test_gpus_may_have_another_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    job = CASES.parent / "engine_job.yaml"
    usual = run(capsys, "place", "--cluster", CASES / "kubernetes" / "kubectl.json", "--job", job)
    for source in (job, CASES / "kubernetes" / "kubectl.json"):
        (tmp_path / source.name).write_text(re.sub('nvidia.com/gpu(?="?:)', "amd.com/gpu", source.read_text()))

    arguments = ("place", "--cluster", tmp_path / "kubectl.json", "--job", tmp_path / job.name)

    assert run(capsys, *arguments, "--gpu-resource", "amd.com/gpu") == usual
    assert run(capsys, *arguments)[0] == 2


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_place_speaks_kueue(capsys: pytest.CaptureFixture[str], files: Path, version: str) -> None:
    arguments = ("place", "--cluster", files / "cluster.json", "--job", files / "fits.json", "--output")
    _, out, _ = run(capsys, *arguments, f"kueue-{version}")

    assignment = parse_assignment(json.loads(out)["main"])

    assert assignment.pods == 12
    assert {path[0] for path, _ in assignment.domains} == {"rack-b"}


def test_place_speaks_slurm_and_node_selectors(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    arguments = ("place", "--cluster", files / "cluster.json", "--job", files / "fits.json", "--output")

    assert run(capsys, *arguments, "slurm")[1] == "rack-b-node-[00-11]\n"
    selectors = json.loads(run(capsys, *arguments, "node-selectors")[1])["main"]
    assert selectors[3] == {"rack": "rack-b", "hostname": "rack-b-node-03"}


def test_slots_counts_what_is_free_and_what_is_out_of_reach(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    code, answer = run_json(capsys, "slots", "--cluster", files / "cluster.json", "--sizes", 16, 4)
    _, out, _ = run(capsys, "slots", *KUBERNETES)

    assert (code, answer["free"]) == (0, {"16": 1, "4": 8})
    assert SIZES == SLOT_SIZES
    assert "48 GPUs: 20 free, 8 idle on failed or cordoned nodes" in out
    assert "4 idle GPUs unreachable: cordoned on 1 nodes in 1 of 4 racks" in out
    assert "2 verification jobs run on idle nodes: not counted" in out


def test_explain_lists_every_candidate_and_other_policies(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    arguments = ("explain", "--cluster", files / "cluster.json", "--job", files / "fits.json")
    code, out, _ = run(capsys, *arguments)
    _, answer = run_json(capsys, *arguments, "--compare", "least-allocated")

    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[5:7]] == ["rack-b", "rack-a"]
    assert list(answer["others"]) == ["least-allocated"]
    assert answer["others"]["least-allocated"]["bindings"][0]["rack"] == "rack-a"


def test_defrag_ranks_moves(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    def job(name: str, rack: str, nodes: range, preemptible: bool) -> dict[str, Any]:
        pods = [{"node": f"{rack}{n:02d}", "gpus": 4} for n in nodes]
        return {"id": name, "name": name, "pods": pods, "preemptible": preemptible}

    nodes = [{"name": f"{r}{n:02d}", "path": [r, f"{r}{n:02d}"], "gpus": 4} for r in "ab" for n in range(18)]
    jobs = [job("moves", "a", range(4), True), job("stays", "b", range(14), False)]
    cluster = {"format": "nvlenv-cluster/1", "levels": ["rack", "hostname"], "nvlink_level": "rack"}
    (files / "long.json").write_text(json.dumps({**cluster, "nodes": nodes, "jobs": jobs}))

    code, out, _ = run(capsys, "defrag", "--cluster", files / "long.json", "--free-rack-of", 16)
    _, answer = run_json(capsys, "defrag", "--cluster", files / "long.json", "--free-rack-of", 16)
    full, said, _ = run(capsys, "defrag", "--cluster", files / "long.json", "--free-rack-of", 18)

    assert code == full == 0
    assert "moves    16  a[00-03]  b[14-17]" in out
    assert [clearing["rack"] for clearing in answer["clearings"]] == ["a"]
    assert answer["clearings"][0]["slots_per_node"] == 0.25
    assert "moves    16  a[00-03]" in said
    nothing = run(capsys, "defrag", "--cluster", files / "cluster.json", "--free-rack-of", 16)
    assert nothing[0] == 3
    assert "pinned" in nothing[1]


def test_replay_says_when_the_hero_could_start(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    arguments = ("replay", "--cluster", files / "cluster.json", "--hero", files / "hero.json", "--draws", 2)
    options = ("--load", 0.02, "--policies", "best-fit", "best-fit+easy", "--now", 0)
    code, out, _ = run(capsys, *arguments, *options)
    _, answer = run_json(capsys, *arguments, *options)

    assert code == 0
    assert "when hero could start, from now" in out
    starts = {forecast["policy"]: forecast["hero_start"] for forecast in answer["forecasts"]}
    assert starts["best-fit+easy"] == pytest.approx([24.0, 24.0])  # what runs says nothing: a day


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["place", "--cluster", "none.json", "--job", "none.json"], "none.json"),
        (["place", "--cluster", "{dir}/bad.json", "--job", "{dir}/fits.json"], "bad.json: racks.*found 'x', expected"),
        (["place", "--cluster", "{dir}/cluster.json", "--job", "{dir}/bad-job.json"], "gpus: found -1, expected"),
        (["place", "--cluster", "{dir}/cluster.json", "--job", "{dir}/fits.json", "--policy", "worst"], "'worst'"),
        (
            ["place", "--cluster", "{dir}/cluster.json", "--job", "{dir}/fits.json", "--policy", "no.npz"],
            "no such file",
        ),
        (["defrag", "--cluster", "{dir}/cluster.json", "--free-rack-of", "19"], "1 to 18, the nodes of the largest"),
        (["defrag", "--cluster", "{dir}/cluster.json", "--free-rack-of", "x"], "expected a whole number"),
        (["slots"], "--cluster"),
        (["slots", "--cluster", "{dir}/cluster.json", "--pod-cpu", "many"], "--pod-cpu"),
        (["replay", "--cluster", "{dir}/cluster.json", "--hero", "{dir}/fits.json", "--load", "0"], "above 0"),
        (
            ["replay", "--cluster", "c", "--hero", "h", "--seed", "-1"],
            "'-1', expected a whole number from 0 to",
        ),
        (
            ["replay", "--cluster", "c", "--hero", "h", "--load", "1e9"],
            "'1e9', expected a number above 0 .* most 100",
        ),
        (["replay", "--cluster", "c", "--hero", "h", "--now", "nan"], "'nan', expected a number from 0 to 1e\\+12"),
        (["slots", "--cluster", "c", "--sizes", "9" * 20], f"'{'9' * 20}', expected a whole number from 1 to"),
        (["serve", "--port", "99999"], "'99999', expected a whole number from 0 to 65535"),
        (["serve", "--plan-seconds", "nan"], "'nan', expected a number above 0"),
        (["nothing"], "expected one of"),
        ([], "usage"),
    ],
)
def test_bad_input_is_told_in_one_line_with_code_2(
    capsys: pytest.CaptureFixture[str], files: Path, arguments: list[str], said: str
) -> None:
    (files / "bad.json").write_text('{"racks": [[4, "x"]]}')
    (files / "bad-job.json").write_text('{"name": "a", "gpus": -1}')

    code, out, err = run(capsys, *(argument.replace("{dir}", str(files)) for argument in arguments))

    assert code == 2
    assert not out
    assert re.search(said, err), err


def test_an_interrupted_command_says_so_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, files: Path
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nvlenv.engine.commands.slots.slots_command", interrupt)

    code, out, err = run(capsys, "slots", "--cluster", str(files / "cluster.json"))

    assert (code, out, err) == (130, "", "\ninterrupted\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str], command: str) -> None:
    code, out, _ = run(capsys, command, "--help")

    assert code == 0
    assert f"{command}" in out.splitlines()[0]


def test_help_and_errors_load_no_compiler() -> None:
    script = (
        "import sys; from nvlenv.engine.__main__ import main\n"
        "main(['--help']); main(['place', '--help']); main(['place', '--cluster', 'none', '--job', 'none'])\n"
        "sys.exit(any(name in sys.modules for name in ('numba', 'gymnasium', 'scipy', 'fastapi')))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 0
