"""Setup: from where the data is to where it shall be, safe to run again, in every direction."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading

import pytest

import swamp
from kills import Killer
from machines import Machine, Place, Team, read_tree
from swamp.errors import CorruptData
from swamp.index.root import ROOT_KEY
from swamp.repo.open import read_target
from swamp.store.together import SideCall
from swamp.sync.observe import Planner
from swamp.testing.s3_bucket import Manners


def tier(machine: Machine) -> dict[str, bytes]:
    """The plain directory's shared files."""
    found = read_tree(machine.repo / ".swamp")
    return {p: b for p, b in found.items() if p.split("/")[0] in ("data", "auto-definitions", "audit")}


def test_existing_data_moves_and_the_source_is_cleaned_up(local_team: Team):
    """L15: pushed before anything is deleted."""
    a = local_team.machine("a", joined=False)
    a.put("web", "report", "1")
    a.put("web", "report", "2")
    before = {p: b for p, b in tier(a).items() if not p.endswith("/latest")}
    done = a.setup(*local_team.place.setup_args)
    assert done["filesPushed"] == len(before)
    assert tier(a) == {}
    stored = read_tree(a.tree)
    assert {p: stored[p] for p in before} == before
    assert a.versions("web", "report") == [2, 1]


def test_a_failed_setup_leaves_everything_as_it_was(local_team: Team):
    a = local_team.machine("a", joined=False)
    a.put("web", "report", "1")
    before, config = tier(a), (a.repo / ".swamp.yaml").read_text()
    (local_team.directory / "bucket").write_text("a file, not a directory")
    failed = a("datastore", "setup", *local_team.place.setup_args)
    assert failed.code in (2, 69), failed.err
    assert tier(a) == before and (a.repo / ".swamp.yaml").read_text() == config
    (local_team.directory / "bucket").unlink()
    a.setup(*local_team.place.setup_args)
    assert a.get("web", "report")["content"] == "1"


def test_something_unreadable_stops_the_setup_before_it_changes_anything(local_team: Team):
    a = local_team.machine("a", joined=False)
    a.put("web", "report", "1")
    link = a.repo / ".swamp" / "files" / "dangling"
    link.parent.mkdir()
    link.symlink_to("/nowhere/at/all")
    before = tier(a)
    error = a("datastore", "setup", *local_team.place.setup_args).failed(1)
    assert "dangling" in error["error"]
    assert tier(a) == before
    link.unlink()
    a.setup(*local_team.place.setup_args)


def test_hydrate_is_this_machines_choice_and_not_committed(local_team: Team):
    a = local_team.machine("a")
    a.put("web", "report", "one")
    b = local_team.machine("b", "--hydrate", "lazy")
    shared = b.repo / ".swamp.yaml"
    assert "hydrate:" not in shared.read_text() and b.status()["hydrate"] == "lazy"
    moved = local_team.machine("moved", "--hydrate", "lazy")
    moved("datastore", "namespace", "set", "team-a").ok()
    assert moved.status()["hydrate"] == "lazy" and "hydrate:" not in (moved.repo / ".swamp.yaml").read_text()
    clone = local_team.machine("clone", joined=False)
    shutil.copy(shared, clone.repo / ".swamp.yaml")
    assert clone.get("web", "report")["content"] == "one"
    assert clone.status()["hydrate"] == "full" and clone.status()["cache"]["remoteOnly"] == 0
    text = shared.read_text().replace("datastore:\n", "datastore:\n  hydrate: lazy\n")
    later = local_team.machine("later", joined=False)
    for repo in (a.repo, later.repo):
        (repo / ".swamp.yaml").write_text(text)
    later("data", "list").ok()
    assert later.status()["hydrate"] == "lazy", "the default of a repository counts where nobody has chosen"
    assert a.setup(*local_team.place.setup_args, "--hydrate", "full")["hydrate"] == "full"
    assert a.status()["hydrate"] == "full" and "hydrate: lazy" in (a.repo / ".swamp.yaml").read_text()
    assert a.setup(*local_team.place.setup_args)["hydrate"] == "full", "a choice lasts"


def test_a_setup_that_fails_leaves_the_choice_as_it_was(local_team: Team):
    local_team.machine("a").put("web", "report", "one")
    b = local_team.machine("b", "--hydrate", "lazy")
    bucket, aside = local_team.directory / "bucket", local_team.directory / "aside"
    bucket.rename(aside)
    bucket.write_text("a file, not a directory")
    assert b("datastore", "setup", *local_team.place.setup_args, "--hydrate", "full").code in (2, 69)
    bucket.unlink()
    aside.rename(bucket)
    assert b.status()["hydrate"] == "lazy"
    assert b.sync()["filesPulled"] == 0 and b.status()["cache"]["remoteOnly"] == 1


def test_setup_again_on_the_same_store_changes_the_hydrate_mode(local_team: Team):
    a = local_team.machine("a")
    a.put("web", "report", "x" * 100)
    b = local_team.machine("b", "--hydrate", "lazy")
    assert b.status()["cache"]["remoteOnly"] == 1
    again = b.setup(*local_team.place.setup_args)
    assert again["hydrate"] == "lazy" and b.status()["cache"]["remoteOnly"] == 1
    full = b.setup(*local_team.place.setup_args, "--hydrate", "full")
    assert full["filesPulled"] == 1 and b.status()["cache"]["remoteOnly"] == 0


def test_moving_to_another_bucket_takes_everything_along(local_team: Team, tmp_path):
    """Remote-only files are fetched, unpushed work is delivered, the old bucket is left alone."""
    a = local_team.machine("a")
    a.put("web", "report", "1")
    b = local_team.machine("b", "--hydrate", "lazy")
    before = local_team.place.objects()
    other = Place((tmp_path / "other").as_uri())
    moved = b.setup(other.url)
    assert moved["filesPushed"] == 4
    kept = local_team.place.objects()
    assert all(kept[key] == body for key, body in before.items() if not key.startswith("."))
    c = Team(tmp_path, other).machine("c")
    assert c.get("web", "report")["content"] == "1"


def test_back_to_a_plain_directory(local_team: Team):
    a = local_team.machine("a")
    a.put("web", "report", "1")
    back = a.setup("filesystem")
    assert back["type"] == "filesystem" and back["filesPushed"] == 4
    assert a.get("web", "report")["content"] == "1"
    a.put("web", "report", "2")
    assert a.versions("web", "report") == [2, 1]
    assert (a.repo / ".swamp" / "data").is_dir()
    a.setup(*local_team.place.setup_args)
    assert a.versions("web", "report") == [2, 1]
    b = local_team.machine("b")
    assert b.versions("web", "report") == [2, 1]


def test_a_plain_directory_elsewhere(local_team: Team, tmp_path):
    a = local_team.machine("a", joined=False)
    a.put("web", "report", "1")
    a.setup("filesystem", "--path", str(tmp_path / "elsewhere"))
    assert tier(a) == {}
    assert a.get("web", "report")["content"] == "1"
    assert (tmp_path / "elsewhere" / "data").is_dir()


def test_both_had_the_same_version_and_both_are_kept(local_team: Team):
    """The bucket's stays, the newcomer's is kept among the conflicts, exit 1."""
    a = local_team.machine("a", joined=False)
    b = local_team.machine("b", joined=False)
    a.put("web", "report", "from a")
    b.put("web", "report", "from b")
    a.setup(*local_team.place.setup_args)
    joined = b("datastore", "setup", *local_team.place.setup_args)
    assert joined.code == 1 and joined.json["conflicts"] and joined.json["warnings"]
    assert b.get("web", "report")["content"] == "from a"
    [cache] = b.caches
    assert "from b" in {body.decode() for path, body in read_tree(cache / "conflicts").items() if path.endswith("raw")}
    assert b.status()["cache"]["conflicts"] >= 1


@pytest.mark.parametrize("place_name", ["file", "prefix"])
def test_a_store_inside_another_is_refused(local_team: Team, tmp_path, place_name, moto, fresh_prefix):
    if place_name == "file":
        outer, inner = Place((tmp_path / "outer").as_uri()), Place((tmp_path / "outer" / "inner").as_uri())
    else:
        prefix, config, env = fresh_prefix(), dict(moto.config), dict(moto.environ)
        outer = Place(f"{moto.url}/{prefix}", config, env)
        inner = Place(f"{moto.url}/{prefix}/inner/deep", config, env)
    a = Team(tmp_path, outer).machine("a")
    a.put("web", "report", "1")
    b = Team(tmp_path, inner).machine("b", joined=False)
    error = b("datastore", "setup", *inner.setup_args).failed(2)
    assert "inside another" in error["error"]


def test_skip_migration_leaves_the_source(local_team: Team):
    a = local_team.machine("a", joined=False)
    a.put("web", "report", "1")
    before = tier(a)
    done = a.setup(*local_team.place.setup_args, "--skip-migration")
    assert done["filesPushed"] == 0 and tier(a) == before


def test_unknown_keys_and_comments_of_the_config_survive(local_team: Team):
    a = local_team.machine("a", joined=False)
    config = a.repo / ".swamp.yaml"
    config.write_text("# our notes\n" + config.read_text() + "team: infra  # ours\n")
    a.setup(*local_team.place.setup_args)
    text = config.read_text()
    assert text.startswith("# our notes\n") and "team: infra  # ours" in text


def test_killed_at_any_moment_setup_can_be_run_again(local_team: Team):
    """L29: kill -9 at later and later steps; after the last run everything is there, once."""
    a, other = (local_team.machine(name, joined=False) for name in ("a", "other"))
    for machine in (a, other):
        for n in range(6):
            machine.put(f"m{n}", "report", f"{n}" * 1000)
    killer = Killer(local_team.directory)
    ran, steps = killer.count(other, "datastore", "setup", f"{local_team.place.url}-other")
    ran.ok()
    begin = next(at for at, step in enumerate(steps) if "/tree/data/" in step)  # before, it has only probed
    points = [begin + (len(steps) - begin) * ninth // 9 for ninth in range(9)]
    died = [killer.kill(a, at, "datastore", "setup", *local_team.place.setup_args) for at in points]
    assert sum(one.killed for one in died) >= 4, "too few were at risk"
    a.setup(*local_team.place.setup_args)
    assert a.names() == [(f"m{n}", "report") for n in range(6)]
    assert tier(a) == {}
    b = local_team.machine("b")
    for n in range(6):
        assert b.get(f"m{n}", "report")["content"] == f"{n}" * 1000
        assert b.versions(f"m{n}", "report") == [1]


@pytest.mark.usefixtures("one_object_each")
@pytest.mark.parametrize("damage", ["gone", "rotten"])
def test_a_payload_that_the_store_has_lost_keeps_nobody_out(local_team: Team, damage):
    """L22, S06: it is told (exit 1) and the rest is there; a healthy machine puts it back."""
    a = local_team.machine("a")
    a.put("web", "report", "1")
    a.put("web", "lost", "2")
    store = local_team.place.open()
    key = local_team.place.key_of("lost/1/raw")
    store.delete([key]) if damage == "gone" else store.put(key, b"3")
    b = local_team.machine("b", joined=False)
    joined = b("datastore", "setup", *local_team.place.setup_args)
    assert joined.code == 1 and "verify --repair" in joined.json["errors"][0]
    assert [name for _, name in b.names()] == ["lost", "report"], "there, and not here (S23)"
    assert b("datastore", "sync").code == 1, "it is told again as long as it is so"
    assert a("datastore", "verify", "--repair").ok()["healed"]
    b.sync()
    assert b.get("web", "lost")["content"] == "2"


@pytest.mark.usefixtures("one_object_each")
def test_a_lazy_read_says_why_the_bytes_are_not_there(local_team: Team):
    """65: other bytes than were stored; 69: the store is away."""
    a = local_team.machine("a")
    a.put("web", "report", "1")
    b = local_team.machine("b", joined=False)
    b.setup(*local_team.place.setup_args, "--hydrate", "lazy")
    store = local_team.place.open()
    key = local_team.place.key_of("report/1/raw")
    store.put(key, b"2")
    assert "not the bytes" in b("data", "get", "web", "report").failed(65)["error"]
    assert "not the bytes" in b("data", "query", "content == '1'").failed(65)["error"], "no row is left out in silence"
    bucket = local_team.directory / "bucket"
    bucket.rename(local_team.directory / "away")
    assert "could not be fetched" in b("data", "get", "web", "report").failed(69)["error"]
    (local_team.directory / "away").rename(bucket)
    assert a("datastore", "verify", "--repair").ok()["healed"]
    assert local_team.place.key_of("report/1/raw") != key
    assert b.get("web", "report")["content"] == "1", "it asks the root again before it gives up"


@pytest.mark.usefixtures("one_object_each")
def test_a_version_that_could_not_be_brought_is_neither_hidden_nor_written_over(local_team: Team):
    """Who asks for the latest is told that it is not here, and the next version has a number of its own."""
    a = local_team.machine("a")
    a.put("web", "report", "1")
    a.put("web", "report", "2")
    local_team.place.lose("report/2/raw")
    b = local_team.machine("b", joined=False)
    assert b("datastore", "setup", *local_team.place.setup_args).code == 1
    told = b("data", "get", "web", "report").failed(1)
    assert "version 2 of report is in the datastore" in told["error"] and "verify --repair" in told["error"]
    assert "--version 1" in told["hint"]
    assert b("data", "get", "web", "report", "--version", "1").ok()["content"] == "1"
    assert b.put("web", "report", "3")["version"] == 3
    assert b.get("web", "report")["content"] == "3"
    a.sync()
    assert [a.get("web", "report", "--version", n)["content"] for n in "123"] == ["1", "2", "3"]


def test_a_store_that_is_away_is_not_left_by_who_has_never_seen_it(local_team: Team, tmp_path):
    """A fresh clone holds nothing yet: to move without the old store would be to lose all that is in it."""
    a = local_team.machine("a")
    a.put("web", "report", "1")
    b = local_team.machine("b", joined=False)
    config = (a.repo / ".swamp.yaml").read_text()
    (b.repo / ".swamp.yaml").write_text(config)
    bucket = local_team.directory / "bucket"
    bucket.rename(local_team.directory / "away")
    b("datastore", "setup", (tmp_path / "new").as_uri()).failed(1)
    assert (b.repo / ".swamp.yaml").read_text() == config
    (local_team.directory / "away").rename(bucket)
    b.setup((tmp_path / "new").as_uri())
    assert b.get("web", "report")["content"] == "1"


def test_a_dry_run_of_a_lazy_machine_plans_what_the_sync_does(local_team: Team):
    a = local_team.machine("a")
    a.put("web", "report", "1")
    b = local_team.machine("b", "--hydrate", "lazy")
    assert b.sync("--dry-run")["plan"] == []
    a.put("web", "report", "2")
    planned = [step["path"] for step in b.sync("--dry-run")["plan"] if step["action"] == "pull"]
    assert len(planned) == b.sync()["filesPulled"]


@pytest.mark.usefixtures("one_object_each")
def test_files_that_only_the_old_store_can_give_keep_it_from_being_left(local_team: Team, tmp_path):
    """Of a version that could not be fetched yet the cache has nothing, and its old store is away."""
    a = local_team.machine("a")
    a.put("web", "report", "1")
    local_team.place.lose("/raw")
    b = local_team.machine("b", joined=False)
    assert b("datastore", "setup", *local_team.place.setup_args).code == 1
    new = (tmp_path / "new").as_uri()
    assert "lost 1 of its files" in b("datastore", "setup", new).failed(1)["error"]
    (local_team.directory / "bucket").rename(local_team.directory / "away")
    assert "only it has" in b("datastore", "setup", new).failed(1)["error"]


def test_a_lost_bucket_is_made_again_from_a_tree_whose_state_is_lost_too(local_team: Team):
    """What is advised must work also where nothing is recorded of what the store enforces."""
    a = local_team.machine("a")
    a.put("web", "report", "1")
    [cache] = a.caches
    (cache / "state.db").unlink()
    (local_team.directory / "bucket").rename(local_team.directory / "away")
    a.sync("--full")
    assert local_team.machine("b").get("web", "report")["content"] == "1"


@pytest.mark.usefixtures("one_object_each")
def test_a_repository_object_goes_where_its_configuration_went(local_team: Team):
    a = local_team.machine("a")
    a.put("web", "lost", "1")
    local_team.place.lose("/raw")
    b = local_team.machine("b", joined=False)
    code = (
        "import swamp\n"
        "from swamp.repo.open import read_target\n"
        "repo = swamp.open_repo()\n"
        f"done = repo.set_up(read_target({local_team.place.url!r}))\n"
        "assert done.joined and done.errors and repo.datastore.synced\n"
    )
    subprocess.run([sys.executable, "-c", code], env=b.environment(), cwd=b.repo, check=True, timeout=120)


def test_who_has_not_chosen_leaves_large_parts_of_spark_datasets_in_the_store(local_team: Team):
    a = local_team.machine("a")
    parts = a.home / "parts"
    parts.mkdir()
    for number, size in enumerate((1 << 20, 10)):
        (parts / f"part-0000{number}-000-0123456789abcdef.parquet").write_bytes(b"x" * size)
    a("data", "put", "web", "events", str(parts)).ok()
    b = local_team.machine("b")
    b.sync()
    held = b.status()
    assert (held["hydrate"], held["cache"]["remoteOnly"], held["cache"]["left"]) == ("full", 1, 1)
    assert held["summary"].startswith("In sync")
    b("data", "get", "web", "events", "--output", str(b.home / "got")).ok()
    assert {file.stat().st_size for file in (b.home / "got").iterdir()} == {1 << 20, 10}
    assert "left" not in b.status()["cache"]
    c = local_team.machine("c", "--hydrate", "full")
    assert c.status()["cache"]["remoteOnly"] == 0, "who asks for all has all"


@pytest.mark.inv("store.one-verdict")
def test_a_new_machine_plans_beside_the_probe_and_fetches_after_it(local_team: Team, monkeypatch):
    """Nothing is brought from a store before it is known that its root says the truth about it."""
    a, b = local_team.machine("a"), local_team.machine("b", joined=False)
    a.put("web", "report", "1")
    before, planned = (b.repo / ".swamp.yaml").read_text(), threading.Event()
    portions = Planner.portions

    def noted(*args, **kwargs):
        for portion in portions(*args, **kwargs):
            planned.set()
            yield portion

    def contradicted(_):
        assert planned.wait(30), "the pull was not planned while the store was asked"
        raise CorruptData("the store does something else than its root says")

    monkeypatch.setattr(Planner, "portions", noted)
    monkeypatch.setattr("swamp.repo.ask.agreed_capabilities", contradicted)
    for name, content in b.environment().items():
        monkeypatch.setenv(name, content)
    repo = swamp.open_repo(b.repo)
    with pytest.raises(CorruptData, match="something else"):
        repo.set_up(read_target(local_team.place.url))
    assert (b.repo / ".swamp.yaml").read_text() == before
    assert [p for p in b.home.rglob("*") if p.is_file() and {"tree", "staging"} & set(p.parts)] == []


def test_the_state_of_a_new_machine_is_made_before_two_threads_open_it(local_team: Team, monkeypatch):
    """SQLite refuses one of two that make the same file at once ("database is locked"), and does not wait."""
    local_team.machine("a").put("web", "report", "1")
    b, began, made = local_team.machine("b", joined=False), SideCall.__init__, []

    def begins(self, call):
        made.append(len(list(b.home.rglob("state.db"))))
        began(self, call)

    monkeypatch.setattr(SideCall, "__init__", begins)
    for name, content in b.environment().items():
        monkeypatch.setenv(name, content)
    with swamp.open_repo(b.repo) as repo:
        assert repo.set_up(read_target(local_team.place.url)).ok
    assert made[0] == 1


@pytest.mark.inv("store.one-verdict")
@pytest.mark.parametrize("state", ["unrecorded", "damaged"])
def test_a_new_machine_puts_nothing_right_before_the_store_has_passed(double, double_team: Team, monkeypatch, state):
    """Where conditions are ignored, a pull completes what died between root and record: once the verdict is known."""
    double.manners = Manners(conditions="ignored")
    a, b = double_team.machine("a"), double_team.machine("b", joined=False)
    a.put("web", "report", "1")
    store = double_team.place.open()
    if state == "damaged":
        store.put(ROOT_KEY, b"{")
    else:
        store.delete([max(meta.key for page in store.list("_index/log/") for meta in page)])
    before, asked = double_team.place.objects(), threading.Event()

    def contradicted(_):
        asked.wait(2)  # long enough for the plan beside it
        raise CorruptData("the store does something else than its root says")

    monkeypatch.setattr("swamp.repo.ask.agreed_capabilities", contradicted)
    for name, content in b.environment().items():
        monkeypatch.setenv(name, content)
    with pytest.raises(CorruptData, match="something else"):
        swamp.open_repo(b.repo).set_up(read_target(double_team.place.url, config=double_team.place.config))
    assert double_team.place.objects() == before
