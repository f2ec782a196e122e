"""The promises every store keeps, as one suite. Shipped: a plug-in proves itself with a subclass and a fixture.

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self):
            return MyStore(...)          # empty, and of this test alone

Needs pytest only to be run by it. `traits` names what a backend is known not to do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from swamp.env import SYSTEM, UTC
from swamp.errors import ConditionFailed, ObjectMissing, SwampError, UsageError
from swamp.store.port import CREATE, Condition, Match, ObjectMeta, ObjectStore

PIECE = 9 * 1024 * 1024 + 17
"""Larger than one part, and no multiple of anything."""

ODD_KEYS = (
    "plain",
    "with space/and more",
    "percent%20/100%/%2F%25",
    "plus+plus/a+b",
    "hash#tag/#",
    "question?mark=1&x=2",
    "ünïcödé/日本語/😀",
    "e\u0301 decomposed/\u00e9 composed",
    "semi;colon,comma'quote\"double",
    "tilde~01JD0000000000000000000000",
    "dots/..hidden/.x/a..b/end.",
    "UPPER/lower",
    "upper/LOWER",
    "[brackets]{braces}<angle>|pipe^caret`tick",
    "a=b@c:d$e!f*g(h)",
)
BAD_KEYS = ("", "/absolute", "a//b", "trailing/", "a/./b", "../up", "a/../../b", "nul\0", "line\nbreak", "x" * 1025)


@dataclass(frozen=True)
class Traits:
    """What a backend does not do. Everything is promised unless it stands here."""

    enforces_conditions: bool = True
    nested_keys: bool = True
    long_names: bool = True
    stable_multipart_token: bool = True
    many: int = 1100
    at_once: int = 16


class StoreContract:
    """Subclass it and define the fixture `store`: an empty ObjectStore."""

    traits: ClassVar[Traits] = Traits()

    # -- one object

    def test_bytes_come_back(self, store: ObjectStore) -> None:
        for name, body in (("empty", b""), ("small", b"hello"), ("large", _bytes(PIECE))):
            put = store.put(name, body)
            fetched = store.get(name)
            assert fetched.body == body
            assert (put.key, put.size, put.token) == (name, len(body), fetched.meta.token)

    def test_head_get_and_list_agree(self, store: ObjectStore) -> None:
        store.put("a/b", b"12345")
        head, got, listed = store.head("a/b"), store.get("a/b").meta, _all(store)[0]
        assert {m.key for m in (head, got, listed)} == {"a/b"}
        assert {m.size for m in (head, got, listed)} == {5}
        assert len({m.token for m in (head, got, listed)}) == 1
        assert all(m.last_modified.utcoffset() is not None for m in (head, got, listed))

    def test_last_modified_is_now(self, store: ObjectStore) -> None:
        store.put("k", b"x")
        age = (SYSTEM.clock.now() - store.head("k").last_modified.astimezone(UTC)).total_seconds()
        assert abs(age) < 60

    def test_what_is_missing_is_missing(self, store: ObjectStore) -> None:
        calls: list[Callable[[], object]] = [
            lambda: store.head("none"),
            lambda: store.get("none"),
            lambda: store.get("none", start=3, length=2),
            lambda: store.get_if_changed("none", "123"),
            lambda: _read(store, "none"),
        ]
        for call in calls:
            assert _error_of(call) is ObjectMissing
        assert _all(store) == []

    def test_ranges(self, store: ObjectStore) -> None:
        store.put("k", b"0123456789")
        expected = {(2, 3): b"234", (0, 10): b"0123456789", (7, None): b"789", (8, 100): b"89"}
        expected |= {(10, 1): b"", (50, None): b"", (4, 0): b"", (0, 1): b"0"}
        for (start, length), body in expected.items():
            assert store.get("k", start=start, length=length).body == body, (start, length)

    def test_unchanged_costs_no_body(self, store: ObjectStore) -> None:
        token = store.put("k", b"one").token
        assert store.get_if_changed("k", token) is None
        store.put("k", b"two")
        changed = store.get_if_changed("k", token)
        assert changed is not None and changed.body == b"two" and changed.meta.token != token

    def test_every_rewrite_has_a_new_token(self, store: ObjectStore) -> None:
        tokens = [store.put("k", f"{n:04d}".encode()).token for n in range(20)]
        assert len(set(tokens)) == len(tokens)

    # -- conditions

    def test_create_only(self, store: ObjectStore) -> None:
        if not self.traits.enforces_conditions:
            return
        store.put("k", b"first", CREATE)
        assert _error_of(lambda: store.put("k", b"second", CREATE)) is ConditionFailed
        assert store.get("k").body == b"first"
        store.delete(["k"])
        store.put("k", b"third", CREATE)
        assert store.get("k").body == b"third"

    def test_match(self, store: ObjectStore) -> None:
        if not self.traits.enforces_conditions:
            return
        old = store.put("k", b"first").token
        new = store.put("k", b"second", Match(old)).token
        assert _error_of(lambda: store.put("k", b"third", Match(old))) is ConditionFailed
        assert _error_of(lambda: store.put("none", b"x", Match(old))) is ConditionFailed
        assert store.get("k").body == b"second" and new == store.head("k").token
        assert _error_of(lambda: store.head("none")) is ObjectMissing

    def test_a_match_on_a_deleted_object_fails(self, store: ObjectStore) -> None:
        if not self.traits.enforces_conditions:
            return
        token = store.put("k", b"first").token
        store.delete(["k"])
        assert _error_of(lambda: store.put("k", b"second", Match(token))) is ConditionFailed
        assert _all(store) == []

    def test_tokens_of_every_call_match(self, store: ObjectStore) -> None:
        if not self.traits.enforces_conditions:
            return
        readers: list[Callable[[], ObjectMeta]] = [
            lambda: store.head("k"),
            lambda: store.get("k").meta,
            lambda: store.get("k", start=1, length=2).meta,
            lambda: _all(store)[0],
            lambda: store.level().objects[0],
        ]
        store.put("k", b"start")
        for number, reader in enumerate(readers):
            store.put("k", f"step {number}".encode(), Match(reader().token))

    def test_one_of_eight_creators_wins(self, store: ObjectStore) -> None:
        if self.traits.enforces_conditions:
            for number in range(3):
                _race(store, f"k{number}", CREATE)

    def test_one_of_eight_swappers_wins(self, store: ObjectStore) -> None:
        if self.traits.enforces_conditions:
            for number in range(3):
                token = store.put(f"k{number}", b"start").token
                _race(store, f"k{number}", Match(token))

    # -- keys

    def test_odd_keys_round_trip(self, store: ObjectStore) -> None:
        for key in ODD_KEYS:
            store.put(key, key.encode())
        assert [m.key for m in _all(store)] == sorted(ODD_KEYS)
        for key in ODD_KEYS:
            assert store.get(key).body == key.encode() and store.head(key).key == key
            assert store.put(key, b"again").key == key
        store.delete(ODD_KEYS)
        assert _all(store) == []

    def test_a_key_may_be_the_directory_of_another(self, store: ObjectStore) -> None:
        if not self.traits.nested_keys:
            return
        keys = ["a", "a/b", "a/b/c", "a/bc", "a.b", "a0"]
        for key in (*keys, *reversed(keys)):
            store.put(key, f"of {key}".encode())
        assert [m.key for m in _all(store)] == sorted(keys)
        assert all(store.get(key).body == f"of {key}".encode() for key in keys)
        store.delete(["a/b"])
        assert [m.key for m in _all(store)] == sorted(set(keys) - {"a/b"})

    def test_long_names(self, store: ObjectStore) -> None:
        if not self.traits.long_names:
            return
        key = "deep/" + "x" * 700
        store.put(key, b"1")
        assert [m.key for m in _all(store)] == [key] and store.get(key).body == b"1"
        store.delete([key])
        assert _all(store) == []

    def test_unusable_keys_are_refused_before_anything_happens(self, store: ObjectStore) -> None:
        for key in BAD_KEYS:
            for call in _calls_with(store, key):
                assert _error_of(call) is UsageError, key[:20]
        assert _all(store) == []

    # -- listing and deleting

    def test_lists_by_string_prefix_in_order(self, store: ObjectStore) -> None:
        keys = ["a/1", "a/2", "a/20", "a/3/x", "ab/1", "b"]
        for key in reversed(keys):
            store.put(key, b"x")
        assert _keys(store, "") == keys
        assert _keys(store, "a") == ["a/1", "a/2", "a/20", "a/3/x", "ab/1"]
        assert _keys(store, "a/") == ["a/1", "a/2", "a/20", "a/3/x"]
        assert _keys(store, "a/2") == ["a/2", "a/20"]
        assert _keys(store, "a/20") == ["a/20"]
        assert _keys(store, "c") == _keys(store, "a/2/") == []

    def test_lists_after_a_key(self, store: ObjectStore) -> None:
        keys = ["a/1", "a/2", "a/3/x", "b/1", "c"]
        for key in keys:
            store.put(key, b"x")
        assert _keys(store, "", "a/2") == ["a/3/x", "b/1", "c"]
        assert _keys(store, "", "a/3") == ["a/3/x", "b/1", "c"]
        assert _keys(store, "a/", "a/1") == ["a/2", "a/3/x"]
        assert _keys(store, "", "c") == [] == _keys(store, "a/", "b")

    def test_lists_more_than_a_page(self, store: ObjectStore) -> None:
        keys = [f"many/{n:05d}" for n in range(self.traits.many)]
        store.put(keys[0], b"x")  # some servers stumble when two requests make one directory (decision 0007)
        with ThreadPoolExecutor(self.traits.at_once) as pool:
            list(pool.map(lambda k: store.put(k, b"x"), keys[1:]))
        assert _keys(store, "many/") == keys
        assert _keys(store, "many/", keys[len(keys) // 2]) == keys[len(keys) // 2 + 1 :]
        store.delete(keys)
        assert _all(store) == []

    def test_level(self, store: ObjectStore) -> None:
        for key in ("x/a", "x/b/1", "x/b/2", "x/c d/e/f", "y"):
            store.put(key, b"1")
        top, below = store.level(), store.level("x/")
        assert (top.dirs, [m.key for m in top.objects]) == (("x",), ["y"])
        assert (below.dirs, [m.key for m in below.objects]) == (("x/b", "x/c d"), ["x/a"])
        assert store.level("none/").dirs == () == store.level("none/").objects

    def test_deleting_twice_is_no_error(self, store: ObjectStore) -> None:
        store.put("a", b"1")
        store.put("b", b"1")
        store.delete(["a", "never there"])
        store.delete(["a"])
        store.delete([])
        assert [m.key for m in _all(store)] == ["b"]

    # -- files and streams

    def test_files_are_hashed_as_sent(self, store: ObjectStore, tmp_path: Path) -> None:
        for name, size in (("empty", 0), ("small", 1000), ("large", PIECE)):
            body, path = _bytes(size), tmp_path / name
            path.write_bytes(body)
            done = store.put_file(name, path)
            assert done.sha256 == hashlib.sha256(body).hexdigest()
            assert (done.meta.key, done.meta.size) == (name, size) and store.head(name).size == size
            assert store.get(name).body == body
            if name != "large" or self.traits.stable_multipart_token:
                assert store.head(name).token == done.meta.token

    def test_streams_in_chunks(self, store: ObjectStore) -> None:
        body = _bytes(PIECE)
        store.put("k", body)
        for start in (0, 5, PIECE - 3, PIECE, PIECE + 5):
            with store.open("k", start=start) as stream:
                chunks = list(stream)
            assert b"".join(chunks) == body[start:]
            assert max(map(len, chunks), default=0) <= 8 * 1024 * 1024
            assert (stream.meta.key, stream.meta.size) == ("k", PIECE)

    def test_streams_small_and_empty_objects(self, store: ObjectStore) -> None:
        store.put("empty", b"")
        store.put("small", b"abc")
        assert (_read(store, "empty"), _read(store, "small")) == (b"", b"abc")

    def test_its_address_tells_no_secret(self, store: ObjectStore) -> None:
        shown = store.url + repr(store)
        assert "secret" not in shown.lower() and "AccountKey" not in shown and "://" in store.url


def _bytes(size: int) -> bytes:
    return (bytes(range(251)) * (size // 251 + 1))[:size]


def _read(store: ObjectStore, key: str) -> bytes:
    with store.open(key) as body:
        return b"".join(body)


def _all(store: ObjectStore) -> list[ObjectMeta]:
    return [meta for page in store.list() for meta in page]


def _keys(store: ObjectStore, prefix: str, after: str | None = None) -> list[str]:
    return [meta.key for page in store.list(prefix, start_after=after) for meta in page]


def _error_of(call: Callable[[], object]) -> type[SwampError] | None:
    try:
        call()
    except SwampError as error:
        return type(error)
    return None


def _calls_with(store: ObjectStore, key: str) -> Iterable[Callable[[], object]]:
    return (
        lambda: store.put(key, b"x"),
        lambda: store.put(key, b"x", CREATE),
        lambda: store.get(key),
        lambda: store.head(key),
        lambda: store.delete([key]),
        lambda: _read(store, key),
    )


def _race(store: ObjectStore, key: str, condition: Condition) -> None:
    """Eight writers, one winner, and the winner's bytes."""

    def write(number: int) -> bool:
        return _error_of(lambda: store.put(key, f"writer {number}".encode(), condition)) is None

    with ThreadPoolExecutor(8) as pool:
        winners = [n for n, won in enumerate(pool.map(write, range(8))) if won]
    assert len(winners) == 1, f"{len(winners)} winners for {key}"
    assert store.get(key).body == f"writer {winners[0]}".encode()
