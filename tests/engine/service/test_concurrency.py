"""Many ask at once, and no GPU is given away twice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from starlette.testclient import TestClient

from nvlenv.engine.service.app import create_app
from tests.engine.service.clusters import booked, crashed, overbooked, racks, serve

THREADS = 16


def test_no_gpu_is_booked_twice(tmp_path: Path) -> None:
    engine = serve(tmp_path / "journal", racks(4, 4))

    with TestClient(create_app(engine)) as client, ThreadPoolExecutor(THREADS) as pool:

        def ask(number: int) -> int:
            job = {"name": f"job-{number}", "gpus": 4 * (1 + number % 3), "mode": "required"}
            status = client.post("/v1/place", json=job).status_code
            if status == 200 and number % 4 == 0:
                assert client.post("/v1/finish", json={"job": f"default/job-{number}"}).status_code == 200
                return 0
            return status

        statuses = list(pool.map(ask, range(96)))
        cluster = client.get("/v1/cluster").json()

    assert overbooked(cluster) == []
    assert set(booked(cluster)) == {f"default/job-{n}" for n, status in enumerate(statuses) if status == 200}
    assert statuses.count(409) > 0  # the cluster was full at times
    assert serve(crashed(tmp_path / "journal", tmp_path / "after")).snapshot() == engine.snapshot()


def test_one_name_asked_for_by_many_is_one_job(tmp_path: Path) -> None:
    engine = serve(tmp_path / "journal", racks())

    with TestClient(create_app(engine)) as client, ThreadPoolExecutor(THREADS) as pool:
        answers = list(pool.map(lambda _: client.post("/v1/place", json={"name": "one", "gpus": 8}).json(), range(32)))

    assert len({str(answer["bindings"]) for answer in answers}) == 1
    assert len(engine.snapshot().jobs) == 1
