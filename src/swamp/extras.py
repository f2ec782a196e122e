"""What other packages bring: the extras that a slim install leaves out, and plug-ins, found by their entry points."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from typing import Any, Final, Literal

from swamp.errors import MissingTool, UsageError
from swamp.values import value

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


Kind = Literal["datastores", "models"]
GROUPS: Final[dict[Kind, str]] = {"datastores": "swamp.datastores", "models": "swamp.models"}


@value
class Plugin:
    """Something a package offers under a name; imported only when it is used."""

    kind: Kind
    name: str
    target: str
    package: str

    def load(self) -> Any:
        """The object behind the entry point. Raises UsageError that names the package that is broken."""
        from importlib.metadata import EntryPoint

        try:
            return EntryPoint(self.name, self.target, GROUPS[self.kind]).load()
        except Exception as error:
            raise UsageError(
                f"the plug-in {self.name} of {self.package} cannot be loaded: {error}",
                hint=f"repair or remove the package {self.package}",
            ) from error


def plugins(kind: Kind) -> tuple[Plugin, ...]:
    """Every installed plug-in of a kind."""
    return _scanned(kind, tuple(sys.path))


@cache
def _scanned(kind: Kind, path: tuple[str, ...]) -> tuple[Plugin, ...]:
    """Looks through all installed packages, which takes long: once per process, and again when `sys.path` changes."""
    from importlib.metadata import entry_points

    return tuple(
        Plugin(kind, point.name, point.value, point.dist.name if point.dist else "an unknown package")
        for point in entry_points(group=GROUPS[kind])
    )


def find(kind: Kind, name: str) -> Plugin | None:
    return next((plugin for plugin in plugins(kind) if plugin.name == name), None)


def names(kind: Kind) -> list[str]:
    return sorted(plugin.name for plugin in plugins(kind))
