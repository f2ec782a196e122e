"""The person on call: every disaster has a check that names it and a command that ends it."""

from __future__ import annotations

import pytest

from machines import Place, Team
from swamp.index.root import ROOT_KEY


def wrong(machine) -> dict[str, str]:
    found = machine("datastore", "doctor").json
    assert found["ok"] is (not [c for c in found["checks"] if not c["ok"]])
    return {c["name"]: c.get("fix", "") for c in found["checks"] if not c["ok"]}


def details(machine, env=None) -> dict[str, str]:
    told = machine("datastore", "doctor", env=env)
    assert told.code == 1, told
    return {c["name"]: c["detail"] for c in told.json["checks"] if not c["ok"]}


def test_a_healthy_store_new_or_used_has_nothing_wrong(local_team: Team):
    a = local_team.machine("a")
    assert wrong(a) == {}
    assert a("datastore", "doctor", "--repair").ok()["ok"] is True
    a.put("web", "report", "1")
    assert wrong(a) == {}
    names = {c["name"] for c in a("datastore", "doctor").ok()["checks"]}
    assert names >= {"java", "credentials", "reachability", "clock", "probe", "root", "segments", "state", "catalog"}


def test_a_bucket_that_is_away_is_told_and_not_made(local_team: Team):
    """An examination that made the directory would turn an unmounted disk into an empty store for the next push."""
    a = local_team.machine("a")
    a.put("web", "report", "1")
    bucket = local_team.directory / "bucket"
    bucket.rename(local_team.directory / "away")
    assert "mount it" in wrong(a)["reachability"]
    a("datastore", "doctor", "--repair").failed(69)
    assert not bucket.exists()


def test_an_empty_store_where_there_was_one_is_wrong(local_team: Team):
    a = local_team.machine("a")
    a.put("web", "report", "1")
    local_team.place.open().delete(list(local_team.place.objects()))
    assert "datastore sync" in wrong(a)["root"]
    assert a("datastore", "doctor", "--repair").code == 1, "there is nothing to rebuild it from"
    a.sync()
    assert wrong(a) == {}


def test_a_bucket_that_does_not_exist_and_a_login_that_cannot_be_used_are_findings(moto, tmp_path, fresh_prefix):
    team = Team(tmp_path, Place(f"{moto.url}/{fresh_prefix()}", moto.config, dict(moto.environ)))
    a = team.machine("a")
    a.put("web", "report", "1")
    config = a.repo / ".swamp.yaml"
    config.write_text(config.read_text().replace("s3://swamp-tests/", "s3://no-such-bucket/"))
    assert "no-such-bucket" in details(a)["reachability"]
    config.write_text(config.read_text().replace("s3://no-such-bucket/", "s3://swamp-tests/"))
    assert "profile" in details(a, {"AWS_PROFILE": "nope"})["credentials"]
    status = a("datastore", "status", env={"AWS_PROFILE": "nope"})
    assert status.code == 69 and status.json["healthy"] is False and "profile" in status.json["message"]


@pytest.mark.parametrize("damage", [b"garbage", b"{}", b'{"version": 3}', b""])
def test_a_damaged_root_is_rebuilt_from_the_log(local_team: Team, damage: bytes):
    a = local_team.machine("a")
    a.put("web", "report", "1")
    entries = local_team.place.root()["entries"]
    local_team.place.open().put(ROOT_KEY, damage)
    assert "--repair" in wrong(a)["root"]
    assert a("datastore", "doctor", "--repair").ok()["ok"] is True
    assert local_team.place.root()["entries"] == entries
    assert any(key.startswith("_index/corrupt-") for key in local_team.place.objects())
    b = local_team.machine("b")
    assert b.get("web", "report")["content"] == "1"


def test_a_damaged_root_without_a_log_needs_a_guess_and_consent(local_team: Team):
    a = local_team.machine("a")
    a.put("web", "report", "1")
    store = local_team.place.open()
    store.delete([key for key in local_team.place.objects() if key.startswith("_index/")])
    store.put(ROOT_KEY, b"garbage")
    a("datastore", "doctor", "--repair").failed(65)
    a("datastore", "doctor", "--repair", "--from-listing").failed(2)
    a("datastore", "doctor", "--repair", "--from-listing", "--yes").ok()
    b = local_team.machine("b")
    assert b.get("web", "report")["content"] == "1"


def test_undelete_by_path_restores_the_whole_unit(local_team: Team):
    a, b = local_team.machine("a"), local_team.machine("b")
    a.put("web", "report", "1")
    a.put("web", "other", "2")
    [path] = [p for p in local_team.place.root()["entries"] if p.endswith("report/1/raw")]
    for name in ("report", "other"):
        a("data", "delete", "web", name, "--yes").ok()
    done = a("datastore", "undelete", path).ok()
    assert sorted(done["restored"]) == [path.replace("/raw", "/metadata.yaml"), path]
    b.sync()
    assert a.names() == b.names() == [("web", "report")]


def test_the_log_tells_what_each_commit_did(local_team: Team):
    a = local_team.machine("a")
    a.put("web", "report", "1")
    a("data", "delete", "web", "report", "--yes").ok()
    commits = a("datastore", "log").ok()["commits"]
    assert [c["seq"] for c in commits] == sorted((c["seq"] for c in commits), reverse=True)
    assert commits[0]["deleted"] == 2 and commits[0]["changed"] == 1  # the audit file grew
    assert commits[1]["added"] == 4
    told = {"seq", "op", "at", "writer", "added", "changed", "deleted", "command", "names"}
    assert set(commits[0]) == told and commits[0]["command"] == "data delete"
    assert len(a("datastore", "log", "--limit", "1").ok()["commits"]) == 1


@pytest.mark.usefixtures("one_object_each")
def test_a_file_that_verify_marked_missing_is_no_change_in_the_log(local_team: Team):
    local_team.machine("a").put("web", "lost", "1")
    [key] = [k for k in local_team.place.objects("data/") if "/lost/1/raw~" in k]
    local_team.place.open().delete([key])
    b = local_team.machine("b", "--hydrate", "lazy")
    assert b("datastore", "verify", "--repair").code == 65
    [newest] = b("datastore", "log", "--limit", "1").ok()["commits"]
    assert (newest["added"], newest["changed"], newest["deleted"]) == (0, 0, 0)
