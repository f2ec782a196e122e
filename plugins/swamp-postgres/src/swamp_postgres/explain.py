"""What PostgreSQL's errors mean to swamp: the class says what it does next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg
from psycopg import errors

from swamp.errors import AccessDenied, Misconfigured, OutcomeUnknown, StoreError, Unavailable

_DENIED: Final = (
    errors.InsufficientPrivilege,
    errors.InvalidPassword,
    errors.InvalidAuthorizationSpecification,
    errors.ReadOnlySqlTransaction,
)
_LOGIN: Final = ("password authentication failed", "no password supplied", "no pg_hba.conf entry", "role ")
"""A connection that was refused has no code in psycopg, only the server's text."""
LOGIN_HINT: Final = "set PGPASSWORD or write a password file (~/.pgpass); `psql` with the same settings must work"
RIGHTS_HINT: Final = (
    "grant USAGE on the schema and SELECT, INSERT, UPDATE, DELETE on its tables `objects` and `chunks`; "
    "the first machine needs CREATE on the database, too"
)


@contextmanager
def explained(url: str, key: str, *, commits: bool = False) -> Iterator[None]:
    """Foreign errors become ours. `commits`: from here on the write may have happened whatever is answered."""
    try:
        yield
    except psycopg.Error as error:
        raise _explain(url, key, error, commits) from error


def _explain(url: str, key: str, error: psycopg.Error, commits: bool) -> StoreError:
    text = str(error).strip().partition("\n")[0]
    details = {"key": key, "store": url, "code": error.sqlstate}
    if commits:
        return OutcomeUnknown(
            f"{url} did not confirm the write of {key}: {text}", hint="it is read back", details=details
        )
    if isinstance(error, _DENIED):
        return AccessDenied(f"{url} refuses: {text}", hint=RIGHTS_HINT, details=details)
    if isinstance(error, errors.InvalidCatalogName) or ("database" in text and "does not exist" in text):
        return Misconfigured(f"{url}: {text}", hint="create the database first (createdb)", details=details)
    if any(words in text for words in _LOGIN):
        return AccessDenied(f"{url} refuses: {text}", hint=LOGIN_HINT, details=details)
    if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError)):
        return Unavailable(f"{url} did not answer: {text}", hint="try again later", details=details)
    return StoreError(f"{url} failed at {key}: {text}", hint="tell the makers of swamp-postgres", details=details)
