"""The probe tells the stores that enforce conditions from those that accept and ignore them."""

from __future__ import annotations

import datetime as dt
import json
import os
import threading
import time

import pytest

from servers.proxy import FaultProxy, Rule
from servers.start import SAFE, STARTERS
from swamp.env import SYSTEM, Env
from swamp.errors import AccessDenied, Misconfigured, Unavailable
from swamp.store.open import open_store
from swamp.store.probe import SCRATCH, probe
from swamp.testing.faulty import Fault, FaultyStore
from swamp.testing.listen import free_port


@pytest.mark.parametrize("name", STARTERS)
def test_the_probe_tells_who_enforces_conditions(servers, fresh_prefix, name):
    store = servers[name].open(fresh_prefix())
    seen = probe(store)
    told = {f.name: f.kept for f in seen.findings}
    assert seen.capabilities.safe == (name in SAFE)
    assert told["createOnly"] == told["compareAndSwap"] == (name in SAFE)
    assert seen.capabilities.read_after_write and seen.capabilities.list_after_write
    assert seen.url == store.url
    assert json.loads(json.dumps(seen.to_json()))["capabilities"]["createOnly"] == (name in SAFE)


EXTRAS = {
    "memory": (None, None),
    "directory": (True, True),
    "moto": (True, None),
    "s3-double": (True, None),
    "azurite": (True, None),
    "gcs": (True, True),
    "rclone": (False, None),
    "gcs-emulator": (False, False),
}


@pytest.mark.parametrize("name", EXTRAS)
def test_the_probe_tells_what_nothing_depends_on(servers, fresh_prefix, name):
    """Conditional deletes and uploads in parts: seen, refused, or not tried where a client has no such call."""
    seen = probe(servers[name].open(fresh_prefix()))
    told = {f.name: f.kept for f in seen.findings}
    assert (told.get("conditionalDelete"), told.get("conditionalMultipart")) == EXTRAS[name]
    assert seen.capabilities.conditional_delete == bool(EXTRAS[name][0])
    assert seen.capabilities.conditional_multipart == bool(EXTRAS[name][1])


@pytest.mark.parametrize("name", STARTERS)
def test_the_probe_leaves_nothing_behind(servers, fresh_prefix, name):
    store = servers[name].open(fresh_prefix())
    store.put("mine", b"x")
    probe(store)
    assert [m.key for page in store.list() for m in page] == ["mine"]


def test_a_store_that_ignores_conditions_is_described_in_plain_words(rclone, fresh_prefix):
    findings = {f.name: f.text for f in probe(rclone.open(fresh_prefix())).findings if not f.kept}
    assert set(findings) == {"createOnly", "compareAndSwap", "conditionalDelete"}
    assert "two machines must not write at once" in findings["createOnly"]
    assert "two machines must not write at once" in findings["compareAndSwap"]


def test_a_wrong_clock_is_told(servers, fresh_prefix):
    class Late:
        def now(self):
            return SYSTEM.clock.now() - dt.timedelta(minutes=10)

        monotonic, sleep = SYSTEM.clock.monotonic, SYSTEM.clock.sleep

    seen = probe(servers["moto"].open(fresh_prefix()), Env(Late(), SYSTEM.rng))
    assert seen.skew == pytest.approx(600, abs=5)
    assert [f.name for f in seen.findings if not f.kept] == ["clock"]


def test_a_lost_answer_while_probing_is_looked_up_not_guessed():
    """Answers lost after the effect must not make an enforcing store look unsafe."""
    store = FaultyStore(open_store("memory://probe-lost"))
    store.add(Fault("after", "put", "*/create"), Fault("after", "put", "*/swap", skip=1))
    assert probe(store).capabilities.safe
    assert [f.kind for f in store.fired] == ["after", "after"]


def test_a_probe_that_cannot_reach_the_store_raises_and_claims_nothing(moto):
    store = open_store(moto.url, {"endpoint": f"http://127.0.0.1:{free_port()}"})
    with pytest.raises(Unavailable, match="cannot reach"):
        probe(store)
    with pytest.raises(Misconfigured, match="no bucket"):
        probe(open_store("s3://nobody-made-this-one", {"endpoint": moto.endpoint}))


def test_what_could_not_be_cleaned_up_is_told(moto, fresh_prefix):
    with FaultProxy(
        moto.endpoint, [Rule("pass", "POST", r"\?delete", 2), Rule("answer", "POST", r"\?delete", None, 403)]
    ) as p:
        moto.open()
        seen = probe(open_store(f"{moto.url}/{fresh_prefix()}", {"endpoint": p.endpoint}))
    assert seen.capabilities.safe and p.fired
    assert [(f.name, f.kept) for f in seen.findings][-1] == ("cleanUp", False)
    assert SCRATCH in seen.findings[-1].text and SCRATCH.startswith(".")


def test_questions_that_do_not_depend_on_each_other_are_asked_side_by_side():
    """Each waits for the others' first write here: one after another none would ever be answered."""
    first = {name: threading.Event() for name in ("read", "list/0", "create", "swap")}

    class Waits(FaultyStore):
        def put(self, key, body, condition=None):
            name = key.split("/", 2)[2]
            if name in first:
                first[name].set()
                assert all(event.wait(30) for event in first.values())
            return super().put(key, body, condition)

    assert probe(Waits(open_store("memory://probe-together"))).capabilities.safe
    assert all(event.is_set() for event in first.values())


def test_whom_a_store_denies_everything_is_told_by_one_request(moto, fresh_prefix):
    moto.open()
    with FaultProxy(moto.endpoint, [Rule("answer", "PUT", ".*", None, 403)]) as proxy:
        with pytest.raises(AccessDenied):
            probe(open_store(f"{moto.url}/{fresh_prefix()}", {"endpoint": proxy.endpoint}))
        assert [method for method, _ in proxy.seen if method == "PUT"] == ["PUT"]


def test_a_server_without_ranges_is_known_by_its_probe_and_sends_each_object_once(rclone, fresh_prefix):
    with FaultProxy(rclone.endpoint) as proxy:
        store = open_store(f"{rclone.url}/{fresh_prefix()}", {**rclone.config, "endpoint": proxy.endpoint})
        probe(store)
        body = bytes(range(256)) * 64
        store.put("pack", body)
        assert store.get("pack", start=8, length=9000).body == body[8:9008]
        assert sum(method == "GET" and path.endswith("/pack") for method, path in proxy.seen) == 1


def test_what_a_killed_probe_left_goes_with_a_later_one_and_nothing_else_does(tmp_path):
    """By the store's clock, which is ten days behind ours here; and only names that probes give."""
    store = open_store(tmp_path.as_uri())
    killed, at_work = f"{SCRATCH}/{SYSTEM.ulid()}", f"{SCRATCH}/{SYSTEM.ulid()}"
    names = ("clock", "read-2", "list/0", "list-2/1", "race-swap-3", "parts")
    strangers = [f"{SCRATCH}/notes.txt", f"{killed}/notes.txt", f"{killed}/swap/0/deeper", f"{SCRATCH}/other/create"]
    strangers += [f"{SCRATCH}x/create", ".swamp-probes"]
    for key in [*(f"{killed}/{name}" for name in names), *strangers]:
        store.put(key, b"x")
        os.utime(tmp_path / key, (time.time() - 2 * 86_400,) * 2)
    store.put(f"{at_work}/create", b"x")
    assert probe(store).capabilities.safe
    assert {m.key for page in store.list() for m in page} == {*strangers, f"{at_work}/create"}
