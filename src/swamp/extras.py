"""What a slim install leaves out, and the line that brings it."""

from __future__ import annotations

import importlib.util
import sys
from typing import Final

from swamp.errors import MissingTool

EXTRAS: Final[dict[str, tuple[str, ...]]] = {
    "spark": ("pyspark", "py4j", "grpc"),
    "duckdb": ("duckdb", "_duckdb", "pytz"),
    "gcs": ("google", "requests", "urllib3"),
    "arrow": ("pyarrow",),
    "pandas": ("pandas", "numpy"),
    "serve": ("fastapi", "uvicorn", "starlette", "prometheus_client", "jinja2"),
    "otel": ("opentelemetry",),
}
"""Which import belongs to which extra of `pyproject.toml`; `azure` needs nothing that a slim install lacks."""


class MissingExtra(MissingTool):
    """A part of swamp that was not installed with it."""

    exit_code = 2


def install_line(extra: str) -> str:
    return f"pip install 'swamp[{extra}]'"


def has(module: str) -> bool:
    """Whether a package is installed; it is not imported."""
    if module in sys.modules:
        return sys.modules[module] is not None
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # of the package that it would be in
        return False


def missing(what: str, extra: str) -> MissingExtra:
    """The error for something that needs an extra which is not installed."""
    return MissingExtra(
        f"{what} needs the extra `{extra}`, which is not installed", hint=install_line(extra), details={"extra": extra}
    )


def explain(error: ImportError) -> MissingExtra | None:
    """A failed import as the extra it belongs to; None if it is no package of ours to name."""
    name = (error.name or "").split(".")[0]
    for extra, modules in EXTRAS.items():
        if name in modules:
            return missing(f"what was asked for (the Python package {name})", extra)
    return None


def needs(module: str, what: str, extra: str) -> None:
    """Raises MissingExtra when a package is not there, before anything is begun."""
    if not has(module):
        raise missing(what, extra)
