"""`.swamp.yaml` and the environment at work: exclude, directories, engine, deadlines, bad values."""

from __future__ import annotations

import json

import pytest

from machines import Team


def add_to_datastore(repo, lines: str) -> None:
    config = repo / ".swamp.yaml"
    config.write_text(config.read_text().replace("datastore:\n", f"datastore:\n{lines}"))


def test_excluded_files_stay_on_this_machine(local_team: Team):
    a, b = local_team.machine("a"), local_team.machine("b")
    add_to_datastore(a.repo, "  exclude: ['files/scratch/', '*.bak', '!keep.bak']\n")
    tree = a.tree
    for path in ("files/scratch/x", "files/a.bak", "files/keep.bak", "files/plain"):
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(path)
    assert a.sync("--full")["filesPushed"] == 2
    b.sync()
    assert sorted(p.name for p in (b.tree / "files").rglob("*")) == ["keep.bak", "plain"]
    assert (tree / "files/scratch/x").exists()


def test_only_the_named_directories_are_shared(local_team: Team):
    a = local_team.machine("a")
    add_to_datastore(a.repo, "  directories: [data, auto-definitions]\n")
    a.put("web", "report", "1")
    assert {path.split("/")[0] for path in local_team.place.root()["entries"]} == {"data", "auto-definitions"}


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("datastore:\n", "datastore:\n  hydrate: half\n", "hydrate"),
        ("datastore:\n", "datastore:\n  directories: [nonsense]\n", "directories"),
        ("datastore:\n", "datastore:\n  exclude: 7\n", "exclude"),
        ("datastore:\n", "engine: fast\ndatastore:\n", "engine"),
        ("datastore:\n", "autoGc: perhaps\ndatastore:\n", "autoGc"),
    ],
)
def test_a_bad_value_in_the_config_is_exit_2_and_named(local_team: Team, old: str, new: str, key: str):
    a = local_team.machine("a")
    config = a.repo / ".swamp.yaml"
    config.write_text(config.read_text().replace(old, new))
    error = a("data", "list").failed(2)
    assert key in error["error"] and "allowed" in error["hint"]


def test_a_config_that_is_no_yaml_is_exit_65(local_team: Team):
    a = local_team.machine("a")
    (a.repo / ".swamp.yaml").write_text("datastore: [")
    assert "line" in a("data", "list").failed(65)["error"]


def test_bad_environment_values_are_named(local_team: Team):
    a = local_team.machine("a")
    for name in ("SWAMP_ENGINE", "SWAMP_LOCK_TIMEOUT_MS", "SWAMP_DATASTORE_SYNC_TIMEOUT_MS"):
        error = a("datastore", "sync", env={name: "nonsense"}).failed(2)
        assert name in error["error"] and error["hint"]


def test_the_type_form_and_the_url_form_open_the_same_store(moto, tmp_path, fresh_prefix):
    from machines import Place

    prefix = fresh_prefix()
    by_url = Place(f"{moto.url}/{prefix}", dict(moto.config), dict(moto.environ))
    a = Team(tmp_path, by_url).machine("a")
    a.put("web", "report", "1")
    b = Team(tmp_path, by_url).machine("b", joined=False)
    config = {**moto.config, "bucket": moto.url.removeprefix("s3://"), "prefix": prefix}
    done = b.setup("@swamp/s3-datastore", "--config", json.dumps(config))
    assert done["type"] == "@swamp/s3-datastore" and done["filesPulled"] == 4
    assert b.get("web", "report")["content"] == "1"
    assert a.status()["url"] == b.status()["url"]


def test_no_credential_is_ever_written_down(moto, tmp_path, fresh_prefix):
    from machines import Place, read_tree

    a = Team(tmp_path, Place(f"{moto.url}/{fresh_prefix()}", dict(moto.config), dict(moto.environ))).machine("a")
    a.put("web", "report", "1")
    secret = moto.environ["AWS_SECRET_ACCESS_KEY"].encode()
    assert secret not in (a.repo / ".swamp.yaml").read_bytes()
    assert not [path for path, body in read_tree(a.home).items() if secret in body]
    assert secret.decode() not in json.dumps(a.status())


def test_a_damaged_file_is_exit_65_and_names_the_repair(local_team: Team):
    a = local_team.machine("a")
    a.put("web", "report", "1")
    [metadata] = (a.tree / "data").rglob("metadata.yaml")
    metadata.write_text("{ not: [yaml")
    error = a("data", "get", "web", "report").failed(65)
    assert "verify --repair" in error["hint"]
    listed = a("data", "list")
    assert listed.code == 0 and "metadata.yaml" in listed.err
    assert a("datastore", "verify", "--repair").ok()["healed"]
    assert a.get("web", "report")["content"] == "1"
