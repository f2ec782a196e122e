"""L: loss and destruction where the store fails in the middle of a command. Through the CLI, on S3 behind a proxy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from kills import whole
from machines import Machine, Place, Ran, Team, read_tree
from proxies import Proxy, proxy_to, refuse
from servers.proxy import FaultProxy, Rule
from swamp.index.root import ROOT_KEY

QUICK = {"SWAMP_REQUEST_TIMEOUT_MS": "2000", "SWAMP_DATASTORE_SYNC_TIMEOUT_MS": "4000"}
NO_PAYLOAD, NO_ROOT = (lambda r: r.is_write and r.is_payload), (lambda r: r.is_write and r.is_root)


@pytest.fixture
def proxy(moto) -> Iterator[Proxy]:
    with proxy_to(moto.endpoint) as made:
        yield made


@pytest.fixture
def team(proxy: Proxy, moto, tmp_path, fresh_prefix) -> Team:
    """Machines whose bucket lies behind the proxy."""
    config = {**moto.config, "endpoint": proxy.endpoint}
    return Team(tmp_path, Place(f"{moto.url}/{fresh_prefix()}", config, dict(moto.environ)))


def put(machine: Machine, name: str, text: str) -> Ran:
    file = machine.home / "broken-input"
    file.write_text(text)
    return machine("data", "put", "web", name, str(file), env=QUICK)


def pending(machine: Machine) -> dict[str, Any]:
    found: dict[str, Any] = machine.status()["pending"]
    return found


def test_L04_L11_an_edit_whose_push_failed_arrives_after_somebody_elses_push_and_a_pull(team: Team, proxy: Proxy):
    a, b = team.machine("a"), team.machine("b")
    a.put("web", "report", "1")
    proxy.when(NO_PAYLOAD, refuse(403, "AccessDenied"))
    assert put(a, "report", "written offline").code == 69
    proxy.behave()
    b.put("web", "theirs", "pushed meanwhile")
    assert a.sync("--pull")["filesPushed"] == 0
    assert pending(a)["writes"] > 0, "a pull forgets nothing that is still to be pushed"
    assert a.sync()["filesPushed"] >= 2
    b.sync()
    assert b.get("web", "report")["content"] == "written offline" and b.versions("web", "report") == [2, 1]
    assert a.names() == b.names()


@pytest.mark.parametrize("lost", ["root", "log"])
def test_L12_a_delete_whose_push_partly_failed_stays_deleted(team: Team, proxy: Proxy, lost: str):
    a, b = team.machine("a"), team.machine("b")
    a.put("web", "gone", "1")
    a.put("web", "kept", "2")
    b.sync()
    broken = NO_ROOT if lost == "root" else lambda r: r.is_write and "/_index/log/" in r.path
    proxy.when(broken, refuse(403, "AccessDenied"))
    assert a("data", "delete", "web", "gone", "--yes", env=QUICK).code == 69
    proxy.behave()
    a.sync("--pull")
    assert a.names() == [("web", "kept")], "a pull does not bring back what was deleted here"
    a.sync()
    b.sync()
    assert b.names() == a.names() == team.machine("fresh").names() == [("web", "kept")]


def test_L15_setup_deletes_nothing_that_it_could_not_push(team: Team, proxy: Proxy):
    a = team.machine("a", joined=False)
    for n in range(3):
        a.put("web", f"report-{n}", f"text {n}")
    source = a.repo / ".swamp" / "data"
    before, config = read_tree(source), (a.repo / ".swamp.yaml").read_text()
    for broken in (NO_PAYLOAD, NO_ROOT):
        proxy.when(broken, refuse(403, "AccessDenied"))
        assert a("datastore", "setup", *team.place.setup_args, env=QUICK).code in (1, 69)
        proxy.behave()
        assert read_tree(source) == before and (a.repo / ".swamp.yaml").read_text() == config
    done = a.setup(*team.place.setup_args)
    assert done["filesPushed"] > 0 and not list(source.glob("**/raw"))
    there = whole(team.machine("fresh").tree)
    assert {name for _, name, _ in there} == {"report-0", "report-1", "report-2"} and whole(a.tree) == there


def test_L21_an_index_that_cannot_be_read_just_now_is_not_no_index(team: Team, proxy: Proxy):
    a = team.machine("a")
    a.put("web", "report", "1")
    before = team.place.root()
    b = team.machine("b", joined=False)
    b.put("web", "own", "2")
    proxy.when(lambda r: r.method in ("GET", "HEAD") and r.is_root, refuse(503, "SlowDown"))
    b("datastore", "setup", *team.place.setup_args, "--timeout", "3", env=QUICK).failed(69)
    assert put(a, "report", "2").code == 69
    proxy.behave()
    assert team.place.root() == before, "nothing was published over an index that nobody could read"
    b.setup(*team.place.setup_args)
    assert b.names() == [("web", "own"), ("web", "report")]


def test_L31_one_file_that_cannot_be_uploaded_holds_up_no_index(team: Team):
    """Its key would be longer than S3 allows; the others are committed, it is reported and stays."""
    a = team.machine("a")
    tree = a.tree
    (tree / "files").mkdir(exist_ok=True)
    for n in range(20):
        (tree / "files" / f"good-{n}").write_text(str(n))
    deep = tree / "files" / "/".join(["d" * 200] * 4)
    deep.mkdir(parents=True)
    (deep / ("e" * 200)).write_text("x")
    done = a("datastore", "sync", "--push", "--full")
    assert done.code == 1 and done.json["filesPushed"] == 20
    assert [f["path"].endswith("e" * 200) for f in done.json["failed"]] == [True], done.json["failed"]
    again = a("datastore", "sync", "--push", "--full")
    assert again.code == 1 and again.json["filesPushed"] == 0, "it stays pending and is told again"
    shutil.rmtree(tree / "files" / ("d" * 200))
    a.sync("--full")
    assert len(list((team.machine("b").tree / "files").iterdir())) == 20


@pytest.mark.inv("entry.keeps")
def test_L32_a_payload_that_was_not_there_once_removes_no_entry_and_no_good_copy(team: Team, proxy: Proxy):
    a, b = team.machine("a"), team.machine("b")
    a.put("web", "report", "precious")
    before = team.place.root()["entries"]
    proxy.when(lambda r: r.method in ("GET", "HEAD") and r.is_payload, refuse(404, "NoSuchKey"))
    told = b("datastore", "sync", "--pull", env=QUICK)
    assert told.code == 1 and told.json["failed"]
    proxy.behave()
    a.sync("--full")
    assert team.place.root()["entries"] == before and a.get("web", "report")["content"] == "precious"
    b.sync()
    assert b.get("web", "report")["content"] == "precious"


@pytest.mark.inv("commit.unknown-is-not-failure")
@pytest.mark.parametrize("action", ["lose", "drop"])
def test_L45_a_swap_whose_answer_is_lost_has_one_outcome_and_it_is_told(moto, tmp_path, fresh_prefix, action):
    """It landed or it did not: the command finds out, says success, and there is one version from one commit."""
    with FaultProxy(moto.endpoint) as proxy:
        config = {**moto.config, "endpoint": proxy.endpoint}
        team = Team(tmp_path, Place(f"{moto.url}/{fresh_prefix()}", config, dict(moto.environ)))
        a = team.machine("a")
        a.put("web", "report", "1")
        before = team.place.root()["seq"]
        proxy.rules.append(Rule(action, "PUT", ROOT_KEY.replace(".", r"\.")))
        assert a.put("web", "report", "2")["version"] == 2
        assert [fault for fault, _, _ in proxy.fired] == [action]
        assert team.place.root()["seq"] == before + 1, "committed once"
        assert team.machine("b").versions("web", "report") == [2, 1]


def test_S11_P03_the_fast_path_is_one_request_and_blind_to_no_damage(team: Team, proxy: Proxy):
    """A reader that only pulls reaches it; a cache that was emptied or damaged by hand leaves it."""
    a, b = team.machine("a"), team.machine("b")
    for n in range(3):
        a.put("web", f"report-{n}", str(n))
    b.sync("--pull")
    proxy.forget()
    quick = b.sync("--pull")
    assert (quick["fastPath"], quick["requests"], len(proxy.seen)) == (True, 1, 1), json.dumps(quick)
    shutil.rmtree(b.tree / "data")
    assert b.sync("--pull")["filesPulled"] > 0
    assert b.names() == a.names()
    next(f for f in (b.tree / "data").rglob("raw")).unlink()
    healed = b.sync("--pull", "--full")
    assert healed["filesPulled"] == 1 and whole(b.tree) == whole(a.tree)


def test_P01_P02_one_change_in_a_large_index_costs_what_a_change_costs(team: Team, proxy: Proxy):
    a = team.machine("a")
    first = requests_of_a_put(a, proxy, "one")
    tree = a.tree
    for n in range(1200):
        file = tree / "files" / f"dir-{n % 40}" / str(n)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(n))
    a.sync("--push", "--full")
    assert len(team.place.root()["segments"]) >= 1
    again = requests_of_a_put(a, proxy, "two")
    assert again <= first + 4, (first, again)


def requests_of_a_put(machine: Machine, proxy: Proxy, name: str) -> int:
    proxy.forget()
    machine.put("web", name, name)
    return len(proxy.seen)
