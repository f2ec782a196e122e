"""Types come from three places; one that is broken is named and the others work."""

from __future__ import annotations

import json
import sys

import pytest

from swamp.errors import NotFound, UsageError
from swamp.models.builtin import Execute
from swamp.models.declare import check_arguments, load_registry

BUILT_IN = ["command/shell", "manual/data", "python/script", "spark/python", "spark/sql"]

GOOD = """
from swamp.models import Arguments, Context, Method, ModelType

class Greet(Arguments):
    who: str
    loud_voice: bool = False

def greet(args: Greet, context: Context) -> None:
    text = f"hello {args.who}"
    context.log(text)
    context.write_resource("greeting", {"text": text.upper() if args.loud_voice else text})

greeter = ModelType("@Me::Greeter", "1", methods=(Method("greet", Greet, greet),))
"""


@pytest.fixture
def extensions(tmp_path):
    folder = tmp_path / "extensions" / "models"
    folder.mkdir(parents=True)
    return folder


def test_built_in_types_are_there_without_a_repository():
    assert [kind.name for kind in load_registry()] == BUILT_IN
    assert load_registry().broken == ()


def test_a_file_in_extensions_is_a_type_with_a_normalised_name(tmp_path, extensions):
    (extensions / "greeter.py").write_text(GOOD)
    kind = load_registry(tmp_path).get("@me/greeter")
    assert kind.source == "extensions/models/greeter.py"
    described = kind.describe()
    arguments = described["methods"][0]["arguments"]
    assert set(arguments["properties"]) == {"who", "loudVoice"}
    assert arguments["required"] == ["who"]
    json.dumps(described)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def broken(:\n", "SyntaxError"),
        ("import not_a_module_of_anyone\n", "ModuleNotFoundError"),
        ("x = 1\n", "defines no ModelType"),
        ("from swamp.models import ModelType\nt = ModelType('command/shell', '1', ())\n", "already exists"),
        ("raise SystemError('at import')\n", "at import"),
    ],
)
def test_a_bad_plugin_is_reported_by_name_and_the_rest_works(tmp_path, extensions, text, said):
    (extensions / "bad.py").write_text(text)
    (extensions / "good.py").write_text(GOOD)
    registry = load_registry(tmp_path)
    assert [plugin.name for plugin in registry.broken] == ["extensions/models/bad.py"]
    assert said in registry.broken[0].error
    assert [kind.name for kind in registry] == ["@me/greeter", *BUILT_IN]
    with pytest.raises(NotFound) as caught:
        registry.get("@me/bad")
    assert "bad.py" in (caught.value.hint or "")


def test_an_installed_package_brings_types_by_entry_point(tmp_path, monkeypatch):
    site = tmp_path / "site"
    info = site / "acme_models-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "acme_models.py").write_text(GOOD)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-models\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[swamp.models]\nacme = acme_models:greeter\ngone = acme_models:nothing\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "acme_models", raising=False)
    registry = load_registry()
    assert registry.get("@me/greeter").source == "acme of acme-models"
    assert [plugin.name for plugin in registry.broken] == ["gone of acme-models"]


def test_an_unknown_type_suggests_a_known_one():
    with pytest.raises(NotFound) as caught:
        load_registry().get("comand/shel")
    assert "`command/shell`" in (caught.value.hint or "")


def test_an_unknown_method_suggests_a_known_one():
    with pytest.raises(NotFound) as caught:
        load_registry().get("command/shell").method("exceute")
    assert "`execute`" in (caught.value.hint or "")


def test_arguments_that_do_not_fit_are_all_named():
    with pytest.raises(UsageError) as caught:
        check_arguments(Execute, {"rnu": "x", "timeout": "soon"}, "web.execute")
    message = caught.value.message
    assert "did you mean `run`" in message
    assert "`run` is missing" in message
    assert "90, 30s, 5m or 2h" in message


@pytest.mark.parametrize(("text", "seconds"), [(90, 90), ("30s", 30), ("5m", 300), ("2h", 7200), ("250ms", 0.25)])
def test_times(text, seconds):
    assert check_arguments(Execute, {"run": "x", "timeout": text}, "").timeout == seconds


@pytest.mark.parametrize("bad", [0, -1, "x", True, "5 parsecs"])
def test_times_that_are_none(bad):
    with pytest.raises(UsageError):
        check_arguments(Execute, {"run": "x", "timeout": bad}, "")
