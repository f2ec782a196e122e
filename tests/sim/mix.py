"""What users do in a run, and how rough it is. The default mix does everything; the others lean towards one rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

EVERYTHING: Final[Mapping[str, float]] = {
    "write": 20,
    "delete": 7,
    "rename": 2,
    "version": 8,
    "drop_version": 3,
    "record": 2,
    "push": 14,
    "pull": 7,
    "sync": 14,
    "full": 2,
    "scoped": 3,
    "hydrate": 3,
    "plan": 1,
    "collect": 3,
    "compact": 2,
    "undelete": 2,
    "move": 2,
    "damage": 0.3,
    "lease": 3,
    "wait": 4,
}


@dataclass(frozen=True)
class Mix:
    """One kind of run. `sabotage` is what may befall a cache after a crash."""

    name: str
    weights: Mapping[str, float] = field(default_factory=lambda: EVERYTHING)
    operations: tuple[int, int] = (6, 16)
    peers: tuple[int, int] = (2, 3)
    processes: float = 0.35
    lazy: float = 0.25
    crash: float = 0.004
    pause: float = 0.003
    linger: tuple[tuple[str, float, float], ...] = ()
    fatal: tuple[tuple[str, float], ...] = ()
    stay: tuple[float, ...] = (0.3, 0.6, 0.9)
    weather: float = 1.0
    repeat: float = 0.1
    paths: tuple[str, ...] = ("files/a", "files/b", "files/d/c")
    names: tuple[str, ...] = ("n",)
    keep_s: float = 3 * 3600.0
    layer_rows: int = 12
    sabotage: Mapping[str, float] = field(
        default_factory=lambda: {"none": 12, "backup": 3, "restore": 2, "cache": 1, "state": 2, "tree": 1}
    )
    rooted: float = 0.8
    foreign: tuple[str, ...] = ()
    forget_s: float = 3600.0
    conditions: bool = True
    """False: the store accepts conditions and ignores them."""
    misled: float = 0.0
    """How likely a machine begins with a wrong belief about that."""
    rough_probe: float = 1.0
    """How much worse the weather is for what a probe writes."""
    lies: float = 0.0
    """How often the index is answered with other bytes than it has. Nobody may call it damaged for that."""
    halves: float = 0.0
    """How often a page of a listing is a proxy's HTML, which a client takes for the end."""

    def leaning(self, name: str, weights: Mapping[str, float] | None = None, **changes: object) -> Mix:
        chosen = self.weights if weights is None else weights
        return replace(self, name=name, weights=chosen, **changes)  # type: ignore[arg-type]


DEFAULT: Final = Mix("default")
NO_SABOTAGE: Final[Mapping[str, float]] = {"none": 1}
