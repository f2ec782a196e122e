"""Whether a store enforces conditions: one verdict per store, the root's word, and every machine works by it.

Two machines that believe different things of one store undo each other's commits. So the root says `conditions:
enforced | ignored`, written by who makes it; a root without the word says *enforced*. What a machine has measured by
itself is no reason to work otherwise: it is a reason to stop. inv[store.one-verdict]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from swamp.errors import CorruptData
from swamp.index.root import ENFORCED, IGNORED, Root
from swamp.values import mutable, value

REPAIR_HINT: Final = "run: swamp datastore doctor --repair (it measures again, asks, and changes the index's word)"


@value
class SaidIgnored:
    """When a root of this store has last said `ignored`: the commit that made it say so, and the newest one seen."""

    store_id: str
    op: str
    seq: int


@mutable
class ConditionsVerdict:
    """What one process works by. Changes when a root says something else."""

    ignored: bool = False
    said: SaidIgnored | None = None
    """Sticky: only a root that names a later commit as `conditionsOp` takes it back."""
    measure: Callable[[], bool] | None = None
    """Finds out by trying whether conditions are ignored. Raises Unavailable when it cannot tell."""
    doubted: bool = False
    """What was measured here before is not what roots say: measured again before the first write."""
    convicted: bool = False
    """Measured on this machine, and lately, to ignore conditions: the setup just before was it."""
    deaf: bool = False

    def hear(self, root: Root) -> None:
        """Works by the word of this root from now on, unless the root has lost it."""
        if self.deaf:
            return
        self.said = remembered(self.said, root)
        self.ignored = self.said is not None

    def has_lost(self, root: Root) -> bool:
        """Whether this root should say `ignored` and does not: a late write has put an older one in its place."""
        return root.conditions != IGNORED and remembered(self.said, root) is not None

    def must_agree(self, root: Root) -> None:
        """Before a write. Raises CorruptData when the root has lost its word, or when measuring contradicts it."""
        self.refuse_lost(root)
        if self.doubted and self.measure is not None and root.conditions != IGNORED:
            check_agreement(root, ignored=self.measure())
            self.doubted = False

    def refuse_lost(self, root: Root) -> None:
        """Raises CorruptData when the root has lost its word: what it says otherwise is as old."""
        if self.has_lost(root):
            raise CorruptData(
                "the store's index no longer says that this store ignores conditional writes, and nobody took it back: "
                "it is an older index that a late write has put there",
                hint=REPAIR_HINT,
            )

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Around the commit that changes the word: under the lease, whatever roots say and have said."""
        before = self.ignored, self.said, self.doubted
        self.ignored, self.said, self.doubted, self.deaf = True, None, False, True
        try:
            yield
        except BaseException:
            self.ignored, self.said, self.doubted = before
            raise
        finally:
            self.deaf = False

    def first_word(self) -> str:
        """What the first root of a store says: as it was measured, now or by the setup just before."""
        if self.measure is not None and not self.convicted:
            self.ignored = self.measure()
        return IGNORED if self.ignored else ENFORCED


def remembered(said: SaidIgnored | None, root: Root) -> SaidIgnored | None:
    """What is to be remembered of `ignored` after this root: it stays until a later commit takes it back."""
    before = said if said is not None and said.store_id == root.store_id else None
    if root.conditions == IGNORED:
        return SaidIgnored(root.store_id, root.conditions_op, max(root.seq, before.seq) if before else root.seq)
    if before is None or root.conditions != ENFORCED or root.conditions_op in ("", before.op):
        return before
    # Taken back, if the word was changed by a commit after the newest root that was seen to say `ignored`.
    seq = next((seq for op, seq in root.recent_ops if op == root.conditions_op), None)
    return None if (root.conditions_op > before.op if seq is None else seq > before.seq) else before


def check_agreement(root: Root, *, ignored: bool) -> None:
    """Raises CorruptData when the store was measured to do something else than its root says. inv[store.one-verdict]"""
    if ignored == (root.conditions == IGNORED):
        return
    measured, says = ("ignores", "enforces") if ignored else ("enforces", "ignores")
    raise CorruptData(
        f"this store {measured} conditional writes, as measured just now, and its index says that it {says} them: "
        "nothing was written",
        hint=REPAIR_HINT,
        details={"measured": IGNORED if ignored else ENFORCED, "conditions": root.conditions or ENFORCED},
    )
