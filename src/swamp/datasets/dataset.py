"""Writing a dataset as a new version: tasks upload parts under keys of their own, one commit makes them true.

A failed job leaves nothing visible. Nothing is shared in memory between the driver, the tasks and the commit: Spark
runs each in a process of its own, so everything they need is in the `Target`, which is pickled.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swamp.cache.paths import fold
from swamp.data.document import dump
from swamp.data.lifetimes import FOREVER, KEEP_TEN, Lifetime, Retention
from swamp.data.metadata import OWNER_KEYS, Draft, Metadata, Owner, encode, refuse_other_owner
from swamp.data.names import DataName, described_by, version_of
from swamp.data.parts import Content, Part, PartsWriter
from swamp.data.records import AUTO, Read, auto_definition, is_read
from swamp.datasets.content import PARQUET_TYPE
from swamp.datasets.options import Layout, check_schema
from swamp.datasets.place import Bucket, FileRef, Folder
from swamp.datasets.resolve import resolve_model
from swamp.datasets.tables import read_metadata
from swamp.env import SYSTEM, rfc3339
from swamp.errors import Failed, NotFound, UsageError
from swamp.index.entry import Entry, payload_key

if TYPE_CHECKING:
    from swamp.store.open import StoreSpec

MARK_CHARS: Final = 16
_MARKED: Final = re.compile(rf"/raw/part-\d+-\d+-([0-9a-f]{{{MARK_CHARS}}})\.parquet$")


@dataclass(frozen=True)
class WrittenPart:
    """A finished part: `key` in the bucket, or its file in the staging directory."""

    name: str
    key: str
    size: int
    sha256: str
    last_modified: str
    rows: int
    columns: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """Where a dataset goes. Made once, on the driver; `op` is what the commit is known by."""

    op: str
    data: DataName
    model_name: str
    draft: Draft
    repo: str
    spec: StoreSpec | None
    tree: str | None
    gc_epoch: int
    guess: int
    schema: Mapping[str, Any]
    auto: bool
    layout: Layout = field(default_factory=Layout)

    @property
    def raw_path(self) -> str:
        """Where parts are uploaded for: the number is a guess until the commit, and nothing depends on it."""
        return self.data.at(self.guess).raw_path

    @property
    def mark(self) -> str:
        """What the names of this write's parts carry: a restarted job finds its version by listing names (L54)."""
        return hashlib.sha256((self.draft.write_id or self.op).encode()).hexdigest()[:MARK_CHARS]

    @property
    def staging(self) -> Path:
        return Path(self.tree or "") / f".swamp-tmp-{self.op}"


def make_target(place: Bucket | Folder, options: Mapping[str, str], schema: Mapping[str, Any]) -> Target:
    """What the options ask for, checked before any work is done: names, ownership."""
    model, name = options.get("model"), options.get("name")
    if not model or not name:
        raise UsageError("which artifact?", hint='add .option("model", …) and .option("name", …)')
    data, auto = resolve_model(place, options, model, name)
    draft = _draft(options, data, model)
    files = list(place.files(data.path))
    newest = check_owner(place, data, files, draft)
    check_schema(options, newest.extra.get("schema") if newest is not None else None, schema, name)
    return Target(
        op=SYSTEM.ulid(),
        data=data,
        model_name=model,
        draft=draft,
        repo=options.get("repo", ""),
        spec=place.spec if isinstance(place, Bucket) else None,
        tree=place.tree if isinstance(place, Folder) else None,
        gc_epoch=place.root.gc_epoch if isinstance(place, Bucket) else 0,
        guess=1 + max(_numbers(f.path for f in files), default=0),
        schema=schema,
        auto=auto,
        layout=Layout.of(options, schema),
    )


def _draft(options: Mapping[str, str], data: DataName, model: str) -> Draft:
    said = {attribute: options[key] for key, attribute in OWNER_KEYS.items() if options.get(key)}
    owner = replace(Owner.manual(data.model_id), **said)  # type: ignore[arg-type]
    if owner.owner_type not in ("manual", "model-method", "workflow-step"):
        raise UsageError(f"{owner.owner_type!r} is no owner", hint="manual, model-method or workflow-step")
    draft = Draft(
        owner=owner,
        content_type=PARQUET_TYPE,
        lifetime=Lifetime.parse(options["lifetime"]) if options.get("lifetime") else FOREVER,
        retention=Retention.parse(options["garbageCollection"]) if options.get("garbageCollection") else KEEP_TEN,
        tags=_tags(options.get("tags")),
        write_id=options.get("writeId"),
        inputs=_inputs(options.get("inputs")),
        output_id=options.get("outputId"),
    )
    return draft.tagged(modelName=model, type="dataset", specName=options.get("specName"))


def _inputs(text: str | None) -> tuple[Read, ...]:
    """The versions that a dataset was made from, as `writer_options` passes them on."""
    try:
        return tuple(one for one in json.loads(text or "[]") if is_read(one))
    except (ValueError, TypeError) as error:
        raise UsageError("inputs is not a JSON list", hint="it is swamp's own option: leave it out") from error


def _tags(text: str | None) -> dict[str, str]:
    """Spark's option names have no case, so tags come as one JSON object."""
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise UsageError("tags is not JSON", hint='.option("tags", \'{"team": "web"}\')') from error
    if not isinstance(found, dict):
        raise UsageError("tags is not a JSON object", hint='.option("tags", \'{"team": "web"}\')')
    return {str(key): str(value) for key, value in found.items()}


def check_owner(place: Bucket | Folder, data: DataName, files: Iterable[FileRef], draft: Draft) -> Metadata | None:
    """The newest version of the name, which the writer must own. Raises UsageError."""
    metadata = {ref: f for f in files if (ref := described_by(f.path)) is not None}
    newest = max(metadata, default=None)
    meta = read_metadata(place, metadata[newest]) if newest is not None else None
    refuse_other_owner(data.name, meta, draft)
    return meta


def _numbers(paths: Iterable[str]) -> Iterator[int]:
    for path in paths:
        ref = version_of(path)
        if ref is not None:
            yield ref.version


def listed_parts(parts: list[WrittenPart], manifest: Path) -> Content:
    """The parts in the order of their names; many of them are written to `manifest`."""
    with PartsWriter(manifest) as writer:
        for part in sorted(parts, key=lambda p: p.name):
            writer.add(Part(part.name, part.size, part.sha256))
        return writer.done()


def describe(target: Target, version: int, parts: list[WrittenPart], content: Content) -> Metadata:
    """The metadata of the new version: parts, schema, statistics."""
    return Metadata(
        id=SYSTEM.uuid(),
        name=target.data.name,
        version=version,
        draft=target.draft,
        created_at=rfc3339(SYSTEM.clock.now()),
        size=content.size,
        checksum=content.checksum,
        parts=content.parts,
        extra=extra_of(target, parts),
        manifest=content.manifest,
    )


def extra_of(target: Target, parts: list[WrittenPart]) -> dict[str, Any]:
    return {
        "schema": dict(target.schema),
        "statistics": {"rows": sum(p.rows for p in parts), "columns": merged_statistics(parts)},
        "op": target.op,
        **({"partitionBy": list(target.layout.partition_by)} if target.layout.partition_by else {}),
    }


def merged_statistics(parts: Iterable[WrittenPart]) -> dict[str, dict[str, Any]]:
    """Per column: nulls, smallest and largest over all parts; a part without bounds takes the bounds away."""
    merged: dict[str, dict[str, Any]] = {}
    for part in parts:
        for name, stats in part.columns.items():
            have = merged.setdefault(name, {"nulls": 0})
            have["nulls"] += stats.get("nulls", 0)
            for bound, pick in (("min", min), ("max", max)):
                if bound in stats:
                    have[bound] = pick(have[bound], stats[bound]) if bound in have else stats[bound]
    return merged


def commit_to_folder(target: Target, parts: list[WrittenPart]) -> int:
    """One new version in a plain directory: claimed, filled by renames, described last."""
    from swamp.data.artifacts import DataRepository
    from swamp.sync.port import PlainTree

    done = _in_folder(target)
    if done is not None:
        return done
    artifacts = DataRepository(PlainTree(Path(target.tree or "")))
    if target.auto:
        _write_auto(target, Path(target.tree or ""))
    claim = artifacts.allocate_version(target.data, target.draft)
    claim.raw.mkdir()
    for part in parts:
        Path(part.key).rename(claim.raw / part.name)
    artifacts.finalize_version(claim, target.draft, extra_of(target, parts))
    shutil.rmtree(target.staging, ignore_errors=True)
    return claim.ref.version


def _write_auto(target: Target, tree: Path) -> None:
    from swamp.cache.files import write_atomic

    file = tree / auto_path(target)
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, auto_bytes(target))


def auto_path(target: Target) -> str:
    return f"{AUTO}/{target.data.type}/{target.model_name}.yaml"


def auto_bytes(target: Target) -> bytes:
    return dump(auto_definition(target.data.type, target.model_name).to_document())


def commit_to_bucket(target: Target, parts: list[WrittenPart]) -> int:
    """One new version in one root, whoever else commits meanwhile. inv[spark.publish-once]"""
    from swamp.datasets.publish import committer_for, pace_for, tell_caches

    assert target.spec is not None
    proposal = Proposal(target, parts)
    committer_for(target.spec, target.repo).commit(proposal, pace_for(), op=target.op)
    tell_caches(target.spec)
    return proposal.version


@dataclass
class Proposal:
    """The changes that make the dataset true, made again on every root that the commit must be rebased onto."""

    target: Target
    parts: list[WrittenPart]
    version: int = 0
    staged: dict[str, Entry] = field(default_factory=dict)

    def __call__(self, root: Any) -> Any:
        from swamp.commit.commit import Changes
        from swamp.index.lookup import winning_rows

        assert self.target.spec is not None
        bucket = Bucket(self.target.spec, root)
        rows = list(winning_rows(root, bucket.fetch, self.target.data.path))
        files = [FileRef(r.path, r.key, r.size, r.sha256) for r in rows if isinstance(r, Entry)]
        done = _already_there(self.target, bucket, files)
        if done is not None:
            self.version = done
            return None
        check_owner(bucket, self.target.data, files, self.target.draft)
        self._check_names(bucket)
        self._check_parts(bucket)
        # A number that was ever used is not used again: tombstones count too.
        self.version = 1 + max(_numbers(r.path for r in rows), default=0)
        return Changes(puts=tuple(self._entries(bucket)))

    def _entries(self, bucket: Bucket) -> Iterator[Entry]:
        ref = self.target.data.at(self.version)
        for part in self.parts:
            path = f"{ref.raw_path}/{part.name}"
            yield Entry(path, part.key, part.size, part.sha256, part.last_modified)
        with tempfile.TemporaryDirectory(prefix="swamp-manifest-") as folder:
            manifest = Path(folder) / "parts"
            content = listed_parts(self.parts, manifest)
            if content.manifest is not None:
                yield self._small(bucket, ref.manifest_path, manifest.read_bytes())
        meta = describe(self.target, self.version, self.parts, content)
        yield self._small(bucket, ref.metadata_path, encode(meta))
        if self.target.auto and not any(f.path == auto_path(self.target) for f in bucket.files(AUTO)):
            yield self._small(bucket, auto_path(self.target), auto_bytes(self.target))

    def _small(self, bucket: Bucket, path: str, body: bytes) -> Entry:
        """A small file, uploaded once per path and commit, before anything names it. inv[commit.root-last]"""
        from swamp.store.retry import put_again

        if path not in self.staged:
            key = payload_key(path, SYSTEM.ulid())
            meta = put_again(bucket.store, SYSTEM, key, body)
            digest = hashlib.sha256(body).hexdigest()
            self.staged[path] = Entry(path, key, len(body), digest, rfc3339(meta.last_modified))
        return self.staged[path]

    def _check_names(self, bucket: Bucket) -> None:
        """Two names that some file system cannot tell apart may not both be there (S14)."""
        mine = self.target.data
        for file in bucket.files(mine.model_path):
            ref = version_of(file.path)
            if ref is not None and ref.data != mine and fold(ref.data.path) == fold(mine.path):
                raise UsageError(f"there is already data named {ref.data.name}", hint="choose a name that is not taken")

    def _check_parts(self, bucket: Bucket) -> None:
        """A collector that ran meanwhile may have condemned parts of a very long job."""
        condemned = {p.key for p in self.parts if bucket.root.condemns(p.key)}
        if condemned:
            raise Failed("parts of this dataset were collected as garbage", hint="run the job again")
        if bucket.root.has_collected_since(self.target.gc_epoch):
            for part in self.parts:
                bucket.store.head(part.key)


def _in_folder(target: Target) -> int | None:
    folder = Folder(target.tree or "")
    return _already_there(target, folder, list(folder.files(target.data.path)))


def _already_there(target: Target, place: Bucket | Folder, files: list[FileRef]) -> int | None:
    """The version that an earlier attempt of this very write has made: by its op, or by its `writeId` (L54)."""
    for file in _perhaps_mine(target, files):
        meta = read_metadata(place, file)
        if meta is None:
            continue
        mine = target.draft.write_id is not None and meta.draft.write_id == target.draft.write_id
        if mine or meta.extra.get("op") == target.op:
            return meta.version
    return None


def _perhaps_mine(target: Target, files: list[FileRef]) -> Iterator[FileRef]:
    """The metadata of versions whose parts carry this write's mark, or no mark: only those have to be read."""
    marks: dict[int, set[str]] = {}
    for file in files:
        ref, found = version_of(file.path), _MARKED.search(file.path)
        if ref is not None and found is not None:
            marks.setdefault(ref.version, set()).add(found[1])
    for file in files:
        ref = version_of(file.path)
        if ref is not None and file.path == ref.metadata_path and target.mark in marks.get(ref.version, {target.mark}):
            yield file


def landed(target: Target) -> bool:
    """Whether the commit of this write has happened, whatever its process was told."""
    if target.spec is None:
        return _in_folder(target) is not None
    from swamp.bulk.spread import opened
    from swamp.commit.log import has_op
    from swamp.datasets.place import current_root

    store = opened(target.spec)
    try:
        root = current_root(store)
    except NotFound:
        return False
    return root.knows_op(target.op) or has_op(store, target.op, after_seq=0)
