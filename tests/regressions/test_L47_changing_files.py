"""L47: a file that somebody writes while a sync reads it is not yet pushed: it waits, and nothing has failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from machines import Machine, Place, Team
from proxies import Handler, Proxy, Request, proxy_to


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
