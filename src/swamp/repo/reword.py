"""`doctor --repair` where a store does something else with conditional writes than its index says: asks, changes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from swamp.commit.build import Changes
from swamp.index.formats import NEEDS
from swamp.index.root import ENFORCED, IGNORED, Root
from swamp.repo.probe import probe_again

if TYPE_CHECKING:
    from swamp.repo.datastore import Datastore

LOOK_AGAIN: Final = 2
"""Added to `gcEpoch`, so that every writer looks again for what it has uploaded."""


def change_word(datastore: Datastore, agree: Callable[[str], None]) -> list[str]:
    """Measures, and where the root says otherwise changes its word in a commit of its own, once somebody has agreed.

    `agree` raises when nobody does. The commit is made under the lease of a store without conditions whichever way the
    word changes: until it has won, one of the two may be true. inv[store.one-verdict]
    """
    committer = datastore.must_sync().committer
    root = committer.read().root
    if root is None:
        return []
    word = ENFORCED if probe_again(datastore).capabilities.safe else IGNORED
    if word == (root.conditions or ENFORCED) and not committer.word.has_lost(root):
        return []
    agree(_question(root, word))

    def propose(now: Root) -> Changes | None:
        if now.conditions == word and now.op != root.op:
            return None  # somebody else did it meanwhile
        return Changes(conditions=word, gc_epoch_step=LOOK_AGAIN)

    with committer.word.changing():
        done = committer.commit(propose, datastore.context.cancel.check)
    now = done.root if done else committer.read().root
    if now is not None:
        committer.word.hear(now)
    return [f"the index says now that conditional writes are {word} here (commit {done.root.seq})"] if done else []


def _question(root: Root, word: str) -> str:
    if word == ENFORCED:
        return (
            "This store was seen to enforce conditional writes, and its index says that it ignores them. "
            "Let machines write at the same time again?"
        )
    higher = ""
    if root.version < NEEDS["ignored"]:
        higher = f" The store gets format version {NEEDS['ignored']} with that: older clients stop with exit 65."
    return (
        "This store was seen to ignore conditional writes, and its index says that it enforces them. Change the "
        f"index's word, so that every machine commits under a lease, and no two machines write at once?{higher}"
    )
