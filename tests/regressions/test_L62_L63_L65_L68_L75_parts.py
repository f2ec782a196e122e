"""Directories as data, and moving them: whatever a part is called it travels, or nothing is saved at all."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest

from machines import Machine, Place, Team, read_tree
from swamp.repo.config import write_config

OURS = (".lock", "_catalog.db", "_catalog.db-wal", ".swamp-tmp-1", "latest", "metadata.yaml", "parts.parquet")


def folder(at: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_text(text)
    return at


def fetched(machine: Machine, name: str, *args: str) -> dict[str, bytes]:
    target = machine.home / f"got-{name}"
    machine("data", "get", "web", name, "--output", str(target), *args).ok()
    return read_tree(target)


@pytest.mark.inv("names.by-place")
def test_L62_a_part_with_a_name_of_ours_travels_at_any_depth(team: Team, tmp_path: Path):
    a = team.machine("a")
    files = {f"{below}{name}": f"{below}{name}" for below in ("", "deep/er/", ".swamp-tmp-2/") for name in OURS}
    source = folder(tmp_path / "source", files)
    a("data", "put", "web", "all", str(source)).ok()
    b = team.machine("b")
    assert fetched(b, "all") == read_tree(source) and len(read_tree(source)) == len(files)
    assert a.sync("--full")["filesPushed"] == 0
    lazy = team.machine("lazy", "--hydrate", "lazy")
    assert fetched(lazy, "all") == read_tree(source)


@pytest.mark.inv("names.by-place")
def test_L62_a_bucket_without_an_index_gives_every_part_and_names_what_is_left_out(team: Team, tmp_path: Path):
    plain = Machine.make(tmp_path, "plain")
    marks = (".datastore-index.json", ".namespace.json")
    files = {f"{below}{name}": name for below in ("", "deep/er/", ".swamp-tmp-2/") for name in (*OURS, *marks)}
    source = folder(tmp_path / "source", files)
    plain("data", "put", "web", "all", str(source)).ok()
    store = team.place.open()
    tiers = {
        path: body for path, body in read_tree(plain.repo / ".swamp").items() if path.startswith(("data/", "auto"))
    }
    for path, body in tiers.items():
        store.put(path, body)
    store.put("files/.lock", b"{}")
    store.put("data/manual/data/some-id/.lock", b"{}")
    a = team.machine("a", joined=False)
    joined = a("datastore", "setup", *team.place.setup_args)
    assert joined.ok()["discovered"]
    assert fetched(a, "all") == read_tree(source)
    [told] = [warning for warning in joined.json["warnings"] if "left out" in warning]
    assert told.startswith("1 object") and "files/.lock" in told, "what is ours by its place is nobody's loss"
    assert "data/manual/data/some-id/.lock" not in team.place.root()["entries"]
    assert fetched(team.machine("b"), "all") == read_tree(source)


@pytest.mark.inv("names.by-place")
def test_L62_an_index_that_is_rebuilt_from_a_listing_has_every_file_whatever_its_name(team: Team, tmp_path: Path):
    a = team.machine("a")
    source = folder(tmp_path / "source", dict.fromkeys(OURS, "x"))
    a("data", "put", "web", "all", str(source)).ok()
    folder(a.tree, {"files/.lock": "mine"})
    assert a.sync("--full")["filesPushed"] == 1 and team.place.objects("_packs/"), "small files travel in packs"
    store = team.place.open()
    store.delete([".datastore-index.json", *team.place.objects("_index/")])
    a("datastore", "doctor", "--repair", "--from-listing", "--yes")
    b = team.machine("b")
    assert fetched(b, "all") == read_tree(source)
    assert (b.tree / "files/.lock").read_text() == "mine"


@pytest.mark.inv("parts.all-or-nothing")
def test_L62_what_cannot_travel_is_refused_before_anything_is_saved(team: Team, tmp_path: Path):
    a = team.machine("a")
    before = read_tree(a.tree)
    cases = {
        "reserved": lambda at: folder(at, {"x~01JD00000000000000000000AB": "x"}),
        "backslash": lambda at: folder(at, {"a\\b": "x"}),
        "bytes": lambda at: (at / "caf\udce9").write_text("x"),
        "dangling": lambda at: (at / "link").symlink_to("nowhere"),
        "directory link": lambda at: (at / "link").symlink_to(tmp_path),
    }
    for name, make in cases.items():
        source = folder(tmp_path / name, {"good": "1"})
        make(source)
        assert "saved" in a("data", "put", "web", "bad", str(source)).failed(2)["hint"]
    assert read_tree(a.tree) == before


def test_L62_a_reference_clients_unfinished_file_is_not_taken_for_data(team: Team):
    a = team.machine("a")
    a.put("web", "report", "1")
    unfinished = ".8d2f5a86-5f5b-4b0c-9f3e-1f2e3d4c5b6a.tmp"
    [version] = [p.parent for p in (a.tree / "data").rglob("metadata.yaml")]
    (version / unfinished).write_text("half")
    folder(a.tree, {f"outputs/t/{unfinished}": "half"})
    assert a.sync("--full")["filesPushed"] == 0
    assert not [path for path in team.place.root()["entries"] if path.endswith(".tmp")]


@pytest.mark.inv("parts.all-or-nothing")
def test_L63_a_changed_or_missing_part_is_never_copied_out(team: Team, tmp_path: Path):
    a = team.machine("a")
    source = folder(tmp_path / "source", {"one": "1", "deep/two": "2", "three": "3"})
    a("data", "put", "web", "all", str(source)).ok()
    [raw] = (a.tree / "data").rglob("raw")
    (raw / "deep" / "two").write_text("X")
    target = tmp_path / "out"
    assert "deep/two" in a("data", "get", "web", "all", "--output", str(target)).failed(65)["error"]
    assert not target.exists(), "a part of it was handed out"
    assert a("datastore", "verify", "--repair").ok()["healed"]
    assert fetched(a, "all") == read_tree(source)


@pytest.mark.inv("parts.all-or-nothing")
def test_L63_two_versions_are_never_mixed_in_one_directory(team: Team, tmp_path: Path):
    """A dataset whose parts lie beside those of the version before would be read twice."""
    a, target = team.machine("a"), tmp_path / "out"
    a("data", "put", "web", "all", str(folder(tmp_path / "first", {"one": "1", "two": "2"}))).ok()
    a("data", "get", "web", "all", "--output", str(target)).ok()
    a("data", "get", "web", "all", "--output", str(target)).ok()
    a("data", "put", "web", "all", str(folder(tmp_path / "second", {"one": "1, newer", "three": "3"}))).ok()
    refused = a("data", "get", "web", "all", "--output", str(target)).failed(2)
    assert "two" in refused["error"] and "empty" in refused["hint"]
    assert read_tree(target) == read_tree(tmp_path / "first"), "nothing of it was replaced"


@pytest.mark.inv("parts.all-or-nothing")
def test_L63_a_missing_part_of_a_plain_directory_is_65(tmp_path: Path):
    plain = Machine.make(tmp_path, "plain")
    source = folder(tmp_path / "source", {"one": "1", "two": "2"})
    plain("data", "put", "web", "all", str(source)).ok()
    [raw] = (plain.repo / ".swamp" / "data").rglob("raw")
    (raw / "two").unlink()
    assert "raw/two" in plain("data", "get", "web", "all", "--output", str(tmp_path / "out")).failed(65)["error"]
    assert not (tmp_path / "out").exists()


@pytest.mark.inv("source.proven")
def test_L65_moving_to_a_bucket_removes_only_what_the_bucket_has(tmp_path: Path):
    machine = Machine.make(tmp_path, "a")
    machine.put("web", "report", "1")
    local = machine.repo / ".swamp"
    mine = {
        "files/latest": "mine",
        "files/app/latest": "7\n",
        "data/latest": "mine too",
        "data/notes/of/people/latest": "not a number",
        "files/.lock": "mine",
        "logs/private/latest": "stays here",
    }
    folder(local, mine)
    [marker] = [p for p in (local / "data").rglob("latest") if p.parent.name == "report"]
    write_config(machine.repo, {"datastore": {"type": "filesystem", "exclude": ["logs/private/"]}})
    place = Place((tmp_path / "bucket").as_uri())
    done = machine.setup(*place.setup_args)
    shared = place.root()["entries"]
    tree = machine.tree
    for path, text in mine.items():
        there = path in shared and (tree / path).read_text() == text
        assert there or (local / path).read_text() == text, path
    assert {"files/latest", "files/app/latest", "data/latest", "files/.lock"} <= set(shared)
    assert (local / "logs/private/latest").exists() and any("stay in" in w for w in done["warnings"])
    assert (local / "data/notes/of/people/latest").exists(), "a name of ours by place, with bytes that are not ours"
    assert not marker.exists() and machine.names() == [("web", "report")]


@pytest.mark.inv("coexist.unit")
@pytest.mark.parametrize(
    "pair", [("Foo", "foo"), (unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")), ("A/x", "a")]
)
def test_L68_two_parts_that_some_machine_cannot_tell_apart_are_refused_and_never_enter_a_root(
    team: Team, tmp_path: Path, pair: tuple[str, str]
):
    a = team.machine("a")
    source = folder(tmp_path / "source", dict.fromkeys(pair, "x"))
    assert "same name" in a("data", "put", "web", "both", str(source)).failed(2)["error"]
    assert a("data", "list").ok()["total"] == 0
    # And where somebody puts them into the tree by hand: a conflict, inside a unit too.
    good = folder(tmp_path / "good", {pair[0]: "x"})
    a("data", "put", "web", "one", str(good)).ok()
    [version] = [p.parent for p in (a.tree / "data").rglob("metadata.yaml")]
    twin = version.with_name("2")
    folder(twin, {"metadata.yaml": (version / "metadata.yaml").read_text().replace("version: 1", "version: 2")})
    folder(twin / "raw", dict.fromkeys(pair, "x"))
    done = a("datastore", "sync", "--full")
    assert done.code == 1 and len(done.json["conflicts"]) >= 2, done.out
    assert not [path for path in team.place.root()["entries"] if f"{version.parent.name}/2/" in path]


MANY = 3_000


def many_parts(at: Path, count: int) -> Path:
    at.mkdir()
    for number in range(count):
        directory = at / f"{number % 10}"
        directory.mkdir(exist_ok=True)
        (directory / f"part-{number:06d}").write_bytes(str(number).encode())
    return at


def test_L75_many_parts_are_a_manifest_of_their_own_and_every_machine_reads_them(team: Team, tmp_path: Path):
    a = team.machine("a")
    source = many_parts(tmp_path / "source", MANY)
    saved = a("data", "put", "web", "all", str(source)).ok()
    assert saved["partCount"] == MANY and "parts" not in saved
    [meta] = (a.tree / "data").rglob("metadata.yaml")
    assert meta.stat().st_size < 2_000 and meta.with_name("parts.parquet").exists()
    b = team.machine("b")
    assert b.get("web", "all")["partCount"] == MANY and b.names() == [("web", "all")]
    assert fetched(b, "all") == read_tree(source)
    assert b("data", "query", "name == 'all'").ok()["total"] == 1
    assert b("data", "gc", "--dry-run").ok()["versionsDeleted"] == 0
    assert b("data", "put", "web", "all", str(source)).ok()["version"] == 2
    lazy = team.machine("lazy", "--hydrate", "lazy")
    assert lazy.status()["cache"]["remoteOnly"] == 2 * MANY
    assert fetched(lazy, "all") == read_tree(source)
    meta.with_name("parts.parquet").write_bytes(b"PAR1 nonsense")
    a("data", "get", "web", "all", "--version", "1", "--output", str(tmp_path / "out")).failed(65)
    assert a.names() == [("web", "all")]


def test_L75_one_name_that_cannot_be_read_stops_none_of_the_others(team: Team):
    a = team.machine("a")
    for name in ("bad", "good"):
        for text in ("1", "2"):
            a.put("web", name, text)
    newest = max(p for p in (a.tree / "data").rglob("metadata.yaml") if p.parent.parent.name == "bad")
    newest.write_bytes(b"x" * (17 << 20))
    listed = a("data", "list")
    assert [i["name"] for i in listed.ok()["items"] if i["name"] == "good"] == ["good"] and "bad" in listed.err
    assert a("data", "query", "name == 'good'").ok()["total"] == 1
    collected = a("data", "gc", "--dry-run")
    assert len(collected.ok()["unreadable"]) == 1
    assert a.put("web", "good", "3")["version"] == 3
    assert a("data", "get", "web", "bad").failed(65)["hint"]
    assert json.loads(a("data", "versions", "web", "good").out)["total"] == 3
    assert a.put("web", "bad", "3")["version"] == 3 and a.get("web", "bad")["content"] == "3"
