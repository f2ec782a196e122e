"""Turns a store's refusal into one of our errors: one table for every HTTP backend, one for file systems.

Adapters take a foreign error apart into an `Refusal`; here it becomes the error whose class says what the caller
does next. Only fields we picked reach a message, so that no signature, token or key of the user can.
"""

from __future__ import annotations

import errno
import re
from typing import Final

from swamp.errors import (
    AccessDenied,
    ConditionFailed,
    Misconfigured,
    ObjectMissing,
    OutcomeUnknown,
    StoreError,
    Unavailable,
)
from swamp.values import value

CONNECT, TIMEOUT, CUT, FOREIGN = "connect", "timeout", "cut", "foreign"

_NO_BUCKET: Final = {"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted", "bucketNotFound"}
_WRONG_REGION: Final = {
    "PermanentRedirect",
    "TemporaryRedirect",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    "BareRedirect",
}
_EXPIRED: Final = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken", "RequestExpired"}
_UNKNOWN_USER: Final = {
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "InvalidAuthenticationInfo",
    "AuthenticationFailed",
}
_RIGHTS: Final = {
    "GET": "read",
    "HEAD": "read",
    "PUT": "write",
    "POST": "write",
    "COPY": "write",
    "DELETE": "delete",
    "LIST": "list",
}
_NO_LOGIN: Final = {"NoCredentials"}
_SKEW: Final = {"RequestTimeTooSkewed"}
_DENIED: Final = _EXPIRED | _NO_LOGIN | _SKEW
_EXISTS: Final = {
    "BlobAlreadyExists",
    "ConditionalRequestConflict",
    "PreconditionFailed",
    "ConditionNotMet",
    "AlreadyExists",
    "OperationAborted",
    "TargetConditionNotMet",
}
_MISSING: Final = {"NoSuchKey", "BlobNotFound", "NotFound", "ResourceNotFound", "notFound"}

_LOGIN: Final = {
    "s3": 'run `aws sso login --profile "{profile}"` or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY',
    "gcs": "run `gcloud auth application-default login`",
    "azure": "run `az login` or set AZURE_STORAGE_CONNECTION_STRING",
}
_SECRET_LIKE: Final = re.compile(
    r"(?i)(sig|signature|credential|token|accountkey|secret|password|x-amz-[a-z-]+)=[^&;\s<>\"']+"
)
_USERINFO: Final = re.compile(r"(?<=://)[^/@\s]+@")


@value
class Endpoint:
    """Who answered: what messages need to know about a store."""

    kind: str
    url: str
    profile: str = "default"


@value
class Refusal:
    """A refusal taken apart. `failure` says why there is no status: connect, timeout, cut or foreign."""

    verb: str
    key: str | None = None
    status: int | None = None
    code: str | None = None
    text: str = ""
    request_id: str | None = None
    region: str | None = None
    retry_after: float | None = None
    failure: str | None = None

    @property
    def write(self) -> bool:
        return self.verb == "PUT"


def to_error(place: Endpoint, answer: Refusal) -> StoreError:
    """The one of our errors that says what the caller does next."""
    for judge in (_configuration, _access, _condition, _absence):
        error = judge(place, answer)
        if error is not None:
            return error
    return _weather(place, answer)


def redact(text: str) -> str:
    """Text from outside without anything that looks like a credential, short enough for a message."""
    return scrub(text)[:300]


def scrub(text: str) -> str:
    return _USERINFO.sub("***@", _SECRET_LIKE.sub(lambda m: m.group(1) + "=***", text))


def _configuration(place: Endpoint, answer: Refusal) -> StoreError | None:
    nameless = answer.status == 404 and answer.code is None and answer.verb in ("LIST", "PUT")
    if answer.code in _NO_BUCKET or nameless:
        return _make(
            Misconfigured, place, answer, f"there is no bucket at {place.url}", "create it, or correct its name"
        )
    if answer.code in _WRONG_REGION or answer.status in (301, 307):
        where = f"; it lies in {answer.region}" if answer.region else ""
        hint = f"set region to {answer.region or 'the region of the bucket'} (config `region` or AWS_REGION)"
        return _make(Misconfigured, place, answer, f"wrong region for {place.url}{where}", hint)
    if answer.status in (501, 505):
        return _make(Misconfigured, place, answer, f"{place.url} does not support this request", "use another endpoint")
    return None


def _access(place: Endpoint, answer: Refusal) -> StoreError | None:
    """What was refused comes first. A login is advised only to who is not logged in: others lack a right."""
    if answer.status not in (401, 403) and answer.code not in _DENIED:
        return None
    login = _LOGIN.get(place.kind, "check who you are logged in as").format(profile=place.profile)
    if answer.code in _NO_LOGIN:  # nothing was sent, so nothing was refused
        return _make(AccessDenied, place, answer, f"{login}: no credentials were found ({place.url})", login)
    refused = f"{answer.verb} {answer.key or place.url} was refused"
    if answer.status:
        refused += f" with HTTP {answer.status}"
    if answer.code in _SKEW:
        remedy, why = "set this machine's clock", "this machine's clock differs too much from the store's"
    elif answer.code in _EXPIRED or answer.code in _UNKNOWN_USER or answer.status == 401:
        remedy, why = login, "the session has expired or was not accepted"
    else:
        right = _RIGHTS.get(answer.verb, "read, write, list and delete")
        remedy, why = f"ask for the right to {right} there", f"you may not {right} there"
    where = "" if answer.key is None else f" ({place.url})"
    return _make(AccessDenied, place, answer, f"{refused}: {why}{where}; {remedy}", remedy)


def _condition(place: Endpoint, answer: Refusal) -> StoreError | None:
    # A write on a condition over a key that is not there: 412 from some, "no such key" from others, Amazon among them.
    absent = answer.write and answer.status in (404, None) and answer.code in _MISSING
    if absent or answer.status in (412, 304) or (answer.status in (409, None) and answer.code in _EXISTS):
        return _make(
            ConditionFailed,
            place,
            answer,
            f"{answer.key or place.url} was written by somebody else first",
            "read it again and decide again",
        )
    return None


def _absence(place: Endpoint, answer: Refusal) -> StoreError | None:
    if not answer.write and (answer.status == 404 or answer.code in _MISSING):
        return _make(ObjectMissing, place, answer, f"no object {answer.key!r} in {place.url}", "check the name")
    return None


def _weather(place: Endpoint, answer: Refusal) -> StoreError:
    """What is left: transient trouble, and refusals that no retry changes."""
    if answer.failure == CONNECT:
        error = _make(
            Unavailable,
            place,
            answer,
            f"cannot reach {place.url}: {answer.text or 'connection refused'}",
            "check the endpoint, the network and any proxy",
        )
        error.details["unreachable"] = True
        return error
    refused = answer.status is not None and 400 <= answer.status < 500 and answer.status not in (408, 429)
    if refused and answer.code != "NoSuchUpload":  # an upload that is "not there" any more may just have been completed
        what = f"{answer.verb} {answer.key or ''} was refused by {place.url}"
        return _make(StoreError, place, answer, what, "the message names the reason; trying again will not help")
    if answer.write:
        what = f"the answer to writing {answer.key} was lost ({_cause(answer)})"
        return _make(OutcomeUnknown, place, answer, what, "read it back: it may or may not have been written")
    what = f"{place.url} did not answer properly ({_cause(answer)})"
    return _make(Unavailable, place, answer, what, "try again later")


def _cause(answer: Refusal) -> str:
    causes = {
        TIMEOUT: "timed out",
        CUT: "connection closed",
        CONNECT: "cannot connect",
        FOREIGN: "not the store's answer",
    }
    return f"HTTP {answer.status}" if answer.status else causes.get(answer.failure or "", "no usable response")


def _make(kind: type[StoreError], place: Endpoint, answer: Refusal, what: str, hint: str) -> StoreError:
    facts: dict[str, object] = {
        "status": answer.status,
        "code": answer.code,
        "requestId": answer.request_id,
        "key": answer.key,
    }
    facts |= {"verb": answer.verb, "retryAfter": answer.retry_after, "store": place.url}
    text = "" if kind is ConditionFailed else redact(answer.text)
    shown = [f"HTTP {answer.status}" if answer.status else "", answer.code or "", text]
    if answer.request_id:
        shown.append(f"request {answer.request_id}")
    tail = ", ".join(dict.fromkeys(s for s in shown if s and s not in what))
    message = f"{what} [{tail}]" if tail else what
    return kind(message, hint=hint, details={k: v for k, v in facts.items() if v is not None})


# inv[store.errors-mapped]: what an operating system's refusal means to the caller; anything else is Unavailable.
OS_ERRORS: Final[dict[int, tuple[type[StoreError], str]]] = {
    errno.EACCES: (AccessDenied, "ask for the right to read and write there"),
    errno.EPERM: (AccessDenied, "ask for the right to read and write there"),
    errno.EROFS: (AccessDenied, "the file system is read-only: mount it writable"),
    errno.ENOSPC: (StoreError, "free some space on that disk, then run the command again"),
    errno.EDQUOT: (StoreError, "your quota on that disk is used up: free some space"),
    errno.EFBIG: (StoreError, "the file is larger than that file system allows"),
    errno.ENAMETOOLONG: (StoreError, "shorten the name"),
    errno.ENOTDIR: (Misconfigured, "the bucket must be a directory"),
    errno.EEXIST: (Misconfigured, "the bucket must be a directory"),
    errno.EIO: (Unavailable, "check the disk"),
    errno.ESTALE: (Unavailable, "check the network file system"),
    errno.ETIMEDOUT: (Unavailable, "check the network file system"),
    errno.ENOLCK: (Unavailable, "that file system gives no locks: mount it with locking"),
}


def explain_os(error: OSError, url: str, key: str | None) -> StoreError:
    kind, hint = OS_ERRORS.get(error.errno or 0, (Unavailable, "try again; if it stays, check the disk"))
    details = {"key": key, "code": errno.errorcode.get(error.errno or 0, "?"), "store": url}
    if kind is AccessDenied:
        return kind(f"{hint}: {url} ({error.strerror})", hint=hint, details=details)
    return kind(f"{url}: {error.strerror} ({key})", hint=hint, details=details)
