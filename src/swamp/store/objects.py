"""ONE adapter on obstore for S3 and everything that speaks it, Azure Blob and memory."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import obstore

from swamp.env import SYSTEM, Env, is_ulid
from swamp.errors import ConditionFailed, ObjectMissing, StoreError, UsageError
from swamp.store.clients import (
    CAUGHT,
    Clients,
    NotPartial,
    RangedBody,
    beyond_end,
    meta_of,
    part_of_whole,
    read_refusal,
    safe_cause,
    start_runtime,
)
from swamp.store.explain import CUT, FOREIGN, Endpoint, Refusal, to_error
from swamp.store.keys import byte_before, check_key, check_prefix
from swamp.store.layers import WIRE
from swamp.store.port import (
    WHOLE_AT_MOST,
    Condition,
    CreateOnly,
    Fetched,
    Level,
    ObjectMeta,
    Token,
    Uploaded,
    check_in_memory,
    whole_listing,
)
from swamp.store.upload import MIB, PART_BYTES, SMALL_BYTES, ByteBudget, HashedFile, part_bytes, read_whole

if TYPE_CHECKING:
    from swamp.store.s3_listing import ListingPage, RawListing

LIST_CHUNK: Final = 1000
DELETE_BATCH: Final = 1000
PARTS_AT_ONCE: Final = 3


class Objects:
    """An ObjectStore on obstore."""

    def __init__(
        self, place: Endpoint, clients: Clients, env: Env = SYSTEM, raw: Callable[[], RawListing | None] = lambda: None
    ) -> None:
        self._place = place
        self._raw = raw
        self._made = clients
        self._env = env
        self._budget = ByteBudget()
        # Learned by use, per endpoint: which form of If-Match is accepted, and whether ranges are answered with 200
        # (which obstore takes for an error): some servers do that for one that covers the whole object, some always.
        self._quoted = True
        self._form_proven = place.kind != "s3"
        self._whole_first = False
        self._no_ranges = False
        self.on_wire = place.kind != "memory"

    @property
    def url(self) -> str:
        return self._place.url

    def __repr__(self) -> str:
        return f"Objects({self.url!r})"

    @property
    def _clients(self) -> Clients:
        """For a request that is about to be made."""
        start_runtime()
        return self._made

    # -- reading

    def head(self, key: str) -> ObjectMeta:
        self._check(key)
        try:
            WIRE.count()
            found = obstore.head(self._clients.quick, key)
        except CAUGHT as error:
            raise self._explained(error, "HEAD", key) from safe_cause(error)
        return meta_of(self._own(found, "HEAD", key))

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> Fetched:
        self._check(key)
        if start == 0 and (length is None or length >= WHOLE_AT_MOST):
            whole = self._request(key, {})
            meta = meta_of(whole.meta)
            if length is None or meta.size <= length:
                return self._collected(whole, meta, meta.size)
            whole = None  # closes the connection: the rest is not wanted
        return self._get_range(key, start, length)

    def get_if_changed(self, key: str, token: Token) -> Fetched | None:
        self._check(key)
        try:
            result = self._request(key, {"if_none_match": _quote(token)})
        except ConditionFailed:
            return None
        # A server that does not know If-None-Match sends the object: its token still tells.
        meta = meta_of(result.meta)
        return None if meta.token == token else self._collected(result, meta, meta.size)

    def open(self, key: str, *, start: int = 0) -> closing[RangedBody]:
        return closing(RangedBody(self, self._check(key), start))

    def _get_range(self, key: str, start: int, length: int | None) -> Fetched:
        if length == 0:
            return Fetched(self.head(key), b"")
        wanted: Any = {"offset": start} if length is None else (start, start + length)
        if self._no_ranges and start < WHOLE_AT_MOST:  # what comes before it costs less than one more answer
            return part_of_whole(self, key, start, length)
        try:
            result = self._request(key, {"range": wanted})
        except NotPartial:
            self._no_ranges |= start > 0  # such a range never covers the whole object
            return part_of_whole(self, key, start, length)
        except StoreError as error:
            if not beyond_end(error):
                raise
            return Fetched(self.head(key), b"")
        self._no_ranges = False  # a proxy's answer, say, is no rule for all: further in, parts are asked for each time
        first, last = result.range
        return self._collected(result, meta_of(result.meta), last - first)

    def _request(self, key: str, options: dict[str, Any], *, streaming: bool = False) -> Any:
        client = self._clients.streaming if streaming else self._clients.quick
        WIRE.count()
        try:
            result = obstore.get(client, key, options=options or None)  # type: ignore[arg-type]
        except CAUGHT as error:
            if "non-partial response" in str(error):
                self._whole_first = True
                raise NotPartial(key) from None
            raise self._explained(error, "GET", key) from safe_cause(error)
        self._own(result.meta, "GET", key)
        return result

    def _own(self, meta: Any, verb: str, key: str) -> Any:
        """inv[store.own-answer]: obstore takes any 200 for the object, a proxy's page too. A store tags it."""
        if meta["e_tag"] is None and meta["version"] is None:
            raise to_error(self._place, Refusal(verb, key, failure=FOREIGN))
        return meta

    def _collected(self, result: Any, meta: ObjectMeta, size: int) -> Fetched:
        check_in_memory(meta.key, size)
        try:
            body = result.bytes().to_bytes()
        except CAUGHT as error:
            raise self._explained(error, "GET", meta.key) from safe_cause(error)
        if len(body) != size:
            raise self._cut(meta.key)
        return Fetched(meta, body)

    def _cut(self, key: str) -> StoreError:
        return to_error(self._place, Refusal("GET", key, failure=CUT))

    # -- writing

    def put(self, key: str, body: bytes, condition: Condition = None) -> ObjectMeta:
        self._check(key)
        if condition is None:
            return self._put(key, body, "overwrite")
        if isinstance(condition, CreateOnly):
            return self._put(key, body, "create")
        return self._put_match(key, body, condition.token)

    def _put_match(self, key: str, body: bytes, token: Token) -> ObjectMeta:
        """Ceph takes an If-Match only without its quotes; the standard wants them.

        A refusal is believed at once after one form was seen to work. Before that, a refusal although the
        object still has this very token means: wrong form, nothing was written, try the other one.
        """
        quoted, proven = self._quoted, self._form_proven  # before it is sent: other threads learn meanwhile
        try:
            done = self._put(key, body, {"e_tag": _quote(token) if quoted else token})
        except ConditionFailed:
            if proven or self._current(key) != token:
                raise
            quoted = not quoted
            done = self._put(key, body, {"e_tag": _quote(token) if quoted else token})
        self._quoted, self._form_proven = quoted, True
        return done

    def _current(self, key: str) -> Token | None:
        try:
            return self.head(key).token
        except ObjectMissing:
            return None

    def _put(self, key: str, body: bytes | memoryview, mode: Any) -> ObjectMeta:
        WIRE.count()
        try:
            done = obstore.put(self._client_for(len(body)), key, body, mode=mode, use_multipart=False)
        except CAUGHT as error:
            raise self._explained(error, "PUT", key) from safe_cause(error)
        return ObjectMeta(key, len(body), (done["e_tag"] or "").strip('"'), self._env.clock.now())

    def _client_for(self, size: int) -> Any:
        """The one whose limit a line that is slow, or shared by many uploads, can keep for that many bytes."""
        if size < MIB // 2:
            return self._clients.quick
        return self._clients.steady if size < MIB else self._clients.patient

    def put_file(self, key: str, path: Path) -> Uploaded:
        self._check(key)
        size = path.stat().st_size
        if size > PART_BYTES:
            return self._put_parts(key, path, size)
        if size < SMALL_BYTES:
            return self._put_whole(key, path, size)
        with self._budget.hold(size):
            return self._put_whole(key, path, size)

    def _put_whole(self, key: str, path: Path, size: int) -> Uploaded:
        body = read_whole(path, size)
        return Uploaded(self._put(key, body, "overwrite"), hashlib.sha256(body).hexdigest())

    def _put_parts(self, key: str, path: Path, size: int) -> Uploaded:
        part = part_bytes(size)
        # Opened here: a local file that is gone must not look like a missing object.
        with path.open("rb") as file, self._budget.hold(part * (PARTS_AT_ONCE + 1)):
            source = HashedFile(file, part)
            try:
                done = obstore.put(
                    self._clients.parts,
                    key,
                    iter(source),
                    use_multipart=True,
                    chunk_size=part,
                    max_concurrency=PARTS_AT_ONCE,
                )
            except CAUGHT as error:
                raise self._explained(error, "PUT", key) from safe_cause(error)
            finally:
                WIRE.count(2 + source.pieces)  # begun, its parts, and completed or given up
        token = (done["e_tag"] or "").strip('"') or self.head(key).token
        return Uploaded(ObjectMeta(key, source.sent, token, self._env.clock.now()), source.sha256.hexdigest())

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._check(key)
        for first in range(0, len(keys), DELETE_BATCH):
            self._delete(list(keys[first : first + DELETE_BATCH]))

    def _delete(self, keys: list[str]) -> None:
        WIRE.count()
        try:
            obstore.delete(self._clients.steady, keys)
        except FileNotFoundError as error:
            if len(keys) == 1 and "NoSuchBucket" not in str(error) and "ContainerNotFound" not in str(error):
                return
            # Azure stops a batch at a key that is not there: the rest one by one.
            for key in keys if len(keys) > 1 else ():
                self._delete([key])
            if len(keys) == 1:
                raise self._explained(error, "DELETE", keys[0]) from safe_cause(error)
        except CAUGHT as error:
            raise self._explained(error, "DELETE", keys[0]) from safe_cause(error)

    def delete_if(self, key: str, token: Token) -> None:
        """obstore has no conditional delete: a signed request with the condition beside the signature."""
        self._check(key)
        try:
            url = obstore.sign(self._clients.quick, "DELETE", key, dt.timedelta(minutes=1))
        except (*CAUGHT, TypeError) as error:
            # Memory, and logins that cannot sign.
            raise to_error(self._place, Refusal("DELETE", key, 501)) from safe_cause(error)
        from swamp.store.s3_listing import send_delete

        WIRE.count()
        status = send_delete(url, _quote(token) if self._quoted else token)
        if status is None or status >= 300:
            raise to_error(self._place, Refusal("DELETE", key, status, failure=None if status else CUT))

    # -- listing

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[Sequence[ObjectMeta]]:
        check_prefix(prefix)
        folder, _, rest = prefix.rpartition("/")
        after = start_after or ""
        if rest:
            # obstore's prefixes are whole segments: begin just before the rest and stop behind it.
            after = max(after, byte_before(prefix))
        if (few := self._few(prefix, start_after)) is not None:
            yield few.objects
            return
        for page in self._pages(folder, after or None):
            kept = [m for m in page if m.key.startswith(prefix) and m.key > (start_after or "")]
            if kept:
                yield kept
            if rest and page and page[-1].key > prefix and not page[-1].key.startswith(prefix):
                return

    def _pages(self, folder: str, after: str | None) -> Iterator[Sequence[ObjectMeta]]:
        where, raw = f"{folder}/" if folder else "", self._raw()

        def must_end(last: str | None) -> None:
            """obstore takes any 200, a proxy's HTML too, for the last page. So S3 is asked once more, by us, whether
            that was the end; that also shows a page that was stale."""
            if raw is not None and not raw.ends(where, last):
                raise to_error(self._place, Refusal("LIST", folder or None, failure=CUT))

        try:
            for page in whole_listing(self._streamed(folder, after), must_end, after):
                yield page
                after = page[-1].key if page else after
        except CAUGHT as error:
            odd = self._raw_listing(error, folder)
        else:
            return
        yield from odd.pages(where, after)

    def _streamed(self, folder: str, after: str | None) -> Iterator[Sequence[ObjectMeta]]:
        stream = obstore.list(self._clients.quick, folder or None, offset=after, chunk_size=LIST_CHUNK)
        WIRE.count()
        for number, chunk in enumerate(stream):
            WIRE.count(1 if number else 0)
            yield [m for m in map(meta_of, chunk) if m.size or not self._is_marker(m)]

    def _few(self, prefix: str, after: str | None) -> ListingPage | None:
        """A few names, behind one or with a common beginning: one page, read by us, that says it is the last."""
        raw = self._raw() if after or (prefix and prefix[-1] != "/") else None
        page = raw.page_if_plain(prefix, after) if raw is not None else None
        return page if page is not None and page.last else None

    def _raw_listing(self, error: BaseException, folder: str) -> RawListing:
        """Another way to list, where it was a key that obstore cannot name. Raises what `error` means where not."""
        refusal = self._explained(error, "LIST", folder or None)
        if refusal.details.get("code") != "InvalidPath":
            raise refusal from safe_cause(error)
        raw = self._raw()
        if raw is None:
            from swamp.store.s3_listing import unnameable

            raise unnameable(self._place, refusal) from None
        return raw

    def _is_marker(self, meta: ObjectMeta) -> bool:
        """A `dir/` placeholder that some consoles make; obstore lists it as an object `dir` that does not exist."""
        if self._place.kind == "memory" or (meta.key[-27:-26] == "~" and is_ulid(meta.key[-26:])):
            return False
        return self._current(meta.key) is None

    def level(self, prefix: str = "") -> Level:
        check_prefix(prefix)
        if (raw := self._raw()) is not None and (seen := raw.level_if_allowed(prefix)) is not None:
            return seen  # inv[store.whole-listing]
        WIRE.count()
        try:
            found = obstore.list_with_delimiter(self._clients.quick, prefix.rstrip("/") or None)
        except CAUGHT as error:
            return self._raw_listing(error, prefix).level(prefix)
        dirs = sorted(d.rstrip("/") for d in found["common_prefixes"])
        objects = sorted(map(meta_of, found["objects"]), key=lambda m: m.key)
        return Level(tuple(dirs), tuple(objects))

    def _check(self, key: str) -> str:
        if self._place.kind == "azure" and "\\" in key:
            raise UsageError(
                f"Azure would take the backslash in {key!r} for a slash",
                hint="rename the file",
                details={"key": key},
            )
        return check_key(key)

    # -- errors

    def _explained(self, error: BaseException, verb: str, key: str | None) -> StoreError:
        return to_error(self._place, read_refusal(error, verb, key))


def _quote(token: Token) -> str:
    return f'"{token}"'
