"""Keeping secrets out of everything that is written: records, logs, evaluated copies, captured output."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

MASK = "***"
SHORTEST = 4
_SECRET_NAME = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|APIKEY|KEY|PWD)(_|$|S$)", re.IGNORECASE
)
_NOT_SECRET = {"PWD", "OLDPWD", "AWS_ACCESS_KEY_ID"}
_ENV_NAME = re.compile(r"""\benv\s*(?:\.\s*([A-Za-z_]\w*)|\[\s*(?:"([^"]+)"|'([^']+)')\s*\])""")
_ENV_WORD = re.compile(r"(?<![\w.])env\b")
_TEXT = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'")


class Masker:
    """Replaces every known secret in text and in values. Grows while a run evaluates expressions."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._words: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self.learn(value for name, value in environment.items() if looks_secret(name) and len(value) >= 8)

    def learn(self, values: Iterable[str]) -> None:
        """These are secrets from now on. Each line of a longer one counts by itself (a key file)."""
        words = {line.strip() for value in values for line in (value, *value.splitlines())}
        self._words |= {word for word in words if len(word) >= SHORTEST}
        ordered = sorted(self._words, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    def learn_from(self, expression: str) -> None:
        """Whatever of the environment `expression` can see is secret from now on."""
        self.learn(self._environment.get(name, "") for name in env_names(expression, self._environment))

    def text(self, text: str) -> str:
        return self._pattern.sub(MASK, text) if self._pattern is not None else text

    def value(self, value: Any) -> Any:
        """`value` with every text in it masked, keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.value(key): self.value(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(inner) for inner in value]
        return value


def looks_secret(name: str) -> bool:
    """Names that mean secrets by convention, such as `GITHUB_TOKEN` or `DB_PASSWORD`."""
    return name not in _NOT_SECRET and _SECRET_NAME.search(name) is not None


def mentions_env(expression: str) -> bool:
    """Whether a CEL expression reads the environment (the word inside a text literal does not count)."""
    return _ENV_WORD.search(_TEXT.sub(lambda found: f'"{"_" * (len(found[0]) - 2)}"', expression)) is not None


def env_names(expression: str, environment: Mapping[str, str]) -> set[str]:
    """The variables that `expression` can see: the named ones, or all of them when it computes the name."""
    if not mentions_env(expression):
        return set()
    named = [next(filter(None, found.groups())) for found in _ENV_NAME.finditer(expression)]
    uses = len(_ENV_WORD.findall(expression))
    return set(named) if len(named) >= uses else set(environment)
