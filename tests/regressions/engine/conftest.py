"""Every failure is tried on every kind of store: in memory, a directory, S3 over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from peers import Peer
from swamp.store.port import ObjectStore

BACKENDS = ("memory", "directory", "moto")


@pytest.fixture(params=BACKENDS)
def store(request: pytest.FixtureRequest, servers, fresh_prefix) -> ObjectStore:
    return servers[request.param].open(fresh_prefix())


@pytest.fixture(params=("directory", "moto"))
def spec(request: pytest.FixtureRequest, servers, fresh_prefix):
    """A store that another process can open."""
    servers[request.param].open()
    return servers[request.param].spec(fresh_prefix())


@pytest.fixture
def peer(store: ObjectStore, tmp_path) -> Iterator[Callable[..., Peer]]:
    """Makes machines that share the store."""
    made: list[Peer] = []

    def make(name: str, **more: object) -> Peer:
        more.setdefault("store", store)
        made.append(Peer(home=tmp_path, name=name, **more))
        return made[-1]

    yield make
    for one in made:
        if one.live is not None:
            one.live.close()


@pytest.fixture
def a(peer) -> Peer:
    return peer("a")


@pytest.fixture
def b(peer) -> Peer:
    return peer("b")
