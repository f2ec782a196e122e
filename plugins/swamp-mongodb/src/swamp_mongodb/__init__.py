"""A swamp datastore in a MongoDB database: objects are documents, large bodies lie in chunks beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swamp.env import Env
from swamp_mongodb.connect import Place, open_database
from swamp_mongodb.store import MongoStore

__all__ = ["MongoStore", "open_mongodb"]


def open_mongodb(config: Mapping[str, Any], env: Env) -> MongoStore:
    """What the entry point names. The client connects when it is first used."""
    place = Place.of(config)
    return MongoStore(open_database(place), place, env)


open_mongodb.config_schema = {  # type: ignore[attr-defined]
    "type": "object",
    "properties": {
        "host": {"type": "string", "pattern": "^[^/@?]+$"},
        "database": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,38}$"},
        "collection": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_-]{0,63}$"},
        "replicaSet": {"type": "string", "minLength": 1},
        "tls": {"type": "boolean"},
        "authSource": {"type": "string", "minLength": 1},
    },
    "required": ["host", "database"],
    "additionalProperties": False,
}
