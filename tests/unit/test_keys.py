"""Where a file's bytes are, as its key says it: one place parses keys."""

from __future__ import annotations

import pytest

from swamp.errors import CorruptData
from swamp.index.entry import MAX_PACK, MAX_SLICE, Slice, is_pack, live_in_packs, object_of, pack_key, slice_of

ULID = "01JD0000000000000000000000"
PACK = f"_packs/{ULID}"


@pytest.mark.parametrize("cut", [Slice(PACK, 12, 1), Slice(PACK, 0, 4096, True), Slice(PACK, 8 << 20, 262_144)])
def test_a_slice_is_what_its_key_says(cut):
    assert slice_of(cut.key) == cut
    assert object_of(cut.key) == PACK


@pytest.mark.parametrize(
    "key", ["data/a@1+2", f"data/a~{ULID}", "data/_packs/x@1+2", PACK, "_packs/somebody@1+2", f"_packs/{ULID}/x@1+2"]
)
def test_a_users_signs_never_matter(key):
    assert slice_of(key) is None
    assert object_of(key) == key


@pytest.mark.inv("pack.refused")
@pytest.mark.parametrize(
    "tail",
    [
        *"@ @1 @1+ @+1 @-1+5 @1+0 @01+5 @1+5.x @1+5.zz @1+5@2+3 @１+5 @1+9999999999999999999".split(),
        "@99999999999999999999+1",
        f"@1+{MAX_SLICE + 1}",
        f"@{MAX_PACK}+1",
    ],
)
def test_a_slice_that_cannot_be_is_refused_and_keeps_its_object_alive(tail):
    with pytest.raises(CorruptData):
        slice_of(PACK + tail)
    assert object_of(PACK + tail) == PACK


def test_only_our_own_names_are_packs():
    assert is_pack(pack_key(ULID))
    assert not any(is_pack(k) for k in ("_packs/", "_packs/x", f"_packs/{ULID}x", f"packs/{ULID}", PACK + "@1+2"))


def test_what_lives_in_each_pack_is_the_sum_of_its_slices():
    other = f"_packs/{ULID[:-1]}1"
    keys = [f"{PACK}@12+100", f"{PACK}@112+50.z", f"{other}@12+7", f"{PACK}@x+9", "data/a@1+2", f"data/a~{ULID}", PACK]
    assert live_in_packs(keys) == {PACK: 150, other: 7}
