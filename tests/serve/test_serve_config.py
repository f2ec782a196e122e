"""`serve:` of `.swamp.yaml`: what a complaint says, and what it does not repeat."""

from __future__ import annotations

from typing import Any

import pytest

from swamp.errors import UsageError
from swamp.serve.config import read_config

HOOK = {"route": "/hooks/a", "workflow": "deploy", "secret": "@env=HOME"}


@pytest.mark.parametrize(
    ("block", "where", "hint"),
    [
        ({"webhooks": [HOOK, {**HOOK, "inputs": {"key": "hunter2"}}]}, "serve.webhooks", "/hooks/a stands twice"),
        ({"webhooks": [{**HOOK, "secret": "hunter2"}]}, "serve.webhooks[0].secret", "@env=NAME"),
        ({"webhooks": {"a": {**HOOK, "inputs": {"key": "hunter2"}}}}, "serve.webhooks", "allowed"),
        ({"webhooks": [{"route": "/hooks/a", "workflow": "x", "secrt": "hunter2"}]}, "serve.webhooks[0].secrt",
         "did you mean `secret`?"),
    ],
)  # fmt: skip
def test_a_complaint_names_the_key_and_repeats_no_inputs(block: dict[str, Any], where: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_config({"serve": block}, {}, {})
    told = refused.value
    assert told.details == {"key": where} and where in told.message and hint in str(told.hint)
    assert "hunter2" not in f"{told.message} {told.hint}"
