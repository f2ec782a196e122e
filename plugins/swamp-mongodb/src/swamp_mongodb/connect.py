"""Where the collections are, and the client that reaches them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pymongo import MongoClient, ReadPreference
from pymongo.database import Database
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

DEFAULT_TIMEOUT_MS: Final = 30_000
USER, PASSWORD = "SWAMP_MONGODB_USER", "SWAMP_MONGODB_PASSWORD"
Documents = Database[dict[str, Any]]


@dataclass(frozen=True)
class Place:
    """A database and the name its collections begin with. The login is in the environment, never here."""

    host: str
    database: str
    collection: str
    options: Mapping[str, Any]
    timeout_ms: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Place:
        options = {key: config[key] for key in ("replicaSet", "tls", "authSource") if key in config}
        timeout = int(config.get("requestTimeoutMs", DEFAULT_TIMEOUT_MS))
        return cls(config["host"], config["database"], config.get("collection", "swamp"), options, timeout)

    @property
    def url(self) -> str:
        return f"mongodb://{self.host}/{self.database}/{self.collection}"


def open_database(place: Place) -> Documents:
    """Nothing that was acknowledged is rolled back (majority, journalled), and nothing is repeated by the client.

    A write that the client repeats could be judged by its own first attempt: swamp reads back instead.
    """
    login: dict[str, Any] = {}
    if os.environ.get(USER):
        login = {"username": os.environ[USER], "password": os.environ.get(PASSWORD)}
    client: MongoClient[dict[str, Any]] = MongoClient(
        f"mongodb://{place.host}/",
        appname="swamp",
        connect=False,
        retryWrites=False,
        retryReads=False,
        timeoutMS=place.timeout_ms,
        tz_aware=True,
        **login,
        **place.options,
    )
    return client.get_database(
        place.database,
        read_preference=ReadPreference.PRIMARY,
        read_concern=ReadConcern("majority"),
        write_concern=WriteConcern(w="majority", j=True),
    )
