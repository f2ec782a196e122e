"""Bodies in chunks, and who is sending one: what an upload that died has left is found and removed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from pymongo.collection import Collection
from pymongo.errors import PyMongoError

from swamp.env import Env
from swamp.errors import StoreError, Unavailable
from swamp.store.port import Token
from swamp_mongodb.connect import Documents
from swamp_mongodb.explain import explained

ABANDONED: Final = dt.timedelta(days=1)
"""An upload that was not confirmed for so long is over. If it still runs, its object will not be named."""


class Uploads:
    """The chunks of every version, under its token; and one document per upload until its object is named."""

    def __init__(self, database: Documents, name: str, objects: Collection[dict[str, Any]], env: Env) -> None:
        self._bodies = database[f"{name}.chunks"]
        self._under_way = database[f"{name}.uploads"]
        self._objects = objects
        self._env = env

    def chunk(self, token: Token, number: int) -> bytes | None:
        found = self._bodies.find_one({"_id": _chunk_id(token, number)})
        return None if found is None else bytes(found["bytes"])

    @contextmanager
    def under_way(self, url: str, key: str, token: Token) -> Iterator[None]:
        """What fails for sure takes its chunks along; what may have happened is left for `sweep`, which looks."""
        with explained(url, key):
            self.sweep()
            self._under_way.insert_one({"_id": token, "key": key, "begun": self._env.clock.now(), "removed": False})
        try:
            yield
        except Unavailable:
            raise
        except (StoreError, OSError):
            with explained(url, key):
                self._forget(token)
            raise
        except PyMongoError as error:  # of the chunks: no object names them
            raise Unavailable(f"{url} did not take {key}: {error}", hint="try again later") from error
        with explained(url, key, writes=True):
            self._under_way.delete_one({"_id": token})

    def send(self, token: Token, chunks: Iterable[bytes]) -> int:
        size = 0
        for number, chunk in enumerate(chunks):
            self._bodies.insert_one({"_id": _chunk_id(token, number), "bytes": chunk})
            size += len(chunk)
        return size

    def confirm(self, token: Token) -> None:
        """The last step before the object is named: from now on nobody takes this upload for abandoned."""
        renewed = {"$set": {"begun": self._env.clock.now()}}
        if self._under_way.find_one_and_update({"_id": token, "removed": False}, renewed) is None:
            raise StoreError("the upload took longer than a day and was removed", hint="send it again")

    def drop(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            self._bodies.delete_many({"_id": {"$gte": f"{token}/", "$lt": f"{token}0"}})

    def sweep(self) -> None:
        """Removes what abandoned uploads left. They are marked first: `confirm` then fails, if somebody lives."""
        old = {"begun": {"$lt": self._env.clock.now() - ABANDONED}}
        for upload in list(self._under_way.find(old)):
            if self._under_way.find_one_and_update(old | {"_id": upload["_id"]}, {"$set": {"removed": True}}) is None:
                continue
            if self._objects.find_one({"_id": upload["key"], "token": upload["_id"]}, {"_id": 1}) is None:
                self.drop([upload["_id"]])
            self._under_way.delete_one({"_id": upload["_id"]})

    def _forget(self, token: Token) -> None:
        self.drop([token])
        self._under_way.delete_one({"_id": token})


def _chunk_id(token: Token, number: int) -> str:
    return f"{token}/{number:08d}"
