"""Fan-out: the same results in the same order, wherever they are worked out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest

from agents.evaluation.fanout import fan_out
from nvlenv.common.errors import InputError


def square(job: int) -> int:
    return job * job


def process(_: int) -> int:
    return os.getpid()


def fail(job: int) -> int:
    raise InputError("job", "number", job, "another")


def map_jobs(function: Callable[[int], int], jobs: Iterable[int], workers: int, ray: bool = False) -> Iterator[int]:
    with fan_out(workers, ray) as mapped:
        yield from mapped(function, jobs)


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    ray = pytest.importorskip("ray", reason="needs the extra `ray`")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init("local", num_cpus=2, _node_ip_address="127.0.0.1", include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_jobs(workers: int) -> None:
    assert list(map_jobs(square, range(7), workers)) == [0, 1, 4, 9, 16, 25, 36]


def test_one_worker_is_this_process_and_jobs_are_drawn_one_by_one() -> None:
    drawn: list[int] = []

    def jobs() -> Iterator[int]:
        for job in range(3):
            drawn.append(job)
            yield job

    results = map_jobs(process, jobs(), 1)

    assert next(results) == os.getpid() and drawn == [0]


def test_processes_stay_for_the_next_call() -> None:
    with fan_out(2) as mapped:
        first, second = set(mapped(process, range(8))), set(mapped(process, range(8)))

    assert os.getpid() not in first | second
    assert len(first | second) <= 2


def test_errors_reach_the_caller() -> None:
    with pytest.raises(InputError, match="job: number: found 0"):
        list(map_jobs(fail, [0], 2))


def test_a_negative_number_of_workers_is_refused() -> None:
    with pytest.raises(InputError, match="--workers: found -1"):
        list(map_jobs(square, [1], -1))


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_ray_gives_the_same_results_in_the_same_order(workers: int) -> None:
    assert list(map_jobs(square, range(20), workers, ray=True)) == [k * k for k in range(20)]


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_ray_works_in_other_processes_and_passes_errors_on() -> None:
    assert os.getpid() not in set(map_jobs(partial(process), range(4), 2, ray=True))
    with pytest.raises(InputError, match="job: number: found 3"):
        list(map_jobs(fail, [3], 1, ray=True))


# --- Who stops, stops all of it ---------------------------------------------------------------------------------------

PROGRAM = """
import os, signal, time
from pathlib import Path
from agents.evaluation.fanout import fan_out

def job(number):
    Path(os.environ["FOLDER"], str(os.getpid())).touch()
    time.sleep(600)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start programs in the background without it
    with fan_out(2) as mapped:
        list(mapped(job, range(2)))
"""


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def until(true: Callable[[], bool], what: str) -> None:
    for _ in range(600):
        if true():
            return
        time.sleep(0.1)
    pytest.fail(f"after a minute: {what}")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_runs_on_when_a_program_is_stopped(number: signal.Signals, tmp_path: Path) -> None:
    script, folder = tmp_path / "program.py", tmp_path / "workers"
    script.write_text(PROGRAM)
    folder.mkdir()
    environment = {**os.environ, "FOLDER": str(folder), "PYTHONPATH": str(Path.cwd())}
    program = subprocess.Popen([sys.executable, str(script)], env=environment, stderr=subprocess.DEVNULL)
    until(lambda: len(list(folder.iterdir())) == 2, "no two workers")
    workers = [int(path.name) for path in folder.iterdir()]

    program.send_signal(number)

    assert program.wait(60) != 0
    until(lambda: not any(map(is_alive, workers)), "workers still run")
