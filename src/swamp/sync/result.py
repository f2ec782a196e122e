"""What a sync did, as one value: the CLI prints it, tests compare it."""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any, Final, Literal

from swamp.errors import CorruptData, Failed, SwampError, Unavailable
from swamp.values import value

Mode = Literal["push", "pull", "sync"]
EngineName = Literal["none", "inline", "spark"]


COUNTS: Final = ("files_pushed", "files_pulled", "files_deleted", "bytes_pushed", "bytes_pulled")
"""What is counted while a push or pull runs, and added up over the rounds of a command."""
_WORDS: Final = [name.split("_") for name in COUNTS]
_ENGINES: Final[tuple[EngineName, ...]] = ("none", "inline", "spark")
"""By what a command that used several of them is known: Spark ran if it ran at all."""


@value
class Conflict:
    """Both sides are kept: the remote at `path`, the local bytes at `kept` (below `conflicts/`)."""

    path: str
    kept: str


Cause = Literal["missing", "corrupt", "away", "changed"]
"""Why a file failed, where somebody decides by it: the store has lost it, holds other bytes or did not answer; or the
file changed while it was sent, and the next push takes it."""
LOST: Final = ("missing", "corrupt")
"""What only a machine that still holds the file can mend."""
_ERRORS: Final[dict[Cause | None, type[SwampError]]] = {
    "missing": CorruptData,
    "corrupt": CorruptData,
    "away": Unavailable,
}


def unfetched(path: str, why: str | None, cause: Cause | None) -> SwampError:
    """The error for who reads a file that could not be fetched: 65 for lost or other bytes, 69 for a store away."""
    return _ERRORS.get(cause, Failed)(f"{path} could not be fetched: {why}")


@value
class FailedFile:
    path: str
    error: str
    cause: Cause | None = None


@value
class SyncResult:
    mode: Mode
    files_pushed: int = 0
    files_pulled: int = 0
    files_deleted: int = 0
    bytes_pushed: int = 0
    bytes_pulled: int = 0
    conflicts: tuple[Conflict, ...] = ()
    failed: tuple[FailedFile, ...] = ()
    fast_path: bool = False
    engine: EngineName = "none"
    engine_reason: str = ""
    spark: dict[str, Any] | None = None
    requests: int = 0
    seq: int = 0
    duration_ms: int = 0
    deletes_held: int = 0
    discovered: bool = False
    warnings: tuple[str, ...] = ()
    names: frozenset[str] = field(default=frozenset(), compare=False)
    """Directories of data names whose versions came or went: what is derived from them is due."""

    @property
    def ok(self) -> bool:
        """Nothing needs the user's attention; what somebody was writing meanwhile only waits for the next sync."""
        return not self.conflicts and len(self.changed) == len(self.failed) and not self.deletes_held

    @property
    def changed(self) -> list[FailedFile]:
        """Files that were written while they were read: a command that wrote one itself has not delivered it."""
        return [failed for failed in self.failed if failed.cause == "changed"]

    @property
    def has_all(self) -> bool:
        """Everything that the store holds was fetched; what it has lost itself, nobody can fetch."""
        return len(self.lost) == len(self.failed)

    @property
    def lost(self) -> list[str]:
        """Files that the store itself no longer has as they were."""
        return [failed.path for failed in self.failed if failed.cause in LOST]

    @property
    def lost_store(self) -> bool:
        """Something stayed behind because the store did not answer any more."""
        return any(failed.cause == "away" for failed in self.failed)

    def merged(self, later: SyncResult, mode: Mode) -> SyncResult:
        """This result and a later one as the result of one command."""
        return replace(
            later,
            mode=mode,
            **{name: getattr(self, name) + getattr(later, name) for name in (*COUNTS, "conflicts", "requests")},
            failed=tuple({failed.path: failed for failed in (*self._lasting(later), *later.failed)}.values()),
            fast_path=self.fast_path and later.fast_path,
            engine=max(self.engine, later.engine, key=_ENGINES.index),
            engine_reason=max(self, later, key=lambda one: (_ENGINES.index(one.engine), one is later)).engine_reason,
            spark=later.spark or self.spark,
            duration_ms=self.duration_ms + later.duration_ms,
            discovered=self.discovered or later.discovered,
            warnings=tuple(dict.fromkeys(self.warnings + later.warnings)),
            names=self.names | later.names,
        )

    def _lasting(self, later: SyncResult) -> list[FailedFile]:
        """What `later` has not looked at again: a push reads what changed under the pull before it."""
        again = self.mode == "pull" and later.mode == "push" and not later.fast_path
        return [f for f in self.failed if not again or f.cause != "changed"]

    def to_json(self) -> dict[str, Any]:
        doc: dict[str, Any] = {
            "mode": self.mode,
            **{"".join((first, more.title())): getattr(self, f"{first}_{more}") for first, more in _WORDS},
            "conflicts": [{"path": c.path, "kept": c.kept} for c in self.conflicts],
            "failed": [{"path": f.path, "error": f.error} for f in self.failed if f.cause != "changed"],
            "fastPath": self.fast_path,
            "engine": self.engine,
            "engineReason": self.engine_reason,
            "requests": self.requests,
            "seq": self.seq,
            "durationMs": self.duration_ms,
            "deletesHeld": self.deletes_held,
            "warnings": [*self.warnings, *(f"{f.path}: {f.error}" for f in self.changed)],
        }
        if self.spark is not None:
            doc["spark"] = self.spark
        return doc
