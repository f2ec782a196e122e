"""Stores that accept conditions and ignore them: commits under a lease, read back; a rolled back root comes back."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from peers import Peer, Watched, content, keys, once, root_of, ruin_root, settled, version
from swamp.env import Env, SystemClock
from swamp.index.root import ROOT_KEY
from swamp.locks.decide import Holder
from swamp.locks.leases import COMMIT_LEASE, StoreLeases, Terms
from swamp.store.layers import MeterStore
from swamp.store.port import UNSAFE as WARNING
from swamp.store.port import Capabilities, Condition, Fetched, ObjectMeta, Token
from swamp.sync.engine import Policy
from swamp.testing.faulty import Fault, FaultyStore

UNSAFE = Capabilities(create_only=False, compare_and_swap=False)
DEGRADED = Policy(push_concurrency=2, pull_concurrency=2, capabilities=UNSAFE)


def _named(meta: ObjectMeta, body: bytes) -> ObjectMeta:
    return replace(meta, token=hashlib.md5(body, usedforsecurity=False).hexdigest())


@dataclass
class Careless(Watched):
    """What some servers do: the condition is read and forgotten, and equal bytes are an equal version."""

    def head(self, key: str) -> ObjectMeta:
        return self.get(key).meta

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> Fetched:
        whole = super().get(key)
        stop = None if length is None else start + length
        return Fetched(_named(whole.meta, whole.body), whole.body[start:stop])

    def get_if_changed(self, key: str, token: Token) -> Fetched | None:
        found = self.get(key)
        return None if found.meta.token == token else found

    def put(self, key: str, body: bytes, condition: Condition = None) -> ObjectMeta:
        del condition
        return _named(super().put(key, body), body)


@pytest.fixture(params=["memory", "directory", "rclone"])
def store(request, servers, fresh_prefix):
    inner = servers[request.param].open(fresh_prefix())
    return inner if request.param == "rclone" else Careless(inner, lambda verb, key: None)


@pytest.fixture
def a(peer) -> Peer:
    return peer("a", policy=DEGRADED)


@pytest.fixture
def b(peer) -> Peer:
    return peer("b", policy=DEGRADED)


def test_every_result_says_that_two_machines_must_not_write_at_once(a):
    a.write("files/x", "x")
    for command in (a.push, a.pull, a.sync):
        result = command()
        assert WARNING in result.warnings and "must not write" in WARNING
        assert result.ok


def test_two_machines_in_turn_lose_nothing(a, b):
    for turn in range(2):
        for one in (a, b):
            one.pull()
            one.write_version(version(one.name, turn + 1), f"{one.name} {turn}")
            one.write("files/shared", f"{one.name} {turn}")
            assert one.push().files_pushed == 3
    settled(a, b)
    assert len(content(a.engine)) == 9 and a.read("files/shared") == "b 1"


def test_a_commit_is_made_under_its_own_lease_and_releases_it(store, a):
    a.write("files/x", "x")
    held: list[str] = []

    def before(verb: str, key: str) -> None:
        if verb == "put" and key == ROOT_KEY:
            held.append(json.loads(store.get(COMMIT_LEASE).body)["state"])

    a.process(Watched(store, before)).push()
    assert held and set(held) == {"held"}
    assert json.loads(store.get(COMMIT_LEASE).body)["state"] == "released"
    before_keys = keys(store)
    a.pull()
    assert keys(store) == before_keys, "looking takes no lease"


@dataclass
class Forgetful(Watched):
    """Says yes to the first write of the root and keeps nothing of it."""

    lost: int = 0

    def put(self, key: str, body: bytes, condition: Condition = None) -> ObjectMeta:
        if key == ROOT_KEY and self.lost:
            self.lost -= 1
            return self.inner.head(key)
        return super().put(key, body, condition)


@pytest.mark.inv("commit.unknown-is-not-failure")
def test_a_commit_is_read_back_before_anybody_believes_it(store, a, b):
    a.write("files/seed", "seed")
    a.push()
    a.write("files/x", "x")
    forgetful = Forgetful(store, lambda verb, key: None, lost=1)
    assert a.process(forgetful).push().files_pushed == 1
    assert forgetful.lost == 0 and content(a.engine) == {"files/seed": "seed", "files/x": "x"}
    settled(a, b)


def rolled_back(store, a: Peer, b: Peer) -> None:
    """A write of the root by `a` arrives twice, the second time after `b` has built upon it."""
    a.write("files/seed", "seed")
    a.push()
    b.pull()
    a.write("files/a", "a")
    slow = FaultyStore(store, [Fault("late", "put", ROOT_KEY)])
    assert a.process(slow).push().ok
    b.sync()
    b.write("files/b", "b")
    b.push()
    assert slow.land() == 1, "nothing stopped the late write: the root is as old as it was"


@pytest.mark.inv("commit.logged")
def test_a_root_rolled_back_by_a_late_write_is_restored_from_the_log(store, a, b, peer):
    rolled_back(store, a, b)
    assert "files/b" not in content(a.engine)
    result = b.pull()
    assert any("rebuilt" in w for w in result.warnings)
    assert content(b.engine) == {"files/seed": "seed", "files/a": "a", "files/b": "b"}
    settled(a, b)
    fresh = peer("c", policy=DEGRADED)
    assert fresh.pull().ok and fresh.files() == content(b.engine)


@pytest.mark.inv("commit.logged")
@pytest.mark.parametrize("full", [True, False])
def test_the_machine_whose_late_write_rolled_the_root_back_does_not_build_on_it(store, a, b, full):
    rolled_back(store, a, b)
    if full:
        a.put("files/a2", "a2")
    else:
        a.write("files/a2", "a2")
    a.push(full=full)
    assert "files/b" in content(a.engine), "whoever comes now finds everything that was acknowledged"
    settled(a, b)
    assert content(a.engine) == {"files/seed": "seed", "files/a": "a", "files/b": "b", "files/a2": "a2"}


def lose_the_lease(store) -> None:
    """A rival that looked before the lease was taken writes over it at last; then it is gone."""
    body = json.loads(store.get(COMMIT_LEASE).body)
    body |= {"nonce": "of a rival", "epoch": body["epoch"] + 1, "state": "released"}
    store.put(COMMIT_LEASE, json.dumps(body).encode())


def the_other_commits(store, a, b) -> Callable[[], None]:
    """Both have written; the result lets a lose its lease and b commit."""
    a.write("files/seed", "seed")
    a.push()
    b.pull()
    a.write("files/a", "a")
    b.write("files/b", "b")

    def meanwhile() -> None:
        lose_the_lease(store)
        assert b.push().files_pushed == 1

    return meanwhile


@pytest.mark.inv("commit.alone")
def test_a_root_written_after_the_lease_was_lost_takes_nobodys_commit_away(store, a, b):
    """L16, L17 where nothing stops a late write: the one that was acknowledged is put back, and both arrive."""
    meanwhile = the_other_commits(store, a, b)

    assert a.process(Watched(store, once("put", ROOT_KEY, meanwhile))).push().files_pushed == 1
    assert content(a.engine) == {"files/seed": "seed", "files/a": "a", "files/b": "b"}
    settled(a, b)


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.inv("commit.alone")
@pytest.mark.parametrize("command", ["pull", "push", "sync"])
def test_a_root_whose_writer_died_without_its_lease_is_put_aside(store, a, b, peer, command):
    meanwhile = the_other_commits(store, a, b)

    def dies(verb: str, key: str) -> None:
        if verb == "put" and key == ROOT_KEY:
            raise Killed

    with pytest.raises(Killed):
        a.process(Watched(store, once("put", ROOT_KEY, meanwhile), dies)).push()
    assert "files/b" not in content(b.engine), "the last write stands"
    fresh = peer("c", policy=DEGRADED)
    if command != "pull":
        fresh.write("files/c", "c")
    getattr(fresh, command)()
    assert content(fresh.engine).get("files/b") == "b", "what was acknowledged is there again"
    settled(a, b, fresh)
    assert content(a.engine)["files/a"] == "a", "and who died brings its own when it comes back"


def test_the_wait_for_rivals_is_measured(store):
    """Three times what looking and writing took here, between a twentieth of a second and five."""
    for seconds, wait in ((0.001, 0.02), (0.1, 0.6), (3.0, 5.0)):
        clock = TickingClock()
        slow = Watched(store, lambda verb, key, clock=clock, seconds=seconds: clock.pass_by(seconds))
        env = Env(clock, random.Random(1))
        client = StoreLeases(slow, Holder("u", "h", 1), env, capabilities=UNSAFE, terms=Terms(renew_s=0))
        lease = client.acquire(f"{seconds}.lock")
        lease.release()
        assert clock.slept == [pytest.approx(wait)]


@dataclass
class TickingClock(SystemClock):
    at: float = 0.0
    slept: list[float] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.at

    def pass_by(self, seconds: float) -> None:
        self.at += seconds

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.at += seconds


def test_a_push_waits_for_rivals_once(store, peer):
    waits: list[str] = []
    watched = Watched(store, lambda verb, key: waits.append(key) if verb == "put" and key.endswith(".lock") else None)
    one = peer("a", policy=DEGRADED)
    one.write("files/seed", "seed")
    one.push()
    one.write("files/x", "x")
    assert one.process(watched).push().files_pushed == 1
    assert waits == [COMMIT_LEASE, COMMIT_LEASE], "taken and released, and no other lease beside it"


@pytest.mark.inv("commit.alone")
@pytest.mark.parametrize("damage", [None, b"{"], ids=["lost", "damaged"])
def test_a_root_is_rebuilt_under_the_lease_too(store, a, b, damage):
    a.write("files/x", "x")
    a.push()
    ruin_root(store, damage)
    held: list[str] = []

    def before(verb: str, key: str) -> None:
        if verb == "put" and key == ROOT_KEY:
            held.append(json.loads(store.get(COMMIT_LEASE).body)["state"])

    assert b.process(Watched(store, before)).pull().files_pulled == 1
    assert held == ["held"]
    settled(a, b)


def test_with_nothing_to_do_two_requests_are_enough(store, a):
    a.write("files/x", "x")
    a.push()
    meter = MeterStore(store)
    counted = a.process(meter)
    for command in (counted.pull, counted.push, counted.sync):
        before = meter.requests
        assert command().fast_path and meter.requests - before == 2, "the root, and the names in the log after it"


def test_a_lost_root_comes_back_here_too(store, a, b):
    a.write("files/x", "x")
    a.push()
    seq = root_of(a.engine).seq
    store.delete([ROOT_KEY])
    assert b.pull().files_pulled == 1
    assert root_of(b.engine).seq == seq + 2
    settled(a, b)
