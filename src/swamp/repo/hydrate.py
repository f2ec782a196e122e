"""How much of the store this machine keeps: its own choice, beside its cache, over the default in `.swamp.yaml`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from swamp.cache.files import on_disk, write_atomic
from swamp.settings import HYDRATE

if TYPE_CHECKING:
    from swamp.cache.layout import CacheDir
    from swamp.repo.config import DatastoreConfig

Hydrate = Literal["full", "lazy"]
_FILE: Final = "hydrate"


def chosen(cache: CacheDir) -> Hydrate | None:
    """What this machine has chosen for the cache; None if it has not, or if that cannot be read any more."""
    try:
        said = (cache.base / _FILE).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return _checked(said)


def choose(cache: CacheDir, mode: str) -> None:
    """Remembers the choice for as long as there is this cache. The shared `.swamp.yaml` says nothing of it."""
    file = cache.ensure().base / _FILE
    with on_disk("write", str(file)):
        write_atomic(file, mode.encode())


def mode_of(config: DatastoreConfig, choice: str | None) -> Hydrate:
    """The choice of this machine, else the default that the repository's `.swamp.yaml` gives to all, else full."""
    return _checked(choice) or _checked(config.hydrate) or "full"


def _checked(said: str | None) -> Hydrate | None:
    return None if said not in HYDRATE else "lazy" if said == "lazy" else "full"
