"""Job requests from sbatch options; a whole script is in test_jobs.py."""

from __future__ import annotations

import pytest

from nvlenv.cluster.types import Mode
from nvlenv.common.errors import InputError
from nvlenv.engine.formats.load import parse_job


@pytest.mark.parametrize(
    ("line", "pods", "per_pod"),
    [
        ("sbatch -N16 --gpus-per-node=4 run.sh", 16, 4),
        ("sbatch --nodes 2 --gres=gpu:gb200:4 run.sh", 2, 4),
        ("--nodes=2-2 --gres gpu:4,shard:2", 2, 4),
        ("sbatch -N 2 -G 8 run.sh", 2, 4),
        ("sbatch --gpus=64 --gpus-per-node=4 run.sh", 16, 4),
        ("sbatch -n 64 --ntasks-per-node=4 --gpus-per-node=4 run.sh", 16, 4),
        ("sbatch -N 2 -n 8 --gpus-per-task=1 run.sh", 2, 4),
        ("sbatch --gpus=2 run.sh", 1, 2),
        ("sbatch --nodes=4 \\\n  --gpus-per-node=gb200:4 run.sh --nodes=9", 4, 4),
    ],
)
def test_sizes_of_option_lines(line: str, pods: int, per_pod: int) -> None:
    job = parse_job(line)

    assert (job.workers.pods, job.workers.gpus_per_pod) == (pods, per_pod)


@pytest.mark.parametrize(
    ("options", "mode", "slice_pods"),
    [
        ("--nodes=1", Mode.UNCONSTRAINED, 0),
        ("--nodes=16", Mode.PREFERRED, 0),
        ("--nodes=16 --segment=16", Mode.REQUIRED, 0),
        ("--nodes=16 --segment=4", Mode.UNCONSTRAINED, 4),
        ("--nodes=16 --switches=1@60", Mode.REQUIRED, 0),
    ],
)
def test_shapes_of_option_lines(options: str, mode: Mode, slice_pods: int) -> None:
    job = parse_job(f"sbatch {options} --gpus-per-node=4 run.sh")

    assert (job.workers.mode, sum(layer.size for layer in job.workers.slices)) == (mode, slice_pods)


@pytest.mark.parametrize(
    ("options", "cpu", "memory"),
    [
        ("--cpus-per-task=16 --ntasks-per-node=4 --mem=500G", 64_000, 500 * 2**30),
        ("-c 8 --mem 1000", 8_000, 1000 * 2**20),
        ("--cpus-per-gpu=10 --mem-per-gpu=2G", 40_000, 8 * 2**30),
        ("-c 4 --mem-per-cpu=1G", 4_000, 4 * 2**30),
        ("", 0, 0),
    ],
)
def test_cpu_and_memory_of_a_node(options: str, cpu: int, memory: int) -> None:
    job = parse_job(f"sbatch --gpus-per-node=4 {options} run.sh")

    assert (job.workers.cpu, job.workers.memory) == (cpu, memory)


def test_other_options() -> None:
    job = parse_job("sbatch --gpus=1 --no-requeue -t UNLIMITED --priority=5 -w n1 --nodelist n2 dir/run.sh")

    assert (job.name, job.preemptible, job.estimate, job.priority) == ("run.sh", False, None, 5)
    assert job.notes == ("options without effect here: --nodelist",)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("sbatch run.sh", "no GPUs"),
        ("sbatch --gpus=0 run.sh", "no GPUs"),
        ("sbatch -N 3 --gpus=8 run.sh", "--gpus"),
        ("sbatch -N 3 --gpus=8 --gpus-per-node=4 run.sh", "--gpus"),
        ("sbatch -N 4-8 --gpus-per-node=4 run.sh", "--nodes"),
        ("sbatch -N 0 --gpus-per-node=4 run.sh", "--nodes"),
        ("sbatch -N 16 --gpus-per-node=4 --segment=5 run.sh", "a divisor of 16 nodes"),
        ("sbatch --gpus-per-node=many run.sh", "--gpus-per-node"),
        ("sbatch --gpus=4 --time=soon run.sh", "--time"),
        ("sbatch --gpus=4 --mem=lots run.sh", "--mem"),
        ("sbatch --gpus=4 --time", "no value"),
        ("sbatch --gpus=4 -? run.sh", "unknown option"),
        ("sbatch --gpus=4 : --gpus=8 run.sh", "heterogeneous"),
        ("sbatch --gpus='4 run.sh", "as a shell reads them"),
    ],
)
def test_bad_option_lines(line: str, told: str) -> None:
    with pytest.raises(InputError) as error:
        parse_job(line)
    assert told in str(error.value)
