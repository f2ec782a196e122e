"""swamp-postgres on a real server: the contract, what setup finds out, and what its bad days look like."""

from __future__ import annotations

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from machines import Machine
from postgres_server import ADMIN, KIND, PASSWORD
from swamp.env import SYSTEM
from swamp.errors import AccessDenied, ConditionFailed, Misconfigured, ObjectMissing, OutcomeUnknown, Unavailable
from swamp.store.open import open_store
from swamp.store.port import CREATE, Match
from swamp.store.probe import probe
from swamp.store.retry import RetryPolicy
from swamp.testing.contract import StoreContract, Traits

MIB = 1 << 20


class TestPostgres(StoreContract):
    traits = Traits(many=1100, at_once=4)

    @pytest.fixture
    def store(self, config):
        return open_store(KIND, config)


def at_once(config, **more):
    """Without retries: what the store itself says."""
    return open_store(KIND, config | more, policy=RetryPolicy(seconds=0))


def test_setup_finds_every_condition_enforced(config):
    seen = probe(open_store(KIND, config)).capabilities
    assert seen.safe and seen.conditional_delete and seen.conditional_multipart


def test_the_address_is_the_place_and_no_login(config):
    store = open_store(KIND, config | {"user": "keeper"})
    assert store.url == f"postgresql://127.0.0.1:{config['port']}/postgres/{config['schema']}"
    assert "of-the-tests" not in repr(store) + store.url


@pytest.mark.parametrize(
    ("wrong", "named"), [({"schema": 'x"; DROP'}, "schema"), ({"port": 0}, "port"), ({"databse": "x"}, "databse")]
)
def test_a_wrong_setting_is_named(config, wrong, named):
    with pytest.raises(Misconfigured) as told:
        open_store(KIND, config | wrong)
    assert told.value.details["key"] == named


# --- writers and readers at once ------------------------------------------------------------------------------------


def test_a_stream_is_one_version_while_it_is_overwritten(config):
    store = open_store(KIND, config)
    store.put("k", b"a" * (3 * MIB))
    with store.open("k") as body:
        chunks = iter(body)
        read = [next(chunks)]
        store.put("k", b"b" * (2 * MIB))
        read += list(chunks)
    assert b"".join(read) == b"a" * (3 * MIB) and store.get("k").body == b"b" * (2 * MIB)


def test_writers_without_conditions_leave_one_version_whole(config, postgres):
    store = open_store(KIND, config)
    bodies = [bytes([n]) * (MIB * (n % 3 + 1) + n) for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda body: store.put("k", body), bodies))
    assert store.get("k").body in bodies
    with postgres.connect() as direct:
        stored = direct.execute(f"SELECT sum(length(bytes)) FROM {config['schema']}.chunks").fetchone()[0]
    assert stored == store.head("k").size


def test_many_open_the_first_time_at_once(config):
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: _created(open_store(KIND, config), n), range(8)))
    assert sorted(results) == [False] * 7 + [True]


def _created(store, number):
    try:
        store.put("k", str(number).encode(), CREATE)
    except ConditionFailed:
        return False
    return True


def test_deleting_in_two_orders_at_once_is_no_deadlock(config):
    store = at_once(config)
    keys = [f"k{n:03d}" for n in range(200)]
    for _ in range(3):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda key: store.put(key, b"x"), keys))
            list(pool.map(store.delete, [keys, keys[::-1]]))
    assert list(store.list()) == []


# --- bad days -------------------------------------------------------------------------------------------------------


def test_an_upload_that_fails_leaves_nothing(config, postgres, tmp_path, monkeypatch):
    from swamp.store import chunks

    store, path = at_once(config), tmp_path / "f"
    path.write_bytes(b"x" * (3 * MIB))
    store.put("k", b"before")
    whole = chunks.FileChunks.__iter__

    def breaks(self):
        yield next(whole(self))
        raise OSError("the disk is gone")

    monkeypatch.setattr(chunks.FileChunks, "__iter__", breaks)
    with pytest.raises(OutcomeUnknown):  # an OSError of a plug-in's write: swamp reads back
        store.put_file("k", path)
    assert store.get("k").body == b"before"
    with postgres.connect() as direct:
        assert direct.execute(f"SELECT count(*) FROM {config['schema']}.chunks").fetchone() == (1,)


def test_a_commit_without_an_answer_is_unknown(config, postgres):
    """The backend ends itself inside COMMIT: from there on only a read can tell."""
    store = at_once(config)
    token = store.put("k", b"before").token
    schema = config["schema"]
    with postgres.connect() as direct:
        direct.execute(
            f"CREATE FUNCTION {schema}.die() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$"
        )
        direct.execute(
            f"CREATE CONSTRAINT TRIGGER die AFTER UPDATE ON {schema}.objects DEFERRABLE INITIALLY DEFERRED "
            f"FOR EACH ROW EXECUTE FUNCTION {schema}.die()"
        )
    with pytest.raises(OutcomeUnknown, match="did not confirm the write of k"):
        store.put("k", b"after", Match(token))
    assert store.get("k").body == b"before"


def test_a_server_that_restarts_is_found_again(config, postgres):
    store = at_once(config)
    store.put("k", b"1")
    postgres.control("stop", "-m", "fast")
    try:
        with pytest.raises(Unavailable):
            store.get("k")
    finally:
        postgres.start()
    assert store.get("k").body == b"1"
    store.put("k", b"2")


def test_a_server_that_falls_silent_is_not_waited_for(config, postgres):
    store = at_once(config, requestTimeoutMs=1000)
    store.put("k", b"1")
    stopped = postgres.pids()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    wake = threading.Timer(60, lambda: [os.kill(pid, signal.SIGCONT) for pid in stopped])
    wake.start()
    begun = SYSTEM.clock.monotonic()
    try:
        with pytest.raises(Unavailable):
            store.get("k")
        with pytest.raises(Unavailable):
            store.put("k", b"2")
    finally:
        wake.cancel()
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert SYSTEM.clock.monotonic() - begun < 50
    assert store.get("k").body == b"1"


def test_a_wrong_password_and_a_missing_database_are_told_apart(config, monkeypatch):
    with pytest.raises(Misconfigured, match="nowhere"):
        at_once(config, database="nowhere").head("k")
    monkeypatch.setenv("PGPASSWORD", "wrong")
    with pytest.raises(AccessDenied) as told:
        at_once(config).head("k")
    assert "PGPASSWORD" in told.value.hint


def test_a_user_without_rights_is_told_which(config, postgres, monkeypatch):
    open_store(KIND, config).put("k", b"1")
    with postgres.connect() as direct:
        direct.execute("CREATE ROLE reader LOGIN PASSWORD 'reads'")
        direct.execute(f"GRANT USAGE ON SCHEMA {config['schema']} TO reader")
        direct.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {config['schema']} TO reader")
    monkeypatch.setenv("PGUSER", "reader")
    monkeypatch.setenv("PGPASSWORD", "reads")
    store = at_once(config)
    assert store.get("k").body == b"1"
    with pytest.raises(AccessDenied) as told:
        store.put("k", b"2")
    assert "grant" in told.value.hint
    with pytest.raises(ObjectMissing):
        store.head("none")


# --- as a user meets it ---------------------------------------------------------------------------------------------


def test_two_machines_share_data_through_it(config, tmp_path):
    login = {"PGUSER": ADMIN, "PGPASSWORD": PASSWORD}
    a, b = (Machine.make(tmp_path, name, login) for name in "ab")
    for machine in (a, b):
        done = machine.setup(KIND, "--config", json.dumps(config))
    assert done["type"] == KIND and done["capabilities"]["conditionalDelete"] and done["warnings"] == []
    big = a.repo / "big"
    big.write_bytes(os.urandom(3 * MIB))
    a("data", "put", "m", "n", str(big)).ok()
    b.sync()  # a read would wait for the store for two seconds, which a busy machine needs to start
    assert b("data", "get", "m", "n", "-o", str(b.repo / "big")).code == 0
    assert (b.repo / "big").read_bytes() == big.read_bytes()
