"""L60, L61, C20, K13, L69: what is believed of a store. Through the CLI, on an S3 that lies when it is told to."""

from __future__ import annotations

import json
import sqlite3
import time
from dataclasses import replace
from typing import Any

import pytest

from machines import Machine, Ran, Team
from swamp.index.root import ROOT_KEY
from swamp.testing.s3_bucket import Manners
from swamp.testing.s3_double import S3Double
from swamp.testing.s3_lies import Lie

QUICK = {"SWAMP_REQUEST_TIMEOUT_MS": "2000", "SWAMP_DATASTORE_SYNC_TIMEOUT_MS": "6000"}
PROBE = "*/.swamp-probe/*"
PROBE_WRITES = 63
"""PUTs that a probe makes of a store that enforces conditions, at least."""


@pytest.fixture
def team(double_team: Team) -> Team:
    return double_team


def joined(team: Team, name: str) -> Machine:
    return team.machine(name)


def setup(team: Team, machine: Machine, *args: str, env: dict[str, str] | None = None) -> Ran:
    return machine("datastore", "setup", *team.place.setup_args, *args, env=env)


def put(machine: Machine, name: str, text: str, env: dict[str, str] | None = None) -> Ran:
    (machine.home / "input").write_text(text)
    return machine("data", "put", "web", name, str(machine.home / "input"), env=env)


def says(team: Team) -> tuple[str, str | None, int]:
    root = team.place.root()
    return root["conditions"], root.get("conditionsOp"), root["version"]


def unconditional(double: S3Double) -> list[str]:
    """Keys of roots and leases that were written without a condition."""
    ours = (".datastore-index.json", ".lock")
    plain = [a for a in double.seen if a.method == "PUT" and a.key.endswith(ours)]
    return [a.key for a in plain if not {"if-match", "if-none-match"} & set(a.headers)]


# --- L60: an error is not evidence


@pytest.mark.inv("probe.evidence")
@pytest.mark.inv("commit.condition")
@pytest.mark.parametrize("kind", ["refuse", "refuse after", "cut", "cut after", "duplicate", "html"])
def test_L60_trouble_with_what_a_probe_writes_convicts_nobody(team: Team, double: S3Double, kind: str):
    """One machine meets it while it sets up; what another one wrote, and was told of, is all there afterwards."""
    a = joined(team, "a")
    told = {}
    for skip in range(0, PROBE_WRITES, 9):
        double.lies.append(Lie(kind, "PUT", PROBE, skip=skip))  # type: ignore[arg-type]
    b = team.machine("b", joined=False)
    done = setup(team, b).ok()
    assert done["capabilities"]["compareAndSwap"] and done["capabilities"]["createOnly"] and done["warnings"] == []
    assert len(double.told) >= 5
    for n in range(3):
        put(a, f"of-a-{n}", f"a {n}").ok()
        told[f"of-a-{n}"] = f"a {n}"
        put(b, f"of-b-{n}", f"b {n}").ok()
        told[f"of-b-{n}"] = f"b {n}"
    fresh = joined(team, "fresh")
    assert {name: fresh.get("web", name)["content"] for name in told} == told
    assert unconditional(double) == [] and says(team) == ("enforced", None, 4)


@pytest.mark.inv("probe.evidence")
@pytest.mark.parametrize("kind", ["refuse", "cut"])
def test_L60_what_cannot_be_told_is_exit_69_and_nothing_is_set_up(team: Team, double: S3Double, kind: str):
    a = team.machine("a", joined=False)
    put(a, "mine", "kept").ok()
    before = (a.repo / ".swamp.yaml").read_text()
    conditional = lambda headers: "if-match" in headers or "if-none-match" in headers  # noqa: E731
    double.lies.append(Lie(kind, "PUT", PROBE, times=None, when=conditional))  # type: ignore[arg-type]
    told = setup(team, a, env=QUICK).failed(69)
    assert "cannot tell whether" in told["error"] and "nothing was set up" in told["hint"]
    assert kind != "refuse" or told["details"]["status"] == 503
    assert (a.repo / ".swamp.yaml").read_text() == before and ROOT_KEY not in str(list(team.place.objects()))
    double.lies.clear()
    setup(team, a).ok()
    assert a.get("web", "mine")["content"] == "kept" and says(team) == ("enforced", None, 4)


@pytest.mark.inv("probe.evidence")
@pytest.mark.parametrize("kind", ["refuse", "cut after"])
def test_L60_trouble_acquits_nobody_either(team: Team, double: S3Double, kind: str):
    """A store that ignores conditions, on a bad day: not taken for one that enforces them."""
    double.manners = Manners(conditions="ignored")
    for skip in range(0, 30, 4):
        double.lies.append(Lie(kind, "PUT", PROBE, skip=skip))  # type: ignore[arg-type]
    done = setup(team, team.machine("a", joined=False)).ok()
    assert not done["capabilities"]["compareAndSwap"] and "two machines must not write at once" in done["warnings"][0]


def test_L60_conditions_are_sent_also_where_they_are_ignored(team: Team, double: S3Double):
    double.manners = Manners(conditions="ignored")
    a = joined(team, "a")
    put(a, "x", "1").ok()
    a("datastore", "gc", "--keep-days", "0", "--yes").ok()
    assert unconditional(double) == [] and says(team)[0] == "ignored"


@pytest.mark.parametrize(
    "manners", [Manners(if_match="bare"), Manners(if_match="quoted"), Manners(missing_match=412)], ids=str
)
def test_L60_stores_with_other_manners_enforce_conditions_too(team: Team, double: S3Double, manners: Manners):
    double.manners = manners
    a, b = joined(team, "a"), joined(team, "b")
    put(a, "x", "1").ok()
    put(b, "x", "2").ok()
    a.sync()
    assert a.versions("web", "x") == [2, 1] and says(team) == ("enforced", None, 4)


# --- L61: one verdict per store


def record_of(machine: Machine, safe: bool) -> None:
    """What an earlier version, or a wrong measurement, left in this machine's state."""
    [cache] = machine.caches
    with sqlite3.connect(cache / "state.db") as db:
        [(text,)] = db.execute("SELECT value FROM meta WHERE name = 'probe'").fetchall()
        record = json.loads(text)
        record["capabilities"] |= {"create_only": safe, "compare_and_swap": safe}
        db.execute("UPDATE meta SET value = ? WHERE name = 'probe'", (json.dumps(record),))


@pytest.mark.inv("store.one-verdict")
def test_L61_a_machine_that_recorded_something_else_measures_again_and_obeys_the_root(team: Team, double: S3Double):
    a, b = joined(team, "a"), joined(team, "b")
    put(a, "x", "1").ok()
    record_of(b, safe=False)
    probed = sum(".swamp-probe/" in asked.key for asked in double.seen)
    b("data", "list").ok()
    assert sum(".swamp-probe/" in asked.key for asked in double.seen) == probed, "reading measures nothing"
    put(b, "x", "2").ok()
    assert sum(".swamp-probe/" in asked.key for asked in double.seen) > probed, "before its first write it does"
    again = sum(".swamp-probe/" in asked.key for asked in double.seen)
    put(b, "x", "3").ok()
    assert sum(".swamp-probe/" in asked.key for asked in double.seen) == again, "once"
    assert not [asked for asked in double.seen if asked.key.endswith(".datastore-commit.lock")]


@pytest.mark.inv("store.one-verdict")
def test_L61_who_measures_something_else_than_the_root_says_writes_nothing(team: Team, double: S3Double):
    a, b = joined(team, "a"), joined(team, "b")
    put(a, "x", "1").ok()
    before = team.place.root()
    double.manners = Manners(conditions="ignored")
    record_of(b, safe=False)
    told = put(b, "x", "2").failed(65)
    assert "ignores conditional writes" in told["error"] and "doctor --repair" in told["hint"]
    fresh = team.machine("fresh", joined=False)
    assert setup(team, fresh).failed(65)["details"] == {"measured": "ignored", "conditions": "enforced"}
    assert team.place.root() == before and "filesystem" in (fresh.repo / ".swamp.yaml").read_text()
    [probe] = [c for c in a("datastore", "doctor").json["checks"] if c["name"] == "probe"]
    assert not probe["ok"] and "its index says: enforced" in probe["detail"] and "--repair" in probe["fix"]


@pytest.mark.inv("store.one-verdict")
def test_L61_repair_asks_and_changes_the_word_for_everybody(team: Team, double: S3Double):
    a, b = joined(team, "a"), joined(team, "b")
    put(a, "x", "1").ok()
    b.sync()
    before = team.place.root()
    double.manners = Manners(conditions="ignored")
    assert a("datastore", "doctor", "--repair").failed(2)["hint"] == "add --yes"
    assert team.place.root() == before
    assert "ignored" in a("datastore", "doctor", "--repair", "--yes").json["repaired"][0]
    after = team.place.root()
    assert (after["conditions"], after["conditionsOp"], after["version"]) == ("ignored", after["op"], 4)
    assert after["gcEpoch"] == before["gcEpoch"] + 2 and after["seq"] == before["seq"] + 1
    warned = put(b, "x", "2")
    assert warned.code == 0 and "two machines must not write at once" in warned.err
    leases = [asked.key for asked in double.seen if asked.key.endswith(".datastore-commit.lock")]
    assert leases, "the other machine commits under the lease now, and was told by the root alone"
    double.manners = Manners()
    assert put(a, "x", "3").code == 0, "the root's word, not the weather"
    assert "enforced" in b("datastore", "doctor", "--repair", "--yes").json["repaired"][0]
    taken_back = team.place.root()
    assert (taken_back["conditions"], taken_back["conditionsOp"]) == ("enforced", taken_back["op"])
    count = len([a for a in double.seen if a.key.endswith(".datastore-commit.lock")])
    assert put(a, "x", "4").err == "" and put(b, "x", "5").code == 0
    assert count == len([a for a in double.seen if a.key.endswith(".datastore-commit.lock")])
    a.sync()
    assert a.versions("web", "x") == [5, 4, 3, 2, 1]


@pytest.mark.inv("store.one-verdict")
def test_L61_a_root_that_has_lost_the_word_is_a_rolled_back_root(team: Team, double: S3Double):
    """A late write puts back a root of before the word was changed: restored from the log, by who has seen the word
    and by who has not."""
    a, b = joined(team, "a"), joined(team, "b")
    put(a, "x", "1").ok()
    old = team.place.open().get(f"{ROOT_KEY}").body
    double.manners = Manners(conditions="ignored")
    a("datastore", "doctor", "--repair", "--yes")
    put(a, "x", "2").ok()
    team.place.open().put(ROOT_KEY, old)
    a.sync()
    assert says(team)[0] == "ignored" and a.versions("web", "x") == [2, 1]
    put(b, "x", "3").ok()
    assert b.versions("web", "x") == [3, 2, 1]
    # no record of the word is left either: then nobody guesses
    store = team.place.open()
    store.delete([key for key, body in team.place.objects("_index/log/").items() if json.loads(body)["seq"] > 3])
    store.put(ROOT_KEY, old)
    told = put(a, "x", "4").failed(65)
    assert "doctor --repair" in told["hint"]


def test_L61_a_root_rolled_back_to_the_one_seen_last_is_noticed(team: Team, double: S3Double):
    double.manners = Manners(conditions="ignored")
    a, b = joined(team, "a"), joined(team, "b")
    put(a, "x", "1").ok()
    a.sync()
    seen = team.place.open().get(ROOT_KEY).body
    put(b, "x", "2").ok()
    team.place.open().put(ROOT_KEY, seen)
    a.sync()
    assert a.versions("web", "x") == [2, 1], "the log has a later commit than the root that this machine knows"


# --- C20: an error keeps what the store said


def test_C20_a_lease_that_cannot_be_written_is_69_with_what_the_store_said(team: Team, double: S3Double):
    a = joined(team, "a")
    double.lies.append(Lie("refuse", "PUT", "*/.lock", times=None))
    began = time.monotonic()
    told = put(a, "x", "1", env={**QUICK, "SWAMP_LOCK_TIMEOUT_MS": "60000"})
    assert told.code == 69, told
    assert told.error["details"]["status"] == 503 and told.error["details"]["code"] == "SlowDown"
    assert "requestId" in told.error["details"] and time.monotonic() - began < 40


def test_C20_a_root_that_is_not_taken_keeps_status_code_and_request(team: Team, double: S3Double):
    a = joined(team, "a")
    double.lies.append(Lie("refuse", "PUT", f"*/{ROOT_KEY}", times=None, status=500, code="InternalError"))
    told = put(a, "x", "1", env=QUICK).failed(69)
    assert told["details"]["status"] == 500 and told["details"]["code"] == "InternalError"
    assert told["details"]["requestId"] in told["error"] and told["code"] == "outcome-unknown"


# --- K13: another client's dead lock


def test_K13_a_dead_lock_of_another_client_is_waited_for_once(team: Team, double: S3Double):
    a = joined(team, "a")
    body = {"holder": "ann@old-host", "hostname": "old-host", "pid": 7, "acquiredAt": "2025-01-01T00:00:00Z"}
    foreign = json.dumps({**body, "ttlMs": 2000, "nonce": "8c4d"}).encode()
    team.place.open().put(".datastore.lock", foreign)
    assert a("datastore", "lock", "status").ok()["info"]["holder"] == "ann@old-host", "it is readable"
    began = time.monotonic()
    put(a, "x", "1").ok()
    assert time.monotonic() - began >= 2
    assert a("datastore", "lock", "status").ok()["held"] is False
    lock: dict[str, Any] = json.loads(team.place.open().get(".datastore.lock").body)
    assert lock["state"] == "released" and lock["epoch"] > 1_000_000, "above anything that stood there"
    waits = [asked for asked in double.seen if asked.key.endswith(".datastore.clock")]
    put(a, "x", "2").ok()
    assert waits == [asked for asked in double.seen if asked.key.endswith(".datastore.clock")], "nobody waits again"


# --- L69: somebody else's namespace, by its address


def test_L69_a_namespace_cannot_be_shared_by_its_address(team: Team):
    owner = team.machine("owner", "--namespace", "team")
    put(owner, "x", "1").ok()
    before = team.place.objects()
    other = team.machine("other", joined=False)
    config = ("--config", json.dumps(team.place.config))
    for url in ("s3://b/p/team", "s3://b/p/team/below"):
        told = other("datastore", "setup", url, *config).failed(2)
        assert "team" in told["error"] and told["hint"]
        assert "filesystem" in (other.repo / ".swamp.yaml").read_text()
    assert {k: v for k, v in team.place.objects().items() if ".swamp-probe" not in k} == before
    setup(replace(team), other, "--namespace", "mine").ok()
