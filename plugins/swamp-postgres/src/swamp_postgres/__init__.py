"""A swamp datastore in a PostgreSQL database: objects are rows, bodies are chunks, a write is one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swamp.env import Env
from swamp_postgres.connect import Connections, Server
from swamp_postgres.store import PostgresStore

__all__ = ["PostgresStore", "open_postgres"]


def open_postgres(config: Mapping[str, Any], env: Env) -> PostgresStore:
    """What the entry point names. Nothing is asked of the server before the first call."""
    return PostgresStore(Connections(Server.of(config)), env)


open_postgres.config_schema = {  # type: ignore[attr-defined]
    "type": "object",
    "properties": {
        "host": {"type": "string", "minLength": 1},
        "port": {"type": "integer", "minimum": 1, "maximum": 65535},
        "database": {"type": "string", "minLength": 1},
        "user": {"type": "string", "minLength": 1},
        "schema": {"type": "string", "pattern": "^[a-z_][a-z0-9_]{0,62}$"},
        "sslmode": {"enum": ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]},
    },
    "required": ["database"],
    "additionalProperties": False,
}
