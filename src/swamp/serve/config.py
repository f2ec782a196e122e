"""`serve:` of `.swamp.yaml`: read with precise complaints before anything runs. Flag > environment > file > default."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from swamp.errors import UsageError

SCHEMES: Final = ("github", "gitlab", "linear", "stripe", "slack", "generic")
DEFAULT_PORT: Final = 9090
_KEYS: Final = (
    "host port hosts publicUrl behindProxy tls drain concurrency perWorkflow queue pull rate schedule claim webhooks "
    "connections".split()
)
_HOOK_KEYS: Final = "route workflow scheme secret inputs".split()


@dataclass(frozen=True)
class Webhook:
    """One route that other services call."""

    route: str
    workflow: str
    scheme: str
    secret: str
    """As it stands in the file: `@env=…`, `@file=…` or `@vault=…`."""
    inputs: Mapping[str, Any]


@dataclass(frozen=True)
class ServeConfig:
    """Everything that can be said about a server."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    hosts: tuple[str, ...] = ()
    """Names by which it is reached, besides loopback and addresses."""
    public_url: str | None = None
    """Where people reach it, as `https://swamp.example.org`: scheme and host of the proxy in front of it."""
    behind_proxy: bool = False
    tls_cert: str | None = None
    tls_key: str | None = None
    drain: float = 30.0
    concurrency: int = 4
    per_workflow: int = 2
    """Runs of one workflow at a time that events and schedules start; what somebody asks for starts at once."""
    queue: int = 10_000
    pull: float = 5.0
    rate: int = 2_000
    """Requests a second that one caller may make for long."""
    connections: int = 2_000
    schedule: bool = True
    claim: float = 60.0
    """Seconds that another server's claim of a tick is given to become a run."""
    webhooks: tuple[Webhook, ...] = ()

    @property
    def loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def public_host(self) -> str | None:
        """Host and port of the public URL, as a browser puts them into Host and Origin."""
        return urlsplit(self.public_url).netloc if self.public_url else None

    @property
    def seen_over_tls(self) -> bool:
        """Whether a browser speaks TLS with whoever answers it first."""
        return self.scheme == "https" or self.behind_proxy or (self.public_url or "").startswith("https:")

    @property
    def scheme(self) -> str:
        return "https" if self.tls_cert else "http"


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


_ENVIRONMENT: Final = {"host": "SWAMP_SERVE_HOST", "port": "SWAMP_SERVE_PORT", "drain": "SWAMP_SERVE_DRAIN",
                        "claim": "SWAMP_SERVE_CLAIM", "publicUrl": "SWAMP_SERVE_PUBLIC_URL"}  # fmt: skip


def read_config(
    document: Mapping[str, Any], flags: Mapping[str, Any], environ: Mapping[str, str] | None = None
) -> ServeConfig:
    """The configuration of one server. Raises UsageError that names the key and what it may be."""
    environ = os.environ if environ is None else environ
    block = document.get("serve") or {}
    if not isinstance(block, Mapping):
        raise _bad("serve", block, "a mapping with webhooks, host, port, …")
    _known(block, _KEYS, "serve")
    tls = block.get("tls") or {}
    if not isinstance(tls, Mapping):
        raise _bad("serve.tls", tls, "a mapping with cert and key")
    given: dict[str, Any] = {key: value for key, value in block.items() if key not in ("tls", "webhooks")}
    given |= {"tlsCert": tls.get("cert"), "tlsKey": tls.get("key")}
    given |= {key: environ[name] for key, name in _ENVIRONMENT.items() if environ.get(name)}
    given |= {key: value for key, value in flags.items() if value is not None}
    made = ServeConfig(
        host=_text(given, "host", "127.0.0.1"),
        port=_whole(given, "port", DEFAULT_PORT, 0, 65535),
        hosts=_texts(given, "hosts"),
        public_url=_public_url(given),
        behind_proxy=_truth(given, "behindProxy", False),
        tls_cert=_optional(given, "tlsCert"),
        tls_key=_optional(given, "tlsKey"),
        drain=_number(given, "drain", 30.0),
        concurrency=_whole(given, "concurrency", 4, 1, 256),
        per_workflow=_whole(given, "perWorkflow", 2, 1, 256),
        queue=_whole(given, "queue", 10_000, 1, 10_000_000),
        pull=_number(given, "pull", 5.0),
        rate=_whole(given, "rate", 2_000, 1, 1_000_000),
        connections=_whole(given, "connections", 2_000, 8, 100_000),
        schedule=_truth(given, "schedule", True),
        claim=_number(given, "claim", 60.0),
        webhooks=_webhooks(block.get("webhooks")),
    )
    _must_be_safe(made)
    return made


def _must_be_safe(config: ServeConfig) -> None:
    """Another host than loopback without TLS sends tokens over the network in the clear."""
    if bool(config.tls_cert) != bool(config.tls_key):
        raise UsageError("--tls-cert and --tls-key belong together", hint="give both, or neither")
    for file in filter(None, (config.tls_cert, config.tls_key)):
        if not Path(file).is_file():
            raise UsageError(f"{file} is not a file", hint="--tls-cert and --tls-key name PEM files")
    if not (config.loopback or config.tls_cert or config.behind_proxy):
        raise UsageError(
            f"{config.host} is not loopback, and tokens would travel in the clear",
            hint="give --tls-cert and --tls-key, or --behind-proxy if a proxy in front of it speaks TLS",
        )


def _webhooks(block: Any) -> tuple[Webhook, ...]:
    if block is None:
        return ()
    if not isinstance(block, list):
        raise _bad("serve.webhooks", block, "a list of routes")
    found = tuple(_webhook(entry, f"serve.webhooks[{number}]") for number, entry in enumerate(block))
    routes = [hook.route for hook in found]
    for route in routes:
        if routes.count(route) > 1:
            raise _bad("serve.webhooks", route, "each route once")
    return found


def _webhook(entry: Any, where: str) -> Webhook:
    if not isinstance(entry, Mapping):
        raise _bad(where, entry, "a mapping with route, workflow, scheme and secret")
    _known(entry, _HOOK_KEYS, where)
    route = entry.get("route")
    if not isinstance(route, str) or not route.startswith("/") or not route.isprintable() or "?" in route:
        raise _bad(f"{where}.route", route, "a path such as /hooks/deploy")
    if not route.startswith("/hooks/"):
        raise _bad(f"{where}.route", route, "a path below /hooks/, such as /hooks/deploy")
    workflow = entry.get("workflow")
    if not isinstance(workflow, str) or not workflow:
        raise _bad(f"{where}.workflow", workflow, "the name of a workflow")
    scheme = entry.get("scheme", "generic")
    if scheme not in SCHEMES:
        raise _bad(f"{where}.scheme", scheme, ", ".join(SCHEMES))
    secret = entry.get("secret")
    if not isinstance(secret, str) or not secret.startswith(("@env=", "@file=", "@vault=")):
        raise UsageError(
            f".swamp.yaml: {where}.secret has to say where the secret is",
            hint="allowed: @env=NAME, @file=PATH, @vault=NAME (a file in .swamp/secrets)",
            details={"key": f"{where}.secret"},
        )
    inputs = entry.get("inputs") or {}
    if not isinstance(inputs, Mapping):
        raise _bad(f"{where}.inputs", inputs, "a mapping of inputs to expressions")
    return Webhook(route, workflow, scheme, secret, inputs)


def find_secret(reference: str, repo: Path, environ: Mapping[str, str]) -> bytes:
    """The secret that `@env=`, `@file=` or `@vault=` names. Raises UsageError if it is not there, or empty."""
    kind, _, name = reference[1:].partition("=")
    if kind == "env":
        value = environ.get(name, "").encode()
        missing = f"the environment variable {name} is not set"
    else:
        file = repo / ".swamp" / "secrets" / Path(name).name if kind == "vault" else repo / Path(name).expanduser()
        missing = f"the secret {reference} is not there"
        try:
            value = file.read_bytes().strip()
        except OSError as error:
            raise UsageError(
                f"{missing}: {error.strerror}", hint="webhooks need their secret before they start"
            ) from error
    if not value:
        raise UsageError(missing, hint="webhooks need their secret before they start")
    return value


def _known(block: Mapping[str, Any], allowed: list[str], where: str) -> None:
    for key in block:
        if key not in allowed:
            raise UsageError(
                f".swamp.yaml: {where} has no key {key!r}", hint=f"allowed: {', '.join(allowed)}", details={"key": key}
            )


def _bad(key: str, value: Any, allowed: str) -> UsageError:
    return UsageError(f"{key} is {value!r}", hint=f"allowed: {allowed}", details={"key": key})


def _text(given: Mapping[str, Any], key: str, default: str) -> str:
    value = given.get(key, default)
    if not isinstance(value, str) or not value:
        raise _bad(f"serve.{key}", value, "a text")
    return value


def _optional(given: Mapping[str, Any], key: str) -> str | None:
    return None if given.get(key) is None else _text(given, key, "")


def _texts(given: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = given.get(key) or []
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) and one for one in value):
        raise _bad(f"serve.{key}", value, "a list of host names")
    return tuple(one.lower() for one in value)


def _public_url(given: Mapping[str, Any]) -> str | None:
    """Scheme and host, without a slash at the end. A path would be a lie: the pages stand at the top."""
    text = _optional(given, "publicUrl")
    if text is None:
        return None
    parts = urlsplit(text) if text.isprintable() and "@" not in text else urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise _bad("serve.publicUrl", text, "scheme and host, such as https://swamp.example.org")
    try:
        port = parts.port
    except ValueError:
        raise _bad("serve.publicUrl", text, "scheme and host, such as https://swamp.example.org") from None
    usual = {"http": 80, "https": 443}[parts.scheme]  # a browser leaves it out, in Host and in Origin
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" if port in (None, usual) else f"{parts.scheme}://{host}:{port}"


def _whole(given: Mapping[str, Any], key: str, default: int, low: int, high: int) -> int:
    value = given.get(key, default)
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if isinstance(value, bool) or not low <= number <= high or (isinstance(value, float) and value != number):
        raise _bad(f"serve.{key}", value, f"a whole number, {low} to {high}")
    return number


def _number(given: Mapping[str, Any], key: str, default: float) -> float:
    value = given.get(key, default)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(value, bool) or not 0 <= number <= 86_400:
        raise _bad(f"serve.{key}", value, "seconds, 0 to 86400")
    return number


def _truth(given: Mapping[str, Any], key: str, default: bool) -> bool:
    value = given.get(key, default)
    if not isinstance(value, bool):
        raise _bad(f"serve.{key}", value, "true or false")
    return value
