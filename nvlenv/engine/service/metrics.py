"""What Prometheus reads: the engine's decisions and their latency, and how fragmented the cluster is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nvlenv.cluster.fragmentation import fragmentation_index
from nvlenv.engine.model.answers import Placed, Refused
from nvlenv.engine.service.shared import SharedEngine
from nvlenv.simulator.state import SLOT_SIZES

BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)  # s


class Metrics:
    """Counters of one service, in a registry of its own."""

    def __init__(self, engine: SharedEngine) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_ClusterCollector(engine))
        self._decisions = self._counter("nvlenv_decisions", "Jobs decided, by outcome.", "outcome")
        self._refusals = self._counter("nvlenv_refusals", "Jobs refused, by cause.", "cause")
        self._evictions = self._counter("nvlenv_evictions", "Jobs evicted or moved for others, by reason.", "reason")
        self.responses = self._counter("nvlenv_http_responses", "HTTP responses.", "path", "status")
        self.latency = Histogram(
            "nvlenv_request_seconds", "Time to answer a request.", ["path"], buckets=BUCKETS, registry=self.registry
        )

    def decided(self, answer: Placed | Refused) -> None:
        """Count a decision that was asked for in earnest, not a dry run."""
        if isinstance(answer, Refused):
            self._decisions.labels("refused").inc()
            self._refusals.labels(answer.cause).inc()
            return
        self._decisions.labels("placed").inc()
        for eviction in answer.evictions:
            self._evictions.labels(eviction.reason).inc()

    def page(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)


class _ClusterCollector:
    """Gauges that are read off the engine when Prometheus asks."""

    def __init__(self, engine: SharedEngine) -> None:
        self._engine = engine

    def describe(self) -> list[Any]:
        return []  # nothing is computed when it is registered

    def collect(self) -> Iterator[GaugeMetricFamily]:
        slots = self._engine.slots(SLOT_SIZES)
        single = {
            "nvlenv_gpus": ("GPUs of the cluster.", slots.gpus),
            "nvlenv_free_gpus": ("Free GPUs that pods may use.", slots.free_gpus),
            "nvlenv_unreachable_gpus": ("Idle GPUs on failed or cordoned nodes.", slots.unreachable_gpus),
            "nvlenv_largest_slice_nodes": ("Nodes of the largest job that fits one rack.", slots.largest_slice),
            "nvlenv_whole_racks_free": ("Racks that are wholly free.", slots.whole_racks),
        }
        for name, (text, value) in single.items():
            yield GaugeMetricFamily(name, text, value=value)
        fit = GaugeMetricFamily("nvlenv_free_slots", "Slices that fit now, each in one rack.", labels=["slice_nodes"])
        lost = GaugeMetricFamily(
            "nvlenv_fragmentation_index",
            "Share of the slices that the free nodes would make side by side, but do not in their racks.",
            labels=["slice_nodes"],
        )
        for size, free in slots.free.items():
            fit.add_metric([str(size)], free)
            lost.add_metric([str(size)], fragmentation_index(list(slots.racks.values()), size))
        yield from (fit, lost)


class Measured:
    """Counts responses and their latency, by route; what no route takes is "other"."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def noted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        await self.app(scope, receive, noted)
        path = getattr(scope.get("route"), "path", "other")
        self.metrics.responses.labels(path, status).inc()
        self.metrics.latency.labels(path).observe(time.perf_counter() - began)
