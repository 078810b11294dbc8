"""One function over many jobs: in this process, over processes of this machine, or over the nodes of a Ray cluster.

    with fan_out(workers=8) as mapped:              # processes; workers=0, ray=True: every core of the Ray cluster
        results = mapped(function, jobs)

A job that is lost with its machine is done again by Ray somewhere else, so functions must not depend on how often they
are called. The pool is that of the standard library with an eye on its parent: joblib's workers go on with what they do
when the program that started them is killed.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait
from threading import Thread
from typing import Any, Protocol, TypeVar

from nvlenv.common.errors import InputError

Job = TypeVar("Job")
Result = TypeVar("Result")
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")  # one core per job


class Mapper(Protocol):
    """Like `map`: results in the order of the jobs, each as soon as it and those before it are there."""

    def __call__(self, function: Callable[[Job], Result], jobs: Iterable[Job], /) -> Iterator[Result]: ...


@contextmanager
def fan_out(workers: int, ray: bool = False) -> Iterator[Mapper]:
    """A `map` over processes that stay until the block ends; what goes to them and comes back is pickled.

    Parameters
    ----------
    workers : jobs at a time; 0: as many as there are cores, 1 without Ray: no other process.
    ray : run on the Ray cluster that RAY_ADDRESS names, or on this machine if it names none.

    Raises `InputError` for a negative number of workers, or if Ray is asked for and not installed.
    """
    if workers < 0:
        raise InputError("--workers", "", workers, "0 for all cores, or how many")
    if ray:
        yield partial(_over_cluster, connect_ray(), workers)
    elif workers == 1:
        yield map
    else:
        others = set(active_children())
        pool = ProcessPoolExecutor(workers or os.cpu_count(), get_context("forkserver"), initializer=_live_with_parent)
        try:
            yield pool.map
        except BaseException:  # of Ctrl-C, too, nobody wants to wait for what is still running
            for process in set(active_children()) - others:
                process.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _live_with_parent() -> None:
    """Leave Ctrl-C to the parent, and end if it ends, however it does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:
        Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def connect_ray() -> Any:
    """The `ray` module, connected to the cluster that RAY_ADDRESS names, or to one started on this machine."""
    try:
        import ray
    except ImportError:
        raise InputError("Ray", "", "no package ray", "pip install 'nvlenv[ray]'") from None
    if not ray.is_initialized():
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        local: dict[str, Any] = {"address": "local", "_node_ip_address": "127.0.0.1"}  # with no ear for other machines
        where = {} if "RAY_ADDRESS" in os.environ else local
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING, **where)
    return ray


def _over_cluster(
    ray: Any, workers: int, function: Callable[[Job], Result], jobs: Iterable[Job], /
) -> Iterator[Result]:
    # A function that is a partial has no name, and Ray asks for one.
    task = ray.remote(num_cpus=1, max_retries=-1, runtime_env={"env_vars": THREADS})(_call)
    shared = ray.put(function)
    most = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
    # Only so many are handed in at a time: `workers` bounds what a shared cluster lends, and memory for results.
    waiting = list(enumerate(jobs))[::-1]
    running: dict[Any, int] = {}
    done: dict[int, Result] = {}
    for number in range(len(waiting)):
        while number not in done:
            while waiting and len(running) < most:
                index, job = waiting.pop()
                running[task.remote(shared, job)] = index
            for reference in ray.wait(list(running))[0]:
                done[running.pop(reference)] = ray.get(reference)
        yield done.pop(number)


def _call(function: Callable[[Job], Result], job: Job) -> Result:
    return function(job)
