"""Models: types with methods, definitions with expressions, runs that write data.

The public names load on first use, so that commands which run no model do not pay for pydantic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swamp.models.context import Context as Context
    from swamp.models.declare import Arguments as Arguments
    from swamp.models.declare import Method as Method
    from swamp.models.declare import ModelType as ModelType
    from swamp.models.declare import OutputSpec as OutputSpec

__all__ = ["Arguments", "Context", "Method", "ModelType", "OutputSpec"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"swamp.models.{'context' if name == 'Context' else 'declare'}"), name)
