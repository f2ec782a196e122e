"""What other commits brought: the same answers as walking through all of it for each unit, without the walk."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from swamp.cache import paths
from swamp.cache.paths import ancestors, fold
from swamp.index.entry import Entry, Row, Tombstone
from swamp.sync import view as module
from swamp.sync.decide import Facts
from swamp.sync.plan import Action, UnitPlan
from swamp.sync.units import unit_of
from swamp.sync.view import ChangesSince

NAMES = st.sampled_from(["a", "A", "b", "é", "e\u0301", "É", "x.txt"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(lambda parts: "files/" + "/".join(parts))
VERSIONS = st.tuples(st.sampled_from(["data/t/m/n/1", "data/t/m/n/2"]), st.sampled_from(["raw", "metadata.yaml"])).map(
    "/".join
)
ANY = PATHS | VERSIONS


@st.composite
def row(draw, path: str) -> Row:
    key, seq = draw(st.sampled_from(["k1", "k2"])), draw(st.integers(1, 2))
    if draw(st.booleans()):
        return Entry(path, key, 1, None, "", seq)
    return Tombstone(path, key, 1, None, seq)


@st.composite
def cases(draw) -> tuple[dict[str, Row], UnitPlan]:
    appeared = {path: draw(row(path)) for path in draw(st.sets(ANY, max_size=6))}
    first = draw(ANY)
    unit = unit_of(first)
    members = {first} | {p for p in draw(st.sets(ANY, max_size=3)) if unit_of(p) == unit}
    actions = []
    for path in sorted(members):
        remote = draw(st.none() | row(path) | st.just(appeared.get(path)))
        verb = draw(st.sampled_from(["push", "delete", "nothing"]))
        actions.append(Action(Facts(path, None, None, remote), verb, ""))
    return appeared, UnitPlan(unit, tuple(actions))


def walked(rows: dict[str, Row], unit: UnitPlan) -> bool:
    """The rule as it reads."""
    planned = {a.path: a.facts.remote for a in unit.actions}
    for path, row in rows.items():
        if unit_of(path) == unit.unit and (path not in planned or row != planned[path]):
            return False
    for mine in (a.path for a in unit.actions if a.verb == "push"):
        for other in (r.path for r in rows.values() if isinstance(r, Entry) and r.path != mine):
            same = fold(mine) == fold(other)
            if same or fold(mine) in map(fold, ancestors(other)) or fold(other) in map(fold, ancestors(mine)):
                return False
    return True


@settings(max_examples=600)
@given(cases())
def test_a_unit_is_left_alone_exactly_when_a_walk_says_so(case):
    rows, unit = case
    assert ChangesSince.of(rows).leave(unit) == walked(rows, unit)


def test_P09_a_unit_is_looked_up_and_not_searched_for(monkeypatch):
    """A push of 100,000 files makes several commits: each unit of a later one was compared with all of the earlier."""
    rows: dict[str, Row] = {p: Entry(p, "k", 1, None, "", 1) for p in (f"files/{n // 100}/{n}" for n in range(20_000))}
    found = ChangesSince.of(rows)
    folded: list[str] = []
    monkeypatch.setattr(module, "fold", lambda path: (folded.append(path), paths.fold(path))[1])
    for n in range(100):
        path = f"files/new/{n}"
        assert found.leave(UnitPlan(path, (Action(Facts(path, None, None, None), "push", ""),)))
    assert len(folded) <= 100 * 3
