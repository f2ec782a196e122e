"""Namespaces: one owner each, names that cannot be mistaken for data, no store inside a store."""

from __future__ import annotations

import json
import threading

import pytest

from swamp.commit.namespace import list_namespaces, read_registration, refuse_nested, register, validate_name
from swamp.env import SYSTEM
from swamp.errors import AccessDenied, CorruptData, UsageError
from swamp.index.root import ROOT_KEY
from swamp.store.layers import PrefixStore
from swamp.store.open import open_store
from swamp.store.port import Capabilities
from swamp.testing.faulty import Fault, FaultyStore

UNSAFE = Capabilities(create_only=False, compare_and_swap=False)


@pytest.fixture
def store():
    return open_store(f"memory://{SYSTEM.ulid().lower()}")


def test_the_first_repository_owns_a_namespace_and_may_come_again(store):
    mine = PrefixStore(store, "team-a")
    first = register(mine, "team-a", "repo-1", SYSTEM)
    assert register(mine, "team-a", "repo-1", SYSTEM) == first
    assert json.loads(mine.get(".namespace.json").body) == {
        "namespace": "team-a",
        "repoId": "repo-1",
        "registeredAt": first.registered_at,
    }


@pytest.mark.parametrize("capabilities", [Capabilities(), UNSAFE])
def test_a_second_repository_is_refused_also_where_conditions_are_not_enforced(store, capabilities):
    mine = PrefixStore(store, "team-a")
    register(mine, "team-a", "repo-1", SYSTEM, capabilities, settle_s=0.01)
    with pytest.raises(UsageError, match="belongs to repository repo-1"):
        register(mine, "team-a", "repo-2", SYSTEM, capabilities, settle_s=0.01)
    assert read_registration(mine).repo_id == "repo-1"


@pytest.mark.parametrize("capabilities", [Capabilities(), UNSAFE])
def test_of_two_that_register_at_once_exactly_one_owns_it(store, capabilities):
    mine = PrefixStore(store, "n")
    outcome = {}

    def run(repo):
        try:
            outcome[repo] = register(mine, "n", repo, SYSTEM, capabilities, settle_s=0.3).repo_id
        except UsageError:
            outcome[repo] = None

    threads = [threading.Thread(target=run, args=(f"repo-{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    owner = read_registration(mine).repo_id
    assert outcome == {f"repo-{i}": (owner if owner == f"repo-{i}" else None) for i in range(4)}


@pytest.mark.parametrize("kind", ["after", "before"])
def test_a_lost_answer_is_resolved_by_reading_back(store, kind):
    faulty = FaultyStore(PrefixStore(store, "n"), [Fault(kind, "put")])
    if kind == "after":
        assert register(faulty, "n", "repo-1", SYSTEM).repo_id == "repo-1"
    else:
        with pytest.raises(Exception, match="injected"):
            register(faulty, "n", "repo-1", SYSTEM)
    assert register(faulty, "n", "repo-1", SYSTEM).repo_id == "repo-1"


def test_an_unreadable_manifest_is_nobodys_and_not_overwritten(store):
    store.put("n/.namespace.json", b"???")
    with pytest.raises(CorruptData):
        register(PrefixStore(store, "n"), "n", "repo-1", SYSTEM)
    assert store.get("n/.namespace.json").body == b"???"


@pytest.mark.parametrize(
    "name", ["data", "outputs", "files", "", "A", "a/b", "..", "a..b", ".x", "_index", "x" * 64, "ü"]
)
def test_S13_names_that_a_namespace_cannot_have(name):
    with pytest.raises(UsageError):
        validate_name(name)


def test_namespaces_are_listed_by_name_and_other_directories_are_not(store):
    for name in ("b", "a"):
        register(PrefixStore(store, name), name, f"repo-{name}", SYSTEM)
    store.put("data/t/m/n/1/raw", b"x")
    store.put("other/thing", b"x")
    assert [(r.namespace, r.repo_id) for r in list_namespaces(store)] == [("a", "repo-a"), ("b", "repo-b")]


def test_who_may_not_look_above_the_prefix_can_still_set_up(store, monkeypatch):
    """A least-privilege policy ends at the prefix: 403 above it is no answer to whether a store is there."""

    def refused(key):
        raise AccessDenied(f"HEAD {key} was refused with HTTP 403")

    monkeypatch.setattr(type(store), "head", lambda self, key: refused(key))
    refuse_nested(store, "team/inner")


def test_a_prefix_inside_another_store_is_refused(store):
    store.put(f"team/{ROOT_KEY}", b"{}")
    for prefix in ("team/inner", "/team/a/b/"):
        with pytest.raises(UsageError, match="inside another datastore"):
            refuse_nested(store, prefix)
    refuse_nested(store, "team")
    refuse_nested(store, "")
    refuse_nested(store, "teams/inner")
    store.put(ROOT_KEY, b"{}")
    with pytest.raises(UsageError, match="top of this bucket"):
        refuse_nested(store, "other")
