"""What happened, in order and numbered: kept on disk, so that a reader who was away goes on without a gap.

inv[serve.events]: a number is given in the transaction that writes the event, and readers are woken after it.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

from swamp.env import Env, rfc3339
from swamp.serve.database import Database

RING: Final = 5_000
KEEP: Final = 100_000
AT_ONCE: Final = 10
TURN_SECONDS: Final = 0.01
"""Readers are woken in groups: if hundreds wrote in one turn of the loop, every request would wait behind them."""
GOLDEN: Final = 0.618034
"""Steps of this size around a circle never meet."""
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


Draft = tuple[str, str | None, Mapping[str, Any]]
"""Kind, run and content of an event that has no number yet."""


@dataclass(eq=False, slots=True)
class OpenStream:
    """One open stream: how far it is, and what it wants to hear of. Lives in the loop."""

    place: int
    run_id: str | None
    kinds: frozenset[str]

    def wants(self, event: Event) -> bool:
        return event.kind in self.kinds and self.run_id in (None, event.run_id)


class Events:
    """The events of one server. The newest stay in memory; readers that fell behind read from the file."""

    def __init__(self, db: Database, env: Env, clean: Callable[[Any], Any] = lambda data: data) -> None:
        """`clean`: leaves paths of this machine out of whatever is told."""
        self._db, self._env, self._clean = db, env, clean
        self._adding, self._lock = threading.Lock(), threading.Lock()
        self._ring: deque[Event] = deque(maxlen=RING)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[OpenStream, asyncio.Future[bool]] = {}
        self._beat = 0.0
        row = db.one("SELECT COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0)")
        self.last = int(row[0]) if row else 0

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Readers wait in this loop."""
        self._loop = loop

    # -- writing, from any thread

    def add(self, drafts: Iterable[Draft], *, also: tuple[str, tuple[Any, ...]] | None = None) -> None:
        """Numbers, writes and announces events, in this order; `also` is a statement of the same transaction."""
        now = rfc3339(self._env.clock.now())
        # As JSON that a file and a wire can hold: half of a surrogate pair is not Unicode.
        said = ((kind, run, {"at": now, **self._clean(data)}) for kind, run, data in drafts)
        texts = ((kind, run, json.dumps(data, ensure_ascii=False)) for kind, run, data in said)
        rows = [(now, kind, run, text.encode("utf-8", "replace").decode()) for kind, run, text in texts]
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
            if made:
                self._in_loop(self._announce, made)  # in the order of their numbers, therefore under the lock

    def wake(self) -> None:
        """Lets every reader look again."""
        self._in_loop(self._wake_all)

    def _in_loop(self, call: Callable[..., None], *args: Any) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(call, *args)

    def _wake_all(self) -> None:
        for heard in self._waiting.values():
            _hear(heard, True)

    def _announce(self, made: list[Event]) -> None:
        """Wakes who wants one of these, in groups. For all others they are read: who follows one run sleeps on."""
        kinds, runs = frozenset(event.kind for event in made), frozenset(event.run_id for event in made)
        loop, awake = asyncio.get_running_loop(), 0
        for reader, heard in list(self._waiting.items()):
            if kinds.isdisjoint(reader.kinds) or (reader.run_id is not None and reader.run_id not in runs):
                reader.place = max(reader.place, made[-1].id)
                continue
            del self._waiting[reader]  # from here on it reads for itself
            loop.call_later(awake // AT_ONCE * TURN_SECONDS, _hear, heard, True)
            awake += 1

    def sweep(self) -> None:
        self._db.execute("DELETE FROM events WHERE id <= ?", (self.last - KEEP,))

    # -- reading

    def near(self, number: int, limit: int = 500) -> list[Event] | None:
        """The events behind `number`, oldest first, if memory has them all."""
        with self._lock:
            if number >= self.last:
                return []
            if self._ring and self._ring[0].id <= number + 1:
                # From its new end: most readers are only a little behind.
                newer = takewhile(lambda event: event.id > number, reversed(self._ring))
                return list(newer)[::-1][:limit]
        return None

    def after(self, number: int, limit: int = 500) -> list[Event]:
        """The same from the file, for a reader that is far behind."""
        sql = "SELECT id, at, kind, run_id, data FROM events WHERE id > ? ORDER BY id LIMIT ?"
        return [Event(*row) for row in self._db.all(sql, (number, limit))]

    def has_all_after(self, number: int) -> bool:
        """Whether nothing behind `number` was forgotten."""
        if number >= self.last:
            return number == self.last
        row = self._db.one("SELECT MIN(id) FROM events")
        return bool(row and row[0] is not None and row[0] <= number + 1)

    async def news(self, reader: OpenStream, seconds: float) -> bool:
        """Waits until something happens that the reader wants; False if nothing did for so long, or a little less."""
        if self.last > reader.place:
            return True
        loop = asyncio.get_running_loop()
        heard: asyncio.Future[bool] = loop.create_future()
        self._waiting[reader] = heard
        # Streams that were opened together would beat together for ever, and every request would wait behind them.
        self._beat = (self._beat + GOLDEN) % 1.0
        beat = loop.call_later(seconds * (0.5 + self._beat / 2), _hear, heard, False)
        try:
            return await heard
        finally:
            beat.cancel()
            self._waiting.pop(reader, None)


def _hear(heard: asyncio.Future[bool], something: bool) -> None:
    if not heard.done():
        heard.set_result(something)
