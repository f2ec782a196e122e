"""Failures of transfers: cut and stalled answers, and memory that grows with what is moved."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from servers.proxy import FaultProxy, Rule
from swamp.errors import AccessDenied, OutcomeUnknown, Unavailable
from swamp.store.open import open_store
from swamp.store.retry import RetryPolicy

PATIENT = RetryPolicy()
BODY = bytes(range(256)) * 4096 * 20
"""20 MiB: three ranges."""


@pytest.fixture
def place(moto, fresh_prefix):
    moto.open()
    return moto, fresh_prefix()


def through(place, proxy, timeout_ms=1500, policy=PATIENT):
    moto, prefix = place
    config = {"endpoint": proxy.endpoint, "requestTimeoutMs": timeout_ms}
    return open_store(f"{moto.url}/{prefix}", config, policy=policy)


def test_C13_an_error_answer_whose_body_is_cut_off_does_not_hang(place):
    rule = Rule("cut", "GET", "/k", 1)
    with FaultProxy(place[0].endpoint, [rule]) as proxy:
        store = through(place, proxy)
        began = time.monotonic()
        with pytest.raises(Exception, match="no object"):  # the 404 arrives in full at the second attempt
            store.get("k")
        assert proxy.fired and time.monotonic() - began < 15


def test_C13_an_error_answer_that_stalls_in_its_body_is_given_up(place):
    stalled = Rule("stall", "GET", "/k", None, seconds=20)
    with FaultProxy(place[0].endpoint, [stalled]) as proxy:
        store = through(place, proxy, 500, RetryPolicy(seconds=3))
        began = time.monotonic()
        # Retried for its time, then told: bounded, with a cause, and never taken for "not there".
        with pytest.raises(Unavailable, match="timed out"):
            store.get("k")
        assert len(proxy.fired) >= 2 and 0.5 <= time.monotonic() - began < 15


def test_C14_the_time_limit_covers_a_stalled_body(place):
    with FaultProxy(place[0].endpoint, [Rule("stall", "GET", "/k", 1, seconds=20)]) as proxy:
        store = through(place, proxy, 1000)
        store.put("k", b"x" * 1000)
        began = time.monotonic()
        assert store.get("k").body == b"x" * 1000
        assert proxy.fired and time.monotonic() - began < 15


@pytest.mark.inv("store.pinned-read")
@pytest.mark.parametrize("action", ["cut", "stall", "lose", "drop"])
def test_C15_a_download_cut_short_goes_on_where_it_was(place, action):
    passed = Rule("pass", "GET", "/big", 1)
    with FaultProxy(place[0].endpoint, [passed, Rule(action, "GET", "/big", 2, seconds=10)]) as proxy:
        store = through(place, proxy)
        place[0].open(place[1]).put("big", BODY)
        with store.open("big") as stream:
            received = b"".join(stream)
        assert hashlib.sha256(received).digest() == hashlib.sha256(BODY).digest()
        assert [f[0] for f in proxy.fired] == [action, action]


@pytest.mark.inv("store.pinned-read")
def test_C15_a_download_never_joins_two_versions(place):
    direct = place[0].open(place[1])
    direct.put("big", BODY)
    rules = [Rule("pass", "GET", "/big", 1), Rule("cut", "GET", "/big", 1)]
    refused = pytest.raises(Unavailable, match="changed while it was read")
    with FaultProxy(place[0].endpoint, rules) as proxy, through(place, proxy).open("big") as stream, refused:
        for number, _ in enumerate(stream):
            if number == 0:
                direct.put("big", BODY[::-1])


@pytest.mark.inv("store.no-blind-retry")
@pytest.mark.parametrize("action", ["lose", "drop", "stall"])
def test_C15_a_write_whose_answer_is_lost_is_reported_and_sent_once(place, action):
    with FaultProxy(place[0].endpoint, [Rule(action, "PUT", "/k", None, seconds=10)]) as proxy:
        store = through(place, proxy, 1000)
        with pytest.raises(OutcomeUnknown) as caught:
            store.put("k", b"x")
        assert caught.value.details["key"].endswith("/k")
        assert len([s for s in proxy.seen if s[0] == "PUT"]) == 1
        happened = [m.key for page in place[0].open(place[1]).list() for m in page]
        assert happened == ([] if action == "drop" else ["k"])


@pytest.mark.inv("store.no-blind-retry")
def test_C15_a_definite_refusal_of_a_write_is_no_unknown_outcome(place):
    with FaultProxy(place[0].endpoint, [Rule("answer", "PUT", "/k", None, 403)]) as proxy:
        with pytest.raises(AccessDenied):
            through(place, proxy).put("k", b"x")
        assert len(proxy.seen) == 1


def moved(server, prefix, mode, mib, files, threads):
    spec = server.spec(prefix)
    script = Path(__file__).parent.parent / "contract" / "moving.py"
    told = json.dumps({"url": spec.url, "config": dict(spec.config)})
    done = subprocess.run(
        [sys.executable, script, told, mode, str(mib), str(files), str(threads)],
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | dict(server.environ),
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.inv("store.bounded-memory")
def test_P06_a_large_object_moves_in_little_memory(rclone, fresh_prefix):
    """300 MiB up and down: what is resident depends on the part size, not on the object."""
    used = moved(rclone, fresh_prefix(), "up,down", 300, 1, 1)
    print("resident MB:", used)
    assert used["equal"] and used["after"] < 200


@pytest.mark.inv("store.bounded-memory")
def test_P09_many_files_at_once_stay_within_the_budget(rclone, fresh_prefix):
    """60 files of 5 MiB through 64 threads: 300 MiB would be in flight without a bound."""
    used = moved(rclone, fresh_prefix(), "up,down", 5, 60, 64)
    print("resident MB:", used)
    assert used["equal"] and used["after"] < 260


def test_P06_a_slow_server_caps_no_object_size(place):
    """Each range has its own time limit: an object that takes longer in all still arrives."""
    direct = place[0].open(place[1])
    direct.put("big", BODY)
    with FaultProxy(place[0].endpoint, [Rule("delay", "GET", "/big", None, seconds=2.5)]) as proxy:
        began = time.monotonic()
        with through(place, proxy, 6000).open("big") as stream:
            assert sum(map(len, stream)) == len(BODY)
        assert len(proxy.fired) == 3
        assert time.monotonic() - began > 6.0, "it took less than one time limit: nothing was shown"
