"""Paths from indexes, listings, users and disks: only those that stay inside the tree on every machine pass."""

import pytest

from swamp.cache.paths import (
    TEMP_PREFIX,
    TIER_DIRECTORIES,
    fold,
    in_tier,
    is_below,
    is_foreign_temp,
    is_internal,
    is_internal_directory,
    is_internal_object,
    is_safe,
    is_temp,
    safe_path,
)
from swamp.errors import UsageError

ULID = "01JD0000000000000000000000"

GOOD = [
    "data/command/shell/id/name/1/raw",
    "files/a b/100%+#?&=.txt",
    "files/grüße/日本語/🦎",
    "files/" + "x" * 255,
    "files/" + "é" * 127,
    "files/..hidden/...",
    "files/~backup~",
    "files/x~01JD",
    "files/x:y",
    "data/" + "/".join(["d" * 200] * 4) + "/" + "e" * 187,
]
BAD = {
    "empty": "",
    "absolute": "/etc/passwd",
    "parent": "data/../../etc/passwd",
    "only-parent": "..",
    "dot": "data/./x",
    "double-slash": "data//x",
    "trailing-slash": "data/x/",
    "drive": "C:/Windows",
    "drive-relative": "c:evil",
    "backslash": "data\\..\\..\\x",
    "nul": "data/x\0y",
    "newline": "data/x\ny",
    "escape": "data/\x1b[2J",
    "c1": "data/\x85",
    "surrogate": "data/\udc80",
    "component-256": "data/" + "x" * 256,
    "component-256-bytes": "data/" + "é" * 128,
    "path-998": "data/" + "/".join(["d" * 200] * 4) + "/" + "e" * 188 + "x",
    "megabytes": "a/" * 1_000_000,
    "payload-name": f"data/x~{ULID}",
    "payload-directory": f"data/x~{ULID}/y",
}


@pytest.mark.parametrize("path", GOOD)
def test_a_path_that_stays_inside_is_returned_unchanged(path):
    assert safe_path(path) == path
    assert is_safe(path)


@pytest.mark.parametrize("path", BAD.values(), ids=BAD.keys())
def test_S16_a_path_that_could_leave_or_confuse_is_refused_with_a_short_message(path):
    with pytest.raises(UsageError) as caught:
        safe_path(path)
    assert not is_safe(path)
    assert caught.value.message.isprintable() and len(caught.value.message) < 1200


def test_a_path_and_its_key_suffix_fit_1024_bytes():
    longest = "/".join(["d" * 199] * 4) + "/" + "e" * (997 - 800)
    assert len(safe_path(longest)) + 1 + 26 == 1024
    assert not is_safe(longest + "e")


@pytest.mark.parametrize(
    "path",
    [
        ".datastore-index.json",
        ".datastore.lock",
        ".namespace.json",
        ".anything/below",
        "_index",
        "_index/01.parquet",
        "_index/log/000000000001-x.json",
        "data/t/id/.lock",
        "data/aws/ec2/id/.lock",
        "data/t/id/name/latest",
        "data/aws/ec2/vpc/id/name/latest",
        "data/_catalog.db",
        "data/_catalog.db-wal",
        f"data/t/id/n/1/{TEMP_PREFIX}9-1",
        f"outputs/t/{TEMP_PREFIX}9-1",
        f"data/t/{TEMP_PREFIX}9-1",
        f"data/{TEMP_PREFIX}d/x",
    ],
)
def test_internal_names_are_known(path):
    assert is_internal(path)


@pytest.mark.parametrize(
    "path",
    [
        "data/t/id/name/1/raw",
        "data/aws/ec2/vpc/id/name/12/raw/parts/latest",
        "data/latest/id/name/1/metadata.yaml",
        "files/latest",
        "files/a/b/c/d/latest",
        "outputs/t/run/latest",
        "data/t/id/latest",
        "files/.hidden",
        "files/_index/x",
        "files/x.lock",
        "files/.lock/x",
        "files/my_catalog.db",
        "files/_catalog.db-wal",
        "outputs/deep/er/.lock",
        "files/.lock",
        *(
            f"data/t/id/name/1/raw/{below}{name}"
            for below in ("", "deep/er/")
            for name in (".lock", "_catalog.db", "_catalog.db-wal", f"{TEMP_PREFIX}1", f"{TEMP_PREFIX}d/x", "latest")
        ),
    ],
)
@pytest.mark.inv("names.by-place")
def test_user_files_that_look_similar_are_not_internal(path):
    assert not is_internal(path)


def test_a_type_called_latest_is_walked():
    assert not is_internal_directory("data/aws/ec2/vpc/latest")
    assert is_internal_directory("_index") and is_internal_directory(".x") and not is_internal_directory("data/.x")


UNFINISHED = ".8d2f5a86-5f5b-4b0c-9f3e-1f2e3d4c5b6a.tmp"


def test_another_clients_unfinished_file_is_known_by_its_place():
    assert is_foreign_temp(f"data/t/id/n/1/{UNFINISHED}") and is_foreign_temp(f"outputs/t/run/{UNFINISHED}")
    assert not is_foreign_temp(f"data/t/id/n/1/raw/{UNFINISHED}") and not is_foreign_temp("files/.notes.tmp")


def test_in_a_bucket_that_nobody_indexed_locks_lie_at_any_depth():
    assert is_internal_object("outputs/deep/er/.lock") and not is_internal_object("data/t/i/n/1/raw/.lock")
    assert is_internal_object(f"outputs/{UNFINISHED}") and not is_internal_object("files/x.lock")


def test_temp_names_are_recognised_at_any_depth():
    assert is_temp(f"{TEMP_PREFIX}1") and is_temp(f"data/{TEMP_PREFIX}1") and not is_temp("data/swamp-tmp-1")


def test_the_tier_is_the_shared_directories_and_what_lies_below_them():
    assert all(in_tier(f"{name}/x") for name in TIER_DIRECTORIES)
    assert not in_tier("secrets/x") and not in_tier("data") and not in_tier("database/x")


@pytest.mark.parametrize(
    ("one", "other"), [("Foo", "foo"), ("é", "e\u0301"), ("Straße", "STRASSE"), ("Å", "å"), ("ΣΊΣΥΦΟΣ", "σίσυφος")]
)
def test_S14_names_that_a_file_system_may_confuse_fold_to_the_same(one, other):
    assert fold(f"files/{one}") == fold(f"files/{other}")


def test_different_names_do_not_fold_together():
    assert fold("files/a") != fold("files/b") and fold("files/é") != fold("files/e")


def test_is_below_respects_component_borders():
    assert is_below("a/b", "a") and is_below("a", "a") and is_below("a", "")
    assert not is_below("ab", "a") and not is_below("a-b/c", "a")
