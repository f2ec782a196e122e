"""swamp: versioned, shared data for automation and Spark pipelines, on nothing but a bucket.

`open_repo` gives a `Repo`; `errors` is every error that leaves it. Both load on first use: `import swamp` is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swamp import errors as errors
    from swamp.repo.repository import Repo as Repo
    from swamp.wiring import open_repo as open_repo

__version__ = "0.1.0"
__all__ = ["Repo", "__version__", "errors", "open_repo"]

_WHERE = {"open_repo": "swamp.wiring", "Repo": "swamp.repo.repository"}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "errors":
        return import_module("swamp.errors")
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
