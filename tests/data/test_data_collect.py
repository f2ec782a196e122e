"""Garbage collection: what a lifetime and a retention give up, and what nothing may take."""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import replace

import pytest
from trees import latest_names

from swamp.data.lifetimes import Lifetime, Retention
from swamp.data.run_record import RunRepository, RunState
from swamp.errors import Failed
from swamp.sync.port import Deferred


def keeping(draft, value):
    return replace(draft, retention=Retention.parse(value))


def living(draft, text, run_id=None):
    return replace(draft, lifetime=Lifetime.parse(text), owner=replace(draft.owner, workflow_run_id=run_id))


def test_keep_n_leaves_the_newest_n(repo, name, draft):
    for i in range(5):
        repo.save(name, keeping(draft, 2), b"%d" % i)
    result = repo.collect_garbage()
    assert [v.version for v in repo.versions(name)] == [5, 4]
    assert (len(result.versions), result.size) == (3, 3)
    document = result.to_json()
    assert {k: document[k] for k in ("versionsDeleted", "bytesReclaimed", "leftoversDeleted", "dryRun")} == {
        "versionsDeleted": 3,
        "bytesReclaimed": 3,
        "leftoversDeleted": 0,
        "dryRun": False,
    }
    assert [one["version"] for one in document["versions"]] == [3, 2, 1]
    assert {one["reason"] for one in document["versions"]} == {"only the newest 2 are kept"}


def test_a_span_leaves_younger_versions_and_always_the_newest(repo, name, draft, watch):
    for i in range(3):
        repo.save(name, keeping(draft, "1h"), b"%d" % i)
        watch.moment += dt.timedelta(minutes=50)
    repo.collect_garbage()
    assert [v.version for v in repo.versions(name)] == [3]
    watch.moment += dt.timedelta(days=900)
    repo.collect_garbage()
    assert [v.version for v in repo.versions(name)] == [3]


def test_the_newest_versions_word_counts(repo, name, draft):
    for keep in (1, 1, 10):
        repo.save(name, keeping(draft, keep), b"")
    repo.collect_garbage()
    assert len(repo.versions(name)) == 3


def test_a_dry_run_says_the_same_and_changes_nothing(repo, name, draft, tree):
    for i in range(4):
        repo.save(name, keeping(draft, 1), b"%d" % i)
    said = len(tree.announced)
    planned = repo.collect_garbage(dry_run=True)
    assert len(tree.announced) == said
    assert len(repo.versions(name)) == 4
    assert repo.collect_garbage().versions == planned.versions


def test_an_expired_lifetime_takes_the_whole_name(repo, name, draft, watch):
    repo.save(name, living(draft, "30d"), b"1")
    repo.save(name.sibling("other"), draft, b"2")
    watch.moment += dt.timedelta(days=29)
    assert repo.collect_garbage().versions == ()
    repo.save(name, living(draft, "30d"), b"3")
    watch.moment += dt.timedelta(days=29)
    assert repo.collect_garbage().versions == ()
    watch.moment += dt.timedelta(days=2)
    assert len(repo.collect_garbage().versions) == 2
    assert latest_names(repo) == ["other"]


def test_nothing_goes_while_a_version_that_could_not_be_brought_has_not_spoken(repo, name, draft, watch, tree):
    """It is the newest version that says how long a name lives, and whether it is there at all."""
    repo.save(name, living(draft, "30d"), b"1")
    gone = name.sibling("gone")
    repo.save(gone, draft, b"2")
    repo.remove_latest_marker(gone)
    old = name.sibling("old")
    repo.save(old, draft, b"3")
    new = repo.rename(old, "new").new.ref.data
    repo.delete(new)
    watch.moment += dt.timedelta(days=31)
    tree.late = [Deferred(f"{data.at(9).path}/raw", "the store was away") for data in (name, gone, new)]
    assert repo.collect_garbage().versions == repo.prune().versions == ()
    with pytest.raises(Failed, match="version 9 of result is in the datastore"):
        repo.delete(name)
    with pytest.raises(Failed, match="version 9 of new is in the datastore"):
        repo.get(old)
    other = name.sibling("other")
    repo.save(other, draft, b"4")
    with pytest.raises(Failed, match="version 9 of new is in the datastore"):
        repo.rename(other, "new")
    tree.late = []
    assert len(repo.collect_garbage().versions) == 1
    assert len(repo.prune().versions) == 4


@pytest.mark.parametrize("lifetime", ["job", "workflow", "ephemeral"])
def test_data_bound_to_a_run_goes_when_the_run_is_over_and_not_before(repo, name, draft, tree, lifetime):
    runs = RunRepository(tree)
    repo.save(name, living(draft, lifetime, "r1"), b"1")
    assert repo.collect_garbage(run_over=runs.is_over).versions == ()
    runs.save(RunState("r1", "w", "deploy", "running", "2026-05-01T12:00:00.000Z"))
    assert repo.collect_garbage(run_over=runs.is_over).versions == ()
    runs.save(RunState("r1", "w", "deploy", "failed", "2026-05-01T12:00:00.000Z"))
    assert len(repo.collect_garbage(run_over=runs.is_over).versions) == 1


def test_prune_removes_soft_deleted_names_and_dead_forwards_but_not_live_ones(repo, name, draft):
    for other in ("gone", "live", "dead"):
        repo.save(name.sibling(other), draft, b"x")
    repo.remove_latest_marker(name.sibling("gone"))
    repo.rename(name.sibling("live"), "live2")
    repo.rename(name.sibling("dead"), "dead2")
    repo.delete(name.sibling("dead2"))
    repo.prune()
    assert sorted(data.name for data in repo.names()) == ["live", "live2"]
    assert repo.get(name.sibling("live")).name == "live2"


def test_prune_removes_writes_abandoned_for_a_day_and_leaves_fresh_ones(repo, name, draft, tree, watch):
    old, fresh = repo.allocate_version(name, draft), repo.allocate_version(name, draft)
    old.raw.write_bytes(b"half")
    fresh.raw.write_bytes(b"half")
    for claim, hours in ((old, 25), (fresh, 23)):
        then = watch.moment.timestamp() - hours * 3600
        for path in (claim.raw, claim.raw.parent):
            os.utime(path, (then, then))
    result = repo.prune()
    assert (len(result.leftovers), result.versions) == (1, ())
    assert not old.raw.exists()
    assert fresh.raw.exists()
