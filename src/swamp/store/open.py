"""Opens the store at a URL, or of a type and its configuration. Clients are imported only when their cloud is used."""

from __future__ import annotations

import datetime as dt
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from swamp.env import SYSTEM, Env
from swamp.errors import Misconfigured
from swamp.extras import needs
from swamp.store.explain import Endpoint, redact
from swamp.store.keys import check_key
from swamp.store.layers import LimitStore, PrefixStore, SerializedMkdirStore
from swamp.store.login import aws_login, azure_login, refuse_secrets
from swamp.store.port import ObjectStore
from swamp.store.retry import RetryPolicy, RetryStore
from swamp.values import value

if TYPE_CHECKING:
    from swamp.store.s3_listing import RawListing

SCHEMES: Final = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "az": "azure",
    "azure": "azure",
    "file": "file",
    "memory": "memory",
}
TYPES: Final = {
    "@swamp/s3-datastore": "s3",
    "@swamp/gcs-datastore": "gs",
    "@swamp/azure-datastore": "az",
}
KEYS: Final = frozenset(
    {"bucket", "container", "prefix", "region", "endpoint", "forcePathStyle", "account"}
    | {"pushConcurrency", "pullConcurrency", "requestTimeoutMs"}
)
TIMEOUT_MS: Final = 30_000
CONNECT_SECONDS: Final = 5.0
CONNECTIONS: Final = 64


@value
class StoreUrl:
    """An address taken apart: which cloud, which bucket, what lies under the prefix, and how to talk to it."""

    kind: str
    bucket: str
    prefix: str
    config: Mapping[str, Any]

    @property
    def timeout(self) -> float:
        """How long one request is tried, its retries included."""
        return _number(self.config, "requestTimeoutMs", TIMEOUT_MS) / 1000

    @property
    def silence(self) -> float:
        """How long one attempt waits for a byte: half, so that another one, on a connection that lives, is in time."""
        return self.timeout / 2


@value
class StoreSpec:
    """How to open a store again, elsewhere: it is pickled into Spark tasks and holds no credentials."""

    url: str
    config: Mapping[str, Any] = field(default_factory=dict)
    namespace: str | None = None
    serialize_mkdir: bool = False
    """Whether uploads into a new directory go one at a time (`store.mkdir`)."""

    @property
    def plugin(self) -> str | None:
        """The type of the plug-in that opens it; None for a store of ours."""
        return self.url if is_plugin_type(self.url) else None

    def open(self, env: Env = SYSTEM) -> ObjectStore:
        store = open_store(self.url, self.config, env)
        store = PrefixStore(store, self.namespace) if self.namespace else store
        return SerializedMkdirStore(store) if self.serialize_mkdir else store


def open_store(
    url: str,
    config: Mapping[str, Any] | None = None,
    env: Env = SYSTEM,
    *,
    environ: Mapping[str, str] | None = None,
    policy: RetryPolicy | None = None,
) -> ObjectStore:
    """The store at `url` (or of a type such as `@swamp/s3-datastore`), with retries for all but writes.

    Without a `policy` they end with the time that the configuration gives to one request.
    """
    if is_plugin_type(url):
        return _open_plugged(url, dict(config or {}), env, policy)
    target = parse_target(url, config)
    _check_numbers(target.config)
    environ = os.environ if environ is None else environ
    bucket = _OPENERS[target.kind](target, env, environ)
    if target.kind not in ("file", "memory"):
        # Retry outside the limit: a request that waits for its next attempt takes nobody's place.
        bucket = RetryStore(bucket, env, policy or RetryPolicy(seconds=target.timeout))
    return PrefixStore(bucket, target.prefix) if target.prefix else bucket


def _open_plugged(kind: str, config: dict[str, Any], env: Env, policy: RetryPolicy | None) -> ObjectStore:
    """A plug-in's store under the limits and the retries of every other one."""
    from swamp.store.plugged import open_plugin

    refuse_secrets(config)
    _check_numbers(config)
    target = StoreUrl("plug-in", kind, "", config)
    return RetryStore(
        _limited(target, open_plugin(kind, config, env)), env, policy or RetryPolicy(seconds=target.timeout)
    )


def is_plugin_type(kind: str) -> bool:
    """Whether this can only be a plug-in's type: no URL and none of ours."""
    return "://" not in kind and kind != "filesystem" and not kind.startswith("@swamp/")


def parse_target(url: str, config: Mapping[str, Any] | None = None) -> StoreUrl:
    """Raises Misconfigured for an address that names no bucket we can speak to."""
    config = dict(config or {})
    refuse_secrets(config)
    if url in TYPES:
        url = f"{TYPES[url]}://{config.get('bucket') or config.get('container') or ''}"
    parts = urlsplit(url)
    kind = SCHEMES.get(parts.scheme)
    if kind is None or "@" in parts.netloc or parts.fragment:
        raise _bad_url(url)
    config = dict(parse_qsl(parts.query)) | {k: v for k, v in config.items() if v is not None}
    refuse_secrets(config)
    if unknown := sorted(set(config) - KEYS):
        known = ", ".join(sorted(KEYS))
        raise Misconfigured(f"unknown store configuration: {', '.join(unknown)}", hint=f"known are: {known}")
    if kind == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise _bad_url(url)
        prefix = str(config.get("prefix") or "").strip("/")
        return StoreUrl("file", unquote(parts.path), check_key(prefix) if prefix else "", config)
    path = "/".join(p.strip("/") for p in (unquote(parts.path), str(config.get("prefix") or "")) if p.strip("/"))
    if not parts.netloc and kind != "memory":
        raise _bad_url(url)
    return StoreUrl(kind, parts.netloc, check_key(path) if path else "", config)


def _bad_url(url: str) -> Misconfigured:
    shown = url.partition("?")[0].rpartition("@")[2][:200]
    return Misconfigured(
        f"not a store's address: {shown!r}",
        hint="use s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///directory",
    )


def _open_file(target: StoreUrl, env: Env, environ: Mapping[str, str]) -> ObjectStore:
    from swamp.store.directory import DirectoryStore

    return DirectoryStore(Path(target.bucket), env)


_memories: dict[str, ObjectStore] = {}
_memories_lock = threading.Lock()


def _open_memory(target: StoreUrl, env: Env, environ: Mapping[str, str]) -> ObjectStore:
    """The same name is the same store within a process."""
    from obstore.store import MemoryStore

    from swamp.store.clients import Clients
    from swamp.store.objects import Objects

    with _memories_lock:
        if target.bucket not in _memories:
            store = MemoryStore()
            place = Endpoint("memory", f"memory://{target.bucket}")
            _memories[target.bucket] = Objects(place, Clients(lambda _factor, _retries, _stall: store), env)
        return _memories[target.bucket]


def _open_s3(target: StoreUrl, env: Env, environ: Mapping[str, str]) -> ObjectStore:
    from obstore.store import S3Store

    named = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    endpoint = _endpoint(target.config.get("endpoint") or named)
    login = aws_login(environ)
    endpoint = endpoint or _endpoint(login.endpoint)
    region = target.config.get("region") or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    settings: dict[str, Any] = dict(login.settings) | {"region": region or login.region or "us-east-1"}
    settings |= _addressing(target, endpoint)
    if login.provider is not None:
        settings["credential_provider"] = login.provider
    url = f"s3://{target.bucket}" + (f"?endpoint={endpoint}" if endpoint else "")
    place = Endpoint("s3", url, login.profile)

    def raw() -> RawListing | None:
        from swamp.store.s3_listing import RawListing, keys_of

        keys = keys_of(settings, login.provider, environ)
        if keys is None:
            return None
        where, virtual = settings["region"], settings["virtual_hosted_style_request"]
        amazon = (
            f"https://{target.bucket}.s3.{where}.amazonaws.com/" if virtual else f"https://s3.{where}.amazonaws.com"
        )
        top = settings.get("endpoint") or amazon
        bucket_url = f"{top.rstrip('/')}/" if virtual else f"{top}/{target.bucket}"
        return RawListing(place, bucket_url, where, keys, env, target.silence)

    return _layered(target, env, place, lambda http: S3Store(target.bucket, **settings, **http), endpoint, raw)


def _addressing(target: StoreUrl, endpoint: str | None) -> dict[str, Any]:
    """Path style where an endpoint is given (most of them know nothing else), virtual hosts at Amazon."""
    asked = target.config.get("forcePathStyle")
    path_style = bool(endpoint) or "." in target.bucket if asked is None else str(asked).lower() in ("1", "true", "yes")
    if path_style or endpoint is None:
        found: dict[str, Any] = {"virtual_hosted_style_request": not path_style}
        return found | ({"endpoint": endpoint} if endpoint else {})
    scheme, _, host = endpoint.partition("://")
    return {"virtual_hosted_style_request": True, "endpoint": f"{scheme}://{target.bucket}.{host}"}


def _open_azure(target: StoreUrl, env: Env, environ: Mapping[str, str]) -> ObjectStore:
    from obstore.store import AzureStore

    login = azure_login(environ)
    settings: dict[str, Any] = dict(login.settings)
    if target.config.get("account"):
        settings["account_name"] = target.config["account"]
    endpoint = _endpoint(target.config.get("endpoint") or login.endpoint)
    if endpoint:
        settings["endpoint"] = endpoint
    elif "account_name" not in settings and not environ.get("AZURE_STORAGE_USE_EMULATOR"):
        raise Misconfigured(
            f"which storage account holds the container {target.bucket!r}?",
            hint="set AZURE_STORAGE_ACCOUNT_NAME or AZURE_STORAGE_CONNECTION_STRING, or config `account`",
        )
    where = endpoint or f"{settings.get('account_name', 'emulator')}"
    place = Endpoint(
        "azure", f"az://{target.bucket}?endpoint={where}" if endpoint else f"az://{target.bucket}?account={where}"
    )
    return _layered(target, env, place, lambda http: AzureStore(target.bucket, **settings, **http), endpoint)


def _open_gcs(target: StoreUrl, env: Env, environ: Mapping[str, str]) -> ObjectStore:
    needs("google.cloud.storage", "Google Cloud Storage", "gcs")
    from swamp.store.gcs import connect

    emulator = environ.get("STORAGE_EMULATOR_HOST", "")
    emulator = emulator if not emulator or "://" in emulator else f"http://{emulator}"
    endpoint = _endpoint(target.config.get("endpoint") or emulator)
    return _limited(target, connect(target.bucket, endpoint, target.timeout, env))


def _layered(
    target: StoreUrl,
    env: Env,
    place: Endpoint,
    build: Any,
    endpoint: str | None,
    raw: Callable[[], RawListing | None] = lambda: None,
) -> ObjectStore:
    from obstore.exceptions import BaseError

    from swamp.store.clients import Clients
    from swamp.store.objects import Objects

    def make(factor: float, retries: int, stall: bool) -> Any:
        http = _http(target.timeout * factor, target.silence, retries, (endpoint or "").startswith("http://"))
        if stall:
            http["client_options"]["read_timeout"] = dt.timedelta(seconds=target.silence)
        return build(http)

    try:
        clients = Clients(make)
        _ = clients.quick
    except (BaseError, ValueError, TypeError) as error:
        text = redact(str(error).partition("\n")[0])
        raise Misconfigured(f"cannot open {place.url}: {text}", hint="check its name, endpoint and account") from None
    return _limited(target, Objects(place, clients, env, raw))


def _limited(target: StoreUrl, store: ObjectStore) -> ObjectStore:
    uploads = int(_number(target.config, "pushConcurrency", CONNECTIONS))
    downloads = int(_number(target.config, "pullConcurrency", CONNECTIONS))
    return LimitStore(store, uploads=uploads, downloads=downloads)


def _http(timeout: float, silence: float, retries: int, insecure: bool) -> dict[str, Any]:
    # Only parts of an upload are retried in there, and a Retry-After is not read: a second is what a busy store gets.
    backoff = {"init_backoff": dt.timedelta(seconds=1), "max_backoff": dt.timedelta(seconds=10), "base": 2}
    return {
        "client_options": {
            "timeout": dt.timedelta(seconds=timeout),
            "connect_timeout": dt.timedelta(seconds=min(silence, CONNECT_SECONDS)),
            "allow_http": insecure,
            "pool_max_idle_per_host": str(CONNECTIONS * 2),
            "user_agent": "swamp",
        },
        "retry_config": {"max_retries": retries, "backoff": backoff, "retry_timeout": dt.timedelta(minutes=2)},
    }


def _endpoint(value: Any) -> str | None:
    if not value:
        return None
    text = str(value).rstrip("/")
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        shown = text.rpartition("@")[2][:200]
        raise Misconfigured(f"not an endpoint: {shown!r}", hint="use https://host[:port]")
    return text


def _number(config: Mapping[str, Any], name: str, default: float) -> float:
    value = config.get(name, default)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0
    if number <= 0:
        raise Misconfigured(f"`{name}` must be a positive number, not {value!r}", hint="correct the configuration")
    return number


def _check_numbers(config: Mapping[str, Any]) -> None:
    for name in ("requestTimeoutMs", "pushConcurrency", "pullConcurrency"):
        _number(config, name, 1)


_OPENERS: Final = {
    "file": _open_file,
    "memory": _open_memory,
    "s3": _open_s3,
    "azure": _open_azure,
    "gcs": _open_gcs,
}
