"""The command line, run as a user runs it."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from nvlenv.workload.__main__ import main


def test_describe_prints_the_table(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", str(cases / "openb_pod_list.csv"), "--racks", "2"]) == 0
    out = capsys.readouterr().out
    for words in ("format openb", "135 read, 97 kept", "never started", "18 dropped", "on 144 GPUs", "GPU-time %"):
        assert words in out


def test_describe_gives_the_load_on_the_cluster_of_the_trace_too(
    cases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["describe", str(cases / "philly/philly_rfold.csv")]) == 0
    assert "on its own 2,490 GPUs" in capsys.readouterr().out


def test_convert_writes_what_describe_reads(cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "philly.csv.gz"
    assert main(["convert", str(cases / "philly/philly_cluster_job_log.json"), "--out", str(out)]) == 0
    assert "wrote 1 jobs" in capsys.readouterr().out
    assert gzip.decompress(out.read_bytes()).decode().splitlines()[1] == "0,8,193256,unknown,ce2f4c,COMPLETED"
    assert main(["describe", str(out), "--format", "common"]) == 0


@pytest.mark.parametrize(
    "arguments",
    [["describe", "nowhere.csv"], ["convert", "nowhere.csv", "--out", "x.csv"], ["describe", __file__]],
)
def test_bad_input_is_one_line_on_stderr(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ") and captured.err.count("\n") == 1


@pytest.mark.parametrize("racks", ["0", "-1", "many", "1.5"])
def test_racks_are_a_whole_number(racks: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "x.csv", f"--racks={racks}"]) == 2
    assert f"found '{racks}'" in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], ["describe"], ["convert"]])
def test_help_names_every_option(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*command, "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    for option in {"describe": ["--racks", "--format"], "convert": ["--out", "--format"]}.get("".join(command), []):
        assert option in out


def test_the_module_runs_without_the_training_stack(cases: Path) -> None:
    code = (
        "import sys; from nvlenv.workload.__main__ import main; "
        f"code = main(['describe', {str(cases / 'acme_kalos.csv')!r}]); "
        "sys.exit(code or any(name in sys.modules for name in ('torch', 'stable_baselines3', 'pandas')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "acme-kalos" in done.stdout
