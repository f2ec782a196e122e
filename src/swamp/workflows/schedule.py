"""Computes when a scheduled workflow runs: cron expressions in a time zone, read by a library."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from swamp.env import UTC


def fault_of(schedule: str, timezone: str) -> tuple[str, str] | None:
    """Which of `schedule` and `timezone` is wrong, and why; None if both are fine."""
    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return "timezone", f"`{timezone}` is not a time zone; such as UTC or Europe/Berlin"
    from cronsim import CronSim, CronSimError

    try:
        next(CronSim(schedule, dt.datetime(2026, 1, 1, tzinfo=zone)))
    except (CronSimError, StopIteration) as error:
        why = str(error) or "it never comes"
        return "schedule", f"`{schedule}` is not a schedule: {why}; five fields as in cron, or six with seconds first"
    return None


def tick_after(schedule: str, timezone: str, moment: dt.datetime) -> dt.datetime:
    """The first tick behind `moment`, in UTC."""
    from cronsim import CronSim

    return next(CronSim(schedule, moment.astimezone(ZoneInfo(timezone)))).astimezone(UTC)


def tick_before(schedule: str, timezone: str, moment: dt.datetime) -> dt.datetime | None:
    """The last tick at or before `moment`, in UTC; None if there was none for years."""
    from cronsim import CronSim

    later = moment.astimezone(ZoneInfo(timezone)) + dt.timedelta(seconds=1)
    try:
        return next(CronSim(schedule, later.replace(microsecond=0), reverse=True)).astimezone(UTC)
    except StopIteration:
        return None
