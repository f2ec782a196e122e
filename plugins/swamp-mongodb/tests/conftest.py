from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from swamp.env import SYSTEM
from swamp.extras import find


@pytest.fixture(scope="session")
def place() -> Iterator[dict[str, str]]:
    """The server that SWAMP_TEST_MONGODB_URL names, or MongoDB's queries in memory."""
    if find("datastores", "@swamp-mongodb/datastore") is None:
        pytest.skip("swamp-mongodb is not installed (pip install -e plugins/swamp-mongodb)")
    named = os.environ.get("SWAMP_TEST_MONGODB_URL")
    with pytest.MonkeyPatch.context() as patch:
        if named:
            parts = urlsplit(named)
            if parts.username:
                patch.setenv("SWAMP_MONGODB_USER", parts.username)
                patch.setenv("SWAMP_MONGODB_PASSWORD", parts.password or "")
            yield {"host": parts.netloc.rpartition("@")[2]}
        else:
            _in_memory(patch)
            yield {"host": "in.memory:27017"}


def _in_memory(patch: pytest.MonkeyPatch) -> None:
    """mongomock finds and then modifies; MongoDB does both to a document in one step, which a lock gives it here."""
    import mongomock
    from mongomock.collection import Collection

    from swamp_mongodb import connect

    servers: dict[str, mongomock.MongoClient] = {}
    lock = threading.RLock()
    for name in ("_find_and_modify", "_update", "insert_one", "delete_one", "delete_many"):
        patch.setattr(Collection, name, _locked(getattr(Collection, name), lock))
    patch.setattr(connect, "MongoClient", lambda url, **_: servers.setdefault(url, mongomock.MongoClient(url)))


def _locked(call, lock):
    def one_step(*args, **more):
        with lock:
            return call(*args, **more)

    return one_step


@pytest.fixture
def config(place) -> dict[str, str]:
    return place | {"database": "swamp-tests", "collection": f"s{SYSTEM.ulid().lower()}"}
