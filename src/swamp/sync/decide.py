"""The decision table, as data: the planner looks rows up, Spark builds its CASE WHEN from them, the docs print them.

Per path: `local` is what the cache holds against base, `remote` what the root names against base (by key), and `equal`
whether both sides hold the same bytes. Rows do not overlap and cover every combination that can occur.
"""

from __future__ import annotations

from typing import Final, Literal

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
