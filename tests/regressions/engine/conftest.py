"""Every failure is tried on every kind of store: in memory, a directory, S3 over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from peers import Peer
from swamp.store.port import ObjectStore

MEMORY = Path("/dev/shm")
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
def home(tmp_path) -> Iterator[Path]:
    """Where caches lie: in memory where there is such a place, because every rename and row is flushed."""
    if not MEMORY.is_dir():
        yield tmp_path
        return
    with TemporaryDirectory(dir=MEMORY, prefix="swamp-test-") as place:
        yield Path(place)


@pytest.fixture
def peer(store: ObjectStore, home) -> Iterator[Callable[..., Peer]]:
    """Makes machines that share the store."""
    made: list[Peer] = []

    def make(name: str, **more: object) -> Peer:
        more.setdefault("store", store)
        made.append(Peer(home=home, name=name, **more))
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
