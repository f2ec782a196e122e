"""`serve:` of `.swamp.yaml`: read with precise complaints before anything runs. Flag > environment > file > default."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel

from swamp.data.names import suggest
from swamp.errors import UsageError
from swamp.models.document import spell

DEFAULT_PORT: Final = 9090
_URL: Final = "scheme and host, such as https://swamp.example.org"
_ENVIRONMENT: Final = {"host": "SWAMP_SERVE_HOST", "port": "SWAMP_SERVE_PORT", "drain": "SWAMP_SERVE_DRAIN",
                        "claim": "SWAMP_SERVE_CLAIM", "publicUrl": "SWAMP_SERVE_PUBLIC_URL"}  # fmt: skip


def _no_switch(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number is needed, not true or false")
    return value


def _public_url(text: str) -> str:
    """Scheme and host, without a slash at the end. A path would be a lie: the pages stand at the top."""
    parts = urlsplit(text) if text.isprintable() and "@" not in text else urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError(_URL)
    usual = {"http": 80, "https": 443}[parts.scheme]  # a browser leaves it out, in Host and in Origin
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" if parts.port in (None, usual) else f"{parts.scheme}://{host}:{parts.port}"


Text = Annotated[str, Field(min_length=1)]
Seconds = Annotated[float, BeforeValidator(_no_switch), Field(ge=0, le=86_400)]
Whole = Annotated[int, BeforeValidator(_no_switch)]
PublicUrl = Annotated[
    str, AfterValidator(_public_url), Field(pattern="^https?://", examples=["https://swamp.example.org"])
]


class _Block(BaseModel):
    """A mapping of the file: keys in camelCase, unknown ones are refused, one without a value is not given."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _given(cls, value: Any) -> Any:
        return {k: v for k, v in value.items() if v is not None} if isinstance(value, Mapping) else value


class Tls(_Block):
    cert: Text | None = None
    key: Text | None = None


class Webhook(_Block):
    """One route that other services call."""

    route: Annotated[str, Field(pattern=r"^/hooks/[^?\x00-\x1f]+$")]
    workflow: Text
    scheme: Literal["github", "gitlab", "linear", "stripe", "slack", "generic"] = "generic"
    secret: Annotated[str, Field(pattern="^@(env|file|vault)=.+")]
    """Where it is: `@env=NAME`, `@file=PATH` or `@vault=NAME` (a file in .swamp/secrets)."""
    inputs: dict[str, Any] = Field(default_factory=dict)


def _each_route_once(hooks: tuple[Webhook, ...]) -> tuple[Webhook, ...]:
    routes = [hook.route for hook in hooks]
    if twice := {route for route in routes if routes.count(route) > 1}:
        raise ValueError(f"each route once; {min(twice)} stands twice")
    return hooks


class ServeConfig(_Block):
    """Everything that can be said about a server."""

    host: Text = "127.0.0.1"
    port: Annotated[Whole, Field(ge=0, le=65535)] = DEFAULT_PORT
    hosts: tuple[Annotated[Text, AfterValidator(str.lower)], ...] = ()
    """Names by which it is reached, besides loopback and addresses."""
    public_url: PublicUrl | None = None
    """Where people reach it, as `https://swamp.example.org`: scheme and host of the proxy in front of it."""
    behind_proxy: StrictBool = False
    tls: Tls = Tls()
    drain: Seconds = 30.0
    concurrency: Annotated[Whole, Field(ge=1, le=256)] = 4
    per_workflow: Annotated[Whole, Field(ge=1, le=256)] = 2
    """Runs of one workflow at a time that events and schedules start; what somebody asks for starts at once."""
    queue: Annotated[Whole, Field(ge=1, le=10_000_000)] = 10_000
    pull: Seconds = 5.0
    rate: Annotated[Whole, Field(ge=1, le=1_000_000)] = 2_000
    """Requests a second that one caller may make for long."""
    connections: Annotated[Whole, Field(ge=8, le=100_000)] = 2_000
    schedule: StrictBool = True
    claim: Seconds = 60.0
    """Seconds that another server's claim of a tick is given to become a run."""
    webhooks: Annotated[tuple[Webhook, ...], AfterValidator(_each_route_once)] = ()

    @property
    def hooks(self) -> dict[str, Webhook]:
        return {hook.route: hook for hook in self.webhooks}

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
        return "https" if self.tls.cert else "http"


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_config(
    document: Mapping[str, Any], flags: Mapping[str, Any], environ: Mapping[str, str] | None = None
) -> ServeConfig:
    """The configuration of one server. Raises UsageError that names the key and what it may be."""
    environ = os.environ if environ is None else environ
    block = document.get("serve") or {}
    if isinstance(block, Mapping):
        block = {**block, **{key: environ[name] for key, name in _ENVIRONMENT.items() if environ.get(name)}}
        block |= {key: value for key, value in flags.items() if value is not None and key != "tls"}
        if flags.get("tls") and isinstance(block.get("tls") or {}, Mapping):
            block["tls"] = {**(block.get("tls") or {}), **{k: v for k, v in flags["tls"].items() if v is not None}}
    try:
        made = ServeConfig.model_validate(block)
    except ValidationError as error:
        raise _refused(error) from None  # not its text: it repeats values, and one may be a secret
    _must_be_safe(made)
    return made


def _refused(error: ValidationError) -> UsageError:
    found = error.errors()
    # First what is not known at all: a key that is missing is often there with another name.
    detail = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
    where = spell(("serve", *detail["loc"]))
    if detail["type"] == "extra_forbidden":
        known = [field.alias or name for name, field in ServeConfig.model_fields.items()]
        known = [*known, *Webhook.model_fields, *Tls.model_fields]
        meant = suggest(str(detail["loc"][-1]), known)
        hint = f"did you mean `{meant}`?" if meant else "`swamp schema repo` shows which there are"
        return UsageError(f".swamp.yaml: there is no key {where}", hint=hint, details={"key": where})
    allowed = {
        "secret": "@env=NAME, @file=PATH, @vault=NAME (a file in .swamp/secrets)",
        "route": "a path below /hooks/, such as /hooks/deploy",
        "publicUrl": _URL,
    }
    key = str(detail["loc"][-1]) if detail["loc"] else ""
    given, msg = detail["input"], detail["msg"].removeprefix("Value error, ")
    # Not a whole block: who reads a complaint is not to read the inputs of every webhook in it.
    shown = repr(given) if isinstance(given, str | int | float) else f"a {type(given).__name__}"
    value = "missing" if detail["type"] == "missing" else "not a place" if key == "secret" else shown
    hint = f"allowed: {allowed.get(key, msg)}"
    return UsageError(f"{where} is {value}", hint=hint, details={"key": where})


def _must_be_safe(config: ServeConfig) -> None:
    """Another host than loopback without TLS sends tokens over the network in the clear."""
    if bool(config.tls.cert) != bool(config.tls.key):
        raise UsageError("--tls-cert and --tls-key belong together", hint="give both, or neither")
    for file in filter(None, (config.tls.cert, config.tls.key)):
        if not Path(file).is_file():
            raise UsageError(f"{file} is not a file", hint="--tls-cert and --tls-key name PEM files")
    if not (config.loopback or config.tls.cert or config.behind_proxy):
        raise UsageError(
            f"{config.host} is not loopback, and tokens would travel in the clear",
            hint="give --tls-cert and --tls-key, or --behind-proxy if a proxy in front of it speaks TLS",
        )


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
