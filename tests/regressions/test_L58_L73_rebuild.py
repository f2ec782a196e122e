"""L58, L73: root and log are lost, and the content lies in packs. Through the CLI."""

from __future__ import annotations

import hashlib
import time

import pytest

from machines import Machine, Team
from swamp.commit.log import log_key
from swamp.env import SYSTEM
from swamp.index.entry import PACK_PREFIX, object_of, pack_key
from swamp.index.pack import PackWriter
from swamp.index.root import ROOT_KEY
from swamp.testing.s3_double import S3Double
from whole_packs import read_pack


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
            writer.copy(file, body[file.offset : file.offset + file.length], file.key(pack))
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
    assert "rebuiltFrom" not in root and root["seq"] > seq + 1, "every file was placed again"
    time.sleep(1.1)
    fresh = team.machine("fresh")
    fresh("datastore", "gc", "--keep-days", "0", "--yes").ok()
    assert fresh.get("web", "report")["content"] == "first" and fresh.get("web", "other")["content"] == "second"
    assert fresh("datastore", "verify").ok()["missing"] == []
    a.sync()


@pytest.mark.inv("rebuild.keeps")
def test_L58_a_deleted_file_that_was_moved_since_can_still_be_undeleted(team: Team):
    """As after a purge, which moves other deletions out of its packs: every live file has its object all the while."""
    a = team.machine("a")
    a.put("web", "report", "first")
    others = set(team.place.objects(PACK_PREFIX))
    a.put("web", "mistake", "wanted after all")
    a("data", "delete", "web", "mistake", "--yes").ok()
    seq, store = team.place.root()["seq"], team.place.open()
    for pack, body in team.place.objects(PACK_PREFIX).items():
        if any("/mistake/" in file.path for file in read_pack(body)):
            assert pack not in others
            store.put(pack_key(SYSTEM.ulid()), body)
            store.delete([pack])
    store.put(log_key(seq + 1, SYSTEM.ulid()), b"the record of that purge, cut off")
    store.delete([ROOT_KEY])
    a("datastore", "doctor", "--repair", "--yes").ok()
    assert "rebuiltFrom" not in team.place.root()
    a("data", "undelete", "web", "mistake").ok()
    assert team.machine("fresh").get("web", "mistake")["content"] == "wanted after all"


def rebuilt_without_a_commit(machine: Machine, team: Team, seq: int) -> str:
    """The root is lost, and so is the last commit but for its pack: the rest is found again. The key of that pack."""
    store, writer, body = team.place.open(), PackWriter(), b"acknowledged by a commit that is lost"
    writer.add("files/later", body, hashlib.sha256(body).hexdigest())
    later = pack_key(SYSTEM.ulid())
    store.put(later, writer.seal())
    store.put(log_key(seq + 1, SYSTEM.ulid()), b"its record, cut off")
    store.delete([ROOT_KEY])
    machine("datastore", "doctor", "--repair", "--yes")
    assert team.place.root()["rebuiltFrom"] == seq
    return later


@pytest.mark.inv("rebuild.keeps")
def test_L58_until_every_file_is_placed_again_gc_spares_what_a_lost_commit_can_have_named(team: Team):
    a = team.machine("a")
    a.put("web", "report", "first")
    seq, store = team.place.root()["seq"], team.place.open()
    packs = team.place.objects(PACK_PREFIX)
    store.delete(list(packs))  # what a repack and a collection since would have moved: it is nowhere to be found yet
    later = rebuilt_without_a_commit(a, team, seq)
    time.sleep(1.1)
    a("datastore", "gc", "--keep-days", "0", "--yes")
    assert later in team.place.objects(PACK_PREFIX)
    for pack, body in packs.items():
        store.put(pack, body)
    said = a("datastore", "doctor", "--repair").ok()["repaired"]
    assert any("every file has its object again" in line for line in said), said
    root = team.place.root()
    assert "rebuiltFrom" not in root and root["placedAgain"] == [seq, root["seq"]]
    a("datastore", "doctor", "--repair").ok()
    assert team.place.root() == root, "once"
    a("datastore", "gc", "--keep-days", "0", "--yes").ok()
    assert later not in team.place.objects(PACK_PREFIX), "an orphan like any other"
    assert a.get("web", "report")["content"] == "first"


@pytest.mark.inv("rebuild.keeps")
def test_L58_after_a_rebuild_what_only_lost_commits_named_has_an_undo_window(double: S3Double, double_team: Team):
    """It was uploaded long before the root was whole again: by its own age it would be garbage at that moment."""
    team, bucket = double_team, double.bucket()
    a = team.machine("a")
    a.put("web", "report", "first")
    seq, store = team.place.root()["seq"], team.place.open()
    packs = team.place.objects(PACK_PREFIX)
    bucket.age_all(days=1)  # the record that the root will be rebuilt from is older than what came after it
    store.delete(list(packs))
    later = rebuilt_without_a_commit(a, team, seq)
    bucket.age_all(days=20)  # nobody had a copy of the packs for so long
    for pack, kept in packs.items():
        store.put(pack, kept)
    a("datastore", "doctor", "--repair").ok()
    assert "rebuiltFrom" not in team.place.root(), "every file has its object again"
    a("datastore", "gc").ok()
    assert later in team.place.objects(PACK_PREFIX), "there were no 7 days in which anybody could look for it"
    bucket.age_all(days=8)
    a("datastore", "gc").ok()
    assert later not in team.place.objects(PACK_PREFIX), "and now it is an orphan like any other"
    assert team.machine("fresh").get("web", "report")["content"] == "first"


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
    writer.copy(file, moved, file.key(pack))
    young = pack_key(SYSTEM.ulid())
    team.place.open().put(young, writer.seal())
    lose_index(team)
    a("datastore", "doctor", "--repair", "--from-listing", "--yes")
    entry = team.place.root()["entries"]["files/x"]
    assert object_of(entry["key"]) != young
    fresh = team.machine("fresh")
    assert (fresh.tree / "files/x").read_text() == "new"
