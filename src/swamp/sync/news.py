"""What other commits brought since a plan was made: whether a unit that was planned may still be published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from swamp.cache.paths import ancestors, fold
from swamp.index.entry import Entry, Row
from swamp.sync.plan import UnitPlan
from swamp.sync.units import unit_of
from swamp.values import value


@value
class News:
    """Rows that appeared, looked up and never walked through: a long push has a hundred thousand of its own."""

    rows: Mapping[str, Row]
    units: Mapping[str, tuple[str, ...]]
    """The paths that changed, by unit."""
    names: Mapping[str, frozenset[str]]
    """The paths that are there now, by what some file system takes for the same."""
    above: frozenset[str]
    """The directories above those, likewise."""

    @classmethod
    def of(cls, rows: Mapping[str, Row]) -> News:
        units: dict[str, list[str]] = {}
        names: dict[str, set[str]] = {}
        directories: set[str] = set()
        for path, row in rows.items():
            units.setdefault(unit_of(path), []).append(path)
            if isinstance(row, Entry):
                names.setdefault(fold(path), set()).add(path)
                directories.update(ancestors(path))
        return cls(
            rows,
            {unit: tuple(paths) for unit, paths in units.items()},
            {name: frozenset(paths) for name, paths in names.items()},
            frozenset(map(fold, directories)),
        )

    def leave(self, unit: UnitPlan) -> bool:
        """Whether nobody else changed the unit, or what must stand beside it, since the plan looked."""
        planned = {a.path: a.facts.remote for a in unit.actions}
        changed = self.units.get(unit.unit, ())
        if not all(path in planned and _same_row(self.rows[path], planned[path]) for path in changed):
            return False
        return not self._clash(a.path for a in unit.actions if a.verb == "push")

    def _clash(self, paths: Iterable[str]) -> bool:
        """Whether one of these cannot stand beside a path that appeared meanwhile."""
        for path in paths:
            folded = fold(path)
            if folded in self.above or self.names.get(folded, frozenset()) - {path}:
                return True
            if any(fold(directory) in self.names for directory in ancestors(path)):
                return True
        return False


def _same_row(row: Row, planned: Row | None) -> bool:
    """The same content under the same number: what was moved since is, what was undeleted since is not what was
    looked at. inv[pack.identity]"""
    if planned is None or type(row) is not type(planned):
        return False
    return (row.identity, row.number) == (planned.identity, planned.number)
