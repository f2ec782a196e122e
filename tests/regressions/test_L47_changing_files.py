"""L47: a file that somebody writes while a sync reads it is not yet pushed: it waits, and nothing has failed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

import pytest

from kills import whole
from machines import Machine, Place, Team
from proxies import Handler, Proxy, Request, proxy_to
from swamp.env import SYSTEM
from swamp.index.root import ROOT_KEY
from swamp.testing.s3_double import S3Double
from swamp.testing.s3_lies import Lie


@pytest.fixture
def proxy(moto) -> Iterator[Proxy]:
    with proxy_to(moto.endpoint) as made:
        yield made


@pytest.fixture
def team(moto, proxy: Proxy, tmp_path, fresh_prefix) -> Team:
    return Team(
        tmp_path, Place(f"{moto.url}/{fresh_prefix()}", {**moto.config, "endpoint": proxy.endpoint}, moto.environ)
    )


def appending(machine: Machine, times: int) -> Callable[[Handler, Request], bool]:
    """Another process of the machine adds a line to its audit file, before each of so many uploads."""
    tree, left = machine.tree, [times]

    def behaviour(handler: Handler, request: Request) -> bool:
        if left[0]:
            left[0] -= 1
            [file] = (tree / "audit").iterdir()
            with file.open("a") as out:
                out.write('{"command": "of another process"}\n')
        return False

    return behaviour


def announced(machine: Machine) -> int:
    """A line in the audit file that was announced and not pushed: the store was away."""
    machine.put("web", "report", "1")
    (file,) = (machine.tree / "audit").iterdir()
    with file.open("a") as out:
        out.write('{"command": "not yet pushed"}\n')
    return len(file.read_text().splitlines())


@pytest.mark.parametrize("mode", [(), ("--push",)], ids=["sync", "push"])
def test_L47_a_line_that_is_added_during_a_sync_goes_with_the_same_sync(team: Team, proxy: Proxy, mode):
    a = team.machine("a")
    a.env["SWAMP_PACKS"] = "off"  # in a pack the bytes are read before anything is sent
    lines = announced(a)
    proxy.when(lambda r: r.method == "PUT" and r.is_payload, appending(a, 1))
    done = a.sync("--full", *mode)
    assert done["failed"] == [] and done["warnings"] == [] and done["filesPushed"] == 1
    b = team.machine("b")
    (file,) = (b.tree / "audit").iterdir()
    assert len(file.read_text().splitlines()) == lines + 1


def test_L47_a_file_that_never_rests_waits_for_the_next_sync_and_fails_nothing(team: Team, proxy: Proxy):
    a = team.machine("a")
    a.env["SWAMP_PACKS"] = "off"  # in a pack the bytes are read before anything is sent
    lines = announced(a)
    (a.tree / "files").mkdir(exist_ok=True)
    (a.tree / "files/other").write_text("other")
    proxy.when(lambda r: r.method == "PUT" and r.is_payload, appending(a, 50))
    done = a.sync("--full")
    assert done["failed"] == [] and len(done["warnings"]) == 1 and "the next" in done["warnings"][0]
    assert a.status()["pending"]["writes"] + a.status()["pending"]["found"] >= 1, "it is told as pending"
    proxy.behave()
    assert a.sync()["warnings"] == []
    b = team.machine("b")
    assert (b.tree / "files/other").read_text() == "other"
    (file,) = (b.tree / "audit").iterdir()
    assert len(file.read_text().splitlines()) > lines


def test_L47_a_put_whose_own_file_never_rests_does_not_exit_0(team: Team, proxy: Proxy):
    a = team.machine("a")
    a.env["SWAMP_PACKS"] = "off"  # in a pack the bytes are read before anything is sent
    a.put("web", "report", "1")
    tree = a.tree

    def rewrite(handler: Handler, request: Request) -> bool:
        for file in tree.rglob("2/raw"):
            file.write_bytes(file.read_bytes() + b"x")
        return False

    proxy.when(lambda r: r.method == "PUT" and r.is_payload, rewrite)
    (a.home / "input").write_text("2")
    error = a("data", "put", "web", "report", str(a.home / "input")).failed(1)
    assert "did not reach the datastore" in error["error"]


def test_L08_a_file_that_can_never_be_read_still_fails_the_sync(team: Team):
    a = team.machine("a")
    a.env["SWAMP_PACKS"] = "off"  # in a pack the bytes are read before anything is sent
    a.put("web", "report", "1")
    (a.tree / "files").mkdir(exist_ok=True)
    (a.tree / "files/nowhere").symlink_to("gone")
    done = a("datastore", "sync", "--full")
    assert done.code == 1 and [f["path"] for f in done.json["failed"]] == ["files/nowhere"]


def collecting_all_the_while(double: S3Double) -> Lie:
    """Before each swap of the root somebody else's collection is committed, and what was uploaded for it is gone."""
    bucket = double.bucket()

    def collect(_headers: Mapping[str, str]) -> bool:
        root = json.loads(bucket.body(f"p/{ROOT_KEY}"))
        named = {entry["key"] for kind in ("entries", "deleted") for entry in root[kind].values()}
        for key in bucket.keys("p/"):
            if "~" in key and key.removeprefix("p/") not in named | set(root["dropped"]):
                bucket.lose(key)
        op, seq = SYSTEM.ulid(), root["seq"] + 1
        root |= {"op": op, "prevOp": root["op"], "seq": seq, "gcEpoch": root["gcEpoch"] + 2}
        root["recentOps"] = [[op, seq], *root["recentOps"]]
        bucket.write(f"p/{ROOT_KEY}", json.dumps(root).encode())
        return False  # and the swap goes on, on a root that is no longer there

    return Lie("refuse", "PUT", f"*/{ROOT_KEY}", times=None, when=collect)


def assert_waits_whole(double_team: Team, a: Machine, missing: str) -> None:
    """Still pending here; a fresh machine sees nothing of it, and nothing that is not whole."""
    assert a.status()["pending"]["writes"] + a.status()["pending"]["found"] >= 1
    fresh = double_team.machine("fresh")
    assert not list(fresh.tree.rglob(missing)) and set(whole(fresh.tree)) == {("web", "report", 1)}
    assert fresh("datastore", "verify").ok()["missing"] == []


@pytest.mark.inv("unit.whole")
def test_L47_a_unit_that_moved_in_every_round_is_named_and_stays_pending(
    double: S3Double, double_team: Team, one_object_each
):
    a = double_team.machine("a")
    a.put("web", "report", "1")
    (a.tree / "files").mkdir(exist_ok=True)
    (a.tree / "files/late").write_text("late")
    double.add(collecting_all_the_while(double))
    done = a.sync("--full")
    assert done["failed"] == [] and done["filesPushed"] == 0
    assert any("files/late" in said and "again and again" in said for said in done["warnings"]), done
    double.calm()
    assert_waits_whole(double_team, a, "late")
    assert a.sync()["filesPushed"] == 1
    assert (double_team.machine("later").tree / "files/late").read_text() == "late"


@pytest.mark.inv("unit.whole")
def test_C02_a_put_whose_unit_moved_in_every_round_does_not_exit_0(
    double: S3Double, double_team: Team, one_object_each
):
    a = double_team.machine("a")
    a.put("web", "report", "1")
    (a.home / "input").write_text("2")
    double.add(collecting_all_the_while(double))
    error = a("data", "put", "web", "report", str(a.home / "input")).failed(1)
    assert "did not reach the datastore" in error["error"] and "/report/2" in error["error"], error
    assert "again and again" in error["error"]
    double.calm()
    assert_waits_whole(double_team, a, "report/2")
    a.sync()
    assert double_team.machine("later").get("web", "report")["content"] == "2"
