"""Which keys a store takes: the one place where a key is judged before it reaches a backend."""

from __future__ import annotations

from swamp.errors import UsageError

MAX_KEY_BYTES = 1024
"""The smallest limit among S3, GCS and Azure, prefix included."""


def check_key(key: str) -> str:
    """The key itself, if every backend can hold it and give it back unchanged. inv[store.key-safe]"""
    reason = _objection(key)
    if reason is not None:
        raise UsageError(
            f"not a usable object key: {key[:200]!r} {reason}",
            hint="keys are relative, /-separated, at most 1024 bytes, without empty, . or .. segments",
            details={"key": key[:200]},
        )
    return key


def is_key(key: str) -> bool:
    """Whether `check_key` would pass it: a listing may hold keys of other tools that are nobody's files here."""
    return _objection(key) is None


def check_prefix(prefix: str) -> str:
    """The start of a key, as `list` takes it: the same rules, but it may be empty or end anywhere."""
    if prefix and not prefix.endswith("/"):
        check_key(prefix)
    elif prefix:
        check_key(prefix[:-1])
    return prefix


def _objection(key: str) -> str | None:
    if not key:
        return "is empty"
    # The common case is one cheap pass: no control characters, no `//`, no dot segments.
    if not key.isprintable() and any(ord(c) < 32 or ord(c) == 127 for c in key):
        return "contains a control character"
    if ("/." in key or key[0] == ".") and any(part in (".", "..") for part in key.split("/")):
        return "contains a . or .. segment"
    if key[0] == "/" or key[-1] == "/" or "//" in key:
        return "contains an empty segment"
    try:
        size = len(key) if key.isascii() else len(key.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode"
    return f"is {size} bytes long" if size > MAX_KEY_BYTES else None


def byte_before(prefix: str) -> str:
    """A key that sorts before everything starting with `prefix` and after almost everything else."""
    last = ord(prefix[-1]) - 1
    if 0xD800 <= last <= 0xDFFF:
        last = 0xD7FF
    return prefix[:-1] + (chr(last) + "\U0010fffd" if last >= 32 else "")


def prefix_end(prefix: str) -> str | None:
    """The smallest text after everything that starts with `prefix`; None: there is nothing after it."""
    for at in range(len(prefix) - 1, -1, -1):
        following = ord(prefix[at]) + 1
        if following <= 0x10FFFF:
            return prefix[:at] + chr(0xE000 if following == 0xD800 else following)
    return None
