"""How long data lives and how many versions of it stay."""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

from swamp.errors import UsageError
from swamp.values import value

NAMED: Final = ("infinite", "ephemeral", "job", "workflow")
KEEP_DEFAULT: Final = 10
_DURATION = re.compile(r"([1-9][0-9]{0,8})(mo|m|h|d|w|y)\Z")
_UNIT: Final = {
    "m": dt.timedelta(minutes=1),
    "h": dt.timedelta(hours=1),
    "d": dt.timedelta(days=1),
    "w": dt.timedelta(weeks=1),
    "mo": dt.timedelta(days=30),
    "y": dt.timedelta(days=365),
}


def parse_duration(text: str) -> dt.timedelta | None:
    """`90m`, `2w`, `1mo`: the span it stands for, None if it is not one."""
    match = _DURATION.match(text)
    if match is None:
        return None
    try:
        return int(match[1]) * _UNIT[match[2]]
    except OverflowError:
        return dt.timedelta.max


@value
class Lifetime:
    """`infinite`, `ephemeral`, `job`, `workflow`, or a span from the newest version's creation."""

    text: str

    @classmethod
    def parse(cls, text: str) -> Lifetime:
        if text in NAMED or parse_duration(text) is not None:
            return cls(text)
        raise UsageError(
            f"{text!r} is not a lifetime",
            hint=f"allowed: {', '.join(NAMED)}, or a number with m, h, d, w, mo or y such as `30d`",
        )

    @property
    def span(self) -> dt.timedelta | None:
        return parse_duration(self.text)

    def __str__(self) -> str:
        return self.text


@value
class Retention:
    """Which older versions stay: the newest `keep` ones, or those younger than `span`. The newest always stays."""

    keep: int | None = None
    span: dt.timedelta | None = None
    text: str = ""

    @classmethod
    def parse(cls, value: object) -> Retention:
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return cls(keep=value)
        text = value if isinstance(value, str) else ""
        if text.isascii() and text.isdecimal() and len(text) <= 18 and int(text) >= 1:
            return cls(keep=int(text))
        span = parse_duration(text)
        if span is not None:
            return cls(span=span, text=text)
        raise UsageError(
            f"{value!r} is not a garbageCollection value",
            hint="allowed: how many versions to keep (1 or more), or a span such as `30d`",
        )

    @property
    def value(self) -> int | str:
        """As it stands in metadata."""
        return self.keep if self.keep is not None else self.text


FOREVER: Final = Lifetime("infinite")
KEEP_TEN: Final = Retention(keep=KEEP_DEFAULT)
