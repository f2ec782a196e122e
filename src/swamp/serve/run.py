"""The process of `swamp serve`: opens, recovers, says ready, serves, drains, ends."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from swamp.errors import StoreError, UsageError
from swamp.extras import needs
from swamp.serve.config import ServeConfig

if TYPE_CHECKING:
    from swamp.data.run_record import RunState
    from swamp.repo.repository import Repo
    from swamp.serve.state import Server

HEADER_BYTES: Final = 32 << 10
KEEP_ALIVE_S: Final = 15
CANCEL_SECONDS: Final = 30.0
_log = logging.getLogger("swamp.serve")


def must_have_extra() -> None:
    """Raises MissingExtra, before anything is opened."""
    for module in ("fastapi", "uvicorn", "prometheus_client"):
        needs(module, "`swamp serve`", "serve")


def listen(config: ServeConfig) -> socket.socket:
    """The socket, bound. Raises UsageError for a port that is taken, before anything runs."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # The protocol is named because asyncio turns Nagle off only then: an answer would wait 40 ms for an ACK.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((config.host, config.port))
        bound.listen(1024)
    except OSError as error:
        bound.close()
        raise UsageError(
            f"cannot listen on {config.host}:{config.port}: {error.strerror}", hint="choose another --port, or --port 0"
        ) from error
    bound.setblocking(False)
    return bound


def serve(
    repo: Repo, config: ServeConfig, announce: Callable[[dict[str, Any]], None], say: Callable[[str], None]
) -> None:
    """Runs until a signal. `announce` gets the one document when everything is ready."""
    from swamp.errors import LockTimeout
    from swamp.locks.flock import FileLock
    from swamp.serve.state import Server, check_webhooks

    secrets = check_webhooks(repo, config)
    with ExitStack() as stack:
        try:
            stack.enter_context(FileLock(repo.path / ".swamp" / "serve.lock", repo.env).exclusive(timeout=2.0))
        except LockTimeout as error:
            hint = "stop it, or use another clone of the repository"
            raise UsageError("another server works on this repository's queue", hint=hint) from error
        bound = stack.enter_context(listen(config))
        server = Server(repo, config, secrets)
        stack.callback(server.close)
        Process(server, bound, announce, say).run()


class Process:
    """One server from its start to its last push."""

    def __init__(
        self,
        server: Server,
        bound: socket.socket,
        announce: Callable[[dict[str, Any]], None],
        say: Callable[[str], None],
    ) -> None:
        self._server, self._bound, self._announce, self._say = server, bound, announce, say
        self._signals = 0
        self._heard = threading.Event()

    def run(self) -> None:
        signal.set_wakeup_fd(-1)  # a command ends with 130 then; a server drains and ends with 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        self._recover()
        # A command looks for cycles seldom and long; every request waits for a server that does: often and briefly.
        gc.collect()
        gc.freeze()  # what was imported stays
        gc.set_threshold(5_000, 20, 50)
        asyncio.run(self._serve())
        self._drain()

    # -- beginning

    def _recover(self) -> None:
        """inv[serve.recover]: leases and records say what became of runs, never a guess."""
        server = self._server
        server.dispatcher.killed = self._tell_killed
        self._look()
        server.tokens.sweep()
        server.queue.sweep()
        server.events.sweep()
        server.follower.tidy(server.dispatcher.active)
        server.follower.start()
        server.puller.start()
        server.dispatcher.start()
        if server.config.schedule:
            server.scheduler.start()

    def _tell_killed(self, run: RunState) -> None:
        self._say(f"run {run.id} of {run.workflow_name} was interrupted: swamp workflow resume {run.id}")
        told = {"runId": run.id, "workflow": run.workflow_name, "status": run.status, "error": run.error}
        self._server.events.add([("run", run.id, {**told, "interrupted": True})])

    def _look(self) -> None:
        """A store that is away does not keep the server from starting: it says so, /readyz too, and what became of
        earlier runs is looked for when it answers. It is asked once: another question would cost as much again."""
        try:
            self._server.repo.datastore.hydrate_once()
            if self._server.repo.datastore.synced:
                self._server.repo.datastore.must_be_there()
                self._server.repo.datastore.pull()
            self._server.dispatcher.recover()
        except StoreError as error:
            self._say(f"Warning: the store does not answer: {error.message}")

    async def _serve(self) -> None:
        import uvicorn

        from swamp.serve.app import Protocol, build

        server, config = self._server, self._server.config
        server.events.attach(asyncio.get_running_loop())
        settings = uvicorn.Config(
            build(server),
            http=Protocol,
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=config.behind_proxy,
            forwarded_allow_ips="127.0.0.1",
            limit_concurrency=config.connections,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=5,
            h11_max_incomplete_event_size=HEADER_BYTES,
            ssl_certfile=config.tls.cert,
            ssl_keyfile=config.tls.key,
        )
        http = uvicorn.Server(settings)
        serving = asyncio.create_task(http._serve([self._bound]))  # not `serve`: this process has signal handlers
        while not http.started and not serving.done():
            await asyncio.sleep(0.01)
        if not serving.done():
            server.ready.set()
            self._announce(self._document())
            while not self._heard.is_set() and not serving.done():
                await asyncio.sleep(0.05)
        server.draining = True
        server.events.wake()
        server.scheduler.stop()
        server.dispatcher.stop()
        http.should_exit = True
        await serving

    def _document(self) -> dict[str, Any]:
        config, port = self._server.config, self._bound.getsockname()[1]
        host = f"[{config.host}]" if ":" in config.host else config.host
        url = f"{config.scheme}://{host}:{port}"
        reached = config.public_url or url  # the cookie of a login counts only where a browser goes
        self._server.db.execute("INSERT OR REPLACE INTO meta (name, value) VALUES ('url', ?)", (reached,))
        login = f"{reached}/login?token={self._server.tokens.login()}" if config.loopback else None
        return {"url": url, "login": login, "pid": os.getpid()}

    # -- ending

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._signals += 1
        self._heard.set()
        if self._signals > 1:
            os._exit(0)  # what is accepted is on disk, and runs go on by themselves

    def _drain(self) -> None:
        """Runs may finish; those that take longer are ended as `workflow cancel` does; then everything is pushed."""
        server, dispatcher = self._server, self._server.dispatcher
        if runs := len(dispatcher.active):
            self._say(f"Waiting up to {server.config.drain:g} s for {runs} run(s); again to end now")
        if not dispatcher.drained(server.config.drain):
            for run_id in dispatcher.active:  # each ends its steps, writes its record and pushes it
                dispatcher.spawner.signal(run_id)
            dispatcher.drained(CANCEL_SECONDS)
        try:
            if server.repo.datastore.synced:
                server.repo.datastore.push()
        except StoreError as error:
            self._say(f"Warning: not everything is shared: {error.message}; `swamp datastore sync` delivers it")
