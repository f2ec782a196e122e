"""Decides what happens to one path from what is known of it (`Facts`), by one table that the docs print.

Per path: `local` is what the cache holds against base, `remote` what the root names against base (by key), and `equal`
whether both sides hold the same bytes. Rows do not overlap and cover every combination that can occur.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

from swamp.cache.rows import BaseRow
from swamp.cache.scan import Observed
from swamp.index.entry import Entry, Row, Tombstone
from swamp.sync.units import is_content, is_large_part
from swamp.values import value

Local = Literal["same", "absent", "deleted", "edited", "found"]
"""same: = base · absent: not here, nobody deleted it · deleted: not here, a delete row says so · edited: differs from
base and was announced · found: differs from base and nobody said so (`--full`, setup, lost state)."""

Remote = Literal["same", "newer", "tombstone", "none"]
"""same: base's key · newer: another key · tombstone: deleted by a commit · none: the root does not know the path."""

Verb = Literal["nothing", "pull", "aside", "delete", "restore", "forget", "adopt", "push", "bury", "conflict"]
"""What to do. restore: pull, and report that what was deleted is not what is there. bury: keep an old file's bytes in
conflicts/ instead of letting it rise from the dead."""


@value
class Decision:
    """One row: `equal` None means that it does not matter."""

    local: tuple[Local, ...]
    remote: tuple[Remote, ...]
    equal: bool | None
    verb: Verb
    why: str


_CHANGED: Final[tuple[Local, ...]] = ("edited", "found")
TABLE: Final[tuple[Decision, ...]] = (  # inv[decide.one-table]
    Decision(("same",), ("same",), None, "nothing", "unchanged"),
    Decision(("same",), ("newer",), False, "pull", "changed remotely"),
    Decision(("same",), ("newer",), True, "adopt", "same bytes under a new key"),
    Decision(("same",), ("tombstone", "none"), None, "aside", "deleted remotely"),
    Decision(("absent",), ("same", "newer"), None, "pull", "not here yet"),
    Decision(("deleted",), ("same",), None, "delete", "deleted here"),
    Decision(("deleted",), ("newer",), None, "restore", "what was deleted here is not what is there now"),
    Decision(("absent", "deleted"), ("tombstone", "none"), None, "forget", "gone on both sides"),
    Decision(_CHANGED, ("same", "newer"), True, "adopt", "both sides hold the same bytes"),
    Decision(_CHANGED, ("same",), False, "push", "changed here"),
    Decision(_CHANGED, ("none",), None, "push", "new here"),
    Decision(("edited",), ("tombstone",), None, "push", "an edit beats a delete"),
    Decision(("found",), ("tombstone",), None, "bury", "deleted remotely; this older file is kept aside"),
    Decision(_CHANGED, ("newer",), False, "conflict", "changed on both sides"),
)

_LOOKUP: Final[dict[tuple[Local, Remote, bool], Decision]] = {
    (local, remote, equal): row
    for row in TABLE
    for local in row.local
    for remote in row.remote
    for equal in ((True, False) if row.equal is None else (row.equal,))
}


def decide(local: Local, remote: Remote, equal: bool) -> Decision:
    """The one row that applies. inv[delete.intent]: absence alone never reaches `delete`."""
    return _LOOKUP[local, remote, equal]


@value
class Facts:
    """One path, seen from three sides. `sha256` is the local content's hash where it had to be learned."""

    path: str
    base: BaseRow | None
    local: Observed | None
    remote: Row | None
    edited: bool = False
    deleted: bool = False
    sha256: str | None = None
    remote_sha256: str | None = None
    in_history: bool = True
    """Whether base is an earlier state of this very root: only then does absence from the root mean anything."""
    owed: bool = False
    """An earlier sync left this path to a later one."""
    arrived: BaseRow | None = None
    """What base should have been, if the local bytes turn out to be those that the remote tombstone buries."""

    def hashed(self, sha256: str) -> Facts:
        """The same with the local bytes' hash, and with the base that it proves. inv[crash.resolved]"""
        proven = self.arrived is not None and self.arrived.sha256 == sha256
        return replace(self, sha256=sha256, base=self.arrived if proven else self.base)

    @property
    def unchanged(self) -> bool:
        """Local holds what base says, proven by hash or by a hint that can be trusted. inv[hint.racy]"""
        if self.local is None or self.base is None or not self.base.present:
            return False
        if self.local.size != self.base.size:
            return False
        if self.base.hint is not None and self.base.hint == self.local.hint:
            return True
        return self.sha256 is not None and self.sha256 == self.base.sha256

    @property
    def equal(self) -> bool:
        """Both sides hold the same bytes, by content hash."""
        if self.local is None or not isinstance(self.remote, Entry) or self.local.size != self.remote.size:
            return False
        mine = self.base.sha256 if self.unchanged and self.base else self.sha256
        theirs = self.remote.sha256 or self.remote_sha256
        return mine is not None and mine == theirs

    @property
    def needs_hash(self) -> bool:
        """Whether the table cannot be read before the local bytes are."""
        if self.local is None or self.sha256 is not None or self.unchanged:
            return False
        known = self.base is not None and self.base.present and self.base.size == self.local.size
        if known or self.arrived is not None:
            return True
        return isinstance(self.remote, Entry) and self.remote.size == self.local.size

    @property
    def needs_remote_hash(self) -> bool:
        """A missing hash is unknown, and unknown means: read it before deciding."""
        if self.local is None or not isinstance(self.remote, Entry) or self.remote.sha256 or self.remote_sha256:
            return False
        if self.base is not None and self.remote.identity == self.base.identity and self.unchanged:
            return False
        return self.remote.size == self.local.size

    @property
    def local_label(self) -> Local:
        if self.local is None:
            return "deleted" if self.deleted else "absent"
        if self.unchanged and (isinstance(self.remote, Entry | Tombstone) or self.in_history):
            return "same"
        return "edited" if self.edited else "found"

    @property
    def remote_label(self) -> Remote:
        match self.remote:
            case None:
                # Absent from a root that grew out of what base saw: its tombstone was compacted away.
                return "tombstone" if self.base is not None and self.in_history else "none"
            case Tombstone():
                return "tombstone"
            case Entry() as entry:
                return "same" if self._is_base(entry) else "newer"

    def _is_base(self, entry: Entry) -> bool:
        """R = B by identity: content that was only moved is not news. inv[pack.identity]

        For a delete the number counts too: what was undeleted since is not what was deleted. inv[delete.by-key]
        """
        if self.base is None:
            return False
        if entry.identity != self.base.identity:
            return False
        return not (self.deleted and self.local is None and entry.number > self.base.number)

    def decision(self) -> Decision:
        return decide(self.local_label, self.remote_label, self.equal)

    @property
    def trivial(self) -> bool:
        """Nothing to do and nothing to learn: not worth keeping in memory."""
        return self._quiet and self.unchanged

    @property
    def resting(self) -> bool:
        """The same in a lazy cache: content that is known and was left in the bucket, where it still is."""
        left = self.local is None and self.base is not None and not self.base.present
        return left and self._quiet and is_content(self.path)

    @property
    def large_part(self) -> bool:
        return isinstance(self.remote, Entry) and is_large_part(self.path, self.remote.size)

    @property
    def _quiet(self) -> bool:
        """Nobody has announced anything, and the root still says what base says, the place included: base has to learn
        a new one."""
        told = self.edited or self.deleted or self.owed
        if told or self.base is None or not isinstance(self.remote, Entry):
            return False
        return self.remote.key == self.base.key and self.remote.seq == self.base.seq
