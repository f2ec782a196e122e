"""Protocol rules as named switches, so that a test can take one out of the real code path and watch a seed fail.

In production every rule is on and nothing here can turn one off: `rules_off` is called by the simulator's
mutation test only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

RULES = frozenset(
    {
        "commit.condition",  # the root is swapped only on the token that was read, whatever is believed of the store
        "commit.read-back",  # an unclear answer is resolved by looking for the op
        "commit.log-before-record",  # nothing is built on a commit before its log record exists
        "commit.alone",  # without conditions: nothing is recorded that was not written under a lease still held
        "store.one-verdict",  # whether conditions count is the root's word, for every machine
        "probe.evidence",  # an error says nothing about what a store enforces
        "format.newer",  # a root or record of a later version is not damage
        "read.twice",  # one bad reading of the index is not damage
        "gc.collecting-check",  # a writer gives up keys that a collector has condemned
        "gc.epoch-check",  # a writer looks again for uploads made before a collection
        "gc.own-keys",  # an inherited list of condemned keys deletes nothing that gc itself would not
        "gc.plain-unchanged",  # a plain key is deleted only while it holds the very bytes that we dropped
        "verify.winner",  # what verify marks or heals is the row that wins on the root it swaps on
        "object.key-once",  # every upload call has its own key
        "journal.first",  # announced before the first byte changes
        "journal.survives",  # a newer announcement outlives the record of an older one
        "tree-lock.plan",  # nobody mutates while a plan looks
        "tree-lock.rename",  # nobody mutates while a pull renames
        "sync-lock",  # one push or pull at a time in a cache
        "pull.base-unchanged",  # a pull renames only over the base that its plan read
        "staged.mine",  # a remote row that names my upload proves my commit
        "delete.intent",  # absence is not a deletion
        "tree.damage",  # a file that vanished unannounced is damage, and comes back
        "full.view",  # a walk of the whole tree meets the whole index
        "delete.by-key",  # a delete removes what was deleted and nothing newer
        "found.tombstone",  # an old file does not rise from the dead
        "pulled.op",  # a push moves the mark only if it built on what was pulled
        "pull.deferred",  # what a pull could not bring is remembered
        "segment.added-seq",  # a numberless row takes its segment's number
        "index.highest-seq",  # per path the newest row wins wherever it lies
        "compact.tombstones",  # a partial compaction keeps tombstones
        "hint.racy",  # a stat taken too soon after a write proves nothing
        "outbox.once",  # a kept put looks for its version before it makes another
        "read.harmless",  # a read applies only what harms nobody
        "state.identity",  # state belongs to one store
        "coexist.unit",  # two files of one version that some machine cannot tell apart are a conflict
        "unit.whole",  # a version is committed as a whole
        "pack.identity",  # content that was moved, healed or marked is still the same content
        "pack.place-now",  # tombstones, dropped rows and base name the place that the newest root names
        "pack.live-if-any",  # a pack is live while any winning row has bytes in it
        "pack.moved-only-unchanged",  # a repack moves exactly the rows that still are what it read
        "gc.objects",  # what a collector condemns is an object, with every slice of it
    }
)
_off: set[str] = set()


def rule(name: str) -> bool:
    """Whether the protocol rule `name` is in force (always, outside the mutation test)."""
    return name not in _off


@contextmanager
def rules_off(*names: str) -> Iterator[None]:
    """Take rules out, for the mutation test."""
    unknown = set(names) - RULES
    if unknown:
        raise ValueError(f"no such rule: {', '.join(sorted(unknown))}")
    _off.update(names)
    try:
        yield
    finally:
        _off.difference_update(names)
