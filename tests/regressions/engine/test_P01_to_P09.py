"""P: scale, where the engine decides it. Requests and bytes are counted in test_P01_P02_P03_requests.py; memory
of transfers (P06, P09) beside the stores, time in bench/."""

from __future__ import annotations

import os
import threading

from peers import Peer, Watched, content, settled, version
from swamp.store.layers import MeterStore
from swamp.sync.bulk import Work
from swamp.sync.engine import Engine, Policy
from swamp.sync.inline import Inline


def test_P01_one_changed_file_costs_no_request_per_partition(store, a, b):
    for model in range(30):
        a.write(f"data/t/model-{model}/file", "x")
    a.push()
    meter = MeterStore(store)
    a.write("data/t/model-7/file", "changed")
    assert a.process(meter).push().files_pushed == 1
    assert meter.requests <= 8, meter.meter.calls
    settled(a, b)


def test_P04_a_full_walk_hashes_only_what_a_stat_cannot_vouch_for(store, a, b):
    for i in range(20):
        a.write(f"files/{i}", f"{i}")
    a.push()
    b.pull()
    hashed: list[int] = []

    def pick(work: Work) -> Inline:
        if work.stage == "hash":
            hashed.append(work.files)
        return Inline(store, b.env, 2)

    engine = Engine.open(store, b.cache, writer=b.writer, env=b.env, policy=b.policy, pick=pick)
    assert engine.push(full=True).ok
    assert hashed == [], "pulled files are backdated, so that their stat vouches for them at once"
    os.utime(b.tree / "files/3")
    assert engine.push(full=True).ok
    assert hashed == [1]


def test_P07_an_announcement_costs_the_same_whatever_the_journal_holds(a):
    def cost() -> int:
        before = wal.stat().st_size
        a.engine.state.announce(["files/one"], "write")
        return wal.stat().st_size - before

    wal = a.cache.state_db.with_name("state.db-wal")
    a.engine.state.announce(["files/first"], "write")
    few = cost()
    a.engine.state._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    a.engine.state.announce([f"files/{i}" for i in range(20_000)], "write")
    a.engine.state._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    a.engine.state.announce(["files/second"], "write")
    many = cost()
    assert many <= few * 3 + 16_384, (few, many)


def test_P08_one_slow_upload_holds_up_nobody(store, peer):
    one: Peer = peer("a", policy=Policy(push_concurrency=3))
    for i in range(30):
        one.write(f"files/{i:02d}", "x")
    others, all_others = [], threading.Event()

    def before(verb: str, key: str) -> None:
        if verb == "upload" and "files/00" in key:
            assert all_others.wait(30), "the others did not go on while one was slow"

    def after(verb: str, key: str) -> None:
        if verb == "upload" and "files/00" not in key:
            others.append(key)
            if len(others) == 29:
                all_others.set()

    result = one.process(Watched(store, before, after)).push()
    assert result.files_pushed == 30
    assert len(content(one.engine)) == 30


def test_P08_one_slow_download_holds_up_nobody(store, a, peer):
    for i in range(20):
        a.write(f"files/{i:02d}", "x")
    a.write_version(version("out", 1), "raw")
    a.push()
    one: Peer = peer("r", policy=Policy(pull_concurrency=3))
    seen: set[str] = set()
    all_others = threading.Event()

    def before(verb: str, key: str) -> None:
        if verb != "open":
            return
        if "files/00" in key:
            assert all_others.wait(30)
            return
        seen.add(key)
        if len(seen) == 21:
            all_others.set()

    assert one.process(Watched(store, before)).pull().files_pulled == 22
