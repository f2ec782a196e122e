"""What somebody meant: the closest known word for a typo, and the one id that begins as they typed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

from swamp.errors import UsageError

SHORTEST_PREFIX: Final = 2


def suggest(word: str, known: Iterable[str]) -> str | None:
    """The known word closest to `word`, if one is close: a typo, another case, or another separator."""
    names = list(known)
    flat = {_flatten(name): name for name in names}
    if _flatten(word) in flat:
        return flat[_flatten(word)]
    close = difflib.get_close_matches(_flatten(word), list(flat), n=1, cutoff=0.6)
    return flat[close[0]] if close else None


def _flatten(word: str) -> str:
    return word.lower().replace("_", "").replace("-", "")


def meant(word: str, known: Iterable[str]) -> str:
    """The beginning of a hint: "did you mean `x`? ", or nothing."""
    found = suggest(word, known)
    return f"did you mean `{found}`? " if found is not None else ""


def by_prefix(word: str, ids: Iterable[str], what: str) -> str | None:
    """The one id that is `word` or begins with it; None if there is none. Raises UsageError if there are several."""
    known = set(ids)
    if word in known:
        return word
    if len(word) < SHORTEST_PREFIX:
        return None
    found = sorted(one for one in known if one.startswith(word))
    if len(found) > 1:
        raise UsageError(
            f"{len(found)} {what}s begin with {word}: {', '.join(found[:3])}{', …' if len(found) > 3 else ''}",
            hint="type more of the id",
            details={"candidates": found[:20]},
        )
    return found[0] if found else None
