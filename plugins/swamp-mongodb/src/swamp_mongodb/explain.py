"""What MongoDB's errors mean to swamp: the class says what it does next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pymongo import errors

from swamp.errors import AccessDenied, Misconfigured, OutcomeUnknown, StoreError, Unavailable

_DENIED: Final = {
    13: "grant the role readWrite on the database",
    18: "set SWAMP_MONGODB_USER and SWAMP_MONGODB_PASSWORD",
}
_REFUSED_BEFORE: Final = frozenset({10107, 13435, 11602, 189, 91, 11600, 13436})
"""Not the primary, stepping down, shutting down: of a single document's write nothing has happened."""


@contextmanager
def explained(url: str, key: str, *, writes: bool = False) -> Iterator[None]:
    """Foreign errors become ours. `writes`: what is cut off may have happened."""
    try:
        yield
    except errors.PyMongoError as error:
        raise _explain(url, key, error, writes) from error


def _explain(url: str, key: str, error: errors.PyMongoError, writes: bool) -> StoreError:
    code = getattr(error, "code", None)
    details = {"key": key, "store": url, "code": code}
    text = str(error).partition(", full error")[0].partition(", Timeout:")[0]
    if code in _DENIED:
        return AccessDenied(f"{url} refuses: {text}", hint=_DENIED[code], details=details)
    if isinstance(error, (errors.ConfigurationError, errors.InvalidURI)):
        return Misconfigured(f"{url}: {text}", hint="correct the datastore's settings", details=details)
    # No server was found to send it to, or the one that was asked said that it is not the one.
    before = isinstance(error, errors.ServerSelectionTimeoutError) or code in _REFUSED_BEFORE
    if writes and not before:
        return OutcomeUnknown(
            f"{url} did not confirm the write of {key}: {text}", hint="it is read back", details=details
        )
    if before or error.timeout or isinstance(error, (errors.ConnectionFailure, errors.OperationFailure)):
        return Unavailable(f"{url} did not answer: {text}", hint="try again later", details=details)
    return StoreError(f"{url} failed at {key}: {text}", hint="tell the makers of swamp-mongodb", details=details)
