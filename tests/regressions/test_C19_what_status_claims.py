"""C19: `status` says of a store what it has seen of it, and that it has seen nothing where it has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from machines import Place, Team
from servers.proxy import FaultProxy, Rule
from swamp.cache.state import State
from swamp.testing.s3_double import S3Double


@pytest.fixture
def wired(tmp_path: Path) -> Iterator[tuple[Team, FaultProxy]]:
    with S3Double("b") as double, FaultProxy(str(double.config["endpoint"])) as proxy:
        config = {**double.config, "endpoint": proxy.endpoint}
        yield Team(tmp_path, Place("s3://b/p", config, dict(double.environ))), proxy


@pytest.mark.parametrize("body", [b"", b"<html>not here</html>"], ids=["empty", "html"])
def test_C19_an_address_that_knows_nothing_is_not_called_a_store_without_an_index(
    wired: tuple[Team, FaultProxy], body: bytes
):
    team, proxy = wired
    a = team.machine("a")
    assert a.status()["healthy"] is True
    proxy.rules.append(Rule("answer", times=None, status=404, body=body))
    done = a("datastore", "status")
    found = done.json
    assert done.code == 69 and found["healthy"] is False and "no bucket" in found["message"]
    assert "no index" not in found["summary"] and found["behind"] is None


def test_C19_a_store_that_nobody_has_written_to_is_listed_and_no_other(
    wired: tuple[Team, FaultProxy],
):
    team, proxy = wired
    a = team.machine("a")
    before = len(proxy.seen)
    assert a.status()["message"].endswith("has no index yet")
    assert any("list-type" in path for _, path in proxy.seen[before:])
    a.put("web", "x", "1")
    before = len(proxy.seen)
    assert a.status()["message"] == "ok"
    assert not any("list-type" in path for _, path in proxy.seen[before:])


def test_C19_what_was_never_measured_is_not_claimed(wired: tuple[Team, FaultProxy]):
    """A measurement that is gone, or another address's: the root says something of conditions, nobody of the rest."""
    team, _ = wired
    a = team.machine("a")
    assert all(said is not None for said in a.status()["capabilities"].values()), "setup has measured it"
    for told in (None, json.dumps({"url": "s3://elsewhere/p", "capabilities": {}})):
        [cache] = a.caches
        state = State.open(cache / "state.db")
        with state.transaction() as tx:
            tx.set_meta("probe", told)
        state.close()
        assert a.status()["capabilities"] is None, "no root, no measurement"
    a.put("web", "x", "1")
    state = State.open(cache / "state.db")
    with state.transaction() as tx:
        tx.set_meta("probe", None)
    state.close()
    found = a.status()["capabilities"]
    assert found["compareAndSwap"] is True and found["createOnly"] is True, "its root says so"
    assert found["listAfterWrite"] is None and found["conditionalDelete"] is None
