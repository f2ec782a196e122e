"""`swamp model`: model types, definitions, method runs and their outputs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swamp.cli.command import (
    CommandSession,
    InputFile,
    Inputs,
    Model,
    NewText,
    SomeModel,
    Tags,
    Yes,
    group,
    reading,
    session,
)
from swamp.cli.outputs import app as outputs
from swamp.cli.render import plural, print_line
from swamp.errors import Failed, UsageError
from swamp.values import as_document

if TYPE_CHECKING:
    from swamp.models.define import Definition
    from swamp.models.run import Result

app = group("Models and their methods.")
types = group("Which types of models there are.")
methods = group("Run a model's methods.")
app.add_typer(types, name="type")
app.add_typer(methods, name="method")
app.add_typer(outputs, name="output")


# -- types


@types.command("list")
def list_types() -> None:
    """List every model type, built in and plugged in."""
    from swamp.models.declare import load_registry
    from swamp.models.define import type_item

    with session() as s:
        registry = load_registry(s.repo.path)
        found = [type_item(kind) for kind in registry]
        broken = [as_document(plugin) for plugin in registry.broken]
        for plugin in registry.broken:
            s.out.warn(f"{plugin.name} was not loaded: {plugin.error}")
        rows = [(t["type"], " ".join(t["methods"]), t["source"], t["description"]) for t in found]
        s.out.items(found, ("TYPE", "METHODS", "FROM", "DESCRIPTION"), rows, broken=broken, types=found)


@types.command("describe")
def describe_type(name: Annotated[str, typer.Argument(metavar="TYPE", help="Such as command/shell.")]) -> None:
    """Show a type's methods and their arguments."""
    from swamp.models.declare import load_registry

    with session() as s:
        described = load_registry(s.repo.path).get(name).describe()
        s.out.result(described, lambda: _show_type(s, described))


def _show_type(s: CommandSession, described: dict[str, Any]) -> None:
    s.out.line(f"{described['type']}  {described['version']}  ({described['source']})")
    s.out.line(described["description"])
    _show_arguments(s, "global arguments", described["globalArguments"])
    for method in described["methods"]:
        s.out.line()
        s.out.line(f"{method['name']}: {method['description']}")
        _show_arguments(s, "arguments", method["arguments"])
        for spec in method["writes"]:
            s.out.line(f"  writes {spec['name']} ({spec['contentType']}): {spec['description']}")


def _show_arguments(s: CommandSession, title: str, schema: dict[str, Any]) -> None:
    if not schema["properties"]:
        return
    s.out.line(f"  {title}:")
    for name, rule in schema["properties"].items():
        needed = "required" if name in schema.get("required", ()) else "optional"
        s.out.line(f"    {name}  {_type_text(rule)}, {needed}  {rule.get('description', '')}".rstrip())


def _type_text(rule: dict[str, Any]) -> str:
    if "anyOf" in rule:
        return " or ".join(_type_text(one) for one in rule["anyOf"] if one.get("type") != "null")
    return str(rule.get("type", "value"))


# -- definitions


@app.command("create")
def create(
    type_: Annotated[str, typer.Argument(metavar="TYPE", help="Such as command/shell.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new model's name.")],
    global_arg: Annotated[
        list[str] | None, typer.Option("--global-arg", metavar="K=V", help="A global argument; may be repeated.")
    ] = None,
    arg: Annotated[
        list[str] | None, typer.Option("--arg", metavar="METHOD.K=V", help="A method's argument; may be repeated.")
    ] = None,
    tag: Tags = None,
) -> None:
    """Write a new definition to models/TYPE/NAME.yaml."""
    from swamp.models.inputs import parse_inputs, parse_tags

    with session() as s:
        made = s.run_context().models.create(
            type_,
            name,
            global_arguments=parse_inputs(global_arg or ()),
            methods={method: {"arguments": values} for method, values in parse_inputs(arg or ()).items()},
            tags=parse_tags(tag or ()),
        )
        s.out.result({**made.to_document(), "file": made.file}, f"Created {made.file}")


@reading(app, "list")
def list_models(
    type_: Annotated[str | None, typer.Option("--type", metavar="T", help="Only of this type.")] = None,
) -> None:
    """List all models: defined in models/, or made by workflows and `data put`."""
    from swamp.data.names import normalise_type
    from swamp.models.define import model_item

    with session(reading=True) as s:
        wanted = normalise_type(type_) if type_ else None
        models = s.run_context().models
        found = [d for d in models.all() if wanted in (None, d.type)]
        items = [model_item(d) for d in found]
        rows = [(d.name, d.type, d.file or "(made on the spot)") for d in found]
        s.items(items, ("NAME", "TYPE", "DEFINED IN"), rows, **warn_of_broken(s, models.broken()))


def warn_of_broken(s: CommandSession, files: Iterable[dict[str, str]]) -> dict[str, Any]:
    """Files that a listing could not read: said on stderr, and in the document."""
    broken = list(files)
    for one in broken:
        s.out.warn(f"{one['file']} cannot be read: {one['error'].splitlines()[0]}")
    return {"broken": broken} if broken else {}


@reading(app, "get")
def get_model(model: Model) -> None:
    """Show a definition."""
    from swamp.models.document import dump

    with session(reading=True) as s:
        found = s.run_context().models.find(model)
        document = {**found.to_document(), "file": found.file}
        # Without `fresh`: what is shown is what `model edit --file` takes.
        s.out.result(document, lambda: s.out.line(dump(found.to_document()).rstrip()))


@app.command("edit")
def edit_model(model: Model, file: NewText = None) -> None:
    """Change a definition in your editor, or with --file. A wrong text changes nothing."""
    from swamp.models.document import parse, refuse

    with session() as s:
        models = s.run_context().models
        found = models.find(model)
        source = _file_of(found)
        current = (s.repo.path / source).read_text(encoding="utf-8")
        shown = given_as(file, source)
        text = new_text(current, file, lambda text: refuse(shown, models.inspect(parse(text, shown))))
        changed = models.save_text(text, source)
        s.out.result({**changed.to_document(), "file": source}, f"Saved {source}")


def _file_of(definition: Definition) -> str:
    if definition.file is None:
        raise UsageError(
            f"`{definition.name}` has no file: it was made by a workflow or by `data put`",
            hint=f"define it: swamp model create {definition.type} NAME",
        )
    return definition.file


def new_text(current: str, file: str | None, check: Callable[[str], None]) -> str:
    """The text that takes the place of `current`. `check` raises when it is wrong."""
    if file is not None:
        from swamp.models.inputs import read_given

        text = sys.stdin.read() if file == "-" else read_given(Path(file), file)
        check(text)
        return text
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("there is no terminal to edit in", hint="give the new text with --file FILE (or - for stdin)")
    return _edited(current, check)


def given_as(file: str | None, otherwise: str) -> str:
    """What to call the new text in an error: the user corrects what they gave, not where it was to go."""
    if file is None:
        return otherwise
    return "standard input" if file == "-" else file


def _edited(current: str, check: Callable[[str], None]) -> str:
    """In $VISUAL or $EDITOR, on a copy: what is saved there is checked before it counts."""
    import subprocess
    import tempfile

    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False, encoding="utf-8") as copy:
        copy.write(current)
    path = Path(copy.name)
    try:
        code = subprocess.call([*editor.split(), str(path)])
        if code != 0:
            raise Failed(f"the editor ended with code {code}", hint="nothing was changed")
        text = path.read_text(encoding="utf-8")
        check(text)
        return text
    finally:
        path.unlink(missing_ok=True)


@app.command("delete")
def delete_model(model: Model, yes: Yes = False) -> None:
    """Remove a definition. Its data stays."""
    with session() as s:
        models = s.run_context().models
        found = models.find(model)
        s.out.confirm(f"Delete {_file_of(found)}?", yes)
        models.delete(model)
        s.out.result({"deleted": found.name, "file": found.file}, f"Deleted {found.file}")


@reading(app, "validate")
def validate_models(model: SomeModel = None) -> None:
    """Check definitions without running anything. Exit 1 when something is wrong."""
    from swamp.models.document import parse, read_text

    with session(reading=True) as s:
        models = s.run_context().models
        files = sorted((s.repo.path / "models").rglob("*.yaml"))
        if model is not None:
            files = [f for f in files if f.stem == model] or [s.repo.path / _file_of(models.find(model))]
        problems: list[dict[str, Any]] = []
        for file in files:
            source = file.relative_to(s.repo.path).as_posix()
            try:
                found = [problem.to_json() for problem in models.inspect(parse(read_text(file, source), source))]
            except UsageError as error:
                found = error.details.get("problems") or [{"path": "", "message": error.message}]
            problems += [{"file": source, **problem} for problem in found]
        show_problems(s, len(files), problems)


def show_problems(s: CommandSession, checked: int, problems: list[dict[str, Any]]) -> None:
    """The result of a validation: every problem with its place, exit 1 if there is one."""

    def text() -> None:
        for problem in problems:
            line = f":{problem['line']}" if "line" in problem else ""
            meant = f"; did you mean `{problem['suggestion']}`?" if "suggestion" in problem else ""
            s.out.line(f"{problem['file']}{line}: {problem['message']}{meant}")
        s.out.line(f"{checked} checked, {len(problems)} problem(s)")

    s.answer({"valid": not problems, "checked": checked, "problems": problems}, text)
    if problems:
        raise typer.Exit(1)


# -- method runs


@methods.command("run")
def run_method_(
    model: Model,
    method: Annotated[str, typer.Argument(metavar="METHOD", help="One of the type's methods.")],
    inputs: Inputs = None,
    input_file: InputFile = None,
    tag: Tags = None,
) -> None:
    """Run a method: its data and its output record are in the datastore when this ends."""
    from swamp.models.inputs import parse_inputs, parse_tags
    from swamp.models.run import Hooks, Request, run_method

    values = parse_inputs(inputs or (), Path(input_file) if input_file else None)
    tags = parse_tags(tag or ())
    with session() as s:
        context = s.run_context()
        definition = context.models.find(model)
        shown = (
            (lambda line: None) if s.out.quiet else partial(print_line, stream=sys.stderr if s.out.json else sys.stdout)
        )
        hooks = Hooks(line=shown)
        with context:
            result = run_method(context, Request(definition, method, values, tags=tags), s.cancel, hooks)
        collect_after(s)
        if s.repo.datastore.synced and result.sync is None:
            s.out.warn("it was not pushed: the work is kept here, and `swamp datastore sync` delivers it")
        _show_result(s, definition, result)
        if result.error is not None:
            raise typer.Exit(result.error.exit_code if result.output.status == "cancelled" else 1)


def collect_after(s: CommandSession) -> None:
    """`autoGc: true`: garbage goes after a run, and it is said how much."""
    found = s.repo.data.collect_after_run(s.out.warn)
    if found is not None and found.versions:
        s.out.info(f"collected {plural(len(found.versions), 'expired data version')}")


def _show_result(s: CommandSession, definition: Definition, result: Result) -> None:
    from swamp.cli.watch import SIGNS, seconds_text
    from swamp.sync.result import SyncResult

    output = result.output
    document: dict[str, Any] = {
        "modelName": definition.name,
        "modelType": definition.type,
        "methodName": output.method_name,
        "status": output.status,
        "outputId": output.id,
        "durationMs": output.duration_ms,
        "dataArtifacts": [{"name": a["name"], "version": a["version"]} for a in output.artifacts],
        "sync": result.sync or SyncResult("push").to_json(),
    }
    if output.error is not None:
        document["error"] = output.error
    sign, took = SIGNS[output.status][0], seconds_text(output.duration_ms)
    lines = [f"{sign} {definition.name}.{output.method_name}: {output.status}, {took}"]
    lines += [f"  {artifact['name']} version {artifact['version']}" for artifact in output.artifacts]
    lines += [f"  {output.error}"] if output.error is not None else []
    s.out.result(document, "\n".join(lines))
