"""What to do about a lease, decided from values alone."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest

from swamp.env import SYSTEM, rfc3339
from swamp.locks.decide import (
    LONGEST_TTL_S,
    TTL_S,
    Holder,
    Knowledge,
    LeaseBody,
    ObservedLease,
    Take,
    Watch,
    decide,
    decode,
    watching,
)
from swamp.locks.leases import StoreLeases, inherited_of
from swamp.store.open import open_store

THEN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
BODY = LeaseBody("alice@laptop", "laptop", 7, rfc3339(THEN), int(TTL_S * 1000), "nonce-a", 1, "held")


def seen(body=BODY, token="t1"):
    return ObservedLease("k", token, THEN, body)


def later(seconds):
    return THEN + dt.timedelta(seconds=seconds)


def test_a_body_survives_its_encoding():
    assert decode(BODY.encode()) == BODY
    assert decode(BODY.renewed().released().encode()).epoch == BODY.epoch + 2


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b"null", BODY.encode()[:-2], b'{"state":"asleep"}', b"\xff"])
def test_what_is_not_a_body_is_none(raw):
    assert decode(raw) is None


def test_nobody_ever_held_it():
    assert decide(None, None, Knowledge(0.0, "me")) == "create"


def test_released_is_free_and_its_epoch_goes_on():
    assert decide(seen(BODY.released()), None, Knowledge(0.0, "me")) == Take("t1", BODY.epoch + 2, "released")


def test_my_own_write_is_mine_and_my_parents_is_enough():
    assert decide(seen(), None, Knowledge(0.0, "nonce-a")) == "mine"
    assert decide(seen(), None, Knowledge(0.0, "me", inherited={"nonce-a"})) == "inherit"


def test_a_holder_whose_flock_is_free_is_dead():
    assert decide(seen(), None, Knowledge(0.0, "me", dead={"nonce-a"})) == Take("t1", BODY.epoch + 1, "dead")


@pytest.mark.inv("lease.no-clock")
@pytest.mark.parametrize(
    ("idle", "store_age", "expected"),
    [
        (0.0, None, "wait"),
        (TTL_S - 0.1, 10 * TTL_S, "wait"),  # old by the store, but I have not watched it for a TTL
        (TTL_S, None, "ask"),
        (TTL_S, TTL_S - 0.1, "wait"),  # my clock runs fast: the store says it is young
        (TTL_S, TTL_S, Take("t1", BODY.epoch + 1, "stale")),
    ],
)
def test_stale_takes_both_my_own_clock_and_the_stores(idle, store_age, expected):
    now = None if store_age is None else later(store_age)
    decision = decide(seen(), Watch("t1", 100.0), Knowledge(100.0 + idle, "me", store_now=now))
    assert decision == expected


def test_a_watch_starts_anew_when_the_token_moves():
    first = watching(None, seen(), 1.0)
    assert watching(first, seen(), 9.0) == first == Watch("t1", 1.0)
    assert watching(first, seen(token="t2"), 9.0) == Watch("t2", 9.0)
    assert watching(first, None, 9.0) is None
    assert decide(seen(token="t2"), first, Knowledge(1000.0, "me", store_now=later(1000))) == "wait"


def test_an_unreadable_lease_ages_like_any_other_and_its_epoch_is_left_behind():
    know = Knowledge(TTL_S, "me", store_now=later(TTL_S))
    assert decide(seen(None), Watch("t1", 0.0), know) == Take("t1", int(THEN.timestamp()), "stale")


def test_nobody_can_hold_a_lease_for_a_year_by_asking_for_it():
    greedy = replace(BODY, holder="mallory", ttl_ms=365 * 86_400_000)
    know = Knowledge(LONGEST_TTL_S, "me", store_now=later(LONGEST_TTL_S))
    assert isinstance(decide(seen(greedy), Watch("t1", 0.0), know), Take)


def test_what_the_environment_says():
    assert inherited_of({"SWAMP_LEASES": "a,,b"}) == {"a", "b"}


@pytest.mark.inv("lease.epoch")
def test_a_lease_is_taken_on_what_this_machine_left_there_and_knows_when_others_held_it(tmp_path):
    """Without a look: the swap succeeds only if a look would have shown just that."""
    store = open_store("memory://leases")
    asked: list[str] = []
    look, store.get = store.get, lambda key, **more: asked.append(key) or look(key, **more)  # type: ignore[method-assign]

    def held(machine: str):
        directory = tmp_path / machine
        return StoreLeases(
            store, Holder("u", machine, 1), SYSTEM, timeout_s=5.0, inherited=(), local_lock_dir=directory
        ).acquire("k")

    epochs = []
    for machine, unbroken, looks in [("a", True, 0), ("a", True, 0), ("b", False, 1), ("a", False, 1), ("a", True, 0)]:
        asked.clear()
        with held(machine) as lease:
            assert (lease.unbroken, len(asked)) == (unbroken, looks)
            epochs.append(lease.epoch)
    assert epochs == sorted(set(epochs))
