"""Which model a name means."""

from __future__ import annotations

import pytest

from swamp.catalog.resolve import Model, resolve_model
from swamp.data.definitions import AUTO, DefinitionRepository, auto_definition
from swamp.errors import NotFound, UsageError


@pytest.fixture
def models_dir(tmp_path):
    for kind, name, identity in (
        ("command/shell", "web", "id-web"),
        ("command/shell", "db", "id-db"),
        ("spark/sql", "db", "id-db2"),
    ):
        path = tmp_path / "models" / kind / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"id: {identity}\nname: {name}\ntype: {kind}\n")
    (tmp_path / "models" / "command" / "broken.yaml").write_text("id: [")
    return tmp_path / "models"


def test_a_definition_is_found_by_name_and_by_id(models_dir):
    web = Model("id-web", "web", "command/shell", "definition")
    assert resolve_model("web", models_dir=models_dir) == resolve_model("id-web", models_dir=models_dir) == web


def test_a_reader_without_definitions_resolves_by_what_the_data_says(shelf):
    shelf.save("result", model="box")
    expected = Model("box", "box", "manual/data", "data")
    assert resolve_model("box", catalog=shelf.catalog) == expected


def test_a_definition_wins_over_an_auto_definition_and_that_over_data(shelf, models_dir):
    autos = DefinitionRepository(shelf.tree, AUTO)
    shelf.save("result", model="web")
    assert resolve_model("web", catalog=shelf.catalog, autos=autos).source == "data"
    autos.save(auto_definition("manual/data", "web"))
    assert resolve_model("web", catalog=shelf.catalog, autos=autos).source == "auto-definition"
    assert resolve_model("web", catalog=shelf.catalog, autos=autos, models_dir=models_dir).source == "definition"


def test_two_models_of_one_name_need_a_type_or_an_id(models_dir):
    with pytest.raises(UsageError, match="several models are called db"):
        resolve_model("db", models_dir=models_dir)
    assert resolve_model("db", models_dir=models_dir, model_type="Spark::SQL").id == "id-db2"
    assert resolve_model("id-db", models_dir=models_dir).type == "command/shell"


def test_a_near_miss_is_suggested(models_dir, shelf):
    with pytest.raises(NotFound, match="no model wbe") as caught:
        resolve_model("wbe", models_dir=models_dir, catalog=shelf.catalog)
    assert "`web`" in caught.value.hint
    assert caught.value.exit_code == 1
