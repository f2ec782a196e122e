"""Listings by seeking and bodies in chunks are those of a plain dictionary, whatever the page size and the range."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from swamp.env import SYSTEM
from swamp.store.chunks import (
    CHUNK_BYTES,
    ChunkedBody,
    FileChunks,
    chunk_numbers,
    cut_range,
    seek_level,
    seek_pages,
    split,
)
from swamp.store.keys import prefix_end
from swamp.store.port import ObjectMeta

NAMES = st.lists(st.sampled_from(["a", "b", "a0", "a.", "é", "\U0010ffff", "\ud7ff", "zz"]), min_size=1, max_size=4)
KEYS = st.sets(NAMES.map("/".join), max_size=30)


def seeker(keys, page):
    rows = [ObjectMeta(key, 0, "t", SYSTEM.clock.now()) for key in sorted(keys)]
    return lambda at, end: [m for m in rows if m.key >= at and (end is None or m.key < end)][:page]


@given(KEYS, st.integers(1, 4), st.sampled_from(["", "a", "a/", "b/a", "\U0010ffff"]), st.none() | NAMES.map("/".join))
def test_pages_are_the_sorted_keys(keys, page, prefix, after):
    found = [m.key for rows in seek_pages(seeker(keys, page), prefix, after) for m in rows]
    assert found == sorted(k for k in keys if k.startswith(prefix) and (after is None or k > after))


@given(KEYS, st.integers(1, 4), st.sampled_from(["", "a/", "b/a/", "\U0010ffff/"]))
def test_a_level_is_the_first_names(keys, page, prefix):
    rests = [key[len(prefix) :] for key in keys if key.startswith(prefix)]
    level = seek_level(seeker(keys, page), prefix)
    assert list(level.dirs) == sorted({prefix + rest.partition("/")[0] for rest in rests if "/" in rest})
    assert [m.key for m in level.objects] == sorted(prefix + rest for rest in rests if "/" not in rest)


def test_a_directory_of_any_size_is_jumped():
    asked = []
    inner = seeker([f"big/{n:04d}" for n in range(1000)] + ["c"], 10)
    level = seek_level(lambda at, end: asked.append(at) or inner(at, end), "")
    assert level.dirs == ("big",) and len(level.objects) == 1 and len(asked) == 3


@given(st.text(max_size=5), st.text(max_size=3))
def test_what_starts_with_a_prefix_is_before_its_end(prefix, rest):
    end = prefix_end(prefix)
    assert end is None or (prefix + rest < end and not end.startswith(prefix))


@given(st.integers(0, 3 * CHUNK_BYTES), st.none() | st.integers(0, 2 * CHUNK_BYTES))
def test_ranges_of_chunks(start, length):
    body = bytes(range(256)) * (5 * CHUNK_BYTES // 512)
    chunks = list(split(body))
    first, last = chunk_numbers(start, length)
    wanted = chunks[first : None if last is None else last + 1]
    assert cut_range(wanted, start, length) == body[start : None if length is None else start + length]
    meta = ObjectMeta("k", len(body), "t", SYSTEM.clock.now())
    assert b"".join(ChunkedBody(meta, chunks[first:], start)) == body[start:]


def test_a_file_is_hashed_as_it_is_read(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"x" * (CHUNK_BYTES + 7))
    chunks = FileChunks(path)
    assert [len(c) for c in chunks] == [CHUNK_BYTES, 7]
    assert chunks.size == CHUNK_BYTES + 7 and chunks.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
