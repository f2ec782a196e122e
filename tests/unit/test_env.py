"""The one door to time, chance and identity."""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import dataclass

import pytest

from swamp.env import SYSTEM, Env, is_ulid, parse_rfc3339, rfc3339


@dataclass
class HandClock:
    """A clock that is moved by hand."""

    at: dt.datetime = dt.datetime(2026, 11, 15, 19, 48, 40, 123000, tzinfo=dt.UTC)

    def now(self) -> dt.datetime:
        return self.at

    def monotonic(self) -> float:
        return self.at.timestamp()

    def sleep(self, seconds: float) -> None:
        self.at += dt.timedelta(seconds=seconds)


def seeded(seed: int = 7) -> Env:
    return Env(HandClock(), random.Random(seed))


@pytest.mark.inv("env.one-door")
def test_the_same_seed_and_clock_make_the_same_identities() -> None:
    first, second = seeded(), seeded()
    assert [first.ulid(), first.uuid(), first.jitter(4)] == [second.ulid(), second.uuid(), second.jitter(4)]


@pytest.mark.inv("env.one-door")
def test_another_seed_makes_other_identities() -> None:
    assert seeded(1).ulid() != seeded(2).ulid()


def test_a_ulid_has_26_crockford_characters() -> None:
    assert is_ulid(SYSTEM.ulid())
    assert not is_ulid(SYSTEM.ulid()[:-1])
    assert not is_ulid("I" * 26)  # I, L, O and U are not in the alphabet
    assert not is_ulid(SYSTEM.ulid().lower())


def test_ulids_sort_by_time() -> None:
    env = seeded()
    made = []
    for _ in range(50):
        made.append(env.ulid())
        env.clock.sleep(0.001)
    assert made == sorted(made)


def test_a_ulid_carries_its_millisecond() -> None:
    env = seeded()
    millis = 0
    for character in env.ulid()[:10]:
        millis = millis * 32 + "0123456789ABCDEFGHJKMNPQRSTVWXYZ".index(character)
    assert millis == int(env.clock.now().timestamp() * 1000)


@pytest.mark.inv("object.key-once")
def test_ulids_of_one_millisecond_differ() -> None:
    env = seeded()
    assert len({env.ulid() for _ in range(10_000)}) == 10_000


def test_jitter_stays_between_half_and_whole() -> None:
    env = seeded()
    waits = [env.jitter(2.0) for _ in range(1_000)]
    assert min(waits) >= 1.0
    assert max(waits) <= 2.0
    assert max(waits) - min(waits) > 0.5


def test_time_is_written_one_way_and_read_back() -> None:
    moment = HandClock().now()
    assert rfc3339(moment) == "2026-11-15T19:48:40.123Z"
    assert parse_rfc3339(rfc3339(moment)) == moment


def test_time_of_another_zone_is_written_in_utc() -> None:
    tokyo = dt.timezone(dt.timedelta(hours=9))
    assert rfc3339(dt.datetime(2026, 1, 1, 8, 0, tzinfo=tokyo)) == "2025-12-31T23:00:00.000Z"


def test_uuids_are_version_four() -> None:
    made = seeded().uuid()
    assert made[14] == "4"
    assert made[19] in "89ab"
