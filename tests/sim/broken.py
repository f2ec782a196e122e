"""For each rule of the protocol the function that upholds it, and a version of that function which does not.

The product has no switch for a rule. `broken("journal.first")` puts the wrong version in the place of the right one
while it is open, so that the mutation test can watch a seed fail.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from types import ModuleType
from typing import Any, Final

from swamp.cache.damage import Damage
from swamp.commit.collect import ObjectClaim, Sweeper, _swept, both
from swamp.commit.commit import Committer
from swamp.env import ULID_LENGTH
from swamp.errors import CorruptData, NewerFormat, ObjectMissing, StoreError
from swamp.index.entry import Entry, is_pack, pack_key
from swamp.index.root import ROOT_KEY, check_version, decode
from swamp.store.trial import Trial
from swamp.sync.decide import decide
from swamp.sync.record import _settled_rows
from swamp.sync.view import view_root

_ONE_ULID: Final = "0" * ULID_LENGTH


def _nothing(*_: Any, **__: Any) -> None:
    """Instead of what a rule does."""


def _yes(*_: Any, **__: Any) -> bool:
    return True


def _no(*_: Any, **__: Any) -> bool:
    return False


# -- the commit


def _refusals_are_final(self: Committer, read: Any, body: bytes) -> Any:
    sent = _send(self, read, body)
    if isinstance(sent, StoreError):
        raise sent
    return sent


_send = Committer._send


def _later_is_damage(version: object) -> int:
    try:
        return check_version(version)
    except NewerFormat as error:
        raise CorruptData(error.message) from error


def _read_once(store: Any, fetched: Any = None, key: str = ROOT_KEY) -> Any:
    found = store.get(key) if fetched is None else fetched
    return decode(found.body), found


def _segment_once(store: Any, ref: Any) -> bytes:
    return bytes(store.get(ref.key).body)


def _one_try_tells(self: Trial, experiment: Any) -> bool:
    return self._tried(experiment) != "broken"


def _errors_tell(self: Trial, key: str, body: bytes, answer: str, stands: bytes | None) -> str:
    now = self._body(key)
    if now == body:
        return "broken" if answer != "refused" else "unknown"
    return "kept" if answer != "done" and now == stands else "unknown"


# -- the collector


def _inherited_too(committer: Any, pace: Any, marked: Any) -> Iterator[Any]:
    """Deletes what some root says a collector has condemned, whoever wrote that."""
    if marked.root.collecting:
        Sweeper(committer, pace, marked.root, marked.held).sweep(frozenset(marked.root.collecting))
    yield from _swept(committer, pace, marked)


def _there_is_enough(store: Any, key: str, _dropped: Any) -> Any:
    try:
        return store.head(key).token
    except ObjectMissing:
        return None


def _dead_if_any_is_dropped(name: str, one: ObjectClaim, other: ObjectClaim) -> ObjectClaim:
    return min(one, other, key=lambda claim: claim.state) if is_pack(name) else both(name, one, other)


def _newest_layer_only(_parts: Any, root: Any, entries: list[Entry]) -> frozenset[str]:
    """A row that is not in the newest layer is taken for unchanged."""
    now = {entry: root.row(entry.path) for entry in entries}
    return frozenset(e.path for e, row in now.items() if row is None or (row.key, row.seq) == (e.key, e.seq))


# -- the cache


@contextmanager
def _announced_afterwards(self: Any, paths: Any, kind: Any = "write", *, confirmed: bool = False) -> Iterator[None]:
    names = list(paths)
    with self._context.tree_lock.shared(self._context.policy.lock_timeout):
        rows = self._expanded(names) if kind == "delete" else names
        yield
        self.state.announce(rows, kind, confirmed=confirmed)


def _retired_by_path(tx: Any, snapshot: Any, scope: Any, unresolved: Any) -> list[Any]:
    """Drops whatever is announced of a path, whoever announced it and when."""
    for row in _settled_rows(snapshot, scope, set(unresolved)):
        tx._db.execute("DELETE FROM journal WHERE path = ?", (row.path,))
    return []


def _only_announced(self: Any, facts: Any) -> bool:
    return not (self.announced_since and self._announced(facts.path))


def _same_bytes_are_base(self: Any, entry: Entry) -> bool:
    return self.base is not None and (entry.sha256 == self.base.sha256 or entry.identity == self.base.identity)


def _absence_deletes(local: Any, remote: Any, equal: bool) -> Any:
    return decide("deleted" if (local, remote) == ("absent", "same") else local, remote, equal)


def _found_is_edited(local: Any, remote: Any, equal: bool) -> Any:
    return decide("edited" if (local, remote) == ("found", "tombstone") else local, remote, equal)


def _deferred_nowhere(self: Any, _tx: Any, unit: Any, _why: str) -> None:
    self.stats.unresolved.add(unit.unit)
    self.stats.again |= not any(a.path in self.stats.failed for a in unit.actions)


def _each_by_itself(self: Any, units: Any, root: Any) -> list[Any]:
    return [unit for unit in units if self._still_right(unit, root)]


Broken = tuple[str, object]
"""`module:name`, and what stands there instead. Named where it is defined it is replaced wherever it is imported;
named where it is imported it is replaced only there."""

RULES: Final[Mapping[str, tuple[Broken, ...]]] = {
    # the root is swapped only on the token that was read, whatever is believed of the store
    "commit.condition": (("swamp.commit.commit:_condition_on", _nothing),),
    # an unclear answer is resolved by looking for the op
    "commit.read-back": (("swamp.commit.commit:Committer._send", _refusals_are_final),),
    # nothing is built on a commit before its log record exists
    "commit.log-before-record": (("swamp.commit.commit:Committer._log_mine", _nothing),),
    # without conditions: nothing is recorded that was not written under a lease still held
    "commit.alone": (
        ("swamp.commit.commit:Committer._holds_lock", _yes),
        ("swamp.commit.commit:Committer._shown", _no),
    ),
    # whether conditions count is the root's word, for every machine
    "store.one-verdict": (
        ("swamp.commit.conditions:ConditionsVerdict.hear", _nothing),
        ("swamp.commit.conditions:ConditionsVerdict.must_agree", _nothing),
        ("swamp.commit.conditions:ConditionsVerdict.refuse_lost", _nothing),
    ),
    # an error says nothing about what a store enforces
    "probe.evidence": (
        ("swamp.store.trial:Trial.keeps", _one_try_tells),
        ("swamp.store.trial:Trial._judged", _errors_tell),
    ),
    # a root or record of a later version is not damage
    "format.newer": (
        ("swamp.index.root:check_version", _later_is_damage),
        ("swamp.commit.log:_beside", lambda *_: iter(())),
        ("swamp.sync.unchanged:refuse_put_back", _nothing),
    ),
    # one bad reading of the index is not damage
    "read.twice": (("swamp.index.read:read_root", _read_once), ("swamp.index.read:read_segment", _segment_once)),
    # a page that is no listing never ends one early
    "store.whole-listing": (("swamp.store.port:whole_listing", lambda pages, *_: iter(pages)),),
    # a writer gives up keys that a collector has condemned
    "gc.collecting-check": (("swamp.index.root:Root.condemns", _no),),
    # a writer looks again for uploads made before a collection
    "gc.epoch-check": (("swamp.index.root:Root.has_collected_since", _no),),
    # an inherited list of condemned keys deletes nothing that gc itself would not
    "gc.own-keys": (("swamp.commit.collect:_swept", _inherited_too), ("swamp.commit.collect:may_condemn", _yes)),
    # a plain key is deleted only while it holds the very bytes that we dropped
    "gc.plain-unchanged": (
        ("swamp.commit.collect:may_hold", _yes),
        ("swamp.commit.collect:unchanged", _there_is_enough),
        ("swamp.commit.collect:Sweeper._holds", _yes),
    ),
    # what a collector condemns is an object, with every slice of it
    "gc.objects": (
        ("swamp.index.root:Root.condemns", lambda self, key: key in self.condemned),
        ("swamp.commit.collect:named_object", lambda key: key),
    ),
    # what verify marks or heals is the row that wins on the root it swaps on
    "verify.winner": (("swamp.sync.verify:_unchanged", _newest_layer_only),),
    # every upload call has its own key
    "object.key-once": (
        ("swamp.sync.transfer:payload_key", lambda path, _: f"{path}~{_ONE_ULID}"),
        ("swamp.sync.transfer:pack_key", lambda _: pack_key(_ONE_ULID)),
    ),
    # announced before the first byte changes
    "journal.first": (("swamp.sync.engine:Engine.announce", _announced_afterwards),),
    # a newer announcement outlives the record of an older one
    "journal.survives": (("swamp.sync.record:retire", _retired_by_path),),
    # nobody mutates while a plan looks
    "tree-lock.plan": (
        ("swamp.sync.observe:tree_exclusive", nullcontext),
        ("swamp.sync.push:tree_exclusive", nullcontext),
    ),
    # nobody mutates while a pull renames
    "tree-lock.rename": (
        ("swamp.sync.pull:tree_exclusive", nullcontext),
        ("swamp.sync.engine:tree_exclusive", nullcontext),
        ("swamp.sync.apply:Moment._announced", _no),
    ),
    # one push or pull at a time in a cache
    "sync-lock": (("swamp.sync.engine:Engine._alone", nullcontext),),
    # a pull renames only over the base that its plan read
    "pull.base-unchanged": (("swamp.sync.apply:Moment.as_planned", _only_announced),),
    # a remote row that names my upload proves my commit
    "staged.mine": (("swamp.sync.gather:Gatherer._mine", lambda _self, _path, base, _remote: base),),
    # absence is not a deletion
    "delete.intent": (("swamp.sync.decide:decide", _absence_deletes),),
    # a file that vanished unannounced is damage, and comes back
    "tree.damage": (
        ("swamp.cache.damage:Look.damage", lambda *_: Damage()),
        ("swamp.sync.apply:Mender.missing_at", lambda *_: []),
    ),
    # a walk of the whole tree meets the whole index
    "full.view": (("swamp.sync.view:view_root", lambda store, state, root, **_: view_root(store, state, root)),),
    # a delete removes what was deleted and nothing newer
    "delete.by-key": (("swamp.sync.decide:Facts._is_base", _same_bytes_are_base),),
    # an old file does not rise from the dead
    "found.tombstone": (("swamp.sync.decide:decide", _found_is_edited),),
    # a push moves the mark only if it built on what was pulled
    "pulled.op": (("swamp.sync.record:builds_on_pulled", _yes),),
    # what a pull could not bring is remembered
    "pull.deferred": (
        ("swamp.sync.pull:Pull._defer", _deferred_nowhere),
        ("swamp.sync.pull:Pull._remember_deferred", _nothing),
    ),
    # a numberless row takes its segment's number
    "segment.added-seq": (("swamp.index.columns:_numbered", lambda batch, _: batch),),
    # per path the newest row wins wherever it lies
    "index.highest-seq": (("swamp.index.lookup:newer", lambda one, _: one),),
    # a partial compaction keeps tombstones
    "compact.tombstones": (("swamp.index.lookup:forgettable", lambda *_: _yes),),
    # a stat taken too soon after a write proves nothing
    "hint.racy": (("swamp.cache.files:trusted", _yes),),
    # a kept put looks for its version before it makes another
    "outbox.once": (("swamp.cache.outbox:Kept.has_begun", property(_no)),),
    # a read applies only what harms nobody
    "read.harmless": (("swamp.sync.run:harmless", lambda planned, _: planned),),
    # state belongs to one store
    "state.identity": (("swamp.sync.view:is_of_store", _yes),),
    # two files of one version that some machine cannot tell apart are a conflict
    "coexist.unit": (("swamp.sync.plan:collisions", lambda _: []),),
    # a version is committed as a whole
    "unit.whole": (
        ("swamp.sync.units:unit_of", lambda path: path),
        ("swamp.sync.push:Push._names_waiting", _no),
        ("swamp.sync.push:Push._allowed", _each_by_itself),
    ),
    # content that was moved, healed or marked is still the same content
    "pack.identity": (
        ("swamp.index.entry:Known.identity", property(lambda self: self.key)),
        ("swamp.index.entry:Known.number", property(lambda self: self.seq)),
        ("swamp.index.entry:Unreferenced.identity", property(lambda self: self.key)),
    ),
    # tombstones, dropped rows and base name the place that the newest root names
    "pack.place-now": (
        ("swamp.sync.apply:take_places", _nothing),
        ("swamp.sync.push:Push._now", lambda _self, action, _root: action.facts.remote),
    ),
    # a pack is live while any winning row has bytes in it
    "pack.live-if-any": (("swamp.commit.collect:both", _dead_if_any_is_dropped),),
    # a repack moves exactly the rows that still are what it read
    "pack.moved-only-unchanged": (("swamp.commit.repack:is_what_was_read", _yes),),
}

ALSO: Final[Mapping[str, str]] = {
    "commit.single-winner": "commit.condition",
    "commit.unknown-is-not-failure": "commit.read-back",
    "commit.logged": "commit.log-before-record",
    "crash.resolved": "staged.mine",
    "state.bound": "state.identity",
    "cache.no-torn-file": "pull.base-unchanged",
    "sync.derived": "pull.deferred",
}
"""Invariants that are shown to be needed by a rule of another name."""

ELSEWHERE: Final = frozenset(
    {
        "cache.disposable",  # no function upholds it: every mix with sabotage defends it
        "commit.root-last",  # an order of calls in every committer; tests/models/test_model_commit.py
        "conflict.keeps-both",  # tests/regressions/engine/test_sequences.py
        "entry.keeps",  # tests/regressions/engine
        "lease.no-clock",  # tests/regressions/test_K_leases.py
        "read.snapshot",  # tests/regressions/engine/test_S01_to_S17.py
        "rebuild.keeps",  # tests/regressions/test_L58_L73_rebuild.py
        "rebuild.newest-record",  # tests/regressions/test_L58_L73_rebuild.py
        "scan.honest",  # the simulator's file systems tell the truth; tests/cache/test_cache_scan.py
        "spark.publish-once",  # there is no Spark in the simulator; tests/spark
    }
)
"""Invariants of PROTOCOL.md that other tests show to be needed: the simulator does not play what harms them."""


@contextmanager
def broken(*rules: str) -> Iterator[None]:
    """The product without these rules."""
    with ExitStack() as stack:
        for rule in rules:
            for where, instead in RULES[rule]:
                stack.enter_context(_replaced(where, instead))
        yield


def found(where: str) -> tuple[Any, str]:
    """The module or class that has what a line of the table replaces, and its name there. Raises AttributeError."""
    module, _, name = where.partition(":")
    holder: Any = importlib.import_module(module)
    *outer, last = name.split(".")
    for part in outer:
        holder = getattr(holder, part)
    if last not in vars(holder):
        raise AttributeError(f"there is no {where}")
    return holder, last


@contextmanager
def _replaced(where: str, instead: object) -> Iterator[None]:
    holder, name = found(where)
    right = vars(holder)[name]
    places = [(holder, name)]
    if getattr(right, "__module__", "") == getattr(holder, "__name__", None):
        places += _bindings(right, _modules())
    before = _modules()
    for place, known_as in places:
        setattr(place, known_as, instead)
    try:
        yield
    finally:
        for place, known_as in [*places, *_bindings(instead, _modules() - before)]:
            setattr(place, known_as, right)


def _modules() -> set[ModuleType]:
    return {module for name, module in sys.modules.items() if name.startswith("swamp.")}


def _bindings(wanted: object, modules: set[ModuleType]) -> list[tuple[Any, str]]:
    return [(module, name) for module in modules for name, here in vars(module).items() if here is wanted]
