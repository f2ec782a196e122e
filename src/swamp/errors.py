"""Every error that leaves swamp, grouped by what the caller does next.

    SwampError
    ├── UsageError          2    change the input: it was wrong, nothing was touched
    ├── NotFound            1    name something that exists
    ├── Failed              1    read the report: it ran to its end and part of it did not work
    ├── CorruptData        65    repair: bytes are not what they must be
    ├── NewerFormat        65    upgrade swamp here: the store is whole, and written by a later version than this one
    ├── StoreError
    │   ├── Unavailable    69    try again later: the store did not answer in time
    │   │   └── OutcomeUnknown   a write was sent and nobody can say whether it happened
    │   ├── AccessDenied   69    log in or ask for rights: trying again will not help
    │   ├── Misconfigured   2    correct the URL, bucket, region or endpoint
    │   ├── ObjectMissing   1    the key is definitely not there
    │   └── ConditionFailed 1    somebody else was first: read again and decide again
    ├── LockTimeout        75    wait for the holder, or release its lease
    ├── Interrupted       130    nothing: the user asked for it
    └── MissingTool         1    install what the message names (Java, a package on the executors)

An error keeps its cause (`raise … from`), says what to do in `hint`, and survives pickling, because it may be
raised in a Spark task and read on the driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

HINT: Final = "hint: "


class SwampError(Exception):
    """Something the user can act on: `message` says what happened, `hint` what to do."""

    kind: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details: dict[str, Any] = dict(details or {})
        if hint:
            self.add_note(f"{HINT}{hint}")  # a Spark task hands on a traceback and nothing else: notes are part of it

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.hint, self.details)

    def __str__(self) -> str:
        return self.message

    def to_json(self) -> dict[str, Any]:
        """The error document of `--json` and of the API."""
        found = {"error": self.message, "code": self.kind, "hint": self.hint, "details": self.details}
        return {key: value for key, value in found.items() if value or key in ("error", "code")}


def _rebuild(kind: type[SwampError], message: str, hint: str | None, details: dict[str, Any]) -> SwampError:
    return kind(message, hint=hint, details=details)


class UsageError(SwampError):
    kind = "usage"
    exit_code = 2


class NotFound(SwampError):
    kind = "not-found"


class Failed(SwampError):
    kind = "failed"


class CorruptData(SwampError):
    kind = "corrupt"
    exit_code = 65


class NewerFormat(SwampError):
    """Not damage: nobody who repairs, rebuilds or skips what is damaged may meet this and go on. inv[format.newer]"""

    kind = "newer-format"
    exit_code = 65


class StoreError(SwampError):
    """The object store said no. `details` carries `status`, `code`, `requestId` and `key` where known."""

    kind = "store"
    exit_code = 69


class Unavailable(StoreError):
    kind = "unavailable"


class OutcomeUnknown(Unavailable):
    kind = "outcome-unknown"


class AccessDenied(StoreError):
    kind = "access-denied"


class Misconfigured(StoreError):
    kind = "misconfigured"
    exit_code = 2


class ObjectMissing(StoreError):
    kind = "object-missing"
    exit_code = 1


class ConditionFailed(StoreError):
    kind = "condition-failed"
    exit_code = 1


class LockTimeout(SwampError):
    kind = "lock-timeout"
    exit_code = 75


class Interrupted(SwampError):
    kind = "interrupted"
    exit_code = 130


class MissingTool(SwampError):
    kind = "missing-tool"
