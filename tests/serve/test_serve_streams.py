"""Many open streams: an event wakes those that want it, in groups, and nobody beats in step."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from swamp.env import SYSTEM
from swamp.serve.database import Database
from swamp.serve.events import AT_ONCE, KINDS, Events, OpenStream

ALL = frozenset(KINDS)


@pytest.fixture
def events(tmp_path: Path) -> Iterator[Events]:
    db = Database(tmp_path / "serve.db")
    yield Events(db, SYSTEM)
    db.close()


def test_an_event_wakes_only_who_wants_it_and_is_read_for_all_others(events: Events) -> None:
    async def listening() -> tuple[list[bool], list[int]]:
        events.attach(asyncio.get_running_loop())
        readers = [
            OpenStream(0, None, ALL),
            OpenStream(0, "mine", ALL),
            OpenStream(0, "other", ALL),
            OpenStream(0, None, frozenset({"commit"})),
        ]
        heard = [asyncio.ensure_future(events.news(reader, 1.0)) for reader in readers]
        await asyncio.sleep(0.01)
        events.add([("log", "mine", {"line": "x"}), ("log", "mine", {"line": "y"})])
        return [await one for one in heard], [reader.place for reader in readers]

    woken, places = asyncio.run(listening())
    assert woken == [True, True, False, False]
    assert places == [0, 0, 2, 2], "who was not woken has nothing to look for behind these"


@pytest.mark.inv("serve.events")
def test_a_reader_hears_of_everything_it_wants_however_events_and_looks_meet(events: Events) -> None:
    """Events of several threads' adds between two looks, wanted and unwanted ones, in the order of their numbers."""

    async def reading() -> list[int]:
        events.attach(asyncio.get_running_loop())
        reader, seen = OpenStream(0, "mine", ALL), []

        def adding(run: str) -> None:
            for number in range(40):
                events.add([("log", run, {"line": str(number)})])

        threads = [asyncio.to_thread(adding, run) for run in ("mine", "other", "more")]
        done = asyncio.gather(*threads)
        while len(seen) < 40:
            for event in events.near(reader.place) or []:
                reader.place = event.id
                if reader.wants(event):
                    seen.append(event.id)
            if reader.place >= events.last and not await events.news(reader, 0.2):
                there = [event.id for event in events.after(0) if event.run_id == "mine" and event.id <= reader.place]
                assert seen == there, "it slept through an event"
        await done
        return seen

    seen = asyncio.run(reading())
    assert seen == sorted(set(seen)) == [event.id for event in events.after(0) if event.run_id == "mine"]


def test_readers_are_woken_in_groups_and_beat_apart(events: Events) -> None:
    async def listening() -> tuple[list[float], list[float]]:
        loop = asyncio.get_running_loop()
        events.attach(loop)

        async def when(seconds: float) -> float:
            await events.news(OpenStream(events.last, None, ALL), seconds)
            return loop.time()

        began = loop.time()
        beats = await asyncio.gather(*(when(0.4) for _ in range(3 * AT_ONCE)))
        heard = [asyncio.ensure_future(when(30.0)) for _ in range(3 * AT_ONCE)]
        await asyncio.sleep(0.01)
        events.add([("log", None, {})])
        return [beat - began for beat in beats], await asyncio.gather(*heard)

    beats, heard = asyncio.run(listening())
    assert max(beats) - min(beats) > 0.1 and min(beats) >= 0.19, "half of the time at least, all of it at most"
    assert max(heard) - min(heard) >= 0.015, "three groups, a turn apart"
