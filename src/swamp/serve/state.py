"""One running server: the open repository with its one engine, the queue, the threads that work."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Request

from swamp.data.run_record import RunState
from swamp.errors import NotFound, UsageError
from swamp.models.inputs import check_inputs
from swamp.serve.config import ServeConfig, Webhook, find_secret
from swamp.serve.database import FILE, Database
from swamp.serve.dispatch import Dispatcher, driving
from swamp.serve.events import Events
from swamp.serve.follow import Follower, Puller
from swamp.serve.metrics import Metrics
from swamp.serve.queue import Queue, QueuedDelivery, run_id_of
from swamp.serve.respond import Clean
from swamp.serve.schedule import Scheduler
from swamp.serve.summarize import RunIndex
from swamp.serve.tokens import Tokens

if TYPE_CHECKING:
    from swamp.repo.repository import Repo


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
        self.events = Events(self.db, env)
        self.clean = Clean.of(self.repo)
        self.follower = Follower(self.repo, self.db, self.events, self.clean)
        self.puller = Puller(self.repo, self.events, self.config.pull, self.clean)
        self.dispatcher = Dispatcher(self.repo, self.config, self.queue, self.told, self._over)
        self.index = RunIndex(self.repo)
        self.scheduler = Scheduler(self.repo, self.queue, self.dispatcher, self.index, self.told, self.config.claim)
        self.metrics = Metrics(self)

    @cached_property
    def hooks(self) -> Mapping[str, Webhook]:
        return {hook.route: hook for hook in self.config.webhooks}

    def told(self, delivery: QueuedDelivery) -> None:
        """Everybody who listens hears how far a delivery is."""
        self.events.add([("delivery", delivery.run_id, self.clean(delivery.to_json()))])
        if delivery.status in ("done", "failed"):
            self.metrics.delivered(delivery)

    def _over(self, run_id: str, run: RunState | None) -> None:
        if run is not None:
            self.metrics.run_ended(run.workflow_name, run.status, (run.duration_ms or 0) / 1000)
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
