"""Push-down changes nothing: SQL and CEL together find exactly what CEL alone would."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from swamp.catalog.catalog import Catalog
from swamp.catalog.expression import NoAnswer, compile_expression
from swamp.catalog.query import _Loader, compares_text, plan_query, query, scope_of
from swamp.data.lifetimes import Lifetime
from swamp.data.metadata import Draft, Metadata, Owner
from swamp.data.names import DataName
from swamp.data.versions import DataVersion, VersionReader
from swamp.errors import UsageError
from swamp.sync.port import PlainTree, RemoteFile, Touched

WORDS = ["", "a", "A", "ab", "b", "é", "z%", "_", "a\"b'c", "日本", "\U0001f40a", "2026-05-01T12:00:00.000Z"]
TIMES = ["2026-05-01T12:00:00.000Z", "2026-05-01T12:00:00.001Z", "2027-01-01T00:00:00.000Z"]
WORD = st.sampled_from(WORDS)
MAYBE = st.none() | WORD


class QuietTree:
    """A tree that reports no change, so that rows can be put into the catalog without files."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def announce(self, paths, kind="write", *, confirmed=False) -> Iterator[None]:
        yield

    def materialize(self, path: str) -> Path:
        return PlainTree(self.root).materialize(path)

    def remote_only(self, prefix: str = "") -> Iterator[RemoteFile]:
        return iter(())

    def bring_back(self, prefix: str) -> None: ...

    def deferred(self, prefix: str):
        return ()

    def touched_since(self, mark: int) -> Touched:
        return Touched(mark, ())


@st.composite
def versions(draw) -> list[DataVersion]:
    found = []
    for name in draw(st.lists(st.sampled_from(["a", "ab", "b", "é", "Z", "10"]), unique=True, min_size=2, max_size=4)):
        for number in range(1, draw(st.integers(1, 3)) + 1):
            tags = draw(st.dictionaries(st.sampled_from(["modelName", "specName", "type", "k", 'q"t', "é"]), WORD))
            owner = Owner(
                draw(st.sampled_from(["manual", "workflow-step"])), draw(WORD), *(draw(MAYBE) for _ in range(6))
            )
            draft = Draft(owner, draw(WORD), Lifetime("infinite"), tags=tags, streaming=draw(st.booleans()))
            meta = Metadata(draw(WORD), name, number, draft, draw(st.sampled_from(TIMES)), draw(st.integers(0, 4)), "c")
            found.append(DataVersion(DataName("t", "m", name).at(number), meta))
    return found


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


TEXT_FIELD = st.sampled_from(
    "id name createdAt modelType contentType lifetime ownerType ownerRef ns modelName specName dataType "
    "workflowRunId workflowName jobName stepName source".split()
)
TAG = st.sampled_from(["tags.k", 'tags["k"]', "tags['q\"t']", 'tags["é"]', "tags.modelName", 'tags["no"]'])
TEXTUAL = TEXT_FIELD | TAG
LITERAL = WORD.map(quoted)
NUMBER = st.sampled_from(["0", "1", "2", "3", "-1", "2.0", "1u", "0x2", "9223372036854775807"])
SIGN = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
MOMENT = st.sampled_from(
    [*TIMES, "2026-05-01T14:00:00+02:00", "2026-05-01T12:00:00.0005Z", "nonsense", "2026-05-01", "2026-05-01T12:00:00"]
).map(lambda text: f'timestamp("{text}")')


def joined(*parts):
    return st.tuples(*parts).map(" ".join)


def call(target, function, argument):
    return st.tuples(target, function, argument).map(lambda p: f"{p[0]}.{p[1]}({p[2]})")


ATOM = st.one_of(
    joined(TEXTUAL, SIGN, LITERAL),
    joined(LITERAL, SIGN, TEXTUAL),
    joined(TEXTUAL, SIGN, TEXTUAL),
    joined(st.sampled_from(["version", "size"]), SIGN, NUMBER | LITERAL),
    joined(NUMBER, SIGN, st.sampled_from(["version", "size"])),
    joined(st.just("createdAt"), SIGN, MOMENT),
    joined(MOMENT, SIGN, st.just("createdAt")),
    joined(
        st.sampled_from(["isLatest", "streaming"]), st.sampled_from(["==", "!=", "<"]), st.sampled_from(["true", "1"])
    ),
    joined(TEXTUAL, st.sampled_from(["==", "!=", "<"]), st.just("null")),
    call(TEXTUAL, st.sampled_from(["startsWith", "endsWith", "contains", "matches"]), LITERAL | st.just("1")),
    joined(TEXTUAL, st.just("in"), st.lists(LITERAL | st.just("1"), max_size=3).map(lambda i: f"[{', '.join(i)}]")),
    joined(st.just("version in"), st.lists(NUMBER, max_size=3).map(lambda i: f"[{', '.join(i)}]")),
    joined(LITERAL, st.just("in tags")),
    st.sampled_from(
        [
            "true",
            "false",
            "isLatest",
            "streaming",
            "has(tags.k)",
            "has(tags.no)",
            "1 / (version - 1) == 1",
            "size(name) > 1",
            "name.size() == 1",
            "(version > 1) == isLatest",
            "(name + name).size() == 2",
            'tags.exists(t, t == "k")',
            '(version > 1 ? name : contentType) == "a"',
            "name",
        ]
    ),
)
PREDICATE = st.recursive(
    ATOM,
    lambda inner: st.one_of(
        joined(inner, st.sampled_from(["&&", "||"]), inner),
        inner.map(lambda text: f"!({text})"),
        inner.map(lambda text: f"({text})"),
    ),
    max_leaves=6,
)


def worded(number: int, word: str | None) -> DataVersion:
    tags = {} if word is None else {"modelName": word, "k": word}
    draft = Draft(Owner("manual", word or ""), word or "", tags=tags)
    return DataVersion(DataName("t", "m", f"n{number}").at(1), Metadata("", f"n{number}", 1, draft, TIMES[0], 0, "c"))


EVERY_WORD = [worded(number, word) for number, word in enumerate([*WORDS, None])]
EVERY_METHOD = [
    f"{negation}({form.format(field=field, word=quoted(word))})"
    for field in ("contentType", "modelName", "tags.k")
    for word in WORDS
    for form in (
        "{field}.startsWith({word})",
        "{field}.endsWith({word})",
        "{field}.contains({word})",
        "{field} == {word}",
        "{field} != {word}",
        "{field} < {word}",
        "{field} in [{word}, {word}]",
    )
    for negation in ("", "!")
]


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as found:
        yield Path(found)


def by_cel_alone(catalog: Catalog, reader: VersionReader, predicate: str) -> list[tuple[str, int]]:
    expression = compile_expression(predicate)
    everything = expression.names & {"version", "isLatest"}
    found = []
    for row in catalog.select("1"):
        if not everything and not row.fields["isLatest"]:
            continue
        try:
            scope = scope_of(expression, row, _Loader(reader, []), compares_text(expression.tree))
            answer = expression.evaluate(scope)
        except NoAnswer:
            answer = False
        if answer is True:
            found.append((row.ref.data.name, row.ref.version))
    return found


@settings(max_examples=int(os.environ.get("SWAMP_EXAMPLES", "120")), deadline=None)
@given(rows=versions(), predicates=st.lists(PREDICATE, min_size=10, max_size=14))
@example(rows=EVERY_WORD, predicates=EVERY_METHOD)
def test_push_down_is_invisible(home, rows, predicates):
    tree = QuietTree(home / "tree")
    catalog = Catalog(home / "_catalog.db", tree)
    catalog.rebuild()
    for version in rows:
        catalog.record(version)
    reader = VersionReader(tree)
    for predicate in predicates:
        plan = plan_query(predicate)
        event("all SQL" if plan.rest is None else "no SQL" if plan.where.text.endswith("(1)") else "some SQL")
        try:
            results = query(catalog, reader, predicate).results
        except UsageError as error:  # such as `name`: refused as soon as a row shows that it is no condition
            assert "not a condition" in error.message
            continue
        assert [(r["name"], r["version"]) for r in results] == by_cel_alone(catalog, reader, predicate), predicate
    catalog.close()
