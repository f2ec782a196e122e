"""L58, L73: root and log are lost, and the content lies in packs. Through the CLI."""

from __future__ import annotations

import time

import pytest

from machines import Team
from swamp.commit.log import log_key
from swamp.env import SYSTEM
from swamp.index.keys import PACK_PREFIX, object_of, pack_key
from swamp.index.pack import PackWriter, read_pack
from swamp.index.root import ROOT_KEY


def lose_index(team: Team) -> None:
    store = team.place.open()
    store.delete([ROOT_KEY, *(key for key in team.place.objects("_index/"))])


@pytest.mark.inv("rebuild.keeps")
def test_L58_what_lies_in_packs_is_found_by_their_footers_and_gc_takes_nothing_of_it(team: Team):
    a = team.machine("a")
    a.put("web", "report", "first")
    a.put("web", "report", "second")
    a.put("web", "other", "kept")
    assert team.place.objects(PACK_PREFIX), "small files travel in packs"
    unread = pack_key(SYSTEM.ulid())
    team.place.open().put(unread, b"a pack whose footer cannot be read")
    lose_index(team)
    a("datastore", "sync").failed(65)
    a("datastore", "doctor", "--repair", "--from-listing").failed(2)
    a("datastore", "doctor", "--repair", "--from-listing", "--yes")
    assert team.place.root()["rebuiltFrom"] == 0
    b = team.machine("b")
    assert b.versions("web", "report") == [2, 1] and b.get("web", "report")["content"] == "second"
    assert b.get("web", "other")["content"] == "kept"
    time.sleep(1.1)
    b("datastore", "gc", "--keep-days", "0", "--yes").ok()
    assert unread in team.place.objects(PACK_PREFIX), "nobody knows what the lost index named"
    assert b("datastore", "verify").ok()["missing"] == []


def repacked(team: Team) -> None:
    """What a repack and a collection leave behind: the same slices in another pack."""
    store, writer = team.place.open(), PackWriter()
    packs = team.place.objects(PACK_PREFIX)
    for pack, body in packs.items():
        for file in read_pack(body):
            writer.copy(file, body[file.offset : file.offset + file.length], file.slice(pack).key)
    store.put(pack_key(SYSTEM.ulid()), writer.seal())
    store.delete(list(packs))


@pytest.mark.inv("rebuild.newest-record")
@pytest.mark.inv("rebuild.keeps")
def test_L58_an_older_record_needs_consent_and_what_was_moved_since_is_found(team: Team):
    a = team.machine("a")
    a.put("web", "report", "first")
    a.put("web", "other", "second")
    seq = team.place.root()["seq"]
    repacked(team)
    store = team.place.open()
    store.put(log_key(seq + 1, SYSTEM.ulid()), b"the record of that repack, cut off")
    store.delete([ROOT_KEY])
    told = a("datastore", "sync").failed(65)
    assert "doctor --repair" in told["hint"] and f"commit {seq} " in told["error"]
    assert ROOT_KEY not in team.place.objects(), "nobody goes back without being asked"
    said = a("datastore", "doctor", "--repair").ok()
    assert any("found again in other packs" in line for line in said["repaired"]), said
    root = team.place.root()
    assert root["rebuiltFrom"] == seq and root["seq"] > seq + 1
    time.sleep(1.1)
    fresh = team.machine("fresh")
    fresh("datastore", "gc", "--keep-days", "0", "--yes").ok()
    assert fresh.get("web", "report")["content"] == "first" and fresh.get("web", "other")["content"] == "second"
    assert fresh("datastore", "verify").ok()["missing"] == []
    a.sync()


@pytest.mark.inv("rebuild.newest-identity")
def test_L73_a_repacked_old_file_is_not_newer_than_a_later_upload(team: Team):
    a = team.machine("a")
    (a.tree / "files").mkdir(parents=True)
    for text in ("old", "new"):
        (a.tree / "files/x").write_text(text)
        (a.tree / f"files/beside-{text}").write_text(text)
        a.sync("--full")
    packs = team.place.objects(PACK_PREFIX)
    files = {(f.path, f.sha256): (pack, f) for pack, body in packs.items() for f in read_pack(body)}
    old = min((found for (path, _), found in files.items() if path == "files/x"), key=lambda found: found[0])
    pack, file = old
    writer = PackWriter()  # as a repack that died before its commit, or after a backup, leaves it
    moved = packs[pack][file.offset : file.offset + file.length]
    writer.copy(file, moved, file.slice(pack).key)
    young = pack_key(SYSTEM.ulid())
    team.place.open().put(young, writer.seal())
    lose_index(team)
    a("datastore", "doctor", "--repair", "--from-listing", "--yes")
    entry = team.place.root()["entries"]["files/x"]
    assert object_of(entry["key"]) != young
    fresh = team.machine("fresh")
    assert (fresh.tree / "files/x").read_text() == "new"
