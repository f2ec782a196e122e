"""Model types and definitions as documents: what `--json` prints is what the server answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swamp.models.declare import ModelType
    from swamp.models.define import Definition


def type_item(kind: ModelType) -> dict[str, Any]:
    """A type as a line of a list."""
    return {
        "type": kind.name,
        "version": kind.version,
        "description": kind.description,
        "source": kind.source,
        "methods": [method.name for method in kind.methods],
    }


def model_item(found: Definition) -> dict[str, Any]:
    """A definition as a line of a list."""
    return {
        "name": found.name,
        "type": found.type,
        "id": found.id,
        "version": found.version,
        "tags": dict(found.tags),
        "file": found.file,
    }
