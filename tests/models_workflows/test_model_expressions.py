"""Expressions are resolved for the work; the record never holds what came from the environment."""

from __future__ import annotations

import pytest

from swamp.errors import UsageError
from swamp.models.expressions import Scope, check_expressions, evaluate, truth
from swamp.models.mask import MASK, Masker, looks_secret

ENVIRON = {"TOKEN": "s3cr3t-value", "PORT": "8080", "HOME": "/home/me"}


@pytest.fixture
def scope() -> Scope:
    return Scope(Masker(ENVIRON), ENVIRON, inputs={"hosts": ["a", "b"], "n": 3, "who": "me"})


def test_one_expression_keeps_its_type_and_text_around_it_makes_text(scope):
    document = {"list": "${{ inputs.hosts }}", "text": "n=${{ inputs.n }}", "plain": 7, "deep": [{"x": "${{ 1 + 1 }}"}]}
    assert evaluate(document, scope).value == {
        "list": ["a", "b"],
        "text": "n=3",
        "plain": 7,
        "deep": [{"x": 2}],
    }


def test_braces_and_quotes_inside_an_expression(scope):
    assert evaluate('${{ {"a": {"b": inputs.n}} }}', scope).value == {"a": {"b": 3}}
    assert evaluate("${{ '}}' + \"}}\" }}", scope).value == "}}}}"


@pytest.mark.inv("secrets.never-written")
@pytest.mark.parametrize(
    "expression",
    [
        "${{ env.TOKEN }}",
        "Bearer ${{ env.TOKEN }}",
        "${{ env['TOKEN'] }}",
        "${{ 'x' + env.TOKEN }}",
        "${{ env.PORT }}",
        "${{ size(env.TOKEN) > 3 ? env.TOKEN : '' }}",
        "${{ env[inputs.who == 'me' ? 'TOKEN' : 'PORT'] }}",
    ],
)
def test_the_record_keeps_the_expression_and_the_work_gets_the_value(scope, expression):
    found = evaluate({"k": expression}, scope)
    assert found.shown == {"k": expression}
    assert "${{" not in str(found.value["k"])


@pytest.mark.inv("secrets.never-written")
def test_what_was_computed_from_a_secret_is_not_shown_either(scope):
    token = evaluate("${{ env.PORT }}", scope)
    inner = scope.with_self({"port": token.value}, {"port": token.shown})
    found = evaluate("p${{ self.port }}", inner)
    assert found.value == "p8080"
    assert found.shown == "p${{ env.PORT }}"


@pytest.mark.inv("secrets.never-written")
def test_a_value_once_used_is_masked_everywhere(scope):
    evaluate("${{ env.TOKEN }}", scope)
    assert scope.masker.text("before s3cr3t-value after") == f"before {MASK} after"
    assert scope.masker.value({"s3cr3t-value": ["s3cr3t-value"]}) == {MASK: [MASK]}


def test_variables_that_nobody_used_and_that_do_not_look_secret_are_left_alone(scope):
    assert scope.masker.text("/home/me") == "/home/me"


def test_names_that_mean_secrets():
    for name in ("GITHUB_TOKEN", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY", "API_KEY", "secret"):
        assert looks_secret(name), name
    for name in ("PATH", "PWD", "KEYBOARD", "TOKENIZERS_PARALLELISM", "MONKEY"):
        assert not looks_secret(name), name


def test_each_line_of_a_key_file_is_masked():
    masker = Masker({"DEPLOY_KEY": "-----BEGIN-----\nabcdefgh\n-----END-----"})
    assert masker.text("read abcdefgh") == f"read {MASK}"


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("${{ inputs.nope }}", "nope"),
        ("${{ env.NOPE }}", "NOPE"),
        ("${{ nobody.x }}", "nobody"),
        ("${{ 1 + }}", "does not parse"),
        ("${{ inputs.n / 0 }}", "division by zero"),
        ("${{ open", "not closed"),
    ],
)
def test_errors_name_the_place(scope, expression, said):
    with pytest.raises(UsageError) as caught:
        evaluate({"a": [expression]}, scope)
    assert said in caught.value.message
    assert caught.value.message.startswith("a[0]: ")


def test_guards_are_true_or_false_with_or_without_braces(scope):
    assert truth("inputs.n > 2", scope) is True
    assert truth("${{ inputs.n > 5 }}", scope) is False
    assert truth(True, scope) is True
    with pytest.raises(UsageError, match="neither true nor false"):
        truth("inputs.n", scope)


def test_checking_needs_no_values_and_suggests():
    found = dict(check_expressions({"a": "${{ inptus.x }}", "b": ["${{ 1 + }}", "${{ data.latest('m', 'n') }}"]}, ()))
    assert "did you mean `inputs`" in found["a",]
    assert "does not parse" in found["b", 0]
    assert len(found) == 2
