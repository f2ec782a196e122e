"""`.swamp.yaml`: what is written comes back, foreign lines stay, bad values are named."""

import pytest

from swamp.errors import CorruptData, NotFound, UsageError
from swamp.repo.config import DatastoreConfig, check_namespace, parse_config, read_config, write_config
from swamp.repo.open import excluder

ID = "0d6a0d2c-6c11-4c93-9a5b-0c6f0f0c3f11"


def test_a_written_datastore_reads_back_equal(tmp_path):
    chosen = DatastoreConfig(
        "@swamp/s3-datastore", url="s3://b/p", namespace="team", hydrate="lazy", exclude=("*.tmp",), extra={"x": 1}
    )
    write_config(tmp_path, {"repoId": ID, "datastore": chosen.to_document()})
    assert read_config(tmp_path).datastore == chosen


def test_rewriting_one_block_keeps_comments_and_unknown_keys(tmp_path):
    (tmp_path / ".swamp.yaml").write_text(
        f"# ours\nrepoId: {ID}\ndatastore:\n  type: filesystem\n\n  path: x\n# team note\nmine:\n- 1\n- 2\n"
    )
    write_config(tmp_path, {"datastore": {"type": "filesystem", "path": "y"}})
    text = (tmp_path / ".swamp.yaml").read_text()
    assert text.startswith("# ours\n") and "# team note\nmine:\n- 1\n- 2\n" in text
    assert read_config(tmp_path).datastore.path == "y"
    assert read_config(tmp_path).document["mine"] == [1, 2]
    assert [p.name for p in tmp_path.iterdir()] == [".swamp.yaml"]


@pytest.mark.parametrize(
    ("block", "key"),
    [
        ({"type": 3}, "datastore.type"),
        ({"hydrate": "some"}, "datastore.hydrate"),
        ({"directories": ["data", "models"]}, "datastore.directories"),
        ({"exclude": "x"}, "datastore.exclude"),
        ({"namespace": 7}, "datastore.namespace"),
        ({"config": "{}"}, "datastore.config"),
        ("bucket", "datastore"),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(block, key):
    with pytest.raises(UsageError) as caught:
        parse_config({"repoId": ID, "datastore": block})
    assert key.rpartition(".")[2] in caught.value.message
    assert caught.value.hint


def test_a_namespace_cannot_be_called_like_a_tier_directory():
    for name in ("data", "Outputs", "_index"):
        with pytest.raises(UsageError):
            check_namespace(name)
    assert check_namespace("team-a") == "team-a"


def test_a_missing_file_and_a_broken_one_are_different_errors(tmp_path):
    with pytest.raises(NotFound):
        read_config(tmp_path)
    (tmp_path / ".swamp.yaml").write_text("a: [")
    with pytest.raises(CorruptData):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("patterns", "path", "excluded"),
    [
        ((), "data/x", False),
        ((), "models/x", True),
        (("*.log",), "logs/a/b.log", True),
        (("*.log", "!keep.log"), "logs/keep.log", False),
        (("files/scratch/",), "files/scratch/a/b", True),
        (("files/scratch/",), "files/scratch", False),
        (("/files/*.bin",), "files/sub/a.bin", False),
        (("files/**/a.bin",), "files/x/y/a.bin", True),
        (("tmp?",), "files/tmp1/x", True),
        (("[ab].txt",), "files/a.txt", True),
        (("[!ab].txt",), "files/a.txt", False),
    ],
)
def test_exclude_reads_patterns_like_gitignore(patterns, path, excluded):
    assert excluder(patterns, ("data", "logs", "files"))(path) is excluded
