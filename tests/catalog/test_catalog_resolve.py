"""Which model a name means: one rule for data, models and workflows."""

from __future__ import annotations

import pytest

from swamp.data.records import AUTO, DefinitionRepository, StoredDefinition, auto_definition
from swamp.env import SYSTEM
from swamp.errors import NotFound, UsageError
from swamp.models.declare import Registry
from swamp.models.define import ModelDefinitions
from swamp.repo.definitions import Definitions


@pytest.fixture
def definitions(tmp_path, shelf):
    for kind, name, identity in (
        ("command/shell", "web", "id-web"),
        ("command/shell", "db", "id-db"),
        ("spark/sql", "db", "id-db2"),
    ):
        path = tmp_path / "repo" / "models" / kind / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"id: {identity}\nname: {name}\ntype: {kind}\n")
    (tmp_path / "repo" / "models" / "command" / "broken.yaml").write_text("id: [")
    return Definitions(tmp_path / "repo", shelf.tree, shelf.catalog.models)


@pytest.fixture
def models(definitions):
    return ModelDefinitions(definitions.repo, definitions.tree, Registry(), SYSTEM)


def test_a_definition_is_found_by_name_and_by_id(definitions, models):
    web = StoredDefinition("id-web", "web", "command/shell")
    assert definitions.find("web") == definitions.find("id-web") == web
    assert models.find("web") == models.find("id-web")
    assert models.find("web").id == web.id


def test_a_file_that_is_called_otherwise_is_found_by_both_names(definitions, models):
    (definitions.repo / "models" / "command" / "old.yml").write_text("id: id-new\nname: new\ntype: command/shell\n")
    for wanted in ("old", "new", "id-new"):
        assert definitions.find(wanted).id == models.find(wanted).id == "id-new"


def test_a_reader_without_definitions_resolves_by_what_the_data_says(definitions, shelf):
    shelf.save("result", model="box")
    assert definitions.find("box") is None
    assert definitions.named("box") == definitions.named("bo") == [StoredDefinition("box", "box", "manual/data")]


def test_a_definition_wins_over_an_auto_definition_and_that_over_data(definitions, shelf):
    autos = DefinitionRepository(shelf.tree, AUTO)
    shelf.save("result", model="blog")
    assert [ref.id for ref in definitions.named("blog")] == ["blog"]
    made = auto_definition("manual/data", "blog")
    autos.save(made)
    assert [ref.id for ref in definitions.named("blog")] == [made.id, "blog"]
    autos.save(auto_definition("manual/data", "web"))
    assert definitions.named("web")[0].id == "id-web"


def test_two_models_of_one_name_need_an_id(definitions, models):
    for find in (definitions.find, models.find):
        with pytest.raises(UsageError, match="several models are called db"):
            find("db")
        assert find("id-db").type == "command/shell"


def test_a_near_miss_is_suggested(definitions, models, shelf):
    shelf.save("result", model="box")
    assert definitions.names() == {"web", "db", "box"}
    with pytest.raises(NotFound, match="no model `wbe`") as caught:
        models.find("wbe")
    assert "`web`" in caught.value.hint
    assert caught.value.exit_code == 1
