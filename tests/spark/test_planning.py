"""What planning a read looks at: the range of the name that was asked for, and not the index."""

import hashlib
from dataclasses import replace

import pytest

from swamp.bulk.kernels import OfRanges, live_entries
from swamp.bulk.spread import opened
from swamp.data import metadata
from swamp.datasets.content import find_artifact
from swamp.datasets.place import Bucket, open_place
from swamp.datasets.resolve import resolve_model
from swamp.datasets.source import find_asked
from swamp.errors import NotFound, UsageError
from swamp.index import columns
from swamp.index import read as keep
from swamp.index.entry import Entry
from swamp.index.root import ROOT_KEY, Span, Writer, encode, first_root
from swamp.index.segment import write_segment

KIND = "command/shell"
MODELS = 60
PER_SEGMENT = 10
CREATED = "2026-01-01T00:00:00.000Z"
DEFINED = "definitions-evaluated/command/shell/web.yaml"


def entry(store, path, body):
    store.put(f"{path}~1", body)
    return Entry(path, f"{path}~1", len(body), None, CREATED)


def version(store, model, name, called):
    """The metadata and one byte of content."""
    draft = metadata.Draft(metadata.Owner.manual(model), "text/plain", tags={"modelName": called})
    meta = metadata.Metadata(f"id-{model}", name, 1, draft, CREATED, 1, "0" * 64)
    at = f"data/{KIND}/{model}/{name}/1"
    return [
        entry(store, f"{at}/metadata.yaml", metadata.encode(meta)),
        entry(store, f"{at}/raw", b"x"),
    ]


@pytest.fixture
def place(bucket, shared_repo, monkeypatch):
    """Sixty models in segments of ten, and what is fetched of them in `fetched`; model 33 is called `web`."""
    store, refs = bucket.open(), []
    for start in range(0, MODELS, PER_SEGMENT):
        numbers = range(start, start + PER_SEGMENT)
        rows = [
            row for n in numbers for row in version(store, f"m{n:03d}", "result", "web" if n == 33 else f"called-{n}")
        ]
        made = write_segment(rows)
        refs.append(made.ref(f"_index/{start}.parquet", 1))
        store.put(refs[-1].key, made.data)
    root = first_root("s", "01ARZ3NDEKTSV4RRFFQ69G5FAV", CREATED, Writer("r", "h", "u", 1, "0"))
    store.put(ROOT_KEY, encode(replace(root, seq=1, segments=tuple(refs))))
    found = open_place({"repo": str(shared_repo)})
    fetched = []
    fetch = Bucket.fetch
    monkeypatch.setattr(Bucket, "fetch", lambda self, ref: fetched.append(ref.key) or fetch(self, ref))
    return found, fetched, store


def with_rows(place, *rows):
    return replace(place, root=replace(place.root, entries={row.path: row for row in rows}))


def asked(shared_repo, **options):
    return {"repo": str(shared_repo), "name": "result", **options}


def test_a_model_by_its_id_and_type_is_one_look(place, shared_repo):
    found, fetched, _ = place
    artifact = find_asked(found, asked(shared_repo, model="m033", type=KIND))
    assert artifact.ref.path == f"data/{KIND}/m033/result/1"
    assert fetched == ["_index/30.parquet"]


def test_a_model_that_ran_elsewhere_is_found_by_its_evaluated_definition(place, shared_repo):
    found, fetched, store = place
    definition = entry(store, DEFINED, b"id: m033\nname: web\ntype: command/shell\n")
    found = with_rows(found, definition)
    assert find_asked(found, asked(shared_repo, model="web")).ref.data.model_id == "m033"
    assert resolve_model(found, {"repo": str(shared_repo)}, "web", "result")[0].model_id == "m033"
    assert set(fetched) == {"_index/30.parquet"}


def test_a_damaged_definition_only_makes_the_way_longer(place, shared_repo):
    found, _, store = place
    found = with_rows(found, entry(store, DEFINED, b"{"))
    assert find_asked(found, asked(shared_repo, model="web")).ref.data.model_id == "m033"


@pytest.mark.parametrize("most", [0, 100])
@pytest.mark.parametrize("model", ["web", "m033"])
def test_without_any_definition_paths_are_gone_through_and_one_model_is_found(
    place, shared_repo, model, most, monkeypatch
):
    """By its name or its id; whether the names are looked at one by one, or there are too many for that."""
    monkeypatch.setattr("swamp.datasets.content.MOST_LOOKS", most)
    found, _, _ = place
    assert find_asked(found, asked(shared_repo, model=model)).ref.data.model_id == "m033"


@pytest.fixture
def requests(monkeypatch):
    """Keys of segments that planning has asked the store for; nothing is kept yet, nor afterwards."""
    monkeypatch.setattr(keep, "_kept", type(keep._kept)())
    found, read = [], keep.read_segment
    monkeypatch.setattr(keep, "read_segment", lambda store, ref: found.append(ref.key) or read(store, ref))
    return found


def test_whoever_plans_asks_for_a_segment_once_and_for_its_hash_once(place, shared_repo, requests, monkeypatch):
    found, fetched, _ = place
    hashed, sha256 = [], hashlib.sha256
    monkeypatch.setattr(hashlib, "sha256", lambda data=b"": hashed.append(len(data)) or sha256(data))
    for _ in range(3):
        assert find_asked(found, asked(shared_repo, model="web")).ref.data.model_id == "m033"
    sizes = sorted(ref.bytes for ref in found.root.segments)
    assert len(fetched) > len(requests)
    assert sorted(requests) == sorted(ref.key for ref in found.root.segments)
    assert sorted(size for size in hashed if size in sizes) == sizes


def test_what_is_kept_has_a_bound_and_what_was_not_proven_is_not_kept(place, shared_repo, requests, monkeypatch):
    found, _, store = place
    first, second = found.root.segments[:2]
    monkeypatch.setattr(keep, "KEPT_BYTES", first.bytes + second.bytes)
    for ref in (*found.root.segments, first):
        keep.kept_segment(store, ref)
    assert requests == [*(ref.key for ref in found.root.segments), first.key]
    assert sum(len(one.data) for one in keep._kept.values()) <= keep.KEPT_BYTES
    wrong = replace(second, sha256="0" * 64)
    assert keep.kept_segment(store, wrong).sha256 == second.sha256
    assert "0" * 64 not in keep._kept


def test_tasks_keep_nothing(place):
    found = place[0].keeping()
    assert found.keeps
    assert not found.within("data", Span()).keeps
    assert not found.keys_only().keeps


def test_a_task_asks_for_a_segment_once_however_many_of_its_ranges_meet_it(place, monkeypatch):
    found = place[0]
    monkeypatch.setattr(keep, "_kept", type(keep._kept)())
    asked_for, kind = [], type(opened(found.spec))
    get = kind.get
    monkeypatch.setattr(kind, "get", lambda self, key, **more: asked_for.append(key) or get(self, key, **more))
    cuts = [f"data/{KIND}/m{n:03d}/" for n in range(3, MODELS, 4)]
    ranges = map(Span, ["", *cuts], [*cuts, None])
    names = [entry.path for *_, entry in OfRanges(found.spec, found.root, live_entries)(ranges)]
    assert names == sorted(names) and len(names) == 2 * MODELS
    assert sorted(asked_for) == sorted(ref.key for ref in found.root.segments)


def test_names_of_deleted_data_and_of_two_models_are_not_taken_for_one(place, shared_repo):
    found, _, store = place
    with pytest.raises(NotFound):
        find_asked(found, asked(shared_repo, model="nobody"))
    again = version(store, "zzz", "result", "web")
    with pytest.raises(UsageError, match="several models called web"):
        find_artifact(with_rows(found, *again), "web", "result")


def test_a_row_group_is_read_as_far_as_the_range_goes(monkeypatch):
    rows = [Entry(f"p{n:05d}", "k", 1, None, CREATED) for n in range(8_000)]
    made = write_segment(rows)
    checked = []
    check = columns._check_rows
    monkeypatch.setattr(
        columns, "_check_rows", lambda some, *rest: checked.append(len(some["path"])) or check(some, *rest)
    )
    found = [path for c in columns.read_columns(made.data, 1, Span("p01000", "p01100")) for path in c["path"]]
    assert found == [row.path for row in rows[1000:1100]]
    assert sum(checked) == 100
