"""K01 to K12: what locks of systems like this have got wrong, on every kind of store."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

import pytest

from swamp.env import SYSTEM, Env, SystemClock
from swamp.errors import LockTimeout, OutcomeUnknown, Unavailable
from swamp.locks.decide import GLOBAL_KEY, Holder, force_release, list_model_leases, model_key, read_lease
from swamp.locks.hold import LEASES_VARIABLE
from swamp.locks.leases import AWAY_S, StoreLeases, Terms
from swamp.store.port import Capabilities
from swamp.testing.faulty import Fault, FaultyStore

KEY = model_key("command/shell", "6b1f3c7e-0d5b-4a52-9a39-3f8d5a1f2b11")
KEPT = Terms(ttl_s=30, renew_s=0.25, settle_s=0.3)
"""Not lost on a busy machine, where a thread may wait seconds for its turn."""
QUICK = Terms(ttl_s=1.5, renew_s=0.25, settle_s=0.3)
BY_HAND = Terms(ttl_s=1.5, renew_s=0, settle_s=0.3)
ALICE, BOB = Holder("alice", "laptop", 4711), Holder("bob", "runner", 4711)


@pytest.fixture(params=["memory", "directory", "moto"])
def any_store(request, tmp_path, fresh_prefix):
    from swamp.store.open import open_store

    if request.param == "moto":
        return request.getfixturevalue("moto").open(fresh_prefix())
    if request.param == "memory":
        return open_store(f"memory://{fresh_prefix()}")
    (tmp_path / "any").mkdir()
    return open_store((tmp_path / "any").as_uri())


def take(store, holder=ALICE, *, timeout=10.0, terms=KEPT, key=KEY, env=SYSTEM, **more):
    hooks = {name: more.pop(name) for name in ("on_wait",) if name in more}
    return StoreLeases(store, holder, env, timeout_s=timeout, inherited=(), terms=terms, **more).acquire(key, **hooks)


def leases(store, holder=ALICE, timeout=10.0, **more):
    return StoreLeases(store, holder, SYSTEM, timeout_s=timeout, inherited=(), terms=KEPT, **more)


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def body_of(store, key=KEY):
    return json.loads(store.get(key).body)


def test_a_lease_says_who_holds_it_in_the_words_of_the_protocol(any_store):
    with take(any_store):
        body = body_of(any_store)
        assert list(body) == ["holder", "hostname", "pid", "acquiredAt", "ttlMs", "nonce", "epoch", "state"]
        assert (body["holder"], body["hostname"], body["pid"]) == ("alice@laptop", "laptop", 4711)
        assert (body["state"], body["ttlMs"]) == ("held", 30_000)
    after = body_of(any_store)
    assert after["state"] == "released", "a released lease is marked, not deleted"
    assert after["epoch"] > body["epoch"]


@pytest.mark.inv("lease.epoch")
def test_epoch_only_grows_over_holders_renewals_and_releases(any_store):
    seen = []
    for holder in (ALICE, BOB, ALICE):
        with take(any_store, holder, terms=BY_HAND) as lease:
            seen.append(body_of(any_store)["epoch"])
            assert lease.renew_once()
            seen.append(body_of(any_store)["epoch"])
        seen.append(body_of(any_store)["epoch"])
    assert seen == sorted(set(seen))


def test_K01_failed_renewals_are_retried_and_the_lease_is_kept(any_store):
    faulty = FaultyStore(any_store)
    lost = []
    with take(faulty, on_lost=lost.append) as lease:
        faulty.add(Fault("before", "put", KEY, times=2), Fault("after", "put", KEY, times=1))
        until(lambda: len(faulty.fired) == 3)
        epoch = body_of(any_store)["epoch"]
        until(lambda: body_of(any_store)["epoch"] > epoch + 1)
        lease.check()
        assert lost == []
        assert body_of(any_store)["nonce"] == lease.nonce


def test_K01_a_store_that_stays_away_means_that_the_work_is_told_before_the_ttl_is_over(any_store):
    faulty = FaultyStore(any_store)
    lost = []
    lease = take(faulty, terms=QUICK, on_lost=lambda why: lost.append((time.monotonic(), why)))
    proven = time.monotonic()
    faulty.add(Fault("before", None, KEY, times=None))
    until(lambda: lost)
    assert lost[0][0] - proven < QUICK.ttl_s + 5.0, "told in time"
    with pytest.raises(LockTimeout, match="was lost"):
        lease.check()
    faulty.faults.clear()
    lease.release()
    assert body_of(any_store)["state"] == "held", "what may be another's by now is not touched"


@dataclass
class Standing(SystemClock):
    """Time goes when the test says so."""

    seconds: float = 0.0

    def monotonic(self):
        return self.seconds


def test_K01_the_work_is_told_while_the_lease_is_still_its_own(any_store):
    """By a clock that no busy machine delays."""
    clock, faulty, lost = Standing(), FaultyStore(any_store), []
    lease = take(faulty, env=Env(clock, SYSTEM.rng), timeout=0, terms=BY_HAND, on_lost=lost.append)
    faulty.add(Fault("before", None, KEY, times=None))
    clock.seconds = BY_HAND.ttl_s * 0.8
    assert not lease.renew_once() and lost == [], "one failure gives nothing up"
    clock.seconds = BY_HAND.ttl_s * 0.9
    assert not lease.renew_once() and lost, "nobody else may have it yet"


def test_K02_a_late_renewal_does_not_overwrite_the_new_holder(any_store):
    faulty = FaultyStore(any_store, [])
    lost = []
    old = take(faulty, terms=Terms(ttl_s=4, renew_s=0), on_lost=lost.append)  # only Bob may take it away
    faulty.add(Fault("late", "put", KEY), Fault("before", "get", KEY))
    assert not old.renew_once(), "nothing is known of this renewal"
    with take(any_store, BOB, terms=BY_HAND) as new:
        assert faulty.land() == 0, "its condition no longer holds"
        assert body_of(any_store)["nonce"] == new.nonce
        assert not old.renew_once()
        assert lost and "bob@runner" in lost[0]
        with pytest.raises(LockTimeout):
            old.check()
        old.release()
        assert body_of(any_store)["nonce"] == new.nonce, "losing is noticed and nothing is touched"


@dataclass
class Skewed(SystemClock):
    """A machine whose wall clock is wrong."""

    seconds: float

    def now(self):
        import datetime as dt

        return super().now() + dt.timedelta(seconds=self.seconds)


@pytest.mark.inv("lease.no-clock")
@pytest.mark.parametrize("skew", [60.0, -86_400.0])
def test_K03_a_clock_that_is_wrong_steals_nothing(any_store, skew):
    env = Env(Skewed(skew), SYSTEM.rng)
    with take(any_store, terms=Terms(ttl_s=4, renew_s=0.25)) as lease:  # renewed in time, and watched for longer
        with pytest.raises(LockTimeout, match="alice@laptop"):
            take(any_store, BOB, env=env, timeout=5)
        lease.check()
        assert body_of(any_store)["nonce"] == lease.nonce


def test_K03_a_lease_that_nobody_renews_is_taken_after_a_ttl_and_not_before(any_store):
    abandoned = take(any_store, terms=BY_HAND)
    begun = time.monotonic()
    with take(any_store, BOB) as lease:
        assert time.monotonic() - begun >= BY_HAND.ttl_s
        assert lease.epoch > abandoned.epoch


def test_K04_of_many_thieves_one_wins_and_a_fresh_lease_is_not_stolen(any_store):
    take(any_store, terms=BY_HAND)  # abandoned
    holders, most, errors = [], [], []

    def thief(number):
        try:
            with take(any_store, Holder(f"thief{number}", "x", 1), timeout=30) as lease:
                holders.append(lease.nonce)
                most.append(len(holders))
                time.sleep(0.05)
                assert body_of(any_store)["nonce"] == lease.nonce
                holders.remove(lease.nonce)
        except (AssertionError, LockTimeout) as error:
            errors.append(error)

    threads = [threading.Thread(target=thief, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert most == [1, 1, 1, 1]


@pytest.mark.parametrize("kind", ["after", "late"])
def test_K05_a_lost_answer_on_acquire_is_resolved_by_reading_back(any_store, kind):
    faulty = FaultyStore(any_store, [Fault(kind, "put", KEY)])
    landing = threading.Timer(0.1, faulty.land)
    landing.start()
    with take(faulty) as lease:
        assert [f.kind for f in faulty.fired] == [kind]
        assert body_of(any_store)["nonce"] == lease.nonce
        lease.check()
    landing.join()
    assert body_of(any_store)["state"] == "released", "no orphan is left"


@pytest.mark.parametrize("body", [b"", b"\xff not json", b'{"state":"held"}'])
def test_K06_an_unreadable_lease_blocks_for_a_ttl_and_no_longer(any_store, body, monkeypatch):
    monkeypatch.setattr("swamp.locks.decide.TTL_S", 1.0)
    any_store.put(KEY, body)
    seen = read_lease(any_store, KEY)
    assert seen is not None and seen.held and seen.body is None
    begun = time.monotonic()
    with take(any_store) as lease:
        assert time.monotonic() - begun >= 1.0
        assert lease.epoch > 1_000_000, "larger than any epoch that could have stood there"


def test_K07_a_structural_command_waits_for_the_models(any_store):
    model = leases(any_store, ALICE).model("command/shell", "6b1f3c7e-0d5b-4a52-9a39-3f8d5a1f2b11")
    order = []

    def structural():
        with leases(any_store, BOB).whole_store():
            order.append("structural")

    thread = threading.Thread(target=structural)
    thread.start()
    until(lambda: (seen := read_lease(any_store, GLOBAL_KEY)) is not None and seen.held)
    time.sleep(0.3)
    order.append("model done")
    model.release()
    thread.join()
    assert order == ["model done", "structural"]


def test_K07_a_structural_command_waits_once_for_all_who_died(any_store):
    """Machines that were killed together leave leases that age together: eight of them are not eight waits."""
    for number in range(8):
        take(any_store, key=model_key("command/shell", f"model-{number}"), terms=BY_HAND)  # and never renewed
    begun = time.monotonic()
    with leases(any_store, BOB, timeout=60.0).whole_store():
        assert time.monotonic() - begun < 8 * BY_HAND.ttl_s


@dataclass
class Skipping(SystemClock):
    """Sleeps in no time: what it slept is added to what it shows."""

    slept: float = 0.0

    def monotonic(self):
        return super().monotonic() + self.slept

    def sleep(self, seconds):
        self.slept += seconds

    def stored(self, _):
        """What time the store thinks it is, had everybody slept for real."""
        return self.now() + dt.timedelta(seconds=self.slept)


@pytest.mark.parametrize("wants", ["the whole store", "a model"])
def test_K07_a_dead_structural_command_and_a_dead_model_are_one_wait(any_store, monkeypatch, wants):
    """Two TTLs one after the other are more than the minute that a command waits: the next one would give up."""
    dead = Terms(ttl_s=30, renew_s=0)
    for key in (GLOBAL_KEY, KEY):
        take(any_store, key=key, terms=dead)  # and never renewed
    clock = Skipping()
    monkeypatch.setattr("swamp.locks.decide.store_now", clock.stored)
    bob = StoreLeases(any_store, BOB, Env(clock, SYSTEM.rng), timeout_s=60, inherited=(), terms=dead)
    with bob.whole_store() if wants == "the whole store" else bob.model(*KEY.split("/", 1)[1][:-6].rsplit("/", 1)):
        assert 20 < clock.slept < 45  # its own time passes too, a little


def test_K12_who_looks_around_for_long_looks_at_the_lease_once_more(any_store):
    """What is done when there is somebody to wait for may take all the time there is: the lease may be free by then."""
    held = take(any_store)
    with take(any_store, BOB, timeout=0.0, on_wait=held.release) as lease:
        lease.check()


def test_K07_a_model_command_steps_back_while_a_structural_one_runs(any_store):
    structural = leases(any_store, BOB).whole_store()
    with pytest.raises(LockTimeout, match="bob@runner"):
        leases(any_store, ALICE, timeout=0.8).model("aws/ec2", "plain-id")
    seen = read_lease(any_store, model_key("aws/ec2", "plain-id"))
    assert seen is not None and not seen.held, "it does not hold up what it waits for"
    structural.release()
    with leases(any_store, ALICE).model("aws/ec2", "plain-id") as lease:
        lease.check()


def test_K07_every_model_lease_is_found_however_its_type_and_id_look(any_store):
    keys = {model_key("t", "a"), model_key("aws/ec2/vpc", "b"), KEY}
    any_store.put("data/t/a/name/1/raw~01JDZZZZZZZZZZZZZZZZZZZZZZ", b"x")
    any_store.put("data/other/never-leased/name/1/raw~01JDZZZZZZZZZZZZZZZZZZZZZZ", b"x")
    for key in keys:
        take(any_store, key=key, terms=BY_HAND).release()
    assert {lease.key for lease in list_model_leases(any_store)} == keys


def test_K08_a_pid_is_never_looked_up_neither_here_nor_elsewhere(any_store, tmp_path):
    """The holder names a pid that does not exist here, and the same host name: its lease is still respected."""
    twin = Holder("alice", os.uname().nodename, 2**22 - 1)
    held = take(any_store, twin, local_lock_dir=tmp_path / "another machine")
    with held, pytest.raises(LockTimeout, match="alice@"):
        take(any_store, twin, timeout=0.5, local_lock_dir=tmp_path / "this machine")


HOLD = """
import os, sys, time
from swamp.locks.decide import Holder
from swamp.locks.leases import StoreLeases
from swamp.env import SYSTEM
from swamp.store.open import open_store
from pathlib import Path
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts us may ignore it, as `nohup … &` does
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
store = open_store(sys.argv[1])
client = StoreLeases(store, Holder.of_process(), SYSTEM, timeout_s=20, local_lock_dir=Path(sys.argv[3]))
with client.acquire(sys.argv[2]) as lease:
    print("held", lease.inherited, flush=True)
    if sys.argv[4] == "stay":
        time.sleep(60)
"""


@dataclass
class Child:
    directory: object
    locks: object
    env: dict = field(default_factory=dict)

    def start(self, then="stay"):
        words = [sys.executable, "-c", HOLD, f"file://{self.directory}", KEY, str(self.locks), then]
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, **self.env})


@pytest.fixture
def bucket(tmp_path):
    from swamp.store.open import open_store

    (tmp_path / "bucket").mkdir()
    return open_store(f"file://{tmp_path / 'bucket'}")


def test_K09_a_child_does_not_wait_for_its_parent(bucket, tmp_path):
    with StoreLeases(bucket, ALICE, SYSTEM, timeout_s=5, local_lock_dir=tmp_path / "locks").acquire(KEY) as lease:
        child = Child(tmp_path / "bucket", tmp_path / "locks", lease.child_environment({}))
        process = child.start("end")
        out, _ = process.communicate(timeout=20)
        assert (process.returncode, out.strip()) == (0, "held True")
        lease.check()
        assert body_of(bucket)["state"] == "held", "a child releases nothing of its parent's"


def test_K09_a_child_of_nobody_waits(bucket, tmp_path):
    with StoreLeases(bucket, ALICE, SYSTEM, timeout_s=5, local_lock_dir=tmp_path / "locks").acquire(KEY) as lease:
        with pytest.raises(LockTimeout):
            StoreLeases(bucket, BOB, SYSTEM, timeout_s=0.5, inherited=("another-nonce",), terms=KEPT).acquire(KEY)
        lease.check()


@pytest.mark.parametrize("signal_name", ["SIGINT", "SIGTERM"])
def test_K10_an_interrupted_holder_releases_at_once(bucket, tmp_path, signal_name):
    with Child(tmp_path / "bucket", tmp_path / "locks").start() as process:
        assert process.stdout.readline() == "held False\n"
        process.send_signal(getattr(signal, signal_name))
        assert process.wait(20) != 0
    assert body_of(bucket)["state"] == "released"


def test_K10_a_killed_holder_costs_its_own_machine_no_ttl(bucket, tmp_path):
    with Child(tmp_path / "bucket", tmp_path / "locks").start() as process:
        assert process.stdout.readline() == "held False\n"
        process.kill()
    begun = time.monotonic()
    with StoreLeases(bucket, BOB, SYSTEM, timeout_s=20, local_lock_dir=tmp_path / "locks").acquire(KEY):
        assert time.monotonic() - begun < 10, "the TTL is 30 s"
    # Another machine cannot know and waits.
    with pytest.raises(LockTimeout):
        take(bucket, terms=Terms(renew_s=0))
        StoreLeases(bucket, BOB, SYSTEM, timeout_s=0.5, local_lock_dir=tmp_path / "elsewhere").acquire(KEY)


def test_K11_nothing_comes_back_after_a_release(any_store):
    faulty = FaultyStore(any_store)
    lease = take(faulty)
    faulty.add(Fault("late", "put", KEY, times=1))
    until(lambda: faulty.pending)
    lease.release()
    assert faulty.land() == 0
    released = any_store.get(KEY).meta.token
    time.sleep(KEPT.renew_s * 3)
    assert not lease.renew_once() or any_store.get(KEY).meta.token == released
    assert any_store.get(KEY).meta.token == released
    assert body_of(any_store)["state"] == "released"


@pytest.mark.parametrize("timeout", [0.0, 0.7])
def test_K12_waiting_ends_when_it_was_said_to_end_and_names_the_holder(any_store, timeout):
    with take(any_store):
        begun = time.monotonic()
        with pytest.raises(LockTimeout, match="alice@laptop") as caught:
            take(any_store, BOB, timeout=timeout)
        assert time.monotonic() - begun < timeout + 5.0
        assert caught.value.exit_code == 75
        assert caught.value.details["holder"] == "alice@laptop"


def test_K12_an_unreachable_store_is_reported_as_such_and_in_time(any_store):
    faulty = FaultyStore(any_store, [Fault("before", None, KEY, times=None)])
    begun = time.monotonic()
    with pytest.raises(Unavailable):
        take(faulty, timeout=0.7)
    assert time.monotonic() - begun < 10.0


def test_K12_a_store_that_cannot_be_asked_is_not_waited_for_like_a_holder(any_store):
    # It was a silent minute, after which every other command had long said that the store is away.
    clock, faulty = Skipping(), FaultyStore(any_store, [Fault("before", None, KEY, times=None)])
    with pytest.raises(Unavailable):
        take(faulty, timeout=60, env=Env(clock, SYSTEM.rng))
    assert 0 < clock.slept < 2 * AWAY_S


def test_K12_a_client_that_has_waited_long_enough_itself_is_believed_at_once(any_store):
    # A store that takes requests and answers none costs one request's limit, not one after the other.
    clock, asked = Skipping(), []

    class Silent(FaultyStore):
        def get(self, key, **more):
            asked.append(key)
            clock.sleep(30.0)
            raise Unavailable("timed out")

    with pytest.raises(Unavailable, match="timed out"):
        take(Silent(any_store), timeout=60, env=Env(clock, SYSTEM.rng))
    assert asked == [KEY] and clock.slept == 30.0


def test_K12_a_store_that_is_away_for_a_moment_does_not_end_the_wait_for_a_holder(any_store):
    every_second_look = [Fault("before", "get", KEY, skip=number + 1) for number in range(5)]
    clock, faulty = Skipping(), FaultyStore(any_store, every_second_look)
    with take(any_store, terms=Terms(ttl_s=600, renew_s=0)), pytest.raises(LockTimeout, match="alice@laptop"):
        take(faulty, BOB, timeout=60, env=Env(clock, SYSTEM.rng))
    assert clock.slept >= 50 and len(faulty.fired) == 5


def test_a_lease_is_released_by_force_only_for_the_nonce_that_was_seen(any_store):
    lost = []
    lease = take(any_store, on_lost=lost.append)
    assert not force_release(any_store, KEY, "another-nonce")
    assert force_release(any_store, KEY, lease.nonce)
    until(lambda: lost)
    with pytest.raises(LockTimeout, match="by force"):
        lease.check()
    lease.release()
    with take(any_store, BOB, timeout=0.5) as next_one:
        assert next_one.epoch > lease.epoch


def test_without_conditions_the_lease_is_written_waited_for_and_read_back(any_store, monkeypatch):
    """Two that start together on a store that enforces nothing: the one who finds itself there has it."""
    unsafe = Capabilities(create_only=False, compare_and_swap=False)
    # Both always wait a second: longer than a thread waits for its turn on a busy machine.
    monkeypatch.setattr("swamp.locks.leases.SHORTEST_SETTLE_S", 1.0)
    slow = Terms(ttl_s=30, renew_s=0.25, settle_s=1.0)
    held, errors = [], []

    def contender(holder):
        try:
            with take(any_store, holder, timeout=30, terms=slow, capabilities=unsafe):
                held.append(holder.user)
                assert len(held) == 1
                time.sleep(0.4)
                held.remove(holder.user)
        except (AssertionError, LockTimeout) as error:
            errors.append(error)

    threads = [threading.Thread(target=contender, args=(h,)) for h in (ALICE, BOB)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_the_environment_names_every_lease_that_is_held(any_store):
    with take(any_store, terms=BY_HAND) as one, take(any_store, key=GLOBAL_KEY, terms=BY_HAND) as two:
        environ = two.child_environment(one.child_environment({"PATH": "x"}))
        assert environ[LEASES_VARIABLE].split(",") == [one.nonce, two.nonce]
        assert environ["PATH"] == "x"


def test_an_unclear_acquire_that_never_lands_is_not_taken_for_held(any_store):
    faulty = FaultyStore(any_store, [Fault("before", "put", KEY, times=None)])
    with pytest.raises((LockTimeout, OutcomeUnknown, Unavailable)):
        take(faulty, timeout=0.6)
    assert read_lease(any_store, KEY) is None
