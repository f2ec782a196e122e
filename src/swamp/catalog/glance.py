"""A quick look into a catalog file for shell completion: no repair, no waiting, no answer rather than an error."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

_MODELS = "SELECT DISTINCT coalesce(modelName, modelId) FROM data WHERE isLatest = 1 ORDER BY 1 LIMIT 1000"
_NAMES = (
    "SELECT DISTINCT name FROM data WHERE isLatest = 1 AND lifecycle = 'active' "
    "AND (modelName = ?1 OR modelId = ?1) ORDER BY 1 LIMIT 1000"
)


def model_names(catalog: Path) -> list[str]:
    """The models that have data, as this machine last saw them."""
    return _column(catalog, _MODELS)


def data_names(catalog: Path, model: str) -> list[str]:
    """The names of one model's data."""
    return _column(catalog, _NAMES, model)


def _column(catalog: Path, statement: str, *params: str) -> list[str]:
    if not catalog.is_file():
        return []
    try:
        with closing(sqlite3.connect(f"{catalog.as_uri()}?mode=ro", uri=True, timeout=0.2)) as db:
            return [str(row[0]) for row in db.execute(statement, params)]
    except sqlite3.Error:
        return []  # a completion that has nothing to say says nothing
