"""Namespaces: several repositories' stores side by side below one prefix, each with one owner."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any, Final

from swamp.cache.paths import TIER_DIRECTORIES
from swamp.env import Env, rfc3339
from swamp.errors import (
    AccessDenied,
    ConditionFailed,
    CorruptData,
    ObjectMissing,
    OutcomeUnknown,
    Unavailable,
    UsageError,
)
from swamp.index.root import ROOT_KEY
from swamp.store.port import CREATE, Capabilities, ObjectStore
from swamp.store.together import together
from swamp.values import as_document, value

NAMESPACE_KEY: Final = ".namespace.json"
SETTLE_S: Final = 2.0
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


@value
class Registration:
    """Who owns a namespace, and since when."""

    namespace: str
    repo_id: str
    registered_at: str


def validate_name(name: str) -> str:
    """The same name, if a namespace may have it. Raises UsageError (S13)."""
    if name in TIER_DIRECTORIES:
        raise UsageError(
            f"a namespace cannot be called {name!r}: that is a directory of the datastore",
            hint="choose another name",
        )
    if not _NAME.fullmatch(name) or ".." in name:
        raise UsageError(
            f"{name!r} cannot be the name of a namespace",
            hint="use up to 63 of a-z, 0-9, '.', '_' and '-', starting with a letter or a digit",
        )
    return name


def read_registration(store: ObjectStore, key: str = NAMESPACE_KEY) -> Registration | None:
    """The manifest at `key`, None if there is none. Raises CorruptData when it cannot be read."""
    try:
        raw = store.get(key).body
    except ObjectMissing:
        return None
    try:
        doc: dict[str, Any] = json.loads(raw)
        return Registration(str(doc["namespace"]), str(doc["repoId"]), str(doc["registeredAt"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptData(
            f"{key} does not say who owns this namespace",
            hint="restore it, or delete it if nobody uses this namespace",
        ) from error


def register(
    store: ObjectStore,
    namespace: str,
    repo_id: str,
    env: Env,
    capabilities: Capabilities = Capabilities(),  # noqa: B008  frozen
    *,
    settle_s: float = SETTLE_S,
) -> Registration:
    """Makes `repo_id` the owner; `store` is the namespace's own. Raises UsageError when another one is.

    Where create-only is not enforced the manifest is written, waited for and read back: the last writer stands,
    and whoever does not find itself there has lost.
    """
    mine = Registration(validate_name(namespace), repo_id, rfc3339(env.clock.now()))
    found = read_registration(store) or _create(store, mine, env, capabilities.create_only, settle_s)
    if found.repo_id != repo_id:
        raise UsageError(
            f"the namespace {found.namespace!r} belongs to repository {found.repo_id} since {found.registered_at}",
            hint="choose another namespace, or none: repositories without one share the prefix",
            details={"namespace": found.namespace, "repoId": found.repo_id},
        )
    return found


def _create(store: ObjectStore, mine: Registration, env: Env, enforced: bool, settle_s: float) -> Registration:
    unclear: Unavailable | None = None
    try:
        store.put(NAMESPACE_KEY, json.dumps(as_document(mine)).encode(), CREATE)
    except ConditionFailed:
        pass  # what stands there decides
    except Unavailable as error:
        unclear = error
    if not enforced:
        env.clock.sleep(settle_s)
    found = read_registration(store)
    if found is not None:
        return found
    raise unclear or OutcomeUnknown(f"{NAMESPACE_KEY} was written and is not there", hint="run the command again")


def list_namespaces(store: ObjectStore) -> list[Registration]:
    """The namespaces below `store`, which is the un-namespaced one, by name."""
    names = sorted(d for d in store.level("").dirs if d not in TIER_DIRECTORIES and _NAME.fullmatch(d))
    found = (read_registration(store, f"{name}/{NAMESPACE_KEY}") for name in names)
    return [registration for registration in found if registration is not None]


def refuse_anothers_namespace(store: ObjectStore, repo_id: str) -> None:
    """Raises UsageError if `store`, opened without a namespace, is one, and of another repository (L69)."""
    found = read_registration(store)
    if found is not None and found.repo_id != repo_id:
        raise UsageError(
            f"this address is the namespace {found.namespace!r} of the store above it, and belongs to repository "
            f"{found.repo_id} since {found.registered_at}",
            hint="set up the address above it, with a namespace of your own or none",
            details={"namespace": found.namespace, "repoId": found.repo_id},
        )


def refuse_nested(bucket: ObjectStore, prefix: str) -> None:
    """Raises UsageError if a directory above `prefix` is a store of its own; `bucket` is opened without a prefix."""
    parts = [p for p in prefix.split("/") if p]
    places = ["/".join(parts[:depth]) for depth in range(len(parts))]
    for above, is_store in zip(places, together([partial(_is_store, bucket, above) for above in places]), strict=True):
        if is_store:
            where = f"the prefix {above!r}" if above else "the top of this bucket"
            raise UsageError(
                f"{prefix!r} lies inside another datastore: {where} is one",
                hint="choose a prefix outside of it, or use a namespace of that datastore",
                details={"prefix": prefix, "inside": above},
            )


def _is_store(bucket: ObjectStore, prefix: str) -> bool:
    """Whether there is a root, or a namespace whose owner has not written yet."""
    above = f"{prefix}/" if prefix else ""
    return any(together([partial(_exists, bucket, above + key) for key in (ROOT_KEY, NAMESPACE_KEY)]))


def _exists(bucket: ObjectStore, key: str) -> bool:
    """Whose rights end at the prefix may not look above it, and S3 then answers 403 for what is not there, too."""
    try:
        bucket.head(key)
    except (ObjectMissing, AccessDenied):
        return False
    return True
