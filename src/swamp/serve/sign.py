"""Who sent a webhook: signatures over the raw bytes, compared in constant time, within a window where there is a time.

| scheme  | signature                             | signed               | delivery id |
|---------|---------------------------------------|----------------------|-------------|
| github  | `x-hub-signature-256: sha256=<hex>`   | body                 | `x-github-delivery` |
| gitlab  | `x-gitlab-token: <secret>`            | nothing              | `x-gitlab-event-uuid`, `idempotency-key` |
| linear  | `linear-signature: <hex>`             | body with its time   | `linear-delivery` |
| stripe  | `stripe-signature: t=<s>,v1=<hex>`    | `<s>.` body          | `id` in the body |
| slack   | `x-slack-signature: v0=<hex>`         | `v0:<s>:` body       | `event_id` in the body |
| generic | `x-signature-256`, with `x-timestamp` | body, or `<s>.` body | `x-delivery-id`, `idempotency-key` |
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs

WINDOW_S: Final = 300.0
LONGEST_ID: Final = 200
_NEVER_KEPT: Final = ("authorization", "cookie", "proxy-authorization", "x-gitlab-token")
_SIGNATURES: Final = ("x-hub-signature", "x-hub-signature-256", "linear-signature", "stripe-signature",
                      "x-slack-signature", "x-signature-256")  # fmt: skip


@dataclass(frozen=True)
class SignedRequest:
    """A request that was proven to come from who knows the secret."""

    id: str
    body: Any
    headers: Mapping[str, str]


class NotSigned(Exception):
    """The one answer to whatever is wrong with a signature."""


def verify(scheme: str, secret: bytes, headers: Mapping[str, str], raw: bytes, now: float) -> SignedRequest:
    """Raises NotSigned; nobody learns whether header, time or signature was wrong. inv[serve.signed]"""
    body = _parsed(headers, raw) if scheme in ("linear",) else None
    signed, given, at = _signed(scheme, headers, raw, body)
    expected = secret if scheme == "gitlab" else hmac.new(secret, signed, hashlib.sha256).hexdigest().encode()
    fits = [hmac.compare_digest(expected, one.encode("utf-8", "replace")) for one in given or [""]]
    if not any(fits):
        raise NotSigned
    if at is not None and abs(now - at) > WINDOW_S:
        raise NotSigned
    body = _parsed(headers, raw)
    kept = {k: v for k, v in headers.items() if k not in _NEVER_KEPT and k not in _SIGNATURES}
    return SignedRequest(_identity(scheme, headers, body, raw, at if at is not None else now), body, kept)


def _signed(scheme: str, headers: Mapping[str, str], raw: bytes, body: Any) -> tuple[bytes, list[str], float | None]:
    """What was signed, the signatures given, and the time it was signed at."""
    match scheme:
        case "github":
            return raw, _after("sha256=", headers.get("x-hub-signature-256")), None
        case "gitlab":
            return b"", [headers.get("x-gitlab-token", "")], None
        case "linear":
            stamp = body.get("webhookTimestamp") if isinstance(body, Mapping) else None
            return raw, [headers.get("linear-signature", "")], _time(stamp, 1000)
        case "stripe":
            words = [word.strip().partition("=") for word in headers.get("stripe-signature", "").split(",")]
            stamp = next((value for key, _, value in words if key == "t"), "")
            return f"{stamp}.".encode() + raw, [value for key, _, value in words if key == "v1"], _time(stamp)
        case "slack":
            stamp = headers.get("x-slack-request-timestamp", "")
            return f"v0:{stamp}:".encode() + raw, _after("v0=", headers.get("x-slack-signature")), _time(stamp)
    stamp = headers.get("x-timestamp")
    signed = raw if stamp is None else f"{stamp}.".encode() + raw
    return signed, _after("sha256=", headers.get("x-signature-256")), None if stamp is None else _time(stamp)


def _after(prefix: str, value: str | None) -> list[str]:
    return [value.removeprefix(prefix).lower()] if value and value.startswith(prefix) else []


def _time(stamp: Any, unit: int = 1) -> float:
    """Seconds; a time that is none lies outside of every window."""
    try:
        found = float(stamp) / unit
    except (TypeError, ValueError):
        return float("-inf")
    return found if found == found else float("-inf")


def _parsed(headers: Mapping[str, str], raw: bytes) -> Any:
    """JSON, whatever its type says, also inside of a form's `payload`; a form's fields; else text."""
    text = raw.decode("utf-8", "replace")
    found = _json(text)
    if found is not None or not headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        return text if found is None else found
    fields = {key: values[-1] for key, values in parse_qs(text, max_num_fields=1000).items()}
    inner = _json(fields["payload"]) if "payload" in fields else None
    return fields if inner is None else inner


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _identity(scheme: str, headers: Mapping[str, str], body: Any, raw: bytes, at: float) -> str:
    """The provider's id, else a hash of body and time."""
    names = {
        "github": ("x-github-delivery",),
        "gitlab": ("x-gitlab-event-uuid", "idempotency-key"),
        "linear": ("linear-delivery",),
        "generic": ("x-delivery-id", "idempotency-key"),
    }.get(scheme, ())
    found = next((headers[name] for name in names if headers.get(name)), None)
    if found is None and isinstance(body, Mapping):
        found = {"stripe": body.get("id"), "slack": body.get("event_id")}.get(scheme)
    if isinstance(found, str) and found and len(found) <= LONGEST_ID and found.isprintable():
        return found
    return hashlib.sha256(f"{at:.3f}\n".encode() + raw).hexdigest()
