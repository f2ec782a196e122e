"""`swamp serve`: an API, webhooks, schedules and pages; and the tokens and deliveries of that server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swamp.cli.command import CommandSession, Limit, group, session
from swamp.errors import NotFound, UsageError

if TYPE_CHECKING:
    from swamp.serve.queue import Queue
    from swamp.serve.tokens import Tokens

app = group("Serve the repository: an API, webhooks, schedules, pages.")
token = group("Who may use the server.")
deliveries = group("What was accepted, and what became of it.")
app.add_typer(token, name="token")
app.add_typer(deliveries, name="deliveries")


@app.callback(invoke_without_command=True)
def serve(
    ctx: typer.Context,
    host: Annotated[str | None, typer.Option(metavar="H", help="Where to listen (default 127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option(metavar="N", help="Which port (default 9090); 0 for any.")] = None,
    config: Annotated[str | None, typer.Option(metavar="FILE", help="`serve:` from this file instead.")] = None,
    no_schedule: Annotated[bool, typer.Option("--no-schedule", help="Leave schedules to other servers.")] = False,
    drain: Annotated[float | None, typer.Option(metavar="S", help="Seconds for runs to finish at the end.")] = None,
    behind_proxy: Annotated[bool, typer.Option("--behind-proxy", help="A proxy in front speaks TLS.")] = False,
    public_url: Annotated[str | None, typer.Option(metavar="URL", help="Where people reach it (proxy).")] = None,
    tls_cert: Annotated[str | None, typer.Option(metavar="FILE", help="A certificate (PEM).")] = None,
    tls_key: Annotated[str | None, typer.Option(metavar="FILE", help="Its key (PEM).")] = None,
) -> None:
    """Serve the repository until SIGTERM or Ctrl-C."""
    if ctx.invoked_subcommand is not None:
        return
    from swamp.serve.run import must_have_extra

    must_have_extra()
    from swamp.serve.config import read_config
    from swamp.serve.run import serve as run

    flags = {"host": host, "port": port, "drain": drain, "publicUrl": public_url, "behindProxy": behind_proxy or None}
    flags |= {"schedule": False if no_schedule else None}
    tls = {"cert": tls_cert, "key": tls_key}

    def announce(ready: dict[str, Any]) -> None:
        once = f"\nLog in (once): {ready['login']}" if ready["login"] else ""
        s.out.result(ready, f"Serving {ready['url']}{once}")

    with session() as s:
        document = _document(config) if config else s.repo.config.document
        run(s.repo, read_config(document, {**flags, "tls": tls}), announce, s.out.info)


def _document(file: str) -> dict[str, Any]:
    """A file with a `serve:` block, or that block alone."""
    from pathlib import Path

    import yaml

    try:
        found = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"--config {file} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"--config {file} is not a mapping", hint="it holds what `serve:` of .swamp.yaml holds")
    return found if "serve" in found else {"serve": found}


@contextmanager
def _opened(*, reading: bool = False) -> Iterator[tuple[CommandSession, Tokens, Queue]]:
    """A command on the server's own file, whether the server runs or not."""
    from swamp.serve.database import FILE, Database
    from swamp.serve.queue import Queue
    from swamp.serve.tokens import Tokens

    with session(reading=reading) as s:
        db = Database(s.repo.path / ".swamp" / FILE)
        try:
            yield s, Tokens(db, s.repo.env), Queue(db, s.repo.env)
        finally:
            db.close()


@app.command("login")
def login() -> None:
    """Make another one-time login for the running server."""
    with _opened() as (s, tokens, queue):
        row = queue.db.one("SELECT value FROM meta WHERE name = 'url'")
        if row is None:
            raise NotFound("no server has run here yet", hint="`swamp serve` prints a login when it is ready")
        url = f"{row[0]}/login?token={tokens.login()}"
        s.out.result({"login": url}, url)


@token.command("create")
def create(
    role: Annotated[str, typer.Option(metavar="ROLE", help="viewer, operator or admin.")] = "viewer",
    name: Annotated[str | None, typer.Option(metavar="N", help="What it is for.")] = None,
) -> None:
    """Make a token. It is shown this once; only a hash is kept."""
    with _opened() as (s, tokens, _):
        made = tokens.create(role, name)
        s.out.result(made, f"{made['token']}\n(id {made['id']}, {role}: it is not shown again)")


@token.command("list")
def list_tokens() -> None:
    """List all tokens, without their words."""
    with _opened(reading=True) as (s, tokens, _):
        items = tokens.list()
        s.out.items(items, ("ID", "ROLE", "NAME", "CREATED", "REVOKED"), map(dict.values, items))


@token.command("revoke")
def revoke(identity: Annotated[str, typer.Argument(metavar="ID", help="A token's id.")]) -> None:
    """Make a token worthless, at once."""
    with _opened() as (s, tokens, _):
        s.out.result(tokens.revoke(identity), f"Revoked {identity}")


@deliveries.command("list")
def list_deliveries(
    kind: Annotated[str | None, typer.Option(metavar="K", help="webhook, schedule or api.")] = None,
    status: Annotated[
        str | None, typer.Option(metavar="S", help="queued, started, done, failed, cancelled, skipped.")
    ] = None,
    limit: Limit = 100,
) -> None:
    """List deliveries, newest first."""
    with _opened(reading=True) as (s, _, queue):
        found = queue.list(kinds=(kind,) if kind else (), status=status, limit=limit)
        rows = [(d.id, d.kind, d.workflow, d.status, d.received_at, d.run_id) for d in found]
        columns = ("DELIVERY", "KIND", "WORKFLOW", "STATUS", "RECEIVED", "RUN")
        s.out.items([one.to_json() for one in found], columns, rows)


DeliveryId = Annotated[str, typer.Argument(metavar="ID", help="A delivery's id.")]


@deliveries.command("show")
def show(identity: DeliveryId) -> None:
    """Show a delivery with its event."""
    import json

    with _opened(reading=True) as (s, _, queue):
        document = queue.by_id(identity).to_json(whole=True)
        s.out.result(document, lambda: s.out.line(json.dumps(document, indent=2, ensure_ascii=False)))


@deliveries.command("replay")
def replay(identity: DeliveryId) -> None:
    """Put the same event into the queue once more; a running server takes it at once."""
    with _opened() as (s, _, queue):
        made = queue.replay(identity, s.repo.id)
        s.out.result(made.to_json(), f"{made.id} is in the queue, as run {made.run_id}")
