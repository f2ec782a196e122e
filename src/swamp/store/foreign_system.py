"""The operating system's refusals: the one table of the directory bucket."""

from __future__ import annotations

import errno
from typing import Final

from swamp.errors import AccessDenied, Misconfigured, StoreError, Unavailable

# inv[store.errors-mapped]: what an operating system's refusal means to the caller; anything else is Unavailable.
FOREIGN: Final[dict[int, tuple[type[StoreError], str]]] = {
    errno.EACCES: (AccessDenied, "ask for the right to read and write there"),
    errno.EPERM: (AccessDenied, "ask for the right to read and write there"),
    errno.EROFS: (AccessDenied, "the file system is read-only: mount it writable"),
    errno.ENOSPC: (StoreError, "free some space on that disk, then run the command again"),
    errno.EDQUOT: (StoreError, "your quota on that disk is used up: free some space"),
    errno.EFBIG: (StoreError, "the file is larger than that file system allows"),
    errno.ENAMETOOLONG: (StoreError, "shorten the name"),
    errno.ENOTDIR: (Misconfigured, "the bucket must be a directory"),
    errno.EEXIST: (Misconfigured, "the bucket must be a directory"),
    errno.EIO: (Unavailable, "check the disk"),
    errno.ESTALE: (Unavailable, "check the network file system"),
    errno.ETIMEDOUT: (Unavailable, "check the network file system"),
    errno.ENOLCK: (Unavailable, "that file system gives no locks: mount it with locking"),
}


def explain(error: OSError, url: str, key: str | None) -> StoreError:
    kind, hint = FOREIGN.get(error.errno or 0, (Unavailable, "try again; if it stays, check the disk"))
    details = {"key": key, "code": errno.errorcode.get(error.errno or 0, "?"), "store": url}
    if kind is AccessDenied:
        return kind(f"{hint}: {url} ({error.strerror})", hint=hint, details=details)
    return kind(f"{url}: {error.strerror} ({key})", hint=hint, details=details)
