"""Expressions and templates: typed values, texts, and errors with a next step."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from swamp.catalog.expression import (
    CelScope,
    NoAnswer,
    compile_expression,
    evaluate,
    expressions_in,
    has_expression,
    parse_template,
    render,
)
from swamp.catalog.query import plan_query
from swamp.errors import NotFound, UsageError


def latest(model: str, name: str) -> dict[str, object]:
    if model == "none":
        raise NotFound("there is no model none")
    return {"model": model, "attributes": {"ids": [1, 2]}}


SCOPE = CelScope(
    {"inputs": {"hosts": ["a", "b"], "n": 3, "none": None, "text": "é"}, "self": {"host": "h1"}, "flag": True},
    {"data.latest": latest},
)


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("inputs.n + 1", 4),
        ("inputs.hosts", ["a", "b"]),
        ("inputs.none", None),
        ('1 == 1.0 && !(1 == "1")', True),
        ('inputs.hosts.map(h, h + "!")', ["a!", "b!"]),
        ('inputs.hosts.exists(h, h == "b")', True),
        ("has(inputs.missing)", False),
        ("inputs.missing == 1 || flag", True),
        ('data.latest("box", "result").attributes.ids[1]', 2),
        ("size(inputs.text) + inputs.text.size()", 2),
        ('size(inputs.hosts) + size(inputs) + size(b"abc")', 9),
        ("flag ? inputs.n : 0", 3),
        ('{"a": {"b": inputs.n}}', {"a": {"b": 3}}),
        ('timestamp("2026-05-01T12:00:00Z") + duration("1h") > timestamp("2026-05-01T12:30:00Z")', True),
    ],
)
def test_expressions_have_plain_python_values(source, value):
    result = evaluate(source, SCOPE)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize("source", ["inputs.missing", "inputs.hosts[9]", "1 / 0", 'inputs.n < "x"', "inputs.none.x"])
def test_what_has_no_answer_says_so(source):
    with pytest.raises(NoAnswer, match="has no answer"):
        evaluate(source, SCOPE)


def test_an_unknown_name_is_an_error_with_the_names_there_are():
    with pytest.raises(UsageError, match="`input`; did you mean `inputs`") as caught:
        evaluate("input.n", SCOPE)
    assert caught.value.hint == "known: flag, inputs, self"
    with pytest.raises(UsageError, match="no name `data`"):
        evaluate("data.oldest(1)", SCOPE)


def test_macro_variables_are_not_names():
    assert compile_expression("inputs.hosts.map(x, x + y)").names == {"inputs", "y"}


@pytest.mark.parametrize(
    ("source", "line", "column"), [("a ==", 1, 5), ("a = 1", 1, 3), ("a &&\n b )", 2, 4), ('"open', 1, 1), ("", 1, 1)]
)
def test_syntax_errors_have_a_position(source, line, column):
    with pytest.raises(UsageError) as caught:
        compile_expression(source)
    assert (caught.value.details["line"], caught.value.details["column"]) == (line, column)


def test_the_error_of_a_function_comes_through_as_itself(caplog):
    with pytest.raises(NotFound, match="no model none"):
        evaluate('data.latest("none", "x").a == 1', SCOPE)
    assert caplog.records == []


@pytest.mark.parametrize(
    "source",
    [
        "(" * 4000 + "1" + ")" * 4000,
        "!" * 8000 + "true",
        "[" * 4000 + "]" * 4000,
        "a" + ".b" * 4000,
        "-" * 8000 + "1",
        "+".join(["1"] * 4000),
        " || ".join(["a.b"] * 1000),
        "[1].map(x, " * 500 + "1" + ")" * 500,
        "a[" * 2000 + "1" + "]" * 2000,
        "x" * 1_000_000,
        "(" * 1_000_000,
    ],
)
def test_a_hostile_expression_ends_in_a_value_or_an_error_never_in_a_crash(source):
    """Run in a thread, whose stack is the smaller one."""
    outcome = []

    def attempt() -> None:
        try:
            plan_query(source.replace("a.b", "size == 1"))
        except UsageError:
            pass
        try:
            outcome.append(evaluate(source, CelScope({"a": {}})))
        except UsageError as error:
            outcome.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    assert len(outcome) == 1


def test_the_library_is_loaded_without_its_terminal_application():
    code = (
        "import sys; from swamp.catalog.expression import evaluate, CelScope; evaluate('1 + 1', CelScope());"
        "print([m for m in ('prompt_toolkit', 'pygments', 'typer', 'cel', 'yaml', 'sqlite3') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", "plain"),
        ("", ""),
        ("${{ inputs.n }}", 3),
        ("${{inputs.hosts}}", ["a", "b"]),
        ("scan-${{ self.host }}", "scan-h1"),
        ("${{ self.host }}${{ inputs.n }}", "h13"),
        ("a ${{ inputs.hosts }} b", 'a ["a", "b"] b'),
        ("<${{ inputs.none }}> ${{ flag }}", "<> true"),
        ('${{ {"a": {"b": 1}} }}', {"a": {"b": 1}}),
        ("x${{ '}}' }}y", "x}}y"),
        ('${{ "\\"}}" }}', '"}}'),
        ("$ {{ no }} ${ {", "$ {{ no }} ${ {"),
        ("ünï ${{ inputs.text }}", "ünï é"),
    ],
)
def test_a_whole_value_keeps_its_type_and_a_part_becomes_text(text, value):
    assert parse_template(text).render(SCOPE) == value


def test_documents_are_rendered_all_the_way_down():
    document = {"a": ["${{ inputs.n }}", {"${{ self.host }}": "x-${{ inputs.n }}"}], "b": 1, "c": None}
    assert has_expression(document)
    assert not has_expression({"a": ["x", {"b": 1}]})
    assert render(document, SCOPE) == {"a": [3, {"h1": "x-3"}], "b": 1, "c": None}
    assert [e.source for e in expressions_in(document)] == ["inputs.n", "self.host", "inputs.n"]


def test_a_template_that_does_not_end_is_an_error():
    for text in ("${{ inputs.n", "${{ 'a }}", "a ${{ {1: 2} }"):
        with pytest.raises(UsageError):
            parse_template(text).render(SCOPE)
