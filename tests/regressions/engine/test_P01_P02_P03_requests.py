"""What a sync costs in requests and bytes, counted: it grows with the change, not with the index (P01, P02, P03)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from peers import Peer, root_of
from swamp.index.entry import Entry
from swamp.index.root import ROOT_KEY, encode, first_root
from swamp.index.segment import write_segment
from swamp.store.layers import Meter, MeterStore, PrefixStore
from swamp.store.open import open_store
from swamp.sync.engine import Policy

SMALL, LARGE = 1_000, 100_000
CHANGE = 64 * 1024
"""Root and log record twice over, with a few rows: what any commit may cost in bytes."""


@dataclass
class Counted:
    requests: int
    sent: int
    received: int


@dataclass
class Machine:
    peer: Peer
    meter: Meter
    size: int

    def count(self, act) -> Counted:
        before = (self.meter.requests, self.meter.sent, self.meter.received)
        result = act()
        assert result.ok, result
        after = (self.meter.requests, self.meter.sent, self.meter.received)
        return Counted(*(now - then for now, then in zip(after, before, strict=True)))


def rows(count: int) -> Iterator[Entry]:
    for i in range(count):
        path = f"data/t/model-{i % 97:03d}/name/{i}/raw"
        yield Entry(path, f"{path}~01ARZ3NDEKTSV4RRFFQ69G5FAV", 10, f"{i:064x}", "2026-01-01T00:00:00.000Z")


def publish(store, writer, count: int) -> None:
    """An index of that many entries, as a long life would leave it: a few segments and a root."""
    root = first_root("store-1", "01ARZ3NDEKTSV4RRFFQ69G5FA0", "2026-01-01T00:00:00.000Z", writer)
    everything = sorted(rows(count), key=lambda e: e.path)
    refs = []
    for number in range(4):
        part = everything[number::4]
        segment = write_segment(part)
        ref = segment.ref(f"_index/0{number}ARZ3NDEKTSV4RRFFQ69G5FA.parquet", 1)
        store.put(ref.key, segment.data)
        refs.append(ref)
    store.put(ROOT_KEY, encode(replace(root, segments=tuple(refs))))


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """One store per size and a lazy cache that knows all of it: only names were fetched, never content."""
    made = {}
    for count in (SMALL, LARGE):
        store = PrefixStore(open_store("memory://requests"), f"n{count}")
        home = tmp_path_factory.mktemp(f"n{count}")
        policy = Policy(hydrate="lazy", push_concurrency=4, pull_concurrency=4)
        first = Peer(store=store, home=home, name="first", policy=policy)
        publish(store, first.writer, count)
        assert first.pull().ok
        assert first.engine.status().remote_only == count
        first.engine.close()
        first.live = None
        shutil.copytree(first.cache.base, home / "writer")
        made[count] = (store, first)
    return made


@pytest.fixture(params=[SMALL, LARGE])
def machine(request, places) -> Iterator[Machine]:
    store, first = places[request.param]
    meter = MeterStore(store)
    peer = Peer(store=meter, home=first.home, name=first.name, policy=first.policy)
    peer.sync()
    yield Machine(peer, meter.meter, request.param)
    peer.engine.close()


@pytest.mark.parametrize("command", ["sync", "pull", "push"])
def test_P03_with_nothing_to_do_one_request_is_enough(machine, command):
    cost = machine.count(getattr(machine.peer, command))
    assert cost == Counted(requests=1, sent=0, received=0)
    again = machine.peer.process()
    before = machine.meter.requests
    assert getattr(again, command)().fast_path
    assert machine.meter.requests - before == 1, "a new process knows what the old one knew"


def test_P03_a_store_with_nothing_in_it_is_told_by_one_listing(tmp_path):
    meter = MeterStore(PrefixStore(open_store("memory://requests"), "nothing"))
    empty = Machine(Peer(store=meter, home=tmp_path, name="first"), meter.meter, 0)
    assert empty.count(empty.peer.sync).requests <= 4, meter.meter.calls
    empty.peer.engine.close()


@pytest.mark.parametrize(("files", "allowed"), [(1, 8), (10, 18)])
def test_P02_a_push_costs_what_changed_and_not_what_there_is(machine, files, allowed):
    for i in range(files):
        machine.peer.write(f"files/{machine.meter.requests}-{i}", "content of this file")
    cost = machine.count(machine.peer.push)
    assert cost.requests <= allowed, machine.meter.calls
    assert cost.sent + cost.received <= CHANGE, cost


def test_P01_a_version_costs_its_two_files_and_the_commit(machine):
    machine.peer.write_version("data/t/model-001/name/999999", "raw bytes")
    cost = machine.count(machine.peer.push)
    assert cost.requests <= 9 and cost.sent + cost.received <= CHANGE


def test_P02_a_delete_costs_what_changed(machine):
    status = machine.peer.engine.status()
    victim = next(machine.peer.engine.remote_only()).path
    machine.peer.delete(victim)
    cost = machine.count(machine.peer.push)
    assert cost.requests <= 8 and cost.sent + cost.received <= CHANGE
    assert machine.peer.engine.status().remote_only == status.remote_only - 1


def test_P03_a_reader_that_only_pulls_reads_the_change_and_then_one_request(machine, places):
    store, first = places[machine.size]
    writer = Peer(store=store, home=first.home, name="writer", policy=first.policy)
    writer.pull()
    for turn in range(3):
        writer.write(f"files/from-writer-{turn}", "x")
        writer.push()
        cost = machine.count(machine.peer.pull)
        assert cost.requests <= 3 and cost.received <= CHANGE, "the root, and the file"
        assert machine.count(machine.peer.pull).requests == 1
    writer.engine.close()


def test_P02_a_commit_that_flushes_writes_its_layer_and_reads_no_segment(machine):
    before = root_of(machine.peer.engine)
    with machine.peer.engine.announce(["files/many"]):
        for i in range(520):
            machine.peer.put(f"files/many/{machine.meter.requests}-{i:03d}", "x")
    cost = machine.count(machine.peer.push)
    after = root_of(machine.peer.engine)
    assert len(after.segments) == len(before.segments) + 1, "a layer past its bound became a segment"
    assert cost.requests <= 520 + 8
    assert cost.received <= CHANGE, "nothing of the old segments was read"
    assert cost.sent <= 520 * 400 + CHANGE
