"""L59: an index or a footer that lies about packs. Through the CLI: one file's trouble, never the whole machine's."""

from __future__ import annotations

import json
import struct

import pytest

from machines import Team, read_tree
from swamp.env import SYSTEM
from swamp.index.entry import PACK_PREFIX, pack_key
from swamp.index.pack import Packed, PackWriter
from swamp.index.root import ROOT_KEY

SHA = "0" * 64


def point_elsewhere(team: Team, ending: str, key: str) -> None:
    """As somebody with write access to the bucket would: the row of one file names other bytes."""
    root = team.place.root()
    [path] = [path for path in root["entries"] if path.endswith(ending)]
    root["entries"][path]["key"] = key
    team.place.open().put(ROOT_KEY, json.dumps(root).encode())


@pytest.mark.inv("pack.refused")
@pytest.mark.parametrize(
    "lie",
    ["@0+999999999", "@12+99999999999", "@999999+10", "@0+5", "@12+5.z", "@-1+5", "@012+5", "@12+0", "@12+5/../../x"],
)
def test_L59_a_slice_that_cannot_be_is_one_files_trouble(team: Team, lie: str):
    a = team.machine("a")
    a.put("web", "good", "whole")
    a.put("web", "bad", "bytes")
    [pack, *_] = sorted(team.place.objects(PACK_PREFIX))
    point_elsewhere(team, "/bad/1/raw", pack + lie)
    b = team.machine("b", joined=False)
    ran = b("datastore", "setup", *team.place.setup_args)
    assert ran.code in (1, 65), (ran.code, ran.err)
    if ran.code == 1:
        assert b.get("web", "good")["content"] == "whole"
        assert b("data", "get", "web", "bad").code in (1, 65)
        assert b"bytes" not in read_tree(b.tree).values()
    assert a.get("web", "bad", "--cached")["content"] == "bytes", "who has the bytes keeps them"


def sealed(*files: Packed, tail: bytes | None = None) -> bytes:
    writer = PackWriter()
    for file in files:
        writer._append(file, b"x" * 10)
    body = writer.seal()
    return body if tail is None else body[: -len(tail)] + tail


HOSTILE = {
    "outside the tree": sealed(Packed("../../../escaped", 12, 10, 10, SHA)),
    "an absolute path": sealed(Packed("/tmp/escaped", 12, 10, 10, SHA)),
    "beyond its end": sealed(Packed("files/y", 5_000_000, 10, 10, SHA)),
    "two files in one place": sealed(Packed("files/y", 12, 10, 10, SHA), Packed("files/z", 12, 10, 10, SHA)),
    "a hash that is none": sealed(Packed("files/y", 12, 10, 10, "no")),
    "a footer as long as the world": sealed(
        Packed("files/y", 12, 10, 10, SHA), tail=struct.pack("<II8s", 2**31, 2**31, b"swamppak")
    ),
    "not a pack at all": b"<html>oops</html>",
    "nothing": b"",
}


@pytest.mark.inv("pack.refused")
@pytest.mark.parametrize("lie", HOSTILE)
def test_L59_a_footer_that_lies_is_passed_over_when_an_index_is_rebuilt(team: Team, lie: str):
    a = team.machine("a")
    a.put("web", "good", "whole")
    store = team.place.open()
    store.put(pack_key(SYSTEM.ulid()), HOSTILE[lie])
    store.delete([ROOT_KEY, *team.place.objects("_index/")])
    a("datastore", "doctor", "--repair", "--from-listing", "--yes")
    assert not [path for path in team.place.root()["entries"] if "escaped" in path or path in ("files/y", "files/z")]
    b = team.machine("b")
    assert b.get("web", "good")["content"] == "whole"
