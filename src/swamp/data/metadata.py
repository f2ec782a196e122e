"""What `metadata.yaml` says of one version: the only place that knows its keys."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any, Final, Literal, get_args

from swamp.data.document import damaged, dump, keys_of, load_mapping, told, unknown_keys
from swamp.data.lifetimes import FOREVER, KEEP_TEN, Lifetime, Retention
from swamp.data.names import VersionRef
from swamp.data.parts import Manifest, Part
from swamp.data.records import is_read
from swamp.env import parse_rfc3339, rfc3339
from swamp.errors import CorruptData, UsageError
from swamp.values import value

OwnerType = Literal["model-method", "workflow-step", "manual"]
Lifecycle = Literal["active", "deleted", "renamed"]
MAX_METADATA: Final = 16 << 20  # an older swamp listed 100,000 parts in there (L75)
JSON_TYPES: Final = ("application/json", "text/json")
PARQUET: Final = "application/vnd.apache.parquet"
SNIFFED: Final = 1 << 16
"""How much of a content its type is told by."""


def sniff(head: bytes) -> str:
    """The content type of what begins so, `SNIFFED` bytes of it: Parquet, text, or neither."""
    if head[:4] == b"PAR1":
        return PARQUET
    if b"\0" in head:
        return "application/octet-stream"
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:  # a letter may be cut in two at the end
        return "text/plain" if error.start > len(head) - 4 and len(head) == SNIFFED else "application/octet-stream"
    return "text/plain"


@value
class Owner:
    """Who may write a name: type and ref decide, the rest says where it came from."""

    owner_type: OwnerType
    owner_ref: str
    workflow_id: str | None = None
    workflow_run_id: str | None = None
    workflow_name: str | None = None
    job_name: str | None = None
    step_name: str | None = None
    source: str | None = None

    def owns(self, other: Owner) -> bool:
        return (self.owner_type, self.owner_ref) == (other.owner_type, other.owner_ref)

    @classmethod
    def manual(cls, model_id: str) -> Owner:
        """The owner of manual data is the model, not a user, host or repository."""
        return cls("manual", model_id)


@value
class Draft:
    """What a writer says of data before it has a version; keep it to write the same again."""

    owner: Owner
    content_type: str = "application/octet-stream"
    lifetime: Lifetime = FOREVER
    retention: Retention = KEEP_TEN
    tags: Mapping[str, str] = field(default_factory=dict)
    streaming: bool = False
    write_id: str | None = None
    inputs: tuple[Mapping[str, Any], ...] = ()
    """The versions it was made from, as far as its writer knows: each as `DataVersion.artifact` names it."""
    output_id: str | None = None
    """The record of the method run that wrote it."""

    def tagged(self, **tags: str | None) -> Draft:
        """The same draft with these tags where a value is given."""
        return replace(self, tags={**self.tags, **{k: v for k, v in tags.items() if v is not None}})


@value
class Metadata:
    """One version as its `metadata.yaml` describes it."""

    id: str
    name: str
    version: int
    draft: Draft
    created_at: str
    size: int
    checksum: str
    parts: tuple[Part, ...] = ()
    lifecycle: Lifecycle = "active"
    renamed_to: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    manifest: Manifest | None = None
    """Where the parts are listed, if they are too many for `parts`."""

    @property
    def has_parts(self) -> bool:
        """Whether it is a directory of parts, and not one file."""
        return bool(self.parts) or self.manifest is not None

    @property
    def part_count(self) -> int:
        return self.manifest.parts if self.manifest else len(self.parts)

    @property
    def owner(self) -> Owner:
        return self.draft.owner

    @property
    def tags(self) -> Mapping[str, str]:
        return self.draft.tags

    @property
    def content_type(self) -> str:
        return self.draft.content_type

    @property
    def created(self) -> dt.datetime:
        return parse_rfc3339(self.created_at)

    @property
    def active(self) -> bool:
        return self.lifecycle == "active"

    @property
    def is_json(self) -> bool:
        plain = self.content_type.partition(";")[0].strip().lower()
        return plain in JSON_TYPES or plain.endswith("+json")


def refuse_other_owner(name: str, newest: Metadata | None, draft: Draft) -> None:
    """Raises UsageError where the newest version of a name is somebody else's, and not deleted."""
    if newest is None or newest.lifecycle == "deleted" or newest.owner.owns(draft.owner):
        return
    theirs, ours = newest.owner, draft.owner
    raise UsageError(
        f"{name} belongs to {theirs.owner_type} {theirs.owner_ref}, not to {ours.owner_type} {ours.owner_ref}",
        hint="write under another name, or delete this one first",
    )


OWNER_KEYS: Final = keys_of("owner_type owner_ref workflow_id workflow_run_id workflow_name job_name step_name source")
_KNOWN: Final = frozenset(
    "id name version contentType lifetime garbageCollection streaming tags ownerDefinition createdAt size "
    "checksum parts manifest lifecycle renamedTo writeId inputs outputId".split()
)


def encode(meta: Metadata) -> bytes:
    """The bytes of `metadata.yaml`; unknown keys of a newer writer are kept."""
    draft = meta.draft
    document: dict[str, Any] = {
        "id": meta.id,
        "name": meta.name,
        "version": meta.version,
        "contentType": draft.content_type,
        "lifetime": draft.lifetime.text,
        "garbageCollection": draft.retention.value,
        "streaming": draft.streaming,
        "tags": dict(draft.tags),
        "ownerDefinition": told(draft.owner, OWNER_KEYS),
        "createdAt": meta.created_at,
        "size": meta.size,
        "checksum": meta.checksum,
    }
    if meta.parts:
        document["parts"] = [{"name": p.name, "size": p.size, "checksum": p.checksum} for p in meta.parts]
    if meta.manifest is not None:
        found = meta.manifest
        document["manifest"] = {"parts": found.parts, "size": found.size, "checksum": found.sha256}
    optional = {
        "lifecycle": None if meta.active else meta.lifecycle,
        "renamedTo": meta.renamed_to,
        "writeId": draft.write_id,
        "outputId": draft.output_id,
        "inputs": [dict(one) for one in draft.inputs] or None,
    }
    document |= {key: value for key, value in optional.items() if value is not None}
    return dump({**document, **meta.extra})


def decode(raw: bytes, path: str) -> Metadata:
    """What the bytes say. Raises CorruptData naming the file, the key and the command that repairs it."""
    document = load_mapping(raw, path, limit=MAX_METADATA)
    reader = _Reader(document, path)
    return Metadata(
        id=reader.text("id", ""),
        name=reader.text("name"),
        version=reader.whole("version"),
        draft=_decode_draft(reader),
        created_at=reader.parsed("createdAt", _as_utc),
        size=reader.whole("size"),
        checksum=reader.text("checksum", ""),
        parts=tuple(_decode_part(item, path) for item in reader.items("parts")),
        lifecycle=reader.choice("lifecycle", get_args(Lifecycle), "active"),
        renamed_to=reader.optional("renamedTo"),
        extra=unknown_keys(document, _KNOWN),
        manifest=_decode_manifest(reader),
    )


def _decode_draft(reader: _Reader) -> Draft:
    owner, inputs = _Reader(reader.mapping("ownerDefinition"), reader.path), reader.document.get("inputs")
    rest = {attribute: owner.optional(key) for key, attribute in list(OWNER_KEYS.items())[2:]}
    return Draft(
        owner=Owner(owner.choice("ownerType", get_args(OwnerType)), owner.text("ownerRef"), **rest),
        content_type=reader.text("contentType", "application/octet-stream"),
        lifetime=reader.parsed("lifetime", lambda value: Lifetime.parse(str(value)), FOREVER),
        retention=reader.parsed("garbageCollection", Retention.parse, KEEP_TEN),
        tags={key: _tag(value) for key, value in reader.mapping("tags").items()},
        streaming=reader.choice("streaming", (True, False), False),
        write_id=reader.optional("writeId"),
        # What does not name a version is another writer's and no damage.
        inputs=tuple(one for one in inputs if is_read(one)) if isinstance(inputs, list) else (),
        output_id=reader.optional("outputId"),
    )


def _as_utc(value: Any) -> str:
    moment = parse_rfc3339(str(value))
    return rfc3339(moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC))


def _tag(value: Any) -> str:
    """Tags are texts: what YAML reads as a number or a truth value goes back to the text it was."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _decode_part(item: Any, path: str) -> Part:
    reader = _Reader(item if isinstance(item, dict) else {}, path)
    return Part(reader.text("name"), reader.whole("size"), reader.text("checksum"))


def _decode_manifest(reader: _Reader) -> Manifest | None:
    found = reader.mapping("manifest")
    if not found:
        return None
    inner = _Reader(found, reader.path)
    return Manifest(inner.whole("parts"), inner.whole("size"), inner.text("checksum"))


def version_fields(ref: VersionRef, meta: Metadata) -> dict[str, Any]:
    """A version as a row: every field by which the catalog, queries, SQL, Spark and `--json` know it."""
    data = ref.data
    return {
        "id": meta.id,
        "name": data.name,
        "version": ref.version,
        "modelName": meta.tags.get("modelName"),
        "modelType": data.type,
        "modelId": data.model_id,
        "path": ref.path,
        "createdAt": meta.created_at,
        "tags": dict(meta.tags),
        "specName": meta.tags.get("specName"),
        "dataType": meta.tags.get("type"),
        "contentType": meta.content_type,
        "lifetime": meta.draft.lifetime.text,
        "retention": meta.draft.retention.value,
        "streaming": meta.draft.streaming,
        "size": meta.size,
        "checksum": meta.checksum,
        "lifecycle": meta.lifecycle,
        "renamedTo": meta.renamed_to,
        **{key: getattr(meta.owner, attribute) for key, attribute in OWNER_KEYS.items()},
    }


def artifact_document(ref: VersionRef, model_name: str) -> dict[str, Any]:
    """How a record names a version that was read or written; `path` lets the engine hold records back with it."""
    return {"name": ref.data.name, "version": ref.version, "modelName": model_name, "path": ref.path}


_REQUIRED: Final = object()


@value
class _Reader:
    """Typed access to a document; what does not fit is damage."""

    document: Mapping[str, Any]
    path: str

    def text(self, key: str, default: str | None = None) -> str:
        value = self.document.get(key, default)
        if isinstance(value, str):
            return value
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return str(value)  # an unquoted name such as 2026
        raise self._wrong(key)

    def optional(self, key: str) -> str | None:
        return None if self.document.get(key) is None else self.text(key)

    def whole(self, key: str) -> int:
        value = self.document.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
            return value
        raise self._wrong(key)

    def mapping(self, key: str) -> dict[str, Any]:
        value = self.document.get(key)
        if value is None:
            return {}
        if isinstance(value, dict) and all(isinstance(k, (str, int, float)) for k in value):
            return {str(k): v for k, v in value.items()}
        raise self._wrong(key)

    def items(self, key: str) -> list[Any]:
        value = self.document.get(key)
        if value is None or isinstance(value, list):
            return value or []
        raise self._wrong(key)

    def choice(self, key: str, allowed: tuple[str | bool, ...], default: str | bool | None = None) -> Any:
        value = self.document.get(key, default)
        if any(value is one or (value == one and isinstance(value, str)) for one in allowed):
            return value
        raise self._wrong(key)

    def parsed(self, key: str, parse: Callable[[Any], Any], default: Any = _REQUIRED) -> Any:
        value = self.document.get(key)
        if value is None and default is not _REQUIRED:
            return default
        try:
            return parse(value)
        except (UsageError, ValueError, OverflowError) as error:
            raise self._wrong(key) from error

    def _wrong(self, key: str) -> CorruptData:
        state = f"{self.document[key]!r:.60}" if key in self.document else "missing"
        return damaged(self.path, f"`{key}` is {state}")
