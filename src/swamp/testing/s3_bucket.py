"""What an S3 bucket holds and refuses: objects, uploads in parts, listings, conditions. No network in here."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from swamp.env import SYSTEM, Env

SMALLEST_PART: Final = 5 * 1024 * 1024
KEPT: Final = 8
"""Older versions of a key, for stale reads."""


@dataclass(frozen=True)
class Manners:
    """How a vendor differs from Amazon. The default is Amazon's: every condition is enforced."""

    conditions: Literal["enforced", "ignored"] = "enforced"
    """`ignored`: If-Match and If-None-Match of a PUT are accepted and change nothing."""
    if_match: Literal["quoted", "bare", "either"] = "either"
    """The one form of an ETag that a condition matches; `bare` is Ceph's."""
    missing_match: Literal[404, 412] = 404
    """The answer to If-Match on a key that does not exist."""
    delete_conditions: bool = True
    multipart_conditions: bool = True
    ranges: bool = True
    """False: a range is answered with 200 and the whole object."""
    page: int = 1000
    skew: dt.timedelta = dt.timedelta(0)
    """The store's clock minus the true one."""


class S3Refusal(Exception):
    """An answer that is no success: its status and S3's code for it."""

    def __init__(self, status: int, code: str, message: str = "") -> None:
        super().__init__(message or code)
        self.status, self.code, self.message = status, code, message or code


@dataclass(frozen=True)
class Stored:
    """One version of an object."""

    body: bytes
    etag: str
    modified: dt.datetime


@dataclass
class Parts:
    """An upload in parts that is not complete yet."""

    key: str
    bodies: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class BucketPage:
    """One answer of a listing: what it shows, and where the next one begins."""

    objects: list[tuple[str, Stored]]
    folders: list[str]
    following: str | None


@dataclass
class S3Bucket:
    """All state of one bucket behind one lock: every request is one step, so a condition and its write are too."""

    env: Env = SYSTEM
    manners: Manners = field(default_factory=Manners)
    objects: dict[str, Stored] = field(default_factory=dict)
    uploads: dict[str, Parts] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    _before: dict[str, list[Stored | None]] = field(default_factory=dict, repr=False)
    _newest: list[str] = field(default_factory=list, repr=False)

    # -- for tests that look inside

    def body(self, key: str) -> bytes:
        return self.find(key).body

    def keys(self, prefix: str = "") -> list[str]:
        with self.lock:
            return sorted(key for key in self.objects if key.startswith(prefix))

    def write(self, key: str, body: bytes) -> Stored:
        """As another tool writes: without a condition."""
        return self.put(key, body, {})

    def lose(self, key: str) -> None:
        """As a bucket loses an object: nobody asked for it."""
        with self.lock:
            self._set(key, None)

    def age(self, key: str, by: dt.timedelta) -> None:
        """Makes an object older than it is."""
        with self.lock:
            found = self.find(key)
            self.objects[key] = replace(found, modified=found.modified - by)

    def age_all(self, days: float) -> None:
        """So much time goes by in the bucket at once: everything that is there is older."""
        with self.lock:
            for key in list(self.objects):
                self.age(key, dt.timedelta(days=days))

    # -- reading

    def find(self, key: str, *, stale: bool = False) -> Stored:
        with self.lock:
            found = self._older(key) if stale else self.objects.get(key)
        if found is None:
            raise S3Refusal(404, "NoSuchKey", "The specified key does not exist.")
        return found

    def read(self, key: str, headers: Mapping[str, str], *, stale: bool = False) -> Stored:
        """The object, unless a condition on reading says otherwise."""
        found = self.find(key, stale=stale)
        if (wanted := headers.get("if-match")) is not None and not self._matches(wanted, found):
            raise _failed()
        if (known := headers.get("if-none-match")) is not None and known.strip('"') == found.etag:
            raise S3Refusal(304, "NotModified")
        return found

    def list(
        self, prefix: str, delimiter: str, after: str, limit: int, *, begin: str = "", stale: bool = False
    ) -> BucketPage:
        """The keys below `prefix` behind `after` (and behind `begin`, where a page before this one ended)."""
        objects: list[tuple[str, Stored]] = []
        folders: list[str] = []
        last = ""
        for key, found in self._below(prefix, stale):
            cut = key.find(delimiter, len(prefix)) if delimiter else -1
            shown = key if cut < 0 else key[: cut + len(delimiter)]
            if key <= after or shown <= begin or (folders and shown == folders[-1]):
                continue
            if len(objects) + len(folders) == min(limit, self.manners.page):
                return BucketPage(objects, folders, last)
            last = shown
            if cut < 0:
                objects.append((key, found))
            else:
                folders.append(shown)
        return BucketPage(objects, folders, None)

    def _below(self, prefix: str, stale: bool) -> Iterator[tuple[str, Stored]]:
        with self.lock:
            seen: dict[str, Stored | None] = dict(self.objects)
            changed = next((k for k in reversed(self._newest) if k.startswith(prefix)), None) if stale else None
            if changed is not None:
                seen[changed] = self._older(changed)
        for key in sorted(seen):
            found = seen[key]
            if key.startswith(prefix) and found is not None:
                yield key, found

    def _older(self, key: str) -> Stored | None:
        """What was there before the last change; what is there, if nothing was changed."""
        before = self._before.get(key)
        return before[-1] if before else self.objects.get(key)

    # -- writing

    def put(self, key: str, body: bytes, headers: Mapping[str, str]) -> Stored:
        with self.lock:
            if self.manners.conditions == "enforced":
                self._check(key, headers)
            return self._store(key, body, _md5(body))

    def delete(self, key: str, headers: Mapping[str, str]) -> None:
        with self.lock:
            found = self.objects.get(key)
            wanted = headers.get("if-match")
            if wanted is not None and self.manners.delete_conditions and self.manners.conditions == "enforced":
                if found is None:
                    raise S3Refusal(self.manners.missing_match, "NoSuchKey")
                if not self._matches(wanted, found):
                    raise _failed()
            if found is not None:
                self._set(key, None)

    # -- uploads in parts

    def begin(self, key: str) -> str:
        with self.lock:
            identity = self.env.ulid()
            self.uploads[identity] = Parts(key)
            return identity

    def part(self, identity: str, number: int, body: bytes) -> str:
        with self.lock:
            self._upload(identity).bodies[number] = body
            return _md5(body)

    def complete(self, identity: str, parts: Iterable[tuple[int, str]], headers: Mapping[str, str]) -> Stored:
        with self.lock:
            upload = self._upload(identity)
            bodies = [_part(upload, number, etag) for number, etag in parts]
            if not bodies or any(len(body) < SMALLEST_PART for body in bodies[:-1]):
                raise S3Refusal(400, "EntityTooSmall", "Your proposed upload is smaller than the minimum.")
            if self.manners.conditions == "enforced" and self.manners.multipart_conditions:
                self._check(upload.key, headers)
            del self.uploads[identity]
            digests = b"".join(hashlib.md5(body).digest() for body in bodies)
            return self._store(upload.key, b"".join(bodies), f"{_md5(digests)}-{len(bodies)}")

    def abort(self, identity: str) -> None:
        with self.lock:
            self._upload(identity)
            del self.uploads[identity]

    def _upload(self, identity: str) -> Parts:
        if identity not in self.uploads:
            raise S3Refusal(404, "NoSuchUpload", "The specified upload does not exist.")
        return self.uploads[identity]

    # -- conditions

    def _check(self, key: str, headers: Mapping[str, str]) -> None:
        found = self.objects.get(key)
        none, wanted = headers.get("if-none-match"), headers.get("if-match")
        if none is not None and none.strip() != "*":
            raise S3Refusal(501, "NotImplemented", "If-None-Match of a write knows only *")
        if none is not None and found is not None:
            raise _failed()
        if wanted is None:
            return
        if found is None:
            code = "NoSuchKey" if self.manners.missing_match == 404 else "PreconditionFailed"
            raise S3Refusal(self.manners.missing_match, code)
        if not self._matches(wanted, found):
            raise _failed()

    def _matches(self, wanted: str, found: Stored) -> bool:
        forms = {"quoted": [f'"{found.etag}"'], "bare": [found.etag]}
        return wanted == "*" or wanted in forms.get(self.manners.if_match, [found.etag, f'"{found.etag}"'])

    def _store(self, key: str, body: bytes, etag: str) -> Stored:
        done = Stored(body, etag, self.env.clock.now() + self.manners.skew)
        self._set(key, done)
        return done

    def _set(self, key: str, found: Stored | None) -> None:
        before = self._before.setdefault(key, [])
        before.append(self.objects.get(key))
        del before[:-KEPT]
        self._newest.append(key)
        del self._newest[:-1000]
        if found is None:
            self.objects.pop(key, None)
        else:
            self.objects[key] = found


def checked(body: bytes, md5: str | None) -> bytes:
    """The body, if it is the one that its sender had hashed."""
    if md5 is not None and base64.b64encode(hashlib.md5(body).digest()).decode() != md5:
        raise S3Refusal(400, "BadDigest", "The Content-MD5 you specified did not match what we received.")
    return body


def _part(upload: Parts, number: int, etag: str) -> bytes:
    body = upload.bodies.get(number)
    if body is None or _md5(body) != etag.strip('"'):
        raise S3Refusal(400, "InvalidPart", f"part {number} is not there, or is another one")
    return body


def _failed() -> S3Refusal:
    return S3Refusal(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold")


def _md5(body: bytes) -> str:
    return hashlib.md5(body).hexdigest()


Effect = Callable[[], object]
