"""The store itself. One document per object decides: whatever changes it, changes it in one step."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from pymongo import ASCENDING
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from swamp.env import UTC, Env
from swamp.errors import Unavailable
from swamp.store.chunks import (
    CHUNK_BYTES,
    ChunkedBody,
    FileChunks,
    chunk_numbers,
    cut_range,
    lost_race,
    missing,
    seek_level,
    seek_pages,
    split,
)
from swamp.store.keys import check_key
from swamp.store.port import (
    Body,
    Condition,
    CreateOnly,
    Fetched,
    Level,
    Match,
    ObjectMeta,
    Token,
    Uploaded,
    check_in_memory,
)
from swamp_mongodb.connect import Documents, Place
from swamp_mongodb.explain import explained
from swamp_mongodb.uploads import Uploads

PAGE: Final = 1000
INLINE_BYTES: Final = CHUNK_BYTES
"""What is not larger lies in its object's document: read with it, and replaced with it."""
Document = dict[str, Any]


@dataclass(frozen=True)
class MongoStore:
    """An ObjectStore (`swamp.store.port`) in three collections: objects, chunks, uploads under way."""

    database: Documents
    place: Place
    env: Env

    @property
    def url(self) -> str:
        return self.place.url

    def __repr__(self) -> str:
        return f"MongoStore({self.url!r})"

    @cached_property
    def _objects(self) -> Collection[Document]:
        return self.database[f"{self.place.collection}.objects"]

    @cached_property
    def _uploads(self) -> Uploads:
        return Uploads(self.database, self.place.collection, self._objects, self.env)

    # -- reading

    def head(self, key: str) -> ObjectMeta:
        return _meta(self._find(key, {"body": 0}))

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> Fetched:
        document = self._find(key)
        if length is None:
            check_in_memory(key, document["size"] - start)
        if not document["chunked"]:
            return Fetched(_meta(document), document["body"][start : None if length is None else start + length])
        first, last = chunk_numbers(start, length)
        return Fetched(_meta(document), cut_range(self._chunks(document, first, last), start, length))

    def get_if_changed(self, key: str, token: Token) -> Fetched | None:
        """One question when nothing changed; a body that comes meanwhile is fetched with its own document."""
        meta = self.head(key)
        return None if meta.token == token else self.get(key)

    @contextmanager
    def open(self, key: str, *, start: int = 0) -> Iterator[Body]:
        document = self._find(key)
        if not document["chunked"]:
            yield ChunkedBody(_meta(document), split(document["body"][start:]))
        else:
            first, _ = chunk_numbers(start, None)
            yield ChunkedBody(_meta(document), self._chunks(document, first, None), start)

    def _find(self, key: str, fields: Document | None = None) -> Document:
        check_key(key)
        with explained(self.url, key):
            document = self._objects.find_one({"_id": key}, fields)
        if document is None:
            raise missing(self.url, key)
        return document

    def _chunks(self, document: Document, first: int, last: int | None) -> Iterator[bytes]:
        """One by one. A chunk that is gone belongs to a version that was overwritten since: the reader begins again."""
        end = chunk_numbers(0, document["size"])[1]
        assert end is not None
        for number in range(first, (end if last is None else min(last, end)) + 1):
            with explained(self.url, document["_id"]):
                chunk = self._uploads.chunk(document["token"], number)
            if chunk is None:
                raise Unavailable(f"{document['_id']} was overwritten while it was read", hint="read it again")
            yield chunk

    # -- writing

    def put(self, key: str, body: bytes, condition: Condition = None) -> ObjectMeta:
        check_key(key)
        if len(body) > INLINE_BYTES:
            return self._put_chunks(key, split(body), condition)
        return self._publish(key, len(body), self.env.ulid(), body, condition)

    def put_file(self, key: str, path: Path) -> Uploaded:
        return self.put_file_if(key, path, None)

    def put_file_if(self, key: str, path: Path, condition: Condition) -> Uploaded:
        check_key(key)
        chunks = FileChunks(path)
        if path.stat().st_size <= INLINE_BYTES:
            return Uploaded(self.put(key, b"".join(chunks), condition), chunks.sha256)
        return Uploaded(self._put_chunks(key, chunks, condition), chunks.sha256)

    def _put_chunks(self, key: str, chunks: Iterable[bytes], condition: Condition) -> ObjectMeta:
        """Chunks first, under a token that nobody knows; the object's document names it when all of them are there."""
        token = self.env.ulid()
        with self._uploads.under_way(self.url, key, token):
            size = self._uploads.send(token, chunks)
            self._uploads.confirm(token)
            return self._publish(key, size, token, None, condition)

    def _publish(self, key: str, size: int, token: Token, body: bytes | None, condition: Condition) -> ObjectMeta:
        """Condition and write are one operation on one document. The version it replaces is handed back."""
        chunked = body is None
        change: Document = {
            "$set": {"size": size, "token": token, "chunked": chunked},
            "$currentDate": {"modified": True},
        }
        if chunked:
            change["$unset"] = {"body": ""}
        else:
            change["$set"]["body"] = body
        with explained(self.url, key, writes=True):
            old = self._replace(key, change, condition)
            if old is not None and old["chunked"]:
                self._uploads.drop([old["token"]])
        return ObjectMeta(key, size, token, self.env.clock.now())

    def _replace(self, key: str, change: Document, condition: Condition) -> Document | None:
        wanted = {"_id": key} | _expected(condition)
        may_create = not isinstance(condition, Match)
        try:
            old = self._objects.find_one_and_update(wanted, change, {"token": 1, "chunked": 1}, upsert=may_create)
        except DuplicateKeyError:
            if condition is not None:  # it exists, so that CREATE did not find it absent
                raise lost_race(self.url, key) from None
            # Two created it at once without a condition: the other one was first, and is replaced.
            old = self._objects.find_one_and_update(wanted, change, {"token": 1, "chunked": 1}, upsert=True)
        if old is None and not may_create:
            raise lost_race(self.url, key)
        return old

    def delete(self, keys: Sequence[str]) -> None:
        wanted = [check_key(key) for key in keys]
        for at in range(0, len(wanted), PAGE):
            some = {"_id": {"$in": wanted[at : at + PAGE]}}
            with explained(self.url, wanted[at]):
                found = list(self._objects.find(some, {"token": 1, "chunked": 1}))
                # Only the versions that were seen: one that is written meanwhile keeps its document and its chunks.
                self._objects.delete_many(some | {"token": {"$in": [version["token"] for version in found]}})
                self._uploads.drop([version["token"] for version in found if version["chunked"]])

    def delete_if(self, key: str, token: Token) -> None:
        check_key(key)
        with explained(self.url, key, writes=True):
            if self._objects.delete_one({"_id": key, "token": token}).deleted_count == 0:
                raise lost_race(self.url, key)
            self._uploads.drop([token])

    # -- listing

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[Sequence[ObjectMeta]]:
        return seek_pages(self._seek, prefix, start_after)

    def level(self, prefix: str = "") -> Level:
        return seek_level(self._seek, prefix)

    def _seek(self, at: str, below: str | None) -> Sequence[ObjectMeta]:
        bounds = {"$gte": at} if below is None else {"$gte": at, "$lt": below}
        with explained(self.url, at):
            found = self._objects.find({"_id": bounds}, {"body": 0}).sort("_id", ASCENDING).limit(PAGE)
            return [_meta(document) for document in found]


def _expected(condition: Condition) -> Document:
    """What the object's document has to be for the write to happen."""
    if isinstance(condition, CreateOnly):
        return {"token": {"$exists": False}}
    return {} if condition is None else {"token": condition.token}


def _meta(document: Document) -> ObjectMeta:
    modified: dt.datetime = document["modified"]
    if modified.tzinfo is None:
        modified = modified.replace(tzinfo=UTC)
    return ObjectMeta(document["_id"], document["size"], document["token"], modified)
