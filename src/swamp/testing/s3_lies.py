"""The lies of a store, scripted (`Lie` says which request) or by chance (`RandomLies`, seeded)."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, Literal

# fmt: off
LieKind = Literal[
    "refuse", "refuse after", "cut", "cut after", "delay", "late", "duplicate", "again",
    "stale", "wrong", "truncate", "short", "html", "forget",
]
# fmt: on
FOR_EVER: Final = float("inf")
_READS: Final = ("GET", "HEAD")
ON_READS: Final = ("stale", "wrong", "truncate", "short")
ON_WRITES: Final = ("duplicate", "again", "forget")


@dataclass
class Lie:
    """What happens to the requests it matches: by method, key (a glob; a listing's is its prefix) and `when`.

    refuse       `status` with S3's `code`; nothing has happened
    refuse after it happens, and `status` is answered
    cut          the connection is reset; nothing has happened
    cut after    it happens, and the connection is reset instead of an answer
    delay        it happens, and the answer comes `seconds` later (FOR_EVER: never)
    late         it happens `seconds` later, when the client may have given up (FOR_EVER: never), and is answered then
    duplicate    it happens twice, and the second answer is the one that is told
    again        it happens and is answered, and the same request happens once more `seconds` later (writes)
    stale        a read or a listing shows what was there before the last change
    wrong        a read's bytes are not the object's, its length and its ETag are
    truncate     a body ends in the middle and the connection is closed
    short        a body ends in the middle, and its Content-Length says that this is all
    html         200 and a page of HTML, as a captive portal answers; nothing has happened
    forget       a write is answered as if it had happened, and has not

    stale, wrong, truncate and short are for reads; duplicate, again and forget for writes: others pass unharmed.
    """

    kind: LieKind
    method: str | None = None
    key: str = "*"
    skip: int = 0
    times: int | None = 1
    status: int = 503
    code: str = "SlowDown"
    seconds: float = 5.0
    when: Callable[[Mapping[str, str]], bool] = lambda _headers: True
    """Sees the request's headers, by their names in small letters."""
    then: Callable[[], None] = lambda: None
    """Called when the lie has come to its point and before anything is answered: the place to kill the client."""

    def takes(self, method: str, key: str, headers: Mapping[str, str]) -> bool:
        """Whether this request is the one; counts it if it matches."""
        if self.times == 0 or self.method not in (None, method) or not fnmatchcase(key, self.key):
            return False
        if not fits(self.kind, method) or not self.when(headers):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
        return True


def fits(kind: LieKind, method: str) -> bool:
    """Whether that kind means something for that method."""
    if method in _READS:
        return kind not in ON_WRITES and not (method == "HEAD" and kind in ("truncate", "short", "wrong"))
    return kind not in ON_READS


BAD_DAY: Final[tuple[LieKind, ...]] = ("refuse", "refuse after", "cut", "cut after", "delay", "late", "duplicate")
"""What every store does on a bad day."""
SURVIVABLE: Final[tuple[LieKind, ...]] = (*BAD_DAY, "again", "wrong", "truncate", "short", "html")
"""All that a client can survive without a wrong answer: everything but `stale` and `forget`."""


@dataclass
class RandomLies:
    """Trouble with probability `share` per request, by its seed. `slow` is how long what is slow takes."""

    seed: int
    share: float
    kinds: Sequence[LieKind] = SURVIVABLE
    slow: tuple[float, float] = (0.05, 3.0)
    rng: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def draw(self, method: str) -> Lie | None:
        if self.rng.random() >= self.share:
            return None
        kind = self.rng.choice(self.kinds)
        status, code = self.rng.choice(((503, "SlowDown"), (500, "InternalError"), (429, "TooManyRequests")))
        seconds = self.rng.uniform(*self.slow)
        return Lie(kind, status=status, code=code, seconds=seconds) if fits(kind, method) else None
