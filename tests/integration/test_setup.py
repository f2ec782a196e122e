"""Setup: from where the data is to where it shall be, safe to run again, in every direction."""

from __future__ import annotations

import pytest

from machines import Machine, Place, Team, read_tree


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
    """L29: kill -9 at growing delays; after the last run everything is there, once."""
    a = local_team.machine("a", joined=False)
    for n in range(6):
        a.put(f"m{n}", "report", f"{n}" * 1000)
    other = local_team.machine("other", joined=False)
    other.put("m", "report", "x")
    takes = other.duration("datastore", "setup", f"{local_team.place.url}-other")
    killed = 0
    for share in (0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9):
        alive, _ = a.killed_after(takes * share, "datastore", "setup", *local_team.place.setup_args)
        killed += alive
    assert killed >= 3, "too few were at risk"
    a.setup(*local_team.place.setup_args)
    assert a.names() == [(f"m{n}", "report") for n in range(6)]
    assert tier(a) == {}
    b = local_team.machine("b")
    for n in range(6):
        assert b.get(f"m{n}", "report")["content"] == f"{n}" * 1000
        assert b.versions(f"m{n}", "report") == [1]
