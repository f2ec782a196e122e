from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from swamp.errors import MissingTool
from swamp.extras import find


def _without(reason: str) -> None:
    required = "postgres" in os.environ.get("SWAMP_REQUIRE", "").split(",")
    (pytest.fail if required else pytest.skip)(reason)


@pytest.fixture(scope="session")
def postgres() -> Iterator[object]:
    """One server for the session, started for the first test that asks."""
    if find("datastores", "@swamp-postgres/datastore") is None:
        _without("swamp-postgres is not installed (pip install -e plugins/swamp-postgres)")
    from postgres_server import ADMIN, PASSWORD, running

    kept = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("PG")}
    os.environ.update(PGUSER=ADMIN, PGPASSWORD=PASSWORD)
    try:
        with running() as server:
            yield server
    except MissingTool as missing:
        _without(f"{missing} ({missing.hint})")
    finally:
        for name in ("PGUSER", "PGPASSWORD"):
            os.environ.pop(name, None)
        os.environ.update(kept)


@pytest.fixture
def config(postgres) -> dict:
    """A place of its own in the server: a schema that nobody has made yet."""
    from postgres_server import fresh_name

    return {"host": "127.0.0.1", "port": postgres.port, "database": "postgres", "schema": fresh_name()}
