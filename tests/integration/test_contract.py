"""The CLI contract where an outside look found it broken: what is said of stores, of readers, of what is not there."""

from __future__ import annotations

import json

import pytest

from machines import Place, Team
from proxies import proxy_to, refuse


def place_on(running, prefix: str) -> Place:
    return Place(f"{running.url}/{prefix}", dict(running.config), dict(running.environ))


def test_the_url_is_what_setup_was_told_with_endpoint_and_namespace_beside_it(moto, tmp_path, fresh_prefix):
    team = Team(tmp_path, place_on(moto, fresh_prefix()))
    a = team.machine("a", joined=False)
    done = a.setup(*team.place.setup_args, "--namespace", "blue")
    for told in (done, a.status()):
        assert (told["url"], told["namespace"], told["endpoint"]) == (team.place.url, "blue", moto.endpoint)


def test_a_pull_counts_what_it_deletes_here(local_team: Team):
    a, b = local_team.machine("a"), local_team.machine("b")
    a.put("web", "report", "1")
    b.sync()
    a("data", "delete", "web", "report", "--yes").ok()
    assert b.sync("--pull")["filesDeleted"] == 2
    assert b.sync()["filesDeleted"] == 0


def test_listing_a_model_that_is_nowhere_is_not_found_and_one_without_data_is_empty(local_team: Team):
    a, b = local_team.machine("a"), local_team.machine("b")
    assert a("data", "list", "nobody").failed(1)["code"] == "not-found"
    a("model", "create", "command/shell", "runner", "--arg", "execute.run=true").ok()
    assert a("data", "list", "runner").ok() == {"items": [], "total": 0, "fresh": True}
    a("model", "method", "run", "runner", "execute").ok()
    for name in ("result", "log"):
        a("data", "delete", "runner", name, "--yes").ok()
    a.put("manual", "x", "1")
    a("data", "delete", "manual", "x", "--yes").ok()
    b.sync()
    for model in ("runner", "manual"):
        assert b("data", "list", model).ok() == {"items": [], "total": 0, "fresh": True}, (
            "known by its records, without data"
        )


def test_undelete_of_what_was_never_deleted_is_not_found(local_team: Team):
    a = local_team.machine("a")
    done = a.put("web", "report", "1")
    assert a("datastore", "undelete", "data/nothing/here").failed(1)["code"] == "not-found"
    living = f"data/manual/data/{done['modelId']}/report"
    assert a("datastore", "undelete", living).ok() == {"restored": [], "gone": []}
    a("data", "delete", "web", "report", "--yes").ok()
    some = a("datastore", "undelete", living, "data/nothing/here")
    assert some.code == 1 and some.json["gone"] == ["data/nothing/here"] and len(some.json["restored"]) == 2
    assert a.get("web", "report")["content"] == "1"


@pytest.mark.parametrize(
    ("key", "value"), [("bucket", 5), ("pushConcurrency", "x"), ("forcePathStyle", "yes"), ("requestTimeoutMs", 0)]
)
def test_a_wrong_setting_of_a_store_is_refused_before_anything_is_tried(local_team: Team, key, value):
    a = local_team.machine("a", joined=False)
    before = (a.repo / ".swamp.yaml").read_text()
    config = json.dumps({"bucket": "b", key: value})
    told = a("datastore", "setup", "@swamp/s3-datastore", "--config", config).failed(2)
    assert key in told["error"] and told["hint"].startswith("allowed: ")
    assert (a.repo / ".swamp.yaml").read_text() == before


def test_a_bad_timeout_is_told_in_the_unit_it_was_given_in(local_team: Team):
    told = local_team.machine("a")("datastore", "sync", "--timeout", "-3").failed(2)
    assert told["error"] == "--timeout is -3" and "seconds" in told["hint"]


def test_a_login_that_may_only_read_sets_up_lists_and_reads(moto, tmp_path, fresh_prefix):
    """Its setup says what it cannot know, its writes fail with the real reason, and nothing of it is lost."""
    prefix = fresh_prefix()
    writer = Team(tmp_path / "w", place_on(moto, prefix)).machine("writer")
    writer.put("web", "report", "1")
    with proxy_to(moto.endpoint) as proxy:
        proxy.when(lambda r: r.is_write, refuse(403, "AccessDenied"))
        place = Place(f"{moto.url}/{prefix}", {**moto.config, "endpoint": proxy.endpoint}, dict(moto.environ))
        reader = Team(tmp_path / "r", place).machine("reader", joined=False)
        done = reader.setup(*place.setup_args)
        assert done["filesPulled"] == 4 and not any(done["capabilities"].values())
        assert any("may read and not write" in warning for warning in done["warnings"])
        assert reader.get("web", "report")["content"] == "1"
        writer.put("web", "report", "2")
        assert reader.sync()["filesPulled"] == 3
        assert reader.get("web", "report")["content"] == "2"
        assert reader.status()["healthy"] is True
        file = tmp_path / "own"
        file.write_text("own")
        told = reader("data", "put", "web", "own", str(file)).failed(69)
        assert told["code"] == "access-denied"

        empty = Place(f"{moto.url}/{fresh_prefix()}", place.config, place.env)
        other = Team(tmp_path / "e", empty).machine("other", joined=False)
        before = (other.repo / ".swamp.yaml").read_text()
        assert other("datastore", "setup", *empty.setup_args).failed(69)["code"] == "access-denied"
        assert (other.repo / ".swamp.yaml").read_text() == before


@pytest.mark.usefixtures("one_object_each")
def test_a_version_whose_content_is_given_up_is_gone_for_everybody(local_team: Team):
    """`verify --repair --drop` leaves no version behind that is listed and cannot be read."""
    a = local_team.machine("a")
    a.put("web", "lost", "1")
    a.put("web", "kept", "2")
    store = local_team.place.open()
    key = next(k for k in local_team.place.objects("data/") if "/lost/1/raw~" in k)
    store.delete([key])
    b = local_team.machine("b", "--hydrate", "lazy")
    found = b("datastore", "verify")
    assert found.code == 65
    assert (
        b("datastore", "verify", "--repair", "--drop", *found.json["missing"]).ok()["dropped"] == found.json["missing"]
    )
    for machine in (a, b, local_team.machine("c")):
        machine.sync()
        assert machine.names() == [("web", "kept")]


def test_a_list_is_in_the_order_of_names_not_of_ids(local_team: Team):
    a = local_team.machine("a")
    models = [f"model-{letter}" for letter in "dbacefg"]
    for model in models:
        a.put(model, "z", "1")
    a.put(models[0], "y", "1")
    listed = [(item["modelName"], item["name"]) for item in a("data", "list").ok()["items"]]
    assert listed == sorted(listed)
