"""What Prometheus scrapes: runs, queue, sync, requests, cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from swamp.errors import SwampError

if TYPE_CHECKING:
    from swamp.serve.queue import QueuedDelivery
    from swamp.serve.state import Server

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_RUN_SECONDS: Final = (0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)


class Metrics:
    """Counters of one server; what is a state is asked for when somebody scrapes."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.registry = CollectorRegistry()
        made: dict[str, Any] = {"registry": self.registry}
        self._requests = Counter("swamp_http_requests", "HTTP requests", ["method", "route", "status"], **made)
        self._took = Histogram("swamp_http_request_seconds", "HTTP requests", ["method"], buckets=_SECONDS, **made)
        self._runs = Counter("swamp_runs", "Runs that this server saw the end of", ["workflow", "status"], **made)
        self._lasted = Histogram("swamp_run_seconds", "How long runs took", ["workflow"], buckets=_RUN_SECONDS, **made)
        self._deliveries = Counter("swamp_deliveries", "Deliveries by their end", ["kind", "status"], **made)
        self._queue = Gauge("swamp_queue_length", "Runs that wait or run", **made)
        self._active = Gauge("swamp_runs_active", "Runs of this server under way", **made)
        self._behind = Gauge("swamp_sync_lag_commits", "Commits that this machine has not pulled", **made)
        self._age = Gauge("swamp_sync_lag_seconds", "Seconds since the store was last heard of", **made)
        self._pending = Gauge("swamp_pending_files", "Changes that wait for a push", ["kind"], **made)
        self._conflicts = Gauge("swamp_conflicts", "Files kept aside", **made)
        self._cache = Gauge("swamp_cache_bytes", "Bytes in this machine's cache", **made)
        self._store = Counter("swamp_store_requests", "Requests to the store", ["verb"], **made)
        self._asked: dict[str, int] = {}

    def request(self, scope: dict[str, Any], status: int, seconds: float) -> None:
        route = scope.get("route")
        path = getattr(route, "path", "other")
        self._requests.labels(scope["method"], path, str(status)).inc()
        if path != "/api/v1/events":
            self._took.labels(scope["method"]).observe(seconds)

    def delivered(self, delivery: QueuedDelivery) -> None:
        self._deliveries.labels(delivery.kind, delivery.status).inc()

    def run_ended(self, workflow: str, status: str, seconds: float | None) -> None:
        self._runs.labels(workflow, status).inc()
        if seconds is not None:
            self._lasted.labels(workflow).observe(seconds)

    def text(self) -> bytes:
        """Asks for the states and writes everything down. The store is asked for its newest commit, briefly."""
        server = self._server
        self._queue.set(server.queue.length())
        self._active.set(server.dispatcher.running)
        engine = server.repo.datastore.engine
        if engine is not None:
            known = engine.status()
            self._pending.labels("write").set(known.pending.writes)
            self._pending.labels("delete").set(known.pending.deletes)
            self._conflicts.set(known.conflicts)
            self._cache.set(known.bytes)
            self._lag(known.seq)
            self._count_requests()
        return generate_latest(self.registry)

    def _lag(self, seen: int) -> None:
        server = self._server
        if server.puller.pulled_at is not None:
            self._age.set(server.repo.env.clock.monotonic() - server.puller.pulled_at)
        try:
            root = server.repo.datastore.maintenance.root()
        except SwampError:
            return  # a store that is away shows in the seconds
        self._behind.set(max(0, root.seq - seen) if root else 0)

    def _count_requests(self) -> None:
        meter = self._server.repo.datastore.store.meter
        for verb, count in dict(meter.calls).items():
            self._store.labels(verb).inc(max(0, count - self._asked.get(verb, 0)))
            self._asked[verb] = count
