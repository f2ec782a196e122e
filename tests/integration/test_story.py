"""The story of the contract: machines share one bucket, and nobody loses anything."""

from __future__ import annotations

import hashlib
import json
import shutil

import pytest
import zstandard

from machines import Team, read_tree
from swamp.index.root import NEWEST


def test_what_one_machine_puts_another_lists_and_reads(team: Team):
    """Put before the bucket exists, set up, join from elsewhere: listed, read, equal bytes."""
    a = team.machine("a", joined=False)
    a.put("web", "report", '{"n": 1}', "--content-type", "application/json", "--tag", "env=prod")
    pushed = a.setup(*team.place.setup_args)
    assert pushed["filesPushed"] == 4 and pushed["errors"] == []  # raw, metadata, auto-definition, audit
    a.put("web", "report", '{"n": 2}', "--content-type", "application/json")

    b = team.machine("b", joined=False)
    joined = b.setup(*team.place.setup_args)
    assert joined["filesPulled"] >= 6 and joined["filesPushed"] == 0
    assert b.names() == [("web", "report")]
    assert b.versions("web", "report") == [2, 1]
    assert b.get("web", "report")["content"] == '{"n": 2}'
    assert b.get("web", "report", "--version", "1")["content"] == '{"n": 1}'
    assert b.get("web", "report", "--version", "1")["tags"]["env"] == "prod"
    assert b("data", "query", "attributes.n == 2", "--select", "name").ok()["results"] == ["report"]


def test_setup_and_init_add_nothing_to_the_datastore_tier(team: Team):
    a = team.machine("a")
    assert a.status()["cache"]["files"] == 0
    assert a.sync()["filesPushed"] == 0
    assert [key for key in team.place.objects() if not key.startswith((".", "_index/"))] == []


def test_a_delete_is_gone_everywhere_and_stays_gone(team: Team):
    """L26: deleted on A, gone on B after a sync, and nothing that B does brings it back."""
    a, b = team.machine("a"), team.machine("b")
    a.put("web", "old", "1")
    a.put("web", "kept", "2")
    b.sync()
    assert b.names() == [("web", "kept"), ("web", "old")]
    assert a("data", "delete", "web", "old", "--yes").ok() == {"versionsDeleted": 1}
    assert b.sync("--pull")["filesDeleted"] >= 0
    assert b.names() == [("web", "kept")]
    b.put("web", "kept", "3")
    b.sync("--full")
    a.sync("--full")
    assert a.names() == b.names() == [("web", "kept")]
    c = team.machine("c")
    assert c.names() == [("web", "kept")]


def test_three_machines_write_at_once_and_nothing_is_lost(team: Team):
    """Different names, all at the same time: every one of them is on every machine afterwards."""
    machines = [team.machine(name) for name in "abc"]
    file = team.directory / "payload"
    file.write_text("x")
    running = [
        machine.start("data", "put", f"model-{i}", f"name-{n}", str(file))
        for n in range(2)
        for i, machine in enumerate(machines)
    ]
    for process in running:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, (out, err)
    expected = sorted((f"model-{i}", f"name-{n}") for n in range(2) for i in range(3))
    for machine in machines:
        machine.sync()
        assert machine.names() == expected


def test_two_machines_write_the_same_name_at_once_and_both_versions_stand(team: Team):
    """The model's lease puts them in order: two versions, not one overwritten."""
    a, b = team.machine("a"), team.machine("b")
    texts = {}
    running = []
    for machine, text in ((a, "from a"), (b, "from b")):
        file = machine.home / "same"
        file.write_text(text)
        running.append(machine.start("data", "put", "web", "same", str(file)))
    for process in running:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, (out, err)
        texts[json.loads(out)["version"]] = True
    assert sorted(texts) == [1, 2]
    a.sync()
    b.sync()
    found = {a.get("web", "same", "--version", str(v))["content"] for v in (1, 2)}
    assert found == {"from a", "from b"}
    assert read_tree(a.tree / "data") == read_tree(b.tree / "data")


def test_an_unindexed_bucket_is_discovered_once(team: Team):
    """Objects that something else put there are hydrated; the first machine publishes, the second writes nothing."""
    source = team.machine("source", joined=False)
    source.put("web", "report", "hello")
    store = team.place.open()
    for path, body in read_tree(source.repo / ".swamp").items():
        if path.startswith(("data/", "auto-definitions/")) and not path.endswith("/latest"):
            store.put(path, body)
    a = team.machine("a", joined=False)
    joined = a.setup(*team.place.setup_args)
    assert joined["discovered"] is True and joined["filesPulled"] == 3
    assert a.get("web", "report")["content"] == "hello"
    before = team.place.root()
    b = team.machine("b", joined=False)
    second = b.setup(*team.place.setup_args)
    assert second["discovered"] is False and second["filesPulled"] == 3
    assert b.get("web", "report")["content"] == "hello"
    assert team.place.root() == before


def test_a_second_sync_is_one_request_and_the_fast_path(team: Team):
    a = team.machine("a")
    a.put("web", "report", "x")
    a.sync()
    again = a.sync()
    assert (again["fastPath"], again["requests"], again["engine"]) == (True, 1, "none")
    pull = a.sync("--pull")
    assert (pull["fastPath"], pull["requests"]) == (True, 1)


def test_a_lost_state_costs_a_comparison_and_no_data(team: Team):
    """cache.disposable: state.db gone, then the whole cache gone."""
    a = team.machine("a")
    a.put("web", "report", "x")
    before = team.place.root()
    [cache] = a.caches
    for file in cache.glob("state.db*"):
        file.unlink()
    done = a.sync()
    assert (done["filesPushed"], done["filesDeleted"], done["failed"], done["conflicts"]) == (0, 0, [], [])
    assert team.place.root()["entries"] == before["entries"]
    shutil.rmtree(cache)
    assert a.names() == [("web", "report")]  # hydrated by the first command, like a fresh clone
    assert a.get("web", "report")["content"] == "x"
    assert team.place.root()["entries"] == before["entries"]


def test_an_emptied_tree_is_filled_again_and_nothing_is_deleted(team: Team):
    """L27, S11."""
    a, b = team.machine("a"), team.machine("b")
    a.put("web", "report", "x")
    shutil.rmtree(a.tree / "data")
    done = a.sync()
    assert done["filesDeleted"] == 0 and done["filesPulled"] == 2
    assert a.get("web", "report")["content"] == "x"
    b.sync()
    assert b.get("web", "report")["content"] == "x"


@pytest.mark.inv("cache.disposable")
def test_a_fresh_clone_hydrates_on_its_first_command(team: Team):
    """A checkout whose .swamp.yaml names the datastore needs no setup."""
    a = team.machine("a")
    a.put("web", "report", "x")
    b = team.machine("b", joined=False)
    shutil.copy(a.repo / ".swamp.yaml", b.repo / ".swamp.yaml")
    listed = b("data", "list")
    assert [item["name"] for item in listed.ok()["items"]] == ["report"]
    assert "fetching" in listed.err


@pytest.mark.parametrize("gone", ["moved", "a file"])
def test_a_bucket_that_is_away_stops_everything_before_it_runs(local_team: Team, gone: str):
    """An unmounted disk is not an empty store: 69, nothing ran, nothing was made in its place."""
    a = local_team.machine("a")
    a.put("web", "report", "1")
    bucket = local_team.directory / "bucket"
    bucket.rename(local_team.directory / "away")
    if gone == "a file":
        bucket.write_text("not a directory")
    file = a.home / "two"
    file.write_text("2")
    failed = a("data", "put", "web", "report", str(file))
    assert failed.code == 69 and failed.error["hint"]
    assert a.versions("web", "report") == [1]
    status = a("datastore", "status")
    assert status.code == 69 and status.json["healthy"] is False
    assert (status.json["pending"]["writes"], status.json["pending"]["outbox"]) == (0, 1)
    assert a("datastore", "sync", "--pull").failed(69)["hint"]
    assert not bucket.is_dir()
    bucket.unlink(missing_ok=True)
    (local_team.directory / "away").rename(bucket)
    a.put("web", "report", "3")
    assert a.versions("web", "report") == [3, 2, 1], "what was kept while it was away is delivered first (C18)"


def test_lazy_machines_read_what_they_do_not_hold(team: Team):
    a = team.machine("a")
    a.put("web", "report", "x" * 1000)
    b = team.machine("b", "--hydrate", "lazy")
    assert b.status()["cache"]["remoteOnly"] == 1
    assert b.names() == [("web", "report")]
    assert b.get("web", "report")["content"] == "x" * 1000
    assert b.status()["cache"]["remoteOnly"] == 0


def test_namespaces_keep_repositories_apart(team: Team):
    a = team.machine("a", "--namespace", "team-a")
    b = team.machine("b", "--namespace", "team-b")
    plain = team.machine("plain")
    for machine, text in ((a, "A"), (b, "B"), (plain, "P")):
        machine.put("web", "report", text)
    for machine in (a, b, plain):
        machine.sync("--full")
    assert [m.get("web", "report")["content"] for m in (a, b, plain)] == ["A", "B", "P"]
    listed = a("datastore", "namespace", "list").ok()
    assert [n["namespace"] for n in listed["namespaces"]] == ["team-a", "team-b"] and listed["current"] == "team-a"
    stranger = team.machine("stranger", joined=False)
    error = stranger("datastore", "setup", *team.place.setup_args, "--namespace", "team-a").failed(2)
    assert "belongs to" in error["error"]


def test_the_root_is_one_readable_document(local_team: Team):
    """Nothing but JSON, the objects and what the format says: every file of the machine is found, byte for byte."""
    a = local_team.machine("a")
    a.put("web", "report", "x")
    root, objects = local_team.place.root(), local_team.place.objects()
    assert root["version"] == NEWEST == 4
    assert {path.rsplit("/", 1)[-1] for path in root["entries"] if path.startswith("data/")} == {"raw", "metadata.yaml"}
    found = {path: _bytes_at(objects, entry["key"]) for path, entry in root["entries"].items()}
    assert found == {path: (a.tree / path).read_bytes() for path in root["entries"]}
    for path, entry in root["entries"].items():
        assert (entry["size"], entry["sha256"]) == (len(found[path]), hashlib.sha256(found[path]).hexdigest())
    record = f"_index/log/{root['seq']:012d}-{root['op']}.json"
    assert objects[record] == objects[".datastore-index.json"]


def _bytes_at(objects: dict[str, bytes], key: str) -> bytes:
    """What a key names, read as 80-packs describes it and without the program's own functions."""
    pack, _, cut = key.partition("@")
    if not pack.startswith("_packs/"):
        return objects[key]
    offset, length = map(int, cut.removesuffix(".z").split("+"))
    body = objects[pack][offset : offset + length]
    return zstandard.ZstdDecompressor().decompress(body) if cut.endswith(".z") else body
