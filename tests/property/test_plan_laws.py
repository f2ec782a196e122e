"""Laws of plans, units, root codec and commits, over random bases, trees and roots."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import swamp.commit.commit
from peers import hasty
from swamp.cache.files import StatFingerprint
from swamp.cache.rows import BaseRow, decode_row, encode_row
from swamp.cache.scan import Observed
from swamp.commit.commit import Changes, Committer, RootRead, build
from swamp.index.entry import Entry, Row, Tombstone, Unreferenced
from swamp.index.lookup import all_rows, winning_rows
from swamp.index.root import Root, Writer, decode, encode, first_root, successor
from swamp.store.layers import PrefixStore
from swamp.store.open import open_store
from swamp.sync.decide import Facts
from swamp.sync.plan import Action, Plan, PlanPolicy, plan
from swamp.sync.units import is_content, is_record, metadata_of, names_unit, unit_of

VERSION_1, VERSION_2 = "data/t/m/n/1", "data/t/m/n/2"
PATHS = [f"{VERSION_1}/metadata.yaml", f"{VERSION_1}/raw", f"{VERSION_2}/metadata.yaml", f"{VERSION_2}/raw/part-0"]
PATHS += [f"{VERSION_2}/raw/part-1", "files/a", "files/b", "outputs/run.yaml"]
SIZE = 8
WRITER = Writer("repo", "host", "user", 1, "0.1.0")
numbers = count(1)


# --- a small world: what a plan is made from, and what it does to it


@dataclass
class World:
    """Contents are one letter; every key that was ever uploaded keeps its content, as the bucket does."""

    base: dict[str, BaseRow] = field(default_factory=dict)
    local: dict[str, str] = field(default_factory=dict)
    remote: dict[str, Row] = field(default_factory=dict)
    writes: set[str] = field(default_factory=set)
    deletes: set[str] = field(default_factory=set)
    bucket: dict[str, str] = field(default_factory=dict)
    aside: set[tuple[str, str]] = field(default_factory=set)
    lazy: bool = False

    def facts(self) -> list[Facts]:
        paths = sorted({*self.base, *self.local, *self.remote, *self.writes, *self.deletes})
        return [self._facts(p) for p in paths]

    def _facts(self, path: str) -> Facts:
        content = self.local.get(path)
        seen = Observed(path, StatFingerprint(SIZE, 0, 0, 0)) if content is not None else None
        deleted = path in self.deletes
        return Facts(path, self.base.get(path), seen, self.remote.get(path), path in self.writes, deleted, content)

    def plan(self) -> Plan:
        return plan(self.facts(), PlanPolicy(lazy=self.lazy, delete_floor=1000))

    def pull(self) -> Plan:
        planned = self.plan()
        left = {a.path for a in planned.actions("push", "delete")} | {f.path for f in planned.waiting}
        for action in planned.actions():
            self._pulled(action.path, action.verb, action.facts)
        self.writes &= left
        self.deletes &= left
        return planned

    def _pulled(self, path: str, verb: str, facts: Facts) -> None:
        remote = facts.remote
        if verb in ("conflict", "bury", "aside") and path in self.local:
            self.aside.add((path, self.local.pop(path)))
        if verb in ("aside", "bury", "forget") or (verb == "conflict" and not isinstance(remote, Entry)):
            self.base.pop(path, None)
        if verb in ("pull", "restore", "conflict") and isinstance(remote, Entry):
            self.local[path] = self.bucket[remote.key]
        if verb in ("pull", "restore", "conflict", "adopt") and isinstance(remote, Entry):
            self.base[path] = _base(remote, path in self.local)

    def push(self) -> Plan:
        planned = self.plan()
        for action in planned.actions():
            path, remote = action.path, action.facts.remote
            if action.verb == "push":
                entry = Entry(path, f"{path}~{next(numbers)}", SIZE, self.local[path], "", next(numbers))
                self.bucket[entry.key] = self.local[path]
                self.remote[path] = entry
                self.base[path] = _base(entry, True)
            elif action.verb == "delete":
                assert isinstance(remote, Entry)
                self.remote[path] = Tombstone(path, remote.key, SIZE, remote.sha256, next(numbers))
                self.base.pop(path, None)
        delivered = {a.path for a in planned.actions("push", "delete")}
        self.writes -= delivered
        self.deletes -= delivered
        return planned


def _base(entry: Entry, present: bool) -> BaseRow:
    return BaseRow(entry.path, entry.key, entry.size, entry.sha256, entry.seq, present)


contents = st.sampled_from("xyz")


@st.composite
def worlds(draw: st.DrawFn) -> World:
    world = World(lazy=draw(st.booleans()))
    for path in draw(st.lists(st.sampled_from(PATHS), unique=True, min_size=1)):
        known = draw(st.sampled_from(["no", "held", "remote only"]))
        if known != "no":
            content = draw(contents)
            entry = Entry(path, f"{path}~base", SIZE, content, "", 1)
            world.base[path], world.bucket[entry.key] = _base(entry, known == "held"), content
            world.remote[path] = entry
        match draw(st.sampled_from(["as it was", "newer", "deleted", "unknown"])):
            case "newer":
                content = draw(contents)
                world.remote[path] = Entry(path, f"{path}~newer", SIZE, content, "", 2)
                world.bucket[f"{path}~newer"] = content
            case "deleted":
                world.remote[path] = Tombstone(path, f"{path}~base", SIZE, None, 2)
            case "unknown":
                world.remote.pop(path, None)
        if draw(st.booleans()):
            world.local[path] = draw(contents)
        match draw(st.sampled_from(["quiet", "written", "deleted", "both"])):
            case "written":
                world.writes.add(path)
            case "deleted":
                world.deletes.add(path)
            case "both":
                world.writes.add(path)
                world.deletes.add(path)
    return world


# --- plans


@given(worlds())
@settings(max_examples=400)
def test_a_sync_converges_and_the_next_one_has_nothing_to_do(world: World) -> None:
    world.pull()
    world.push()
    world.pull()
    world.push()
    again = world.plan()
    busy = [a for a in again.actions() if not _is_idle(a)]
    assert busy == [] and not (world.deletes - set(_waiting(again)))
    for path, row in world.remote.items():
        if isinstance(row, Entry) and unit_of(path) not in again.held:
            held = world.local.get(path)
            assert held == row.sha256 or (held is None and world.lazy and is_content(path)), path


def _is_idle(action: Action) -> bool:
    """Nothing, or the recording of what is recorded."""
    base, remote = action.facts.base, action.facts.remote
    known = isinstance(remote, Entry) and base == _base(remote, action.facts.local is not None)
    return action.verb == "nothing" or (action.verb == "adopt" and known) or (action.verb == "forget" and base is None)


def _waiting(planned: Plan) -> Iterator[str]:
    return (f.path for f in planned.waiting)


@pytest.mark.inv("conflict.keeps-both")
@given(worlds())
@settings(max_examples=400)
def test_no_sync_removes_the_last_copy_of_anything(world: World) -> None:
    before = set(world.local.items())
    world.pull()
    world.push()
    world.pull()
    for path, content in before - set(world.local.items()):
        shared = any(key.startswith(f"{path}~") and held == content for key, held in world.bucket.items())
        assert shared or (path, content) in world.aside, (path, content)


@pytest.mark.inv("delete.intent")
@given(worlds())
@settings(max_examples=400)
def test_only_an_announced_delete_of_an_absent_file_deletes(world: World) -> None:
    for action in world.plan().actions("delete"):
        assert action.path in world.deletes
        if action.path in world.local:  # begun anew after its version was deleted, and not finished
            meta = metadata_of(unit_of(action.path))
            assert meta in world.deletes and meta not in world.local
        remote, base = action.facts.remote, action.facts.base
        assert isinstance(remote, Entry) and base is not None and remote.key == base.key


def test_a_changed_file_stays_when_only_its_metadata_was_deleted():
    """Found by the law above: a found edit beside an announced delete of the metadata was deleted from the bucket."""
    world = World()
    for path in ("data/t/m/n/2/raw/part-0", "data/t/m/n/2/metadata.yaml"):
        entry = Entry(path, f"{path}~base", SIZE, "x", "", 1)
        world.base[path], world.remote[path], world.bucket[entry.key] = _base(entry, True), entry, "x"
    world.local["data/t/m/n/2/raw/part-0"] = "y"
    world.deletes.add("data/t/m/n/2/metadata.yaml")
    assert list(world.plan().actions("delete")) == []


def test_what_was_begun_anew_is_kept_when_its_version_comes_back():
    """Found by a law: a file written again after its delete was overwritten when another one's delete was missing."""
    world = World()
    for path in ("data/t/m/n/2/metadata.yaml", "data/t/m/n/2/raw/part-0", "data/t/m/n/2/raw/part-1"):
        entry = Entry(path, f"{path}~base", SIZE, "x", "", 1)
        world.base[path], world.remote[path], world.bucket[entry.key] = _base(entry, True), entry, "x"
    world.local["data/t/m/n/2/raw/part-0"] = "y"
    world.deletes |= {"data/t/m/n/2/metadata.yaml", "data/t/m/n/2/raw/part-0"}
    world.pull()
    assert ("data/t/m/n/2/raw/part-0", "y") in world.aside and world.local["data/t/m/n/2/raw/part-0"] == "x"


@pytest.mark.inv("unit.whole")
@given(worlds())
@settings(max_examples=400)
def test_a_unit_is_pushed_deleted_or_conflicted_as_a_whole(world: World) -> None:
    planned = world.plan()
    for unit in planned.units:
        if "push" in unit.verbs:
            assert not unit.verbs & {"conflict", "bury", "aside"}, unit
            theirs = [a for a in unit.actions if a.facts.remote_label == "newer" and not a.facts.equal]
            assert not theirs, "a version that nobody wrote"
        if "conflict" in unit.verbs:
            assert not unit.verbs & {"push", "delete"}, unit
        if "delete" in unit.verbs:
            left = {f.path for f in world.facts() if unit_of(f.path) == unit.unit and isinstance(f.remote, Entry)}
            gone = {a.path for a in unit.actions if a.verb == "delete"}
            assert left == gone or "push" in unit.verbs, "all or none, unless it is written again as a whole"
    assert not {u.unit for u in planned.units} & set(planned.held)


@pytest.mark.inv("unit.whole")
@given(worlds())
@settings(max_examples=400)
def test_no_push_publishes_a_version_without_its_metadata(world: World) -> None:
    world.pull()
    world.push()
    for unit in (VERSION_1, VERSION_2):
        mine = [p for p, r in world.remote.items() if isinstance(r, Entry) and "~base" not in r.key + r.path]
        pushed = [p for p in mine if unit_of(p) == unit and "newer" not in world.remote[p].key]
        if pushed:
            assert isinstance(world.remote.get(metadata_of(unit)), Entry)


@given(worlds(), st.integers(0, 3))
@settings(max_examples=200)
def test_the_delete_cap_holds_deletes_and_changes_nothing_else(world: World, cap: int) -> None:
    free = plan(world.facts(), PlanPolicy(delete_floor=1000))
    capped = plan(world.facts(), PlanPolicy(delete_floor=0, delete_fraction=0.0, allow_deletes=cap))
    deletes = [a.path for a in free.actions("delete")]
    if len(deletes) <= cap:
        assert capped == free
    else:
        assert capped.deletes_held == len(deletes) and not list(capped.actions("delete"))
    rest = [(a.path, a.verb) for a in free.actions() if a.verb != "delete"]
    assert [(a.path, a.verb) for a in capped.actions() if a.verb != "delete"] == rest


@given(worlds())
def test_a_plan_does_not_depend_on_the_order_of_its_facts(world: World) -> None:
    assert plan(reversed(world.facts()), PlanPolicy()) == plan(world.facts(), PlanPolicy())


# --- units


segments = st.text(st.characters(blacklist_characters="/", blacklist_categories=("Cs", "Cc")), min_size=1, max_size=6)
paths = st.lists(segments | st.sampled_from(["data", "1", "12", "raw", "metadata.yaml"]), min_size=1, max_size=8)


@given(paths.map("/".join))
def test_a_unit_is_the_path_or_a_directory_above_it_and_is_its_own_unit(path: str) -> None:
    unit = unit_of(path)
    assert unit == path or path.startswith(unit + "/")
    assert unit_of(unit) == unit
    if unit != path:
        assert unit.rpartition("/")[2].isdecimal() and path[len(unit) + 1 :].split("/")[0] in ("raw", "metadata.yaml")
    assert not (is_record(path) and unit != path)


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.binary(max_size=40), st.binary(max_size=40))
def test_a_record_names_a_version_and_not_one_with_a_longer_number(
    one: int, other: int, head: bytes, tail: bytes
) -> None:
    unit = f"data/t/m/n/{one}"
    quiet = head.replace(b"data", b"")
    record = quiet + f"path: data/t/m/n/{other}\n".encode() + tail.replace(b"data", b"")
    assert names_unit(record, unit) == (one == other)


# --- codecs


keys_ = st.text(st.characters(blacklist_categories=("Cs",)), max_size=12)
hashes = st.none() | st.text("0123456789abcdef", min_size=64, max_size=64)
unknown = st.dictionaries(st.text("abcdefgh", min_size=3).map("x-{}".format), st.integers() | keys_ | st.lists(keys_))


@st.composite
def roots(draw: st.DrawFn) -> Root:
    number = st.integers(0, 10**9)
    entries, deleted, dropped = {}, {}, {}
    for path in draw(st.lists(keys_, unique=True, max_size=5)):
        extra = draw(unknown)
        text = json.dumps(extra, sort_keys=True) if extra else ""
        entries[path] = Entry(path, draw(keys_), draw(number), draw(hashes), draw(keys_), draw(number), extra=text)
    for path in draw(st.lists(keys_, unique=True, max_size=3)):
        deleted[path] = Tombstone(path, draw(keys_), draw(number), draw(hashes), draw(number))
    for key in draw(st.lists(keys_, unique=True, max_size=3)):
        dropped[key] = Unreferenced(key, draw(keys_), draw(number))
    ops = draw(st.lists(st.tuples(keys_, number), max_size=4))
    return Root(
        store_id=draw(keys_), seq=draw(number), op=draw(keys_), prev_op=draw(keys_), committed_at=draw(keys_),
        writer=draw(unknown), recent_ops=tuple(ops), gc_epoch=draw(number), horizon_seq=draw(number), entries=entries,
        deleted=deleted, dropped=dropped, collecting=tuple(draw(st.lists(keys_))), extra=draw(unknown),
    )  # fmt: skip


@given(roots())
def test_a_root_survives_its_codec_with_every_field_it_does_not_know(root: Root) -> None:
    assert decode(encode(root)) == root
    after = successor(root, "op", "at", WRITER)
    assert decode(encode(after)).extra == root.extra
    assert decode(encode(after)).entries == root.entries


@given(st.builds(Entry, keys_, keys_, st.integers(0), hashes, keys_, st.integers(0), st.booleans(), keys_) | st.none())
def test_a_deferred_row_survives_its_codec(row: Entry | None) -> None:
    assert decode_row(row.path if row else "", encode_row(row)) == row


# --- commits


small_paths = st.sampled_from([f"files/{i}" for i in range(12)])
steps = st.lists(
    st.tuples(
        st.sampled_from(["put", "delete"]), st.lists(small_paths, unique=True, min_size=1, max_size=6), st.booleans()
    ),
    min_size=1,
    max_size=8,
)


@given(steps)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.inv("index.highest-seq")
def test_commits_forget_nothing_whatever_is_flushed_and_rebased(monkeypatch: pytest.MonkeyPatch, story: list) -> None:
    """Every second commit meets another writer half way; layers are moved into segments again and again."""
    monkeypatch.setattr(swamp.commit.commit, "LAYER_ROWS", 5)
    store = PrefixStore(open_store("memory://laws"), f"w{next(numbers)}")
    one, two = (Committer(store, replace(WRITER, user=user), hasty()) for user in ("one", "two"))
    one.replace(RootRead(None, None), first_root("store", "op-0", "at", WRITER), lambda: None)
    truth: dict[str, str | None] = {}
    dropped: set[str] = set()
    for kind, touched, raced in story:
        other = f"files/raced-{next(numbers)}" if raced else None
        _commit(one, kind, touched, truth, dropped, two if raced else None, other)
    root = one.read().root
    assert root is not None
    rows = {r.path: r for r in winning_rows(root, one.fetch)}
    assert {p: r.key if isinstance(r, Entry) else None for p, r in rows.items()} == truth
    found = {r.key for r in all_rows(root, one.fetch) if isinstance(r, Unreferenced | Tombstone)}
    assert dropped <= found, "every key that lost its path is known to the collector"
    assert [seq for _, seq in root.recent_ops] == list(range(root.seq, 0, -1))


def _commit(
    committer: Committer,
    kind: str,
    touched: list[str],
    truth: dict[str, str | None],
    dropped: set[str],
    racer: Committer | None,
    other: str | None,
) -> None:
    def propose(root: Root) -> Changes:
        nonlocal racer
        if racer is not None and other is not None:
            rival, racer = racer, None
            entry = Entry(other, f"{other}~k", 1, None, "")
            assert rival.commit(lambda _: Changes(puts=(entry,)), lambda: None) is not None
            truth[other] = entry.key
        return changes

    keys = {p: f"{p}~{next(numbers)}" for p in touched}
    old = {p: k for p in touched if (k := truth.get(p)) is not None}
    if kind == "put":
        puts = tuple(Entry(p, keys[p], 1, None, "") for p in touched)
        changes = Changes(puts=puts, dropped=tuple(Unreferenced(k, p) for p, k in old.items()))
        truth.update(keys)
    else:
        changes = Changes(deletes=tuple(Tombstone(p, k, 1, None) for p, k in old.items()))
        truth.update(dict.fromkeys(old, None))
    dropped.update(old.values())
    assert committer.commit(propose, lambda: None) is not None


@given(steps)
@settings(max_examples=100)
def test_build_is_pure_and_only_adds_what_the_changes_say(story: list) -> None:
    root = first_root("store", "op-0", "at", WRITER)
    for turn, (_, touched, _) in enumerate(story):
        frozen = encode(root)
        puts = tuple(Entry(p, f"{p}~{turn}", 1, None, "") for p in touched)
        after = build(root, Changes(puts=puts), f"op-{turn + 1}", "at", WRITER)
        assert encode(root) == frozen
        assert after.seq == root.seq + 1 and after.prev_op == root.op and after.knows_op(root.op)
        assert {p: e for p, e in after.entries.items() if p not in touched} == {
            p: e for p, e in root.entries.items() if p not in touched
        }
        assert all(after.entries[p].seq == after.seq for p in touched)
        root = after
