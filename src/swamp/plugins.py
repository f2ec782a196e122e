"""Plug-ins: datastores and model types that other packages bring, found by their entry points."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from typing import Any, Final, Literal

from swamp.errors import UsageError
from swamp.values import value

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


def plugins(kind: Kind) -> Iterator[Plugin]:
    """Every installed plug-in of a kind."""
    yield from _scanned(kind, tuple(sys.path))


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
