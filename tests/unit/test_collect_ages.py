"""Ages of commits, records missing or not."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest

from swamp.commit.collect import orphans_until
from swamp.commit.log import Ages, LogName
from swamp.index.root import Writer, first_root
from swamp.store.port import ObjectMeta

NOW = dt.datetime(2026, 11, 17, tzinfo=dt.UTC)


def record(seq: int, days: int) -> LogName:
    meta = ObjectMeta(f"{seq}-{days}", 1, "", NOW - dt.timedelta(days=days))
    return LogName(meta.key, seq, "op", meta)


def test_a_commit_whose_record_is_gone_is_as_young_as_the_next_later_one():
    ages = Ages.of([record(1, 20), record(9, 2)], NOW)
    week = dt.timedelta(days=7)
    assert ages.older(1, week) and not ages.older(2, week) and not ages.older(9, week)
    assert not ages.older(10, week), "the newest commit's record may be on its way"


@pytest.mark.inv("rebuild.keeps")
def test_what_only_lost_commits_named_has_an_undo_window_from_the_end_of_a_rebuild():
    """An orphan uploaded 20 days ago, after the record of 30 days ago that the root was rebuilt from."""
    week, uploaded = dt.timedelta(days=7), NOW - dt.timedelta(days=20)

    def spares(whole_for: int, **extra: object) -> bool:
        ages = Ages.of([record(5, 30), record(9, whole_for)], NOW)
        root = replace(first_root("op", "store", "", Writer("r", "h", "u", 1, "0")), extra=extra)
        until = orphans_until(root, ages, week)
        return until is None or uploaded > until

    assert not spares(1), "an orphan like any other"
    assert spares(1, rebuiltFrom=5) and spares(20, rebuiltFrom=5)
    assert spares(1, placedAgain=[5, 9]) and spares(6, placedAgain=[5, 9])
    assert not spares(7, placedAgain=[5, 9]), "and no longer"
    for nonsense in ([], "x", [5], [5, "9"], {"a": 1}, [0, 0], [None, None]):
        assert not spares(1, placedAgain=nonsense)
