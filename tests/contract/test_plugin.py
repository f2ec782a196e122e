"""A datastore of another package keeps the contract, and has the layers, limits and errors of ours around it."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from swamp.bulk.executors import build_archive
from swamp.env import SYSTEM, Env
from swamp.errors import Misconfigured, ObjectMissing, OutcomeUnknown, StoreError, Unavailable
from swamp.store.layers import innermost
from swamp.store.open import StoreSpec, open_store
from swamp.store.port import CREATE
from swamp.testing import capabilities
from swamp.testing.contract import StoreContract, Traits

SHELF = Path(__file__).parents[1] / "fixtures" / "shelf"
KIND = "@example/shelf"


@pytest.fixture
def installed(monkeypatch):
    """The example package, as pip would have put it."""
    monkeypatch.syspath_prepend(str(SHELF))


class TestShelf(StoreContract):
    """The example in tests/fixtures/shelf, opened by its type."""

    traits = Traits(many=1100, at_once=4)

    @pytest.fixture
    def store(self, installed, tmp_path):
        return open_store(KIND, {"file": str(tmp_path / "shelf.db")})


def test_a_plugin_is_opened_elsewhere_by_its_type(installed, tmp_path):
    spec = StoreSpec(KIND, {"file": str(tmp_path / "shelf.db")}, "team")
    assert spec.plugin == KIND and StoreSpec("s3://b").plugin is None
    spec.open().put("k", b"1")
    assert open_store(KIND, spec.config).get("team/k").body == b"1"


def test_its_author_can_print_what_it_was_seen_to_do(installed, tmp_path, capsys):
    capabilities.main(KIND, json.dumps({"file": str(tmp_path / "shelf.db")}))
    title, _, row = capsys.readouterr().out.splitlines()
    assert title.startswith("| store | create-only | compare-and-swap |")
    assert row.startswith(f"| {KIND} | yes | yes |") and row.endswith("| yes |")


def test_one_that_is_not_installed_says_what_to_do(tmp_path):
    with pytest.raises(Misconfigured, match="no plug-in that is installed here brings the datastore type '@no/one'"):
        open_store("@no/one", {})


@pytest.mark.parametrize(
    ("config", "key", "allowed"),
    [
        ({}, "file", "file, journal"),
        ({"file": "x", "jornal": "wal"}, "jornal", "file, journal"),
        ({"file": 5}, "file", "a text"),
        ({"file": "x", "journal": "truncate"}, "journal", "wal, delete"),
        ({"file": ""}, "file", "minLength 1"),
        ({"file": "x", "pushConcurrency": 0}, None, ""),
        ({"file": "x", "secretKey": "abc"}, None, "environment"),
    ],
)
def test_a_configuration_that_its_schema_refuses(installed, config, key, allowed):
    with pytest.raises(Misconfigured) as told:
        open_store(KIND, config)
    assert told.value.exit_code == 2 and allowed in told.value.hint
    assert key is None or (told.value.details["key"] == key and key in told.value.message)


# --- trouble -------------------------------------------------------------------------------------------------------


class Troubled:
    """A shelf that raises what it is told to, a number of times, and knows how many were in it at once."""

    def __init__(self, inner, error, times):
        self.inner, self.error, self.times = inner, error, times
        self.inside = self.most = 0
        self.lock = threading.Lock()

    url = property(lambda self: self.inner.url)

    def __getattr__(self, name):
        return lambda *args, **more: self._do(name, *args, **more)

    def _do(self, name, *args, **more):
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.times -= 1
            fails = self.times >= 0
        try:
            time.sleep(0.01)
            if fails:
                raise self.error
            return getattr(self.inner, name)(*args, **more)
        finally:
            with self.lock:
                self.inside -= 1


@pytest.fixture
def troubled(installed, monkeypatch, tmp_path):
    import swamp_shelf

    made = []

    def factory(config, env):
        made.append(Troubled(swamp_shelf.Shelf(tmp_path / "db", "wal", 5, env), *factory.trouble))
        return made[-1]

    factory.trouble, factory.made = (OSError("never"), 0), made
    monkeypatch.setattr(swamp_shelf, "open_shelf", factory)
    return factory


class NoWait:
    now, monotonic = SYSTEM.clock.now, SYSTEM.clock.monotonic

    def sleep(self, seconds):
        return


def opened(config=None):
    return open_store(KIND, {"file": "x", **(config or {})}, Env(NoWait(), SYSTEM.rng))


@pytest.mark.inv("store.no-blind-retry")
def test_reads_are_tried_again_and_writes_are_not(troubled):
    troubled.trouble = (TimeoutError("slow"), 0)
    store = opened()
    store.put("k", b"1")
    inner = troubled.made[-1]
    inner.times = 3
    assert store.get("k").body == b"1" and inner.times < 0
    inner.times = 2
    assert [m.key for page in store.list() for m in page] == ["k"]
    inner.times = 1
    with pytest.raises(OutcomeUnknown, match="@example/shelf failed to put x: TimeoutError: slow"):
        store.put("x", b"1", CREATE)
    with pytest.raises(ObjectMissing):
        store.head("x")


@pytest.mark.inv("store.errors-mapped")
def test_a_defect_of_the_plugin_is_named_and_not_repeated(troubled):
    troubled.trouble = (ZeroDivisionError("oops"), 1000)
    store = opened()
    with pytest.raises(StoreError, match="failed to get k: ZeroDivisionError: oops") as told:
        store.get("k")
    assert not isinstance(told.value, Unavailable) and "defect of the plug-in @example/shelf" in told.value.hint
    assert troubled.made[-1].times == 999


def test_limits_hold_around_it(troubled):
    store = opened({"pushConcurrency": 1, "pullConcurrency": 2})
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: store.put(f"k{n}", b"1"), range(12)))
    inner = troubled.made[-1]
    assert inner.most == 1
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: store.head(f"k{n}"), range(12)))
    assert inner.most == 2


def test_a_factory_that_fails_or_returns_something_else(installed, monkeypatch):
    import swamp_shelf

    monkeypatch.setattr(swamp_shelf, "open_shelf", lambda config, env: 1 / 0)
    with pytest.raises(Misconfigured, match="cannot open its datastore: ZeroDivisionError"):
        open_store(KIND, {})
    monkeypatch.setattr(swamp_shelf, "open_shelf", lambda config, env: object())
    with pytest.raises(Misconfigured, match="it lacks head, get"):
        open_store(KIND, {})


def test_the_archive_for_executors_takes_it_along(installed, tmp_path):
    import tarfile

    made = build_archive(tmp_path / "a.tar.gz", exclude=["google-cloud-storage", "arro3-core", "arro3-io", "obstore"])
    assert "swamp-shelf" in made.distributions
    with tarfile.open(made.file) as archive:
        names = archive.getnames()
    assert "swamp_shelf/__init__.py" in names and "swamp_shelf-1.0.dist-info/entry_points.txt" in names


def test_what_a_plugin_has_beyond_the_port_has_our_errors(installed, monkeypatch, tmp_path):
    """`setup` tries `delete_if` where there is one; a foreign error in it is told, what is missing is not tried."""
    import swamp_shelf

    store = open_store(KIND, {"file": str(tmp_path / "db")})
    adapter, _ = innermost(store, "k")
    assert not hasattr(adapter, "delete_if") and not hasattr(adapter, "put_file_if")
    monkeypatch.setattr(swamp_shelf.Shelf, "delete_if", lambda self, key, token: 1 / 0, raising=False)
    assert hasattr(adapter, "delete_if")
    with pytest.raises(StoreError, match="failed to delete k: ZeroDivisionError"):
        adapter.delete_if("k", "token")
