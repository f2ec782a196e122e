"""The bytes of a pack: it explains itself, and what cannot be is refused (L59, L72)."""

from __future__ import annotations

import hashlib
import json
import struct

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from swamp.commit.repack import COMMIT_ROWS
from swamp.errors import CorruptData
from swamp.index.entry import Slice, slice_of
from swamp.index.pack import (
    HEAD,
    MAGIC,
    PACK_FILES,
    TAIL,
    FooterIsLonger,
    PackWriter,
    compressed,
    ranges,
    read_footer,
    unpacked,
    upload_of,
)
from swamp.sync.bulk import Upload
from swamp.sync.transfer import upload_groups
from whole_packs import read_pack

PACK = "_packs/01JD0000000000000000000000"


def sha(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def packed(files: dict[str, bytes]) -> bytes:
    writer = PackWriter()
    for path, body in files.items():
        writer.add(path, body, sha(body), compressed(body))
    return writer.seal()


NAMES = st.lists(st.text("abcé", min_size=1, max_size=4), min_size=1, max_size=3).map("/".join)
BODIES = st.binary(max_size=300) | st.just(b"tell me again. " * 40)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(NAMES, BODIES, max_size=8))
def test_what_was_packed_comes_out(files):
    body = packed(files)
    found = read_pack(body)
    assert [f.path for f in found] == list(files)
    for file in found:
        cut = slice_of(file.key(PACK))
        assert cut is not None
        out = bytes(unpacked(cut, memoryview(body)[cut.offset : cut.end], file.size))
        assert (out, file.sha256, file.size) == (files[file.path], sha(out), len(out))


@pytest.mark.inv("pack.own-offset")
def test_empty_files_have_keys_of_their_own():
    files = read_pack(packed({"data/a": b"", "data/b": b"", "data/c": b"c"}))
    assert len({f.offset for f in files}) == 3
    assert len({f.key(PACK) for f in files}) == 3


def test_zstd_only_where_it_saves_an_eighth():
    text, noise = b"all work and no play. " * 100, bytes(hashlib.shake_128(b"x").digest(2048))
    assert len(compressed(text) or text) < len(text) * 7 / 8
    assert compressed(noise) is None and compressed(b"tiny") is None


def test_a_footer_is_read_from_the_end_alone():
    body = packed({f"data/{i}": b"x" * 50 for i in range(500)})
    assert len(read_footer(body[-60_000:], len(body))) == 500
    with pytest.raises(FooterIsLonger) as more:
        read_footer(body[-100:], len(body))
    assert len(read_footer(body[-more.value.length :], len(body))) == 500


def forged(columns: dict[str, list[object]], space: int = 200, *, claimed: int | None = None) -> bytes:
    text = json.dumps(columns).encode()
    footer = zstandard.ZstdCompressor().compress(text)
    return HEAD.pack(MAGIC, 1) + b"x" * space + footer + TAIL.pack(len(footer), claimed or len(text), MAGIC)


def row(**changed: object) -> dict[str, list[object]]:
    plain = {"path": "data/a", "offset": 12, "length": 5, "size": 5, "sha256": "0" * 64, "zstd": False, "id": ""}
    return {name: [value] for name, value in {**plain, **changed}.items()}


@pytest.mark.inv("pack.refused")
@pytest.mark.parametrize(
    "columns",
    [
        row(path="../etc/passwd"), row(path="/abs"), row(path=7), row(offset=0), row(offset=-1), row(offset=10**9),
        row(offset=True), row(offset="12"), row(length=0), row(length=10**12), row(length=400), row(size=-1),
        row(size=6), row(zstd=True, size=10**12), row(zstd=1), row(sha256="zz"), row(sha256="A" * 64), row(id=None),
        {**row(), "size": []}, {"path": []}, {}, [],
        {name: value * 2 for name, value in row().items()},
    ],
)  # fmt: skip
def test_L59_a_footer_that_cannot_be_is_refused(columns):
    assert read_pack(forged(row()))[0].path == "data/a"
    with pytest.raises(CorruptData):
        read_pack(forged(columns))


@pytest.mark.inv("pack.refused")
def test_L59_a_footer_that_claims_gigabytes_is_refused_unread():
    bomb = zstandard.ZstdCompressor().compress(b"0" * (100 << 20))
    body = HEAD.pack(MAGIC, 1) + bomb + TAIL.pack(len(bomb), 100 << 20, MAGIC)
    for hostile in (
        body,
        HEAD.pack(MAGIC, 1) + bomb + TAIL.pack(len(bomb), 1000, MAGIC),
        forged(row(), claimed=3 << 20),
        HEAD.pack(MAGIC, 1) + TAIL.pack(1 << 31, 5, MAGIC),
        body[:-1], b"", MAGIC, b"x" * 200, forged(row())[:-8] + b"swamppaX",
    ):  # fmt: skip
        with pytest.raises(CorruptData):
            read_pack(hostile)


@pytest.mark.inv("pack.refused")
def test_L59_a_slice_is_never_more_than_its_row_says():
    frame = zstandard.ZstdCompressor().compress(b"0" * (32 << 20))
    cut = Slice(PACK, 12, len(frame), True)
    for size in (10, 32 << 20):
        with pytest.raises(CorruptData):
            unpacked(cut, frame, size)
    for stored, size in ((b"12345", 4), (b"1234", 5), (b"12345", 6)):
        with pytest.raises(CorruptData):
            unpacked(Slice(PACK, 12, 5), stored, size)
    with pytest.raises(CorruptData):
        unpacked(Slice(PACK, 12, 5, True), b"12345", 9)


def test_neighbours_come_together_and_bounds_hold():
    cuts = [Slice(PACK, at, 100) for at in (12, 112, 300, 50_000, 50_100)]
    assert [len(g) for g in ranges(cuts, 200, 1 << 20)] == [3, 2]
    assert [len(g) for g in ranges(cuts, 1 << 20, 200)] == [2, 1, 2]


def test_an_identity_tells_when_it_was_uploaded():
    assert upload_of(f"{PACK}@12+5.z") == PACK.partition("/")[2]
    assert upload_of("data/a~01JD0000000000000000000001") == "01JD0000000000000000000001"
    assert upload_of("data/a") == ""
    assert struct.calcsize("<8sI") == HEAD.size


def test_a_pack_holds_no_more_files_than_one_commit_moves():
    jobs = [Upload(f"files/{n}", f"/nowhere/files/{n}", 1, packed=True) for n in range(PACK_FILES + 5)]
    assert [len(group) for group in upload_groups(jobs)] == [PACK_FILES, 5]
    assert PACK_FILES <= COMMIT_ROWS
