"""Commits changes to a root: stage -> check -> compare-and-swap -> read back -> log.

A caller proposes changes to a root; the proposal is made again on every root that it must be rebased onto. Exactly one
root wins each sequence number. inv[commit.single-winner]
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from typing import TYPE_CHECKING, Final, TypeVar

from swamp.commit.build import Changes, Flush, build, layer_bytes, numberless, put_segment, rebuilt, survive
from swamp.commit.conditions import ConditionsVerdict
from swamp.commit.log import has_op, log_key, log_status, newest_whole, put_log, refuse_later_formats
from swamp.env import Env, rfc3339
from swamp.errors import (
    AccessDenied,
    ConditionFailed,
    CorruptData,
    Misconfigured,
    ObjectMissing,
    OutcomeUnknown,
    StoreError,
    Unavailable,
)
from swamp.index.entry import Row
from swamp.index.read import read_root, read_segment
from swamp.index.root import NEWEST, ROOT_KEY, Root, SegmentRef, Writer, encode, first_root
from swamp.store.port import CREATE, Condition, Match, ObjectStore, Token
from swamp.store.retry import Backoff
from swamp.trace import traced
from swamp.values import value

if TYPE_CHECKING:
    from swamp.index.footer import Proven
    from swamp.locks.hold import HeldLease

__all__ = ["Changes", "Committed", "Committer", "Pace", "Propose", "RootRead", "build", "rebuilt"]
LAYER_ROWS: Final = 500
LAYER_BYTES: Final = 128 * 1024
LATE_RECORD: Final = 5.0  # seconds; a root is not lost, noticed and rebuilt by another machine in less


@value
class RootRead:
    """A root as it was read: what a swap is conditioned on."""

    root: Root | None
    token: Token | None
    body: bytes = b""


@value
class Committed:
    """A commit that won. `token` is None when somebody built on it before it could be read back."""

    root: Root
    body: bytes
    token: Token | None
    proven: float | None = None
    """When, on my own clock, its lease was shown to be mine after this root was there."""


class LeaseLost(Exception):
    """The commit lock was lost to somebody else: nothing that was done under it counts until it is found again."""


T = TypeVar("T")
Propose = Callable[[Root], Changes | None]
Pace = Callable[[], None]
"""Raises when the work must stop: cancelled, or no progress for too long."""


@value
class Committer:
    """Commits to one store as one writer."""

    store: ObjectStore
    writer: Writer
    env: Env
    word: ConditionsVerdict = field(default_factory=ConditionsVerdict)
    """Whether the store enforces conditions, by its root's word."""
    exclusive: Callable[[], AbstractContextManager[HeldLease | None]] = nullcontext
    """Held around every commit on a store that does not enforce conditions: a lease, read back by its nonce."""
    logged: set[tuple[str, int]] = field(default_factory=set)
    """Commits whose record this process has put."""

    def read(self) -> RootRead:
        """The root as it is now; a definite not-found is no root, any other error is an error (L21)."""
        try:
            root, fetched = read_root(self.store)
        except ObjectMissing:
            return RootRead(None, None)
        return RootRead(root, fetched.meta.token, fetched.body)

    def _read_any(self) -> RootRead:
        """The same, where a root that cannot be read has a token and nothing else."""
        try:
            return self.read()
        except CorruptData:
            return RootRead(None, self.store.head(ROOT_KEY).token)

    def fetch(self, ref: SegmentRef) -> Proven:
        """A segment's bytes; whoever reads rows out of them verifies them first."""
        return read_segment(self.store, ref)

    @property
    def enforced(self) -> bool:
        """Whether a condition that no longer holds is refused here; if not, every commit is made under a lease."""
        return not self.word.ignored

    def first_root(self) -> Root:
        """The root of a store that has none, with the word of who makes it about conditions."""
        now = rfc3339(self.env.clock.now())
        return first_root(self.env.uuid(), self.env.ulid(), now, self.writer, self.word.first_word())

    def replace(self, read: RootRead, root: Root, pace: Pace) -> RootRead:
        """Puts `root` where `read` was; whoever was first, the root that now is there."""
        body = encode(root)
        return self._locked(lambda held: self._replaced(held, read, root, body, pace), pace)

    def _replaced(self, held: HeldLease | None, read: RootRead, root: Root, body: bytes, pace: Pace) -> RootRead:
        if held is not None:
            now = self._newest(held)
            if now.root is not None and now.root.op == root.op:
                self._log(held, root, body)
                return now
            if now.token != read.token:  # the store would not notice
                return now
        outcome = self._swap(read, root, body, pace, held)
        if isinstance(outcome, RootRead):
            return outcome if outcome.root is not None else self.read()
        self._log(held, root, body, mine=True, proven=outcome.proven)
        return RootRead(root, outcome.token, body) if outcome.token else self.read()

    def confirmed(self, pace: Pace) -> RootRead:
        """The root that counts on a store without conditions, with its record."""

        def recorded(held: HeldLease | None) -> RootRead:
            read = self._newest(held)
            if read.root is not None:
                self._log(held, read.root, read.body)
            return read

        return self._locked(recorded, pace)

    @traced(lambda committer, *_, **more: ("commit", {"op": more.get("op")}))
    def commit(
        self, propose: Propose, pace: Pace, *, op: str | None = None, start: RootRead | None = None, logged: str = ""
    ) -> Committed | None:
        """Makes the proposal true and logged, or returns None when on the newest root nothing is left to do.

        `start` saves a read when the caller has just made it; `logged` is an op known to have its record.
        """
        mine = op or self.env.ulid()
        return self._locked(lambda held: self._commit(held, propose, pace, mine, start, logged), pace)

    def _locked(self, work: Callable[[HeldLease | None], T], pace: Pace) -> T:
        """Does `work` under the commit lock where the store needs one; again when the lock was lost meanwhile."""
        while True:
            with nullcontext() if self.enforced else self.exclusive() as held:
                try:
                    return work(held)
                except LeaseLost:
                    pace()

    def _commit(
        self, held: HeldLease | None, propose: Propose, pace: Pace, op: str, start: RootRead | None, logged: str
    ) -> Committed | None:
        read = start if start and held is None else self._newest(held)
        staged: Flush | None = None
        while True:
            pace()
            root = _present(read)
            self._obey(root, held)
            if root.knows_op(op):
                return self._landed(held, read, op)
            if root.op != logged:
                if root.version < NEWEST:  # a later one than ours cannot be read, so none of ours can be beside it
                    refuse_later_formats(self.store, root)
                self._log(held, root, read.body)
                logged = root.op
            changes = propose(root)
            if changes is None:
                return None
            staged = self._flush(root, changes, staged)
            new = build(root, changes, op, rfc3339(self.env.clock.now()), self.writer, staged)
            sent = self.env.clock.monotonic()
            outcome = self._swap(read, new, encode(new), pace, held)
            if isinstance(outcome, Committed):
                self._log_mine(held, outcome)
                moved = self._undone(outcome, sent, pace)
                if moved is None:
                    return outcome
                outcome = moved
            read = outcome if held is None else self._newest(held)

    def _obey(self, root: Root, held: HeldLease | None) -> None:
        """Commits as this root wants it: without a lease only where it says that conditions are enforced."""
        self.word.hear(root)
        if held is None and self.word.ignored:
            raise LeaseLost
        self.word.must_agree(root)

    def _undone(self, done: Committed, sent: float, pace: Pace) -> RootRead | None:
        """The root that stands now, if my commit is not in its past: the root was lost before my record existed, and
        somebody rebuilt it without me. Looked at only when that can have happened: the record came late."""
        if self.env.clock.monotonic() - sent < LATE_RECORD:
            return None
        seen = self._look(pace)
        return None if seen.root is not None and seen.root.knows_op(done.root.op) else seen

    def _log_mine(self, held: HeldLease | None, done: Committed) -> None:
        """The record of a commit of mine, before anything is built on it. inv[commit.logged]"""
        self._log(held, done.root, done.body, mine=True, proven=done.proven)

    def _log(
        self, held: HeldLease | None, root: Root, body: bytes, *, mine: bool = False, proven: float | None = None
    ) -> None:
        """The record of a root that counts. inv[commit.logged]

        Without conditions a root counts when the lease was still mine after it was there: whoever takes the lease
        later reads it, and whoever had it before finds its own lease gone and records nothing. So no two roots of one
        number are recorded, and of two that were written the recorded one is put back. inv[commit.alone]
        """
        asked = self.env.clock.monotonic() if proven is None else proven
        if held is None and (root.op, root.seq) in self.logged:
            return  # by this very process
        if proven is None and not self._holds_lock(held):
            raise LeaseLost
        put_log(self.store, self.env, root, body)
        self.logged.add((root.op, root.seq))
        late = self.env.clock.monotonic() - asked >= LATE_RECORD
        if late and not self._holds_lock(held):
            if mine:
                self._withdraw(root)
            raise LeaseLost

    def _holds_lock(self, held: HeldLease | None) -> bool:
        """Whether nobody else can have written a root since: conditions see to that, or a lease that is still mine."""
        return held is None or held.verify()

    def _withdraw(self, root: Root) -> None:
        """A record of mine that came so late that another may have had the lease: it goes, unless its root stands."""
        now = self._read_any().root
        if now is None or (root.op, root.seq) not in now.recent_ops:
            self.store.delete([log_key(root.seq, root.op)])

    def _newest(self, held: HeldLease | None) -> RootRead:
        """The root; where a late write may have rolled it back, what the log knows to be later is put back first."""
        read = self._read_any()
        if held is None or read.root is None or log_status(self.store, read.root) != "rolled back":
            return read
        recorded = newest_whole(self.store)
        if recorded is None:
            return read
        # The next number, not the one after: a record of this that comes late must not stand above another's commit.
        root = rebuilt(recorded, self.env, self.writer, step=1)
        body = encode(root)
        sent = self._send(read, body)
        if isinstance(sent, AccessDenied | Misconfigured):
            raise sent
        if not isinstance(sent, str):
            raise LeaseLost  # somebody was faster, or nothing is known: everything is looked at again
        self._log(held, root, body, mine=True)
        return RootRead(root, sent, body)

    def _landed(self, held: HeldLease | None, read: RootRead, op: str) -> Committed:
        """The op was committed by an earlier attempt: report the root it is in."""
        root = _present(read)
        self._log(held, root, read.body, mine=root.op == op)
        return Committed(root, read.body, read.token if root.op == op else None)

    def _flush(self, root: Root, changes: Changes, staged: Flush | None) -> Flush | None:
        """A layer past its bound moves into a segment."""
        if staged and staged.changes == changes and survive(self.store, root, (staged.ref.key,), staged.epoch):
            return staged
        if root.layer_rows + changes.rows <= LAYER_ROWS and layer_bytes(root, changes) <= LAYER_BYTES:
            return None
        from swamp.index.segment import write_segment

        own = changes.paths
        layer: list[Row] = [e for e in root.entries.values() if e.path not in own]
        layer += [t for t in root.deleted.values() if t.path not in own]
        gone = {d.key for d in changes.dropped}
        dropped = [d for d in root.dropped.values() if d.key not in gone]
        segment = write_segment([*layer, *dropped, *numberless(changes)])
        ref = put_segment(self.store, self.env, segment)
        return Flush(changes, ref, frozenset(layer), frozenset(dropped), root.gc_epoch)

    def _swap(
        self, read: RootRead, new: Root, body: bytes, pace: Pace, held: HeldLease | None = None
    ) -> Committed | RootRead:
        """One outcome, the true one: won, or the root that stands in the way. inv[commit.unknown-is-not-failure]

        No status code decides. An answer that is not a clear success says only: read the root.
        """
        backoff = Backoff(self.env)
        while True:
            refusal = self._send(read, body)
            asked = self.env.clock.monotonic()
            if isinstance(refusal, str) and self.enforced:
                return Committed(new, body, refusal)
            if isinstance(refusal, str) and held is not None and refusal != read.token and self._shown(held, refusal):
                return Committed(new, body, refusal, asked)  # the old root's token would show that the old root stands
            seen = self._look(pace)
            if seen.root is not None and seen.root.knows_op(new.op):
                return Committed(new, body, seen.token if seen.root.op == new.op else None)
            if seen.token != read.token:
                if self._in_log(seen, read, new.op):
                    return Committed(new, body, None)
                return seen
            if isinstance(refusal, AccessDenied | Misconfigured):
                raise refusal  # the root has not moved and never will by these rights
            # The token is still the one I matched on: nothing is known. The same bytes again, until the idle timeout.
            _pause(backoff, pace, refusal if isinstance(refusal, StoreError) else None)

    def _shown(self, held: HeldLease, token: Token) -> bool:
        """Without conditions: the root is read back and the lease, after it, in one look. The write was answered
        before that look began, so that what it shows of the lease is later than the root. inv[commit.alone]"""
        return held.shows(ROOT_KEY, token)

    def _send(self, read: RootRead, body: bytes) -> Token | StoreError:
        try:
            return self.store.put(ROOT_KEY, body, _condition_on(read)).token
        except (ConditionFailed, Unavailable, AccessDenied, Misconfigured, ObjectMissing) as error:
            return error

    def _look(self, pace: Pace) -> RootRead:
        backoff = Backoff(self.env)
        while True:
            try:
                return self._read_any()
            except Unavailable as error:
                _pause(backoff, pace, error)

    def _in_log(self, seen: RootRead, read: RootRead, op: str) -> bool:
        """My op has scrolled out of `recentOps`: the log's key names still tell."""
        base = read.root.seq if read.root else 0
        if seen.root is None or seen.root.oldest_known_seq <= base + 1:
            return False
        return has_op(self.store, op, after_seq=base)


def _pause(backoff: Backoff, pace: Pace, error: StoreError | None) -> None:
    """Waits before the next attempt. Raises OutcomeUnknown when there is to be none, with what the store last said:
    status, code and request id are what its operator asks for (C20)."""
    try:
        pace()
    except Unavailable as stuck:
        why = error or stuck
        raise OutcomeUnknown(
            f"the commit was sent and the store does not say whether it happened: {why.message}",
            hint="run the same command again: it finds out, and nothing is done twice",
            details=why.details,
        ) from stuck
    backoff.pause(error)


def _condition_on(read: RootRead) -> Condition:
    """A root is written only over the one that was read, whatever is believed of the store. inv[commit.condition]"""
    return CREATE if read.token is None else Match(read.token)


def _present(read: RootRead) -> Root:
    if read.root is None:
        what = "has disappeared" if read.token is None else "was damaged"
        raise CorruptData(f"the index root {what} while it was in use", hint="run: swamp datastore doctor --repair")
    return read.root
