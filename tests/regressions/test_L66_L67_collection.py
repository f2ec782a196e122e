"""L66, L67: what `datastore gc` may delete, whatever stands in the bucket. Through the CLI."""

from __future__ import annotations

import json
import time

import pytest

from machines import Machine, Team
from swamp.index.root import ROOT_KEY

ADOPTED = "data/tool/m1/report.csv"


def gc_now(machine: Machine) -> dict[str, int]:
    time.sleep(1.1)  # ages are whole seconds
    found: dict[str, int] = machine("datastore", "gc", "--keep-days", "0", "--yes").ok()
    return found


def adopted_and_deleted(team: Team) -> Machine:
    """A machine that has deleted a file which another tool had put into the bucket before there was an index."""
    team.place.open().put(ADOPTED, b"by another tool")
    a = team.machine("a")
    (a.tree / ADOPTED).unlink()
    deleting = (
        "import swamp; repo = swamp.open_repo('.')\n"
        f"with repo.datastore.must_sync().announce(['{ADOPTED}'], 'delete'): pass\n"
    )
    run_python(a, deleting)
    a.sync()
    assert ADOPTED in team.place.root()["deleted"]
    return a


def run_python(machine: Machine, code: str) -> None:
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=machine.repo, env=machine.environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.inv("gc.plain-unchanged")
def test_L66_what_another_tool_wrote_under_a_plain_key_after_we_dropped_it_stays(team: Team):
    a = adopted_and_deleted(team)
    store = team.place.open()
    store.put(ADOPTED, b"BY ANOTHER TOOL")  # the same size: only the bytes tell
    gc_now(a)
    assert store.get(ADOPTED).body == b"BY ANOTHER TOOL"
    store.put(ADOPTED, b"longer than before")
    gc_now(a)
    assert store.get(ADOPTED).body == b"longer than before"


@pytest.mark.inv("gc.plain-unchanged")
def test_L66_a_plain_key_that_still_holds_what_we_dropped_goes(team: Team):
    a = adopted_and_deleted(team)
    assert gc_now(a)["deleted"] >= 1
    assert ADOPTED not in team.place.objects()


@pytest.mark.inv("gc.own-keys")
def test_L67_a_hostile_list_of_condemned_keys_deletes_nothing_that_gc_itself_would_not(team: Team):
    a = team.machine("a")
    other = team.machine("other", "--namespace", "team-x")
    a.put("web", "report", "mine")
    a.put("web", "gone", "deleted just now")
    other.put("web", "report", "theirs")
    a("data", "delete", "web", "gone", "--yes").ok()
    store, root = team.place.open(), team.place.root()
    store.put("elsewhere/thing", b"by another tool")
    store.put("data/foreign", b"by another tool")
    before = team.place.objects()
    root["collecting"] = [*sorted(k for k in before if k != ROOT_KEY), ROOT_KEY, "../outside", "no/such/key", ""]
    store.put(ROOT_KEY, json.dumps(root).encode())
    a("datastore", "gc").ok()
    lost = before.keys() - team.place.objects().keys()
    assert lost == set(), "within the undo window there is nothing to collect"
    assert a("datastore", "verify").ok()["missing"] == [] and other("datastore", "verify").ok()["missing"] == []
    left = team.place.root()["collecting"]
    live = {entry["key"] for entry in team.place.root()["entries"].values()}
    assert not {ROOT_KEY, "", "../outside", "no/such/key", "elsewhere/thing", *live} & set(left)
    a.put("web", "report", "and on")
    assert team.machine("fresh").get("web", "report")["content"] == "and on"


@pytest.mark.inv("gc.own-keys")
def test_L67_what_a_dead_collector_condemned_is_collected_by_the_next(team: Team):
    a = team.machine("a")
    a.env["SWAMP_PACKS"] = "off"  # an object for each file: nothing of it lives on in a pack
    a.put("web", "report", "1")
    a("data", "delete", "web", "report", "--yes").ok()
    root = team.place.root()
    root["collecting"] = [tomb["key"] for tomb in root["deleted"].values()]
    team.place.open().put(ROOT_KEY, json.dumps(root).encode())
    assert gc_now(a)["deleted"] >= len(root["collecting"]) > 0
    assert team.place.root()["collecting"] == [] and not set(root["collecting"]) & set(team.place.objects())
