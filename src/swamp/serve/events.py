"""What happened, in order and numbered: kept on disk, so that a reader who was away goes on without a gap.

inv[serve.events]: a number is given in the transaction that writes the event, and readers are woken after it.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from swamp.env import Env, rfc3339
from swamp.serve.database import Database

RING: Final = 5_000
KEEP: Final = 100_000
AT_ONCE: Final = 25
TURN_SECONDS: Final = 0.01
"""Readers are woken in groups: if hundreds wrote in one turn of the loop, every request would wait behind them."""
KINDS: Final = ("commit", "run", "step", "log", "status", "delivery")


@dataclass(frozen=True, slots=True)
class Event:
    id: int
    at: str
    kind: str
    run_id: str | None
    data: str
    """A JSON object."""

    def encode(self) -> bytes:
        return f"id: {self.id}\nevent: {self.kind}\ndata: {self.data}\n\n".encode("utf-8", "replace")


def _text(document: Mapping[str, Any]) -> str:
    """As JSON that a file and a wire can hold: half of a surrogate pair is not Unicode."""
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "replace").decode()


Draft = tuple[str, str | None, Mapping[str, Any]]
"""Kind, run and content of an event that has no number yet."""


class Events:
    """The events of one server. The newest stay in memory; readers that fell behind read from the file."""

    def __init__(self, db: Database, env: Env) -> None:
        self._db, self._env = db, env
        self._adding, self._lock = threading.Lock(), threading.Lock()
        self._ring: deque[Event] = deque(maxlen=RING)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()
        self._waiting = 0
        row = db.one("SELECT COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0)")
        self.last = int(row[0]) if row else 0

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Readers wait in this loop."""
        self._loop = loop

    # -- writing, from any thread

    def add(self, drafts: Iterable[Draft], *, also: tuple[str, tuple[Any, ...]] | None = None) -> None:
        """Numbers, writes and announces events, in this order; `also` is a statement of the same transaction."""
        now = rfc3339(self._env.clock.now())
        rows = [(now, kind, run, _text({"at": now, **data})) for kind, run, data in drafts]
        if not rows and also is None:
            return

        def change(db: sqlite3.Connection) -> list[Event]:
            made = []
            for row in rows:
                number = db.execute("INSERT INTO events (at, kind, run_id, data) VALUES (?, ?, ?, ?)", row).lastrowid
                made.append(Event(int(number or 0), *row))
            if also is not None:
                db.execute(*also)
            return made

        with self._adding:  # the ring has them in the order of their numbers
            made = self._db.write(change)
            with self._lock:
                self._ring.extend(made)
                if made:
                    self.last = made[-1].id
        self.wake()

    def wake(self) -> None:
        """Lets every reader look again."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._announce)

    def _announce(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def sweep(self) -> None:
        self._db.write(lambda db: db.execute("DELETE FROM events WHERE id <= ?", (self.last - KEEP,)).rowcount)

    # -- reading

    def near(self, number: int, limit: int = 500) -> list[Event] | None:
        """The events behind `number`, oldest first, if memory has them all."""
        with self._lock:
            if number >= self.last:
                return []
            if self._ring and self._ring[0].id <= number + 1:
                return self._newer(number)[:limit]
        return None

    def after(self, number: int, limit: int = 500) -> list[Event]:
        """The same from the file, for a reader that is far behind."""
        sql = "SELECT id, at, kind, run_id, data FROM events WHERE id > ? ORDER BY id LIMIT ?"
        return [Event(*row) for row in self._db.all(sql, (number, limit))]

    def _newer(self, number: int) -> list[Event]:
        """From the ring, from its new end: most readers are only a little behind."""
        found: list[Event] = []
        for event in reversed(self._ring):
            if event.id <= number:
                break
            found.append(event)
        return found[::-1]

    def has_all_after(self, number: int) -> bool:
        """Whether nothing behind `number` was forgotten."""
        if number >= self.last:
            return number == self.last
        row = self._db.one("SELECT MIN(id) FROM events")
        return bool(row and row[0] is not None and row[0] <= number + 1)

    async def changed(self, number: int, seconds: float) -> None:
        """Waits until there is something behind `number`, at most so long."""
        news = self._news
        if self.last > number:
            return
        before, self._waiting = self._waiting, self._waiting + 1
        try:
            await asyncio.wait_for(news.wait(), seconds)
        except TimeoutError:
            return
        finally:
            self._waiting -= 1
        await asyncio.sleep(before // AT_ONCE * TURN_SECONDS)
