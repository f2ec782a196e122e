"""Keeping secrets out of everything that is written: records, logs, evaluated copies, captured output."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from typing import Any

MASK = "***"
SHORTEST = 4
_SECRET_NAME = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|APIKEY|KEY|PWD)(_|$|S$)", re.IGNORECASE
)
_NOT_SECRET = {"PWD", "OLDPWD", "AWS_ACCESS_KEY_ID"}


class Masker:
    """Replaces every known secret in text and in values. Grows while a run evaluates expressions."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._words: set[str] = set()
        self.generation = 0
        """Grows when a new secret is known: what was masked before may have to be masked again."""
        self._pattern: re.Pattern[str] | None = None
        self.learn(value for name, value in environment.items() if looks_secret(name) and len(value) >= 8)

    def learn(self, values: Iterable[str]) -> None:
        """These are secrets from now on. Each line of a longer one counts by itself (a key file)."""
        words = {line.strip() for value in values for line in (value, *value.splitlines())}
        with self._lock:  # steps learn in parallel: none may undo what another has just learned
            new = {word for word in words if len(word) >= SHORTEST} - self._words
            if not new:
                return
            self._words |= new
            ordered = sorted(self._words, key=len, reverse=True)
            self._pattern = re.compile("|".join(map(re.escape, ordered)))
            self.generation += 1

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
