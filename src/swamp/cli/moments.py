"""Times as people say them: `just now`, `5 minutes ago`, `yesterday 14:02`, `3 Nov 09:15`, `3 Nov 2025`."""

from __future__ import annotations

import datetime as dt
import sys

from swamp.env import SYSTEM, parse_rfc3339


def when(moment: str | None) -> str:
    """A time of a record for the terminal; ISO, as it is, where a program may read it."""
    if not moment or not sys.stdout.isatty():
        return moment or ""
    try:
        return say(parse_rfc3339(moment).astimezone(), SYSTEM.clock.now().astimezone())
    except ValueError:
        return moment


def say(moment: dt.datetime, now: dt.datetime) -> str:
    """`moment` as somebody would tell it at `now`; both in the same zone."""
    past = (now - moment).total_seconds()
    if -60 < past < 60:
        return "just now"
    if 0 < past < 3600:
        return _ago(int(past // 60), "minute")
    if 0 < past < 86400 and moment.date() == now.date():
        return _ago(int(past // 3600), "hour")
    if moment.date() == now.date() - dt.timedelta(days=1):
        return f"yesterday {moment:%H:%M}"
    if moment.year == now.year:
        return f"{moment.day} {moment:%b %H:%M}"
    return f"{moment.day} {moment:%b %Y}"


def _ago(count: int, unit: str) -> str:
    return f"{count} {unit}{'' if count == 1 else 's'} ago"
