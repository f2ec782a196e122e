"""SIGINT and SIGTERM: stop, release, 130; a second one exits at once."""

from __future__ import annotations

import json
import signal
import time

import pytest

from machines import Place, Team
from proxies import proxy_to, stall
from swamp.env import SYSTEM
from swamp.locks.decide import GLOBAL_KEY, Holder
from swamp.locks.leases import StoreLeases


def leases_of(team: Team) -> StoreLeases:
    return StoreLeases(team.place.open(), Holder("somebody", "elsewhere", 1), SYSTEM)


def model_leases(team: Team) -> list[bytes]:
    return [body for key, body in team.place.objects("data/").items() if key.endswith("/.lock")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_waits_for_a_lease_stops_and_leaves_none(local_team: Team, number):
    """K10: nothing is left for a TTL."""
    a = local_team.machine("a")
    a.put("web", "report", "1")
    with leases_of(local_team).whole_store():
        before = model_leases(local_team)
        waiting = a.start("data", "put", "web", "report", str(a.repo / ".swamp.yaml"))
        while model_leases(local_team) == before:  # it takes its model's lease before it sees that it has to wait
            time.sleep(0.05)
        assert waiting.poll() is None
        waiting.send_signal(number)
        out, err = waiting.communicate(timeout=20)
    assert waiting.returncode == 130 and out == ""
    assert json.loads(err.strip().splitlines()[-1])["code"] == "interrupted"
    assert a("datastore", "lock", "status").ok() == {"held": False, "models": []}
    assert a.versions("web", "report") == [1]


def test_a_holder_that_is_told_to_stop_releases_its_lease(moto, tmp_path, fresh_prefix):
    """Interrupted in the middle of its push: the next command does not wait, and delivers the work."""
    with proxy_to(moto.endpoint) as proxy:
        config = {**moto.config, "endpoint": proxy.endpoint, "requestTimeoutMs": 5000}
        team = Team(tmp_path, Place(f"{moto.url}/{fresh_prefix()}", config, dict(moto.environ)))
        a = team.machine("a")
        proxy.when(lambda r: r.is_write and r.is_payload, stall)
        running = a.start("data", "put", "web", "report", str(a.repo / ".swamp.yaml"))
        deadline = time.monotonic() + 60
        while not proxy.count(lambda r: r.is_write and r.is_payload) and time.monotonic() < deadline:
            time.sleep(0.05)
        running.send_signal(signal.SIGTERM)
        _, err = running.communicate(timeout=60)
        assert running.returncode == 130
        error = json.loads(err.strip().splitlines()[-1])
        assert "the work is kept here" in error["error"] and "again" not in error["hint"], "it is not to be done twice"
        proxy.behave()
        assert a("datastore", "lock", "status").ok() == {"held": False, "models": []}
        assert a.status()["pending"]["writes"] >= 1
        assert a.sync()["filesPushed"] >= 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", [("doctor",), ("setup",)], ids=" ".join)
def test_a_probe_that_is_interrupted_leaves_nothing_in_the_bucket(moto, tmp_path, fresh_prefix, number, command):
    """Its questions are asked side by side: what is on its way is waited for, and then all of it is removed."""
    with proxy_to(moto.endpoint) as proxy:
        place = Place(f"{moto.url}/{fresh_prefix()}", {**moto.config, "endpoint": proxy.endpoint}, dict(moto.environ))
        a = Team(tmp_path, place).machine("a")
        before = set(place.objects())
        proxy.when(lambda r: r.method == "PUT" and ".swamp-probe/" in r.path, lambda *_: time.sleep(0.2) or False)
        seen = len(proxy.seen)
        args = place.setup_args if command == ("setup",) else ()
        running = a.start("datastore", *command, *args)
        while not any("/race-" in r.path or r.path.endswith("/create") for r in proxy.seen[seen:]):
            time.sleep(0.01)
        running.send_signal(number)
        running.communicate(timeout=60)
        assert running.returncode == 130
        assert set(place.objects()) - before == set()


def test_a_second_signal_ends_it_at_once(moto, tmp_path, fresh_prefix):
    with proxy_to(moto.endpoint) as proxy:
        config = {**moto.config, "endpoint": proxy.endpoint}
        team = Team(tmp_path, Place(f"{moto.url}/{fresh_prefix()}", config, dict(moto.environ)))
        a = team.machine("a")
        proxy.when(lambda r: True, stall)
        seen = len(proxy.seen)
        running = a.start("datastore", "sync")
        while len(proxy.seen) == seen:
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        time.sleep(1)
        assert running.poll() is None  # stuck in a request that may take its full time
        started = time.monotonic()
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=20)
        assert running.returncode == 130
        assert time.monotonic() - started < 15  # a request may take 30


def test_a_read_is_interrupted_where_it_stands(local_team: Team):
    a = local_team.machine("a")
    running = a.start("data", "query", "size >= 0")
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=30)
    assert running.returncode in (0, 130, -signal.SIGTERM)  # before, during or after its work: never a traceback


def test_a_stuck_lock_is_seen_and_taken_away(local_team: Team):
    """The person on call: `lock status` names the holder, `lock release --force` frees it, exit 75 names them too."""
    a = local_team.machine("a")
    held = leases_of(local_team).acquire(GLOBAL_KEY)
    try:
        seen = a("datastore", "lock", "status").ok()
        assert seen["held"] is True and seen["info"]["holder"] == "somebody@elsewhere"
        assert a.status()["lock"]["held"] is True
        error = a("data", "gc", env={"SWAMP_LOCK_TIMEOUT_MS": "500"}).failed(75)
        assert "somebody@elsewhere" in error["error"]
        done = a("datastore", "lock", "release", "--force").ok()
        assert done == {"released": True, "previousHolder": "somebody@elsewhere"}
        assert a("data", "gc").ok()["versionsDeleted"] == 0
    finally:
        held.release()


def test_the_hint_of_a_stuck_model_lease_is_the_command_that_frees_it(local_team: Team):
    """Said without the model it would free the global lease, which nobody holds."""
    from swamp.locks.decide import model_key

    a = local_team.machine("a")
    done = a.put("web", "report", "1")
    held = leases_of(local_team).acquire(model_key(done["modelType"], done["modelId"]))
    try:
        error = a("data", "delete", "web", "report", "--yes", env={"SWAMP_LOCK_TIMEOUT_MS": "500"}).failed(75)
        words = error["hint"].partition("swamp ")[2].split()
        assert a(*words).ok() == {"released": True, "previousHolder": "somebody@elsewhere"}
        a("data", "delete", "web", "report", "--yes").ok()
    finally:
        held.release()
