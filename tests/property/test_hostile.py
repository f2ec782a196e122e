"""Whatever somebody has put into a bucket or a checkout: a value, or an error of ours. Never anything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swamp.commit import namespace
from swamp.data import metadata
from swamp.errors import CorruptData, SwampError, UsageError
from swamp.index.root import Writer, decode, encode, first_root
from swamp.locks import decide
from swamp.models.document import parse
from swamp.repo.config import read_config
from swamp.store.open import open_store
from swamp.workflows.schema import parse_workflow

QUICK = settings(max_examples=60, deadline=None)
DEEP = 100_000
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
"""Nine lines that unfold to 9**9 texts."""
HARMFUL = [
    BOMB,
    "[" * DEEP,
    "{a: " * DEEP,
    "- " * DEEP,
    "&a [*a]",
    "? " * 5000 + "x",
    "a: 2026-99-99",
    "a: 2026-99-99T99:99:99Z",
    "a: !!python/object/apply:os.system [id]",
    "a: !!binary '%%%'",
    "<<: [1, 2]",
    "a: *nowhere",
    "\x00",
    "a: \ud800",
    "a: " + "x" * 3_000_000,
    "a: 0x" + "f" * 5000,
    "a: 1" + "0" * 5000,
    "a: 190:20:30:" + "59:" * 3000 + "1",
    "a: .inf",
    "{[1]: 2}",
    "{a: 1, a: 2}",
]
NUMBERS = [
    "1e999",
    "-1e999",
    "NaN",
    "1" + "0" * 5000,
    "-1",
    "0.5",
    '"1"',
    "null",
    "[]",
    "{}",
    "true",
    '"\\u0000\\u001b[2J"',
]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def survives(read: Any, *args: Any) -> Any:
    """What it returns; a failure must be ours and must say something."""
    try:
        return read(*args)
    except SwampError as error:
        assert error.message and "\x1b" not in error.message
        return None


def unfolded(value: Any) -> int:
    """How many values there are when every alias is written out."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(unfolded(one) for one in inner)


def swapped(document: dict[str, Any], path: tuple[str, ...], text: str) -> bytes:
    """The document with one value replaced by any JSON text, also by what `json.dumps` would not write."""
    mark = "@@here@@"
    copy = json.loads(json.dumps(document))
    place = copy
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = mark
    return json.dumps(copy).replace(f'"{mark}"', text).encode()


# --- the root -------------------------------------------------------------------------------------------------------

WRITER = Writer("repo-1", "host", "user", 7, "0.1.0")
ROOT = json.loads(encode(first_root("store-1", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "2026-01-01T00:00:00.000Z", WRITER)))
ROOT["entries"] = {"files/x": {"key": "files/x~01ARZ3NDEKTSV4RRFFQ69G5FAV", "size": 1, "lastModified": "", "seq": 1}}
SEGMENT = {"rows": 1, "bytes": 1, "sha256": "0" * 64, "minPath": "a", "maxPath": "b", "addedSeq": 1}
ROOT["segments"] = [{"key": "_index/01ARZ3NDEKTSV4RRFFQ69G5FAV.parquet", **SEGMENT}]


@QUICK
@given(st.binary(max_size=300))
@example(b"[" * DEEP)
@example(b'{"a":' * DEEP)
@example(b'{"version": 3, "entries": ' + b"[" * DEEP)
def test_a_root_of_any_bytes_is_read_or_corrupt(body):
    survives(decode, body)


@QUICK
@given(st.sampled_from(sorted(ROOT)), values.map(json.dumps) | st.sampled_from(NUMBERS))
def test_a_root_with_any_field_is_read_or_corrupt(name, text):
    survives(decode, swapped(ROOT, (name,), text))


@QUICK
@given(
    st.sampled_from(["key", "size", "sha256", "lastModified", "seq"]), values.map(json.dumps) | st.sampled_from(NUMBERS)
)
def test_an_entry_with_any_field_is_read_or_corrupt(name, text):
    found = survives(decode, swapped(ROOT, ("entries", "files/x", name), text))
    if found is not None:
        entry = found.entries["files/x"]
        assert isinstance(entry.size, int) and 0 <= entry.size < 2**63 and isinstance(entry.key, str)


# --- leases and registrations ---------------------------------------------------------------------------------------

LEASE = json.loads(decide.LeaseBody("ann@host", "host", 1, "2026-01-01T00:00:00Z", 30000, "n", 1, "held").encode())


@QUICK
@given(st.binary(max_size=200))
@example(b"[" * DEEP)
def test_a_lease_of_any_bytes_is_a_lease_or_unreadable(body):
    """An unreadable one blocks for a TTL like any other: it never stops a command for good (K06)."""
    found = decide.decode(body)
    assert found is None or isinstance(found, decide.LeaseBody)


@QUICK
@given(st.sampled_from(sorted(LEASE)), values.map(json.dumps) | st.sampled_from(NUMBERS))
@example("pid", "1e999")
@example("epoch", "NaN")
@example("holder", '"\\u001b[2J"')
def test_a_lease_with_any_field_is_a_lease_or_unreadable(name, text):
    found = decide.decode(swapped(LEASE, (name,), text))
    assert found is None or found.holder.isprintable(), "the holder's name is printed on terminals"


@QUICK
@given(st.binary(max_size=200) | values.map(lambda v: json.dumps(v).encode()))
@example(b"[" * DEEP)
def test_a_registration_of_any_bytes_is_read_or_corrupt(body):
    store = open_store("memory://hostile")
    store.put(namespace.NAMESPACE_KEY, body)
    survives(namespace.read_registration, store)


# --- YAML -----------------------------------------------------------------------------------------------------------


def read_as_config(directory: Path, text: str) -> Any:
    (directory / ".swamp.yaml").write_text(text, encoding="utf-8", errors="surrogatepass")
    return survives(read_config, directory)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", HARMFUL, ids=range(len(HARMFUL)))
@pytest.mark.parametrize("reader", ["config", "workflow", "definition", "metadata"])
def test_yaml_that_was_made_to_hurt_is_refused(tmp_path, reader, text):
    """Without unfolding it, without a deep stack, without running anything."""
    if reader == "config":
        good = (
            "swampVersion: 0.1.0\ninitializedAt: 2026-01-01T00:00:00Z\nrepoId: 0b54a7a1-6c1f-4c0e-a8c7-4f5f3f6b1d10\n"
        )
        found = read_as_config(tmp_path, good + text)
    elif reader == "workflow":
        found = survives(parse_workflow, text, "w.yaml")
    elif reader == "definition":
        found = survives(parse, text, "m.yaml")
    else:
        found = survives(metadata.decode, text.encode("utf-8", "surrogatepass"), "data/x/metadata.yaml")
    assert unfolded(getattr(found, "document", getattr(found, "value", None))) < 200_000


@QUICK
@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200) | values.map(json.dumps))
def test_any_text_is_a_config_or_an_error(tmp_path_factory, text):
    read_as_config(tmp_path_factory.mktemp("repo"), text)


@QUICK
@given(st.text(max_size=200) | values.map(json.dumps) | st.dictionaries(st.text(max_size=6), values).map(json.dumps))
def test_any_text_is_a_workflow_or_an_error(text):
    try:
        parse_workflow(text, "w.yaml")
    except (UsageError, CorruptData) as error:
        assert error.message


@QUICK
@given(st.binary(max_size=300) | values.map(lambda v: json.dumps(v).encode()))
def test_any_bytes_are_metadata_or_corrupt(body):
    survives(metadata.decode, body, "data/x/metadata.yaml")
