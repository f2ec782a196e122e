"""swamp: versioned, shared data for automation and Spark pipelines, on nothing but a bucket.

    import swamp

    repo = swamp.open()
    repo.read("web", "orders").to_pandas()

`open` gives a `Repository`; `errors` is every error that leaves it. Names load on first use: `import swamp` is cheap.
`open_repo` and `Repo` are the same without what notebooks need.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` takes as long to load as Python itself: a command begins its work before that
if TYPE_CHECKING:
    from typing import Any

    from swamp import errors as errors
    from swamp.api.repository import NamedWorkflow as NamedWorkflow
    from swamp.api.repository import Repository as Repository
    from swamp.api.repository import StartedRun as StartedRun
    from swamp.api.repository import open_repository as open  # noqa: A004 - the word for it
    from swamp.api.version import Listing as Listing
    from swamp.api.version import SavedVersion as SavedVersion
    from swamp.repo.repository import Repo as Repo
    from swamp.wiring import open_repo as open_repo

__version__ = "0.1.0"
__all__ = [
    "Listing",
    "NamedWorkflow",
    "Repo",
    "Repository",
    "SavedVersion",
    "StartedRun",
    "__version__",
    "errors",
    "open",
    "open_repo",
]

_WHERE = {
    "Listing": ("swamp.api.version", "Listing"),
    "NamedWorkflow": ("swamp.api.repository", "NamedWorkflow"),
    "Repo": ("swamp.repo.repository", "Repo"),
    "Repository": ("swamp.api.repository", "Repository"),
    "SavedVersion": ("swamp.api.version", "SavedVersion"),
    "StartedRun": ("swamp.api.repository", "StartedRun"),
    "open": ("swamp.api.repository", "open_repository"),
    "open_repo": ("swamp.wiring", "open_repo"),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "errors":
        return import_module("swamp.errors")
    if name in _WHERE:
        module, attribute = _WHERE[name]
        return getattr(import_module(module), attribute)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
