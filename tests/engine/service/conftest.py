"""Services and clients for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from nvlenv.engine.model.snapshot import ClusterSnapshot
from nvlenv.engine.service.app import create_app
from tests.engine.service.clusters import racks, serve


@pytest.fixture
def make_client(tmp_path: Path) -> Iterator[Callable[..., TestClient]]:
    """Makes clients of services with a journal of their own."""
    clients: list[TestClient] = []

    def make(cluster: ClusterSnapshot | None = None, token: str = "", **options: Any) -> TestClient:
        engine = serve(tmp_path / f"{len(clients)}.sqlite", cluster or racks(), **options)
        clients.append(TestClient(create_app(engine, token), raise_server_exceptions=True))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(make_client: Callable[..., TestClient]) -> TestClient:
    """A client of a service with four idle racks of four nodes with four GPUs."""
    return make_client()
