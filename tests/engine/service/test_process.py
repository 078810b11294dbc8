"""The service as it is really run: started, killed at any moment, under load, on a large cluster."""

from __future__ import annotations

import http.client
import json
import os
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nvlenv.policies.learned import save_policy
from tests.engine.service.clusters import booked, overbooked, racks
from tests.engine.service.processes import Client, served
from tests.policies.files import random_arrays

CLIENTS = 4


def test_it_starts_dies_goes_on_and_stops(tmp_path: Path) -> None:
    journal = tmp_path / "journal.sqlite"
    with served(journal, racks()) as service:
        assert service.client().post("/v1/place", {"name": "a", "gpus": 4})[0] == 200
        service.kill()

    with served(journal, racks()) as service:  # a cluster file beside a journal that has begun is not read
        assert set(booked(service.client().ask("GET", "/v1/cluster")[1])) == {"default/a"}
    assert service.process.returncode == 0


class Customer:
    """One who places and finishes jobs of its own, and remembers what was acknowledged."""

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.random, self.count = name, random.Random(seed), 0
        self.held: dict[str, dict[str, int]] = {}  # by what was acknowledged
        self.asked: tuple[str, str] | None = None  # what is on its way: kind and job

    def act(self, client: Client) -> None:
        if self.held and self.random.random() < 0.45:
            job = self.random.choice(sorted(self.held))
            self.asked = "finish", job
            assert client.post("/v1/finish", {"job": job})[0] == 200
            del self.held[job]
        else:
            self.count += 1
            job, gpus = f"{self.name}/job-{self.count}", 4 * self.random.choice([1, 1, 2, 4, 8, 16, 32])
            self.asked = "place", job
            request = {"name": f"job-{self.count}", "namespace": self.name, "gpus": gpus, "mode": "required"}
            status, answer = client.post("/v1/place", request)
            assert status in (200, 409), answer
            if status == 200:
                self.held[job] = {binding["node"]: binding["gpus"] for binding in answer["bindings"]}
        self.asked = None

    def work(self, port: int) -> None:
        """Until the service dies."""
        client = Client(port)
        try:
            while True:
                self.act(client)
        except (OSError, http.client.HTTPException):
            return

    def check(self, found: dict[str, dict[str, int]]) -> None:
        """The state is the acknowledged history; what was on its way may be in it or not."""
        own = {job: nodes for job, nodes in found.items() if job.startswith(f"{self.name}/")}
        if self.asked:
            kind, job = self.asked
            if kind == "place" and job in own:
                self.held[job] = own[job]
            elif kind == "finish" and job not in own:
                del self.held[job]
            self.asked = None
        assert own == self.held


@pytest.mark.slow
def test_a_hundred_sudden_deaths_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    moments, customers = random.Random(7), [Customer(f"c{number}", number) for number in range(CLIENTS)]
    for death in range(101):
        with served(tmp_path / "journal.sqlite", racks(32, 18) if death == 0 else None) as service:
            cluster = service.client().ask("GET", "/v1/cluster")[1]
            for customer in customers:
                customer.check(booked(cluster))
            assert overbooked(cluster) == []
            threads = [threading.Thread(target=customer.work, args=(service.port,)) for customer in customers]
            for thread in threads:
                thread.start()
            time.sleep(moments.uniform(0.0, 0.5))  # the moment of death, anywhere in the work
            service.kill()
            for thread in threads:
                thread.join()
    print(f"{sum(customer.count for customer in customers)} placements asked for between {death} deaths")


MALFORMED: list[tuple[str, bytes]] = [
    ("/v1/place", b'{"gpus": '),
    ("/v1/place", b"\xff\xfe"),
    ("/v1/place", b'{"gpus": -4}'),
    ("/v1/place", b'{"gpus": 4, "mode": "sideways"}'),
    ("/v1/place", b"x" * 100_000),
    ("/v1/finish", b'{"job": []}'),
    ("/v1/finish", b'{"job": "nobody/nothing"}'),
    ("/scheduler/filter", b'{"Pod": 3}'),
    ("/v1/nowhere", b"{}"),
]


@pytest.mark.slow
def test_a_hundred_thousand_requests_leave_it_as_it_was(tmp_path: Path) -> None:
    total, share = 100_000, 0.1
    held = []
    with served(tmp_path / "journal.sqlite", racks(64, 18)) as service:

        def work(number: int) -> dict[int, int]:
            customer, client, dice = Customer(f"c{number}", number), service.client(), random.Random(number)
            statuses: dict[int, int] = {}
            for _ in range(total // CLIENTS):
                if dice.random() < share:
                    path, body = dice.choice(MALFORMED)
                    status, answer = client.post(path, body)
                    assert 400 <= status < 500 and answer["expected"], answer
                    statuses[status] = statuses.get(status, 0) + 1
                else:
                    customer.act(client)
            held.append(customer.held)
            return statuses

        watcher = service.client()
        with ThreadPoolExecutor(CLIENTS) as pool:
            work_done = [pool.submit(work, number) for number in range(CLIENTS)]
            memory = []
            while not all(future.done() for future in work_done):
                time.sleep(2.0)  # between looks; nothing waits for it
                memory.append(service.memory())
                assert overbooked(watcher.ask("GET", "/v1/cluster")[1]) == []
            refused: dict[int, int] = {}
            for future in work_done:
                for status, count in future.result().items():
                    refused[status] = refused.get(status, 0) + count
        cluster = watcher.ask("GET", "/v1/cluster")[1]

    assert booked(cluster) == {job: nodes for customer in held for job, nodes in customer.items()}
    fifth = len(memory) // 5
    early, late = (float(np.median(part)) for part in (memory[fifth : 2 * fifth], memory[-fifth:]))
    print(f"malformed {refused}; memory {early / 2**20:.1f} -> {late / 2**20:.1f} MiB, most {max(memory) / 2**20:.1f}")
    assert late < 1.05 * early


def mixed_job(number: int, dice: random.Random) -> dict[str, Any]:
    """A job as clusters see them: many small ones, few of hundreds of GPUs in slices of 16 nodes."""
    gpus = dice.choices([1, 2, 4, 8, 16, 32, 64, 128, 256], [20, 8, 20, 16, 14, 10, 7, 3, 2])[0]
    job = {"name": f"job-{number}", "gpus": gpus, "gpus_per_pod": min(gpus, 4), "priority": dice.randrange(4)}
    if gpus > 4:
        job |= {"mode": "required"}
    if gpus >= 128:
        job |= {"mode": "unconstrained", "slice_pods": 16}
    return job | {"estimate_hours": dice.choice([1, 6, 24])}


def measure(tmp_path: Path, policy: str | Path, seconds: float = 60.0, rate: float = 50.0) -> dict[str, float]:
    """Latency of /v1/place, in ms from the moment at which the request was due, on 1,000 racks that are 85 % full.

    Also the processor time that a request costs, its share of the jobs that end meanwhile included.
    """
    os.sched_setaffinity(0, os.sched_getaffinity(0) - {0} or {0})  # the service has the first one to itself
    dice, live, used, number = random.Random(0), [], 0, 0
    capacity = 1000 * 72
    with served(tmp_path / "journal.sqlite", racks(1000, 18), policy, core=0) as service:
        client, other = service.client(), service.client()

        def place() -> int:
            nonlocal used, number
            number += 1
            job = mixed_job(number, dice)
            status, _ = client.post("/v1/place", job)
            if status == 200:
                live.append((f"default/job-{number}", job["gpus"]))
                used += job["gpus"]
            return status

        def finish() -> None:
            nonlocal used
            while used > 0.85 * capacity:
                job, gpus = live.pop(dice.randrange(len(live)))
                other.post("/v1/finish", {"job": job})
                used -= gpus

        while used < 0.85 * capacity:
            place()
        took, statuses, begin, before = [], [], time.perf_counter(), service.processor_seconds()
        for request in range(int(seconds * rate)):
            due = begin + request / rate
            time.sleep(max(0.0, due - time.perf_counter()))  # an even stream, whatever the service does
            statuses.append(place())
            took.append(time.perf_counter() - due)
            finish()
        spent = 1000.0 * (service.processor_seconds() - before) / len(took)
        assert overbooked(client.ask("GET", "/v1/cluster")[1]) == []
    ms = 1000.0 * np.array(took)
    percentiles = {f"p{q:g}": float(np.percentile(ms, q)) for q in (50, 90, 99, 99.9, 100)}
    return percentiles | {"processor": spent, "refused": statuses.count(409) / len(statuses), "running": len(live)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["heuristic", "learned"])
def test_placing_on_a_thousand_racks_is_quick(tmp_path: Path, kind: str) -> None:
    policy: str | Path = "best-fit+easy+open"
    if kind == "learned":
        policy = tmp_path / "policy.npz"
        save_policy(policy, random_arrays(hidden=64))

    found = measure(tmp_path, policy)

    print(json.dumps({name: round(value, 3) for name, value in found.items()}))
    assert found["p99"] < 20.0


if __name__ == "__main__":  # a figure by hand: python -m tests.engine.service.test_process FOLDER POLICY
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    print(json.dumps(measure(Path(sys.argv[1]), sys.argv[2]), indent=1))
