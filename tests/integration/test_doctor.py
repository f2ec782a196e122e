"""The person on call: every disaster has a check that names it and a command that ends it."""

from __future__ import annotations

import pytest

from machines import Team
from swamp.index.root import ROOT_KEY


def wrong(machine) -> dict[str, str]:
    found = machine("datastore", "doctor").json
    assert found["ok"] is (not [c for c in found["checks"] if not c["ok"]])
    return {c["name"]: c.get("fix", "") for c in found["checks"] if not c["ok"]}


def test_a_healthy_store_new_or_used_has_nothing_wrong(local_team: Team):
    a = local_team.machine("a")
    assert wrong(a) == {}
    assert a("datastore", "doctor", "--repair").ok()["ok"] is True
    a.put("web", "report", "1")
    assert wrong(a) == {}
    names = {c["name"] for c in a("datastore", "doctor").ok()["checks"]}
    assert names >= {"java", "credentials", "reachability", "clock", "probe", "root", "segments", "state", "catalog"}


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
    assert set(commits[0]) == {"seq", "op", "at", "writer", "added", "changed", "deleted"}
    assert len(a("datastore", "log", "--limit", "1").ok()["commits"]) == 1
