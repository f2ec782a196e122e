"""swamp-mongodb: the contract, and what uploads leave when they fail. In memory, or on SWAMP_TEST_MONGODB_URL."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor

import pytest

from swamp.env import SYSTEM, Env
from swamp.errors import AccessDenied, ConditionFailed, Misconfigured, OutcomeUnknown, StoreError, Unavailable
from swamp.store.layers import innermost
from swamp.store.open import open_store
from swamp.store.port import CREATE, Match
from swamp.store.probe import probe
from swamp.store.retry import RetryPolicy
from swamp.testing.contract import StoreContract, Traits

KIND = "@swamp-mongodb/datastore"
MIB = 1 << 20


class TestMongo(StoreContract):
    traits = Traits(many=1100, at_once=4)

    @pytest.fixture
    def store(self, config):
        return open_store(KIND, config)


@pytest.fixture
def store(config):
    return open_store(KIND, config, policy=RetryPolicy(seconds=0))


def plugin(store):
    """The plug-in's own object, to look at its collections."""
    return innermost(store, "k")[0].plugin


def chunks(store):
    return plugin(store)._uploads._bodies.count_documents({})


def uploads(store):
    return plugin(store)._uploads._under_way.count_documents({})


def test_setup_finds_every_condition_enforced(store):
    seen = probe(store).capabilities
    assert seen.safe and seen.conditional_delete and seen.conditional_multipart


def test_the_address_is_the_place_and_no_login(config, monkeypatch):
    monkeypatch.setenv("SWAMP_MONGODB_USER", "somebody")
    monkeypatch.setenv("SWAMP_MONGODB_PASSWORD", "hidden")
    store = open_store(KIND, config)
    assert store.url == f"mongodb://{config['host']}/swamp-tests/{config['collection']}"
    assert "hidden" not in repr(store) + store.url and "somebody" not in store.url


@pytest.mark.parametrize(
    ("wrong", "named"),
    [({"host": "user:word@db"}, "host"), ({"database": "a/b"}, "database"), ({"collecton": "x"}, "collecton")],
)
def test_a_wrong_setting_is_named(config, wrong, named):
    with pytest.raises(Misconfigured) as told:
        open_store(KIND, config | wrong)
    assert told.value.details["key"] == named


def test_what_is_replaced_or_deleted_takes_its_chunks_along(store):
    token = store.put("k", b"a" * (3 * MIB)).token
    assert (chunks(store), uploads(store)) == (3, 0)
    token = store.put("k", b"b" * (2 * MIB), Match(token)).token
    assert chunks(store) == 2
    store.put("k", b"small", Match(token))
    assert chunks(store) == 0 and store.get("k").body == b"small"
    store.put("k", b"c" * (2 * MIB))
    store.delete(["k"])
    assert chunks(store) == 0


def test_who_loses_a_race_with_a_large_body_leaves_nothing(store, tmp_path):
    store.put("k", b"first")
    with pytest.raises(ConditionFailed):
        store.put("k", b"x" * (3 * MIB), CREATE)
    path = tmp_path / "f"
    path.write_bytes(b"x" * (2 * MIB))
    with pytest.raises(ConditionFailed):
        plugin(store).put_file_if("k", path, Match("another"))
    assert (chunks(store), uploads(store), store.get("k").body) == (0, 0, b"first")


def test_writers_without_conditions_leave_one_version_whole(store):
    bodies = [bytes([n]) * (MIB * (n % 3) + n) for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda body: store.put("k", body), bodies))
    body = store.get("k").body
    assert body in bodies and chunks(store) == (-(-len(body) // MIB) if len(body) > MIB else 0)


def test_a_stream_that_is_overwritten_says_so(store):
    store.put("k", b"a" * (3 * MIB))
    with pytest.raises(Unavailable, match="overwritten while it was read"), store.open("k") as body:
        for _ in body:
            store.put("k", b"b")


# --- uploads that die -----------------------------------------------------------------------------------------------


class Later:
    """The clock of somebody who comes two days later."""

    monotonic, sleep = SYSTEM.clock.monotonic, SYSTEM.clock.sleep

    def now(self):
        return SYSTEM.clock.now() + dt.timedelta(days=2)


def test_what_a_killed_upload_left_is_removed_after_a_day(config, store):
    inner = plugin(store)
    store.put("live", b"l" * (2 * MIB))
    for key, token in (("dead", "01DEAD"), ("live", store.head("live").token)):
        inner._uploads._under_way.insert_one({"_id": token, "key": key, "begun": SYSTEM.clock.now(), "removed": False})
    inner._uploads.send("01DEAD", [b"x", b"y"])
    store.put("next", b"n" * (2 * MIB))
    assert (chunks(store), uploads(store)) == (6, 2)
    open_store(KIND, config, Env(Later(), SYSTEM.rng)).put("later", b"n" * (2 * MIB))
    assert (chunks(store), uploads(store)) == (6, 0)
    assert store.get("live").body == b"l" * (2 * MIB)


def test_an_upload_that_was_taken_for_dead_is_refused(config, store, monkeypatch):
    inner = plugin(store)
    send = inner._uploads.send

    def slowly(token, parts):
        size = send(token, parts)
        type(inner._uploads)(inner.database, inner.place.collection, inner._objects, Env(Later(), SYSTEM.rng)).sweep()
        return size

    monkeypatch.setattr(inner._uploads, "send", slowly)
    with pytest.raises(StoreError, match="longer than a day"):
        store.put("k", b"x" * (2 * MIB))
    assert (chunks(store), uploads(store), list(store.list())) == (0, 0, [])


@pytest.mark.parametrize("happened", [True, False])
def test_a_lost_answer_is_unknown_and_loses_nothing(store, monkeypatch, happened):
    from pymongo.errors import AutoReconnect

    inner = plugin(store)
    real = inner._objects.find_one_and_update

    def cut(*args, **more):
        if happened:
            real(*args, **more)
        raise AutoReconnect("connection closed")

    monkeypatch.setattr(inner._objects, "find_one_and_update", cut)
    with pytest.raises(OutcomeUnknown):
        store.put("k", b"x" * (2 * MIB), CREATE)
    monkeypatch.undo()
    assert [m.key for page in store.list() for m in page] == (["k"] if happened else [])
    assert uploads(store) == 1 and chunks(store) == 2  # whoever comes later looks whether it happened
    if happened:
        assert store.get("k").body == b"x" * (2 * MIB)


# --- what errors mean -----------------------------------------------------------------------------------------------


def failing(monkeypatch, store, error):
    def fail(*args, **more):
        raise error

    for name in ("find_one", "find_one_and_update"):
        monkeypatch.setattr(plugin(store)._objects, name, fail)


def test_the_classes_of_errors(monkeypatch, store):
    from pymongo import errors

    told = {
        errors.OperationFailure("no", 13): (AccessDenied, AccessDenied),
        errors.OperationFailure("who", 18): (AccessDenied, AccessDenied),
        errors.NotPrimaryError("not primary", {"code": 10107}): (Unavailable, OutcomeUnknown),
        errors.ServerSelectionTimeoutError("nobody"): (Unavailable, Unavailable),
        errors.NetworkTimeout("slow"): (Unavailable, OutcomeUnknown),
        errors.WriteConcernError("majority", 64): (Unavailable, OutcomeUnknown),
        errors.InvalidDocument("a defect, never sent"): (StoreError, StoreError),
    }
    for error, (of_read, of_write) in told.items():
        failing(monkeypatch, store, error)
        with pytest.raises(StoreError) as read:
            store.head("k")
        with pytest.raises(StoreError) as write:
            store.put("k", b"x")
        assert (type(read.value), type(write.value)) == (of_read, of_write), error
