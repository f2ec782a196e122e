"""The queue of what is to be run: webhook deliveries, ticks of schedules, requests of the API.

A row is written before anybody is told that it was accepted, and holds the id of its run, made from its own id: so a
run that was started is found by its record and never started twice, whoever died in between. inv[serve.once]
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, get_args

from swamp.data.document import keys_of, values_of
from swamp.env import Env, rfc3339
from swamp.errors import Failed, NotFound, UsageError
from swamp.serve.database import Database

Kind = Literal["webhook", "schedule", "api"]
Status = Literal["queued", "started", "done", "failed", "cancelled", "skipped"]
DEFAULT_LIMIT: Final = 10_000
KEEP_FINISHED: Final = 20_000


class QueueFull(Failed):
    """Nothing more is taken until some of it has run: 503, and the sender tries again."""

    kind = "queue-full"


@dataclass(frozen=True)
class QueuedDelivery:
    """One row: what is to be run, because of what, and how far it is."""

    n: int
    kind: Kind
    route: str
    id: str
    workflow: str
    run_id: str
    action: str
    received_at: str
    event: Mapping[str, Any]
    status: Status
    attempts: int
    error: str | None
    finished_at: str | None

    def to_json(self, *, whole: bool = False) -> dict[str, Any]:
        error = {"error": self.error} if self.error else {}
        event = {"event": dict(self.event)} if whole else {}
        return {"deliveryId": self.id, **values_of(self, _TOLD), **error, **event}


_TOLD: Final = keys_of("kind route workflow run_id status attempts received_at finished_at")


def run_id_of(repo_id: str, kind: str, route: str, identity: str) -> str:
    """The id of the run that this delivery is for, the same on every attempt and every machine."""
    return str(uuid.uuid5(uuid.UUID(repo_id), f"{kind}\n{route}\n{identity}"))


@dataclass(frozen=True)
class Queue:
    """The deliveries in a server's file."""

    db: Database
    env: Env
    limit: int = DEFAULT_LIMIT

    # -- taking in

    def accept(
        self,
        kind: Kind,
        route: str,
        identity: str,
        workflow: str,
        run_id: str,
        event: Mapping[str, Any],
        *,
        action: str = "run",
    ) -> tuple[QueuedDelivery, bool]:
        """The row, on disk when this returns, and whether it is new. Raises QueueFull."""
        body = json.dumps(event, ensure_ascii=False)
        values = (kind, route, identity, workflow, run_id, action, rfc3339(self.env.clock.now()), body)

        def change(db: sqlite3.Connection) -> tuple[QueuedDelivery, bool]:
            known = db.execute(_ONE, (kind, route, identity)).fetchone()
            if known is not None:
                return _row(known), False
            waiting = db.execute("SELECT COUNT(*) FROM deliveries WHERE status IN ('queued', 'started')").fetchone()[0]
            if waiting >= self.limit:
                raise QueueFull(f"{waiting} runs are waiting", hint="try again later, or raise serve.queue")
            db.execute(_INSERT, values)
            return _row(db.execute(_ONE, (kind, route, identity)).fetchone()), True

        return self.db.write(change)

    # -- working it off

    def waiting(self, limit: int, busy: Collection[str] = ()) -> list[QueuedDelivery]:
        """The oldest that may be started now; events for workflows that are `busy` wait, and hold up no others."""
        now = self.env.clock.now().timestamp()
        free = f"(kind = 'api' OR workflow NOT IN ({', '.join('?' * len(busy))}))"
        sql = f"SELECT * FROM deliveries WHERE status = 'queued' AND not_before <= ? AND {free} ORDER BY n LIMIT ?"
        return [_row(row) for row in self.db.all(sql, (now, *busy, limit))]

    def under_way(self) -> list[QueuedDelivery]:
        return [_row(row) for row in self.db.all("SELECT * FROM deliveries WHERE status = 'started' ORDER BY n")]

    def begin(self, delivery: QueuedDelivery) -> bool:
        """The intent, before the run's process exists; False if somebody cancelled it meanwhile."""
        sql = "UPDATE deliveries SET status = 'started', attempts = attempts + 1 WHERE n = ? AND status = 'queued'"
        return bool(self.db.execute(sql, (delivery.n,)))

    def put_back(self, delivery: QueuedDelivery, error: str | None, seconds: float) -> None:
        """Its run has not begun: it is tried again later."""
        at = self.env.clock.now().timestamp() + seconds
        sql = "UPDATE deliveries SET status = 'queued', error = ?, not_before = ? WHERE n = ? AND status = 'started'"
        self.db.execute(sql, (error, at, delivery.n))

    def finish(self, delivery: QueuedDelivery, status: Status, error: str | None = None) -> None:
        sql = "UPDATE deliveries SET status = ?, error = ?, finished_at = ? WHERE n = ? AND finished_at IS NULL"
        self.db.execute(sql, (status, error, rfc3339(self.env.clock.now()), delivery.n))

    def cancel_waiting(self, run_id: str) -> bool:
        """Takes a run that has not begun out of the queue."""
        sql = "UPDATE deliveries SET status = 'cancelled', finished_at = ? WHERE run_id = ? AND status = 'queued'"
        return bool(self.db.execute(sql, (rfc3339(self.env.clock.now()), run_id)))

    # -- looking

    def length(self) -> int:
        return int(self.db.all("SELECT COUNT(*) FROM deliveries WHERE status IN ('queued', 'started')")[0][0])

    def by_number(self, n: int) -> QueuedDelivery:
        row = self.db.one("SELECT * FROM deliveries WHERE n = ?", (n,))
        assert row is not None, "rows under way are never swept"
        return _row(row)

    def of_run(self, run_id: str) -> QueuedDelivery | None:
        row = self.db.one("SELECT * FROM deliveries WHERE run_id = ? ORDER BY n DESC LIMIT 1", (run_id,))
        return None if row is None else _row(row)

    def by_id(self, identity: str) -> QueuedDelivery:
        """The newest with this delivery id. Raises NotFound."""
        row = self.db.one("SELECT * FROM deliveries WHERE id = ? ORDER BY n DESC LIMIT 1", (identity,))
        if row is None:
            raise NotFound(f"there is no delivery {identity}", hint="`swamp serve deliveries list` shows all")
        return _row(row)

    def list(
        self, *, kinds: Sequence[str] = (), status: str | None = None, before: int | None = None, limit: int = 100
    ) -> list[QueuedDelivery]:
        """The newest that fit; `before` is the number of the last one of an earlier page. Raises UsageError."""
        _check("kind", kinds, get_args(Kind))
        _check("status", [] if status is None else [status], get_args(Status))
        clauses, args = ["1"], []
        if kinds:
            clauses.append(f"kind IN ({', '.join('?' * len(kinds))})")
            args += list(kinds)
        if status is not None:
            clauses.append("status = ?")
            args.append(status)
        if before is not None:
            clauses.append("n < ?")
            args.append(str(before))
        sql = f"SELECT * FROM deliveries WHERE {' AND '.join(clauses)} ORDER BY n DESC LIMIT ?"
        return [_row(row) for row in self.db.all(sql, (*args, limit))]

    def page(
        self, cursor: str | None, limit: int, *, kinds: Sequence[str] = (), status: str | None = None
    ) -> dict[str, Any]:
        """The newest that fit, behind the place that `cursor` is, as a document with the place behind them."""
        found = self.list(kinds=kinds, status=status, before=int(cursor) if cursor else None, limit=limit + 1)
        following = str(found[limit - 1].n) if len(found) > limit else None
        return {"items": [one.to_json() for one in found[:limit]], "next": following}

    def replay(self, identity: str, repo_id: str) -> QueuedDelivery:
        """The same event once more, as a new delivery with a run of its own."""
        old = self.by_id(identity)
        again = f"{old.id.partition('#')[0]}#{self.env.ulid().lower()[-8:]}"
        run_id = run_id_of(repo_id, old.kind, old.route, again)
        return self.accept(old.kind, old.route, again, old.workflow, run_id, old.event)[0]

    def sweep(self) -> None:
        """Forgets the oldest finished ones: their ids were remembered for long enough to know a repetition."""
        sql = (
            "DELETE FROM deliveries WHERE status NOT IN ('queued', 'started') AND n < "
            "(SELECT COALESCE(MAX(n), 0) FROM deliveries) - ?"
        )
        self.db.execute(sql, (KEEP_FINISHED,))


_ONE: Final = "SELECT * FROM deliveries WHERE kind = ? AND route = ? AND id = ?"
_INSERT: Final = (
    "INSERT INTO deliveries (kind, route, id, workflow, run_id, action, received_at, event, status) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'queued')"
)


def _check(what: str, given: Sequence[str], known: Sequence[str]) -> None:
    for word in given:
        if word not in known:
            raise UsageError(f"`{word}` is not a {what}", hint=f"there is {', '.join(known)}")


def _row(row: sqlite3.Row) -> QueuedDelivery:
    known = {field.name: row[field.name] for field in fields(QueuedDelivery)}
    return QueuedDelivery(**{**known, "event": json.loads(row["event"])})
