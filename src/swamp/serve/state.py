"""One running server: the open repository with its one engine, the queue, the threads that work, what is measured."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import Depends, Request
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from swamp.data.run_record import RunState
from swamp.errors import NotFound, SwampError, UsageError
from swamp.models.inputs import check_inputs
from swamp.serve.config import ServeConfig, find_secret
from swamp.serve.database import FILE, Database
from swamp.serve.dispatch import Dispatcher, driving
from swamp.serve.events import Events
from swamp.serve.follow import Follower, Puller, RunIndex
from swamp.serve.queue import Queue, QueuedDelivery, run_id_of
from swamp.serve.respond import Clean
from swamp.serve.schedule import Scheduler
from swamp.serve.tokens import Tokens

if TYPE_CHECKING:
    from swamp.repo.repository import Repo

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_RUN_SECONDS: Final = (0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)


@dataclass
class Server:
    """What every request, hook and schedule shares."""

    repo: Repo
    config: ServeConfig
    secrets: Mapping[str, bytes] = field(default_factory=dict)
    ready: threading.Event = field(default_factory=threading.Event)
    draining: bool = False

    def __post_init__(self) -> None:
        env = self.repo.env
        self.db = Database(self.repo.path / ".swamp" / FILE)
        self.tokens = Tokens(self.db, env)
        self.queue = Queue(self.db, env, self.config.queue)
        self.clean = Clean.of(self.repo)
        self.events = Events(self.db, env, self.clean)
        self.follower = Follower(self.repo, self.db, self.events)
        self.puller = Puller(self.repo, self.events, self.config.pull)
        self.dispatcher = Dispatcher(self.repo, self.config, self.queue, self.told, self._over)
        self.index = RunIndex(self.repo)
        self.scheduler = Scheduler(self.repo, self.queue, self.dispatcher, self.index, self.told, self.config.claim)
        self.metrics = Metrics(self)

    def told(self, delivery: QueuedDelivery) -> None:
        """Everybody who listens hears how far a delivery is."""
        self.events.add([("delivery", delivery.run_id, delivery.to_json())])
        if delivery.status in ("done", "failed"):
            self.metrics.delivered(delivery)

    def _over(self, run_id: str, run: RunState | None) -> None:
        if run is not None:
            self.metrics.run_ended(run)
        self.follower.over(run_id)
        self.puller.soon()

    # -- starting runs

    def enqueue(
        self, workflow: str, inputs: Mapping[str, Any], identity: str | None, tags: Mapping[str, str]
    ) -> QueuedDelivery:
        """A run that somebody asked for; with an `identity` that was used before, the run that it was for."""
        with driving(self.repo) as driver:
            found = driver.files.find(workflow).workflow
        check_inputs(inputs, found.inputs, f"workflow {found.name}")
        identity = identity or self.repo.env.uuid()
        run_id = run_id_of(self.repo.id, "api", "", identity)
        event = {"inputs": dict(inputs), "tags": dict(tags)}
        made, new = self.queue.accept("api", "", identity, found.name, run_id, event)
        if new:
            self.told(made)
            self.dispatcher.wake()
        return made

    def enqueue_resume(
        self, run_id: str, workflow: str, from_step: str | None, inputs: Mapping[str, Any]
    ) -> QueuedDelivery:
        """An existing run that goes on in a process of its own."""
        event = {"inputs": dict(inputs), "fromStep": from_step}
        made, _ = self.queue.accept("api", "resume", self.repo.env.uuid(), workflow, run_id, event, action="resume")
        self.told(made)
        self.dispatcher.wake()
        return made

    def close(self) -> None:
        self.scheduler.close()
        self.dispatcher.close()
        self.puller.close()
        self.follower.close()
        self.follower.look()
        self.db.close()


def server_of(request: Request) -> Server:
    found: Server = request.app.state.server
    return found


Asked = Annotated[Server, Depends(server_of)]
"""The server that a route is asked of."""


def check_webhooks(repo: Repo, config: ServeConfig) -> dict[str, bytes]:
    """The secrets of all webhooks. Raises UsageError for a workflow, a secret or an expression that cannot be."""
    from swamp.catalog.expression import expressions_in

    secrets: dict[str, bytes] = {}
    with driving(repo) as driver:
        for hook in config.webhooks:
            try:
                driver.files.find(hook.workflow)
            except NotFound as error:
                raise UsageError(f"the webhook {hook.route}: {error.message}", hint=error.hint) from error
            for expression in expressions_in(dict(hook.inputs)):
                for name in expression.unknown(("event",)):
                    raise UsageError(
                        f"the webhook {hook.route}: `{expression.source}` uses `{name}`",
                        hint="an input of a webhook sees event.body, event.headers and event.route",
                    )
            secrets[hook.route] = find_secret(hook.secret, repo.path, os.environ)
    return secrets


class Metrics:
    """What Prometheus scrapes: counters of one server; what is a state is asked for when somebody scrapes."""

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

    def request(self, scope: Mapping[str, Any], status: int, seconds: float) -> None:
        route = scope.get("route")
        path = getattr(route, "path", "other")
        self._requests.labels(scope["method"], path, str(status)).inc()
        if path != "/api/v1/events":
            self._took.labels(scope["method"]).observe(seconds)

    def delivered(self, delivery: QueuedDelivery) -> None:
        self._deliveries.labels(delivery.kind, delivery.status).inc()

    def run_ended(self, run: RunState) -> None:
        self._runs.labels(run.workflow_name, run.status).inc()
        self._lasted.labels(run.workflow_name).observe((run.duration_ms or 0) / 1000)

    def text(self) -> bytes:
        """Asks for the states and writes everything down. The store is asked for its newest commit, briefly."""
        server = self._server
        self._queue.set(server.queue.length())
        self._active.set(len(server.dispatcher.active))
        engine = server.repo.datastore.engine
        if engine is not None:
            known = engine.status()
            self._pending.labels("write").set(known.pending.writes)
            self._pending.labels("delete").set(known.pending.deletes)
            self._conflicts.set(known.conflicts)
            self._cache.set(known.bytes)
            self._lag(known.seq)
            for verb, count in dict(server.repo.datastore.store.meter.calls).items():
                self._store.labels(verb).inc(max(0, count - self._asked.get(verb, 0)))
                self._asked[verb] = count
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
