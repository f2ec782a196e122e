"""obstore's errors taken apart: the one table of this adapter."""

from __future__ import annotations

import re
from typing import Final

from obstore import exceptions as foreign

from swamp.errors import StoreError
from swamp.store.explain import CONNECT, CUT, TIMEOUT, Answer, redact, scrub

# inv[store.errors-mapped]: every class obstore can raise, and the status it means when its text names none.
FOREIGN: Final[dict[type[BaseException], tuple[int | None, str | None]]] = {
    foreign.BaseError: (None, None),
    foreign.GenericError: (None, None),
    foreign.JoinError: (None, None),
    foreign.AlreadyExistsError: (412, "PreconditionFailed"),
    foreign.PreconditionError: (412, "PreconditionFailed"),
    foreign.NotModifiedError: (304, None),
    foreign.PermissionDeniedError: (403, None),
    foreign.UnauthenticatedError: (401, None),
    foreign.NotSupportedError: (501, None),
    foreign.InvalidPathError: (400, "InvalidPath"),
    foreign.UnknownConfigurationKeyError: (400, "UnknownConfigurationKey"),
    FileNotFoundError: (404, None),
    ValueError: (400, "InvalidArgument"),
}
CAUGHT: Final = (foreign.BaseError, FileNotFoundError, ValueError)
_DECISIVE: Final = (foreign.AlreadyExistsError, foreign.PreconditionError, foreign.NotModifiedError)
_STATUS = re.compile(r"status code: (\d{3})|\bstatus: (\d{3})\b")
_ELEMENT = re.compile(r"<(Code|Message|RequestId|Region)>([^<]{1,500})</")
_AZURE_REQUEST = re.compile(r"RequestId:([0-9a-fA-F-]{8,})")
_ONE_OF_MANY = re.compile(r"DeleteObjects request failed for key .{1,1100}: (.{0,500}) \(code: (\w+)\)")
"""A delete of many keys is answered with 200 and a verdict for each: obstore names the first refusal."""
_EXPECTING = re.compile(r"expecting '([a-z0-9-]+)'")
_METADATA_SERVICE = re.compile(r"169\.254\.\d+\.\d+|metadata\.google|/metadata/identity|AssumeRoleWithWebIdentity")
_NO_LOGIN = re.compile(r"(?i)credential|access key|NoCredentials")
_KIND = re.compile(r"kind: (Connect|Timeout|Interrupted|Request|Decode)\b")
_FAILURES: Final = {"Connect": CONNECT, "Timeout": TIMEOUT, "Interrupted": CUT, "Request": CUT, "Decode": CUT}


def read_refusal(error: BaseException, verb: str, key: str | None) -> Answer:
    """Takes an obstore error apart: its text is the only place where status, code and request id stand."""
    text = str(error)
    status, code = _defaults(error)
    found = dict(_ELEMENT.findall(text.partition("Debug source:")[0]))
    number = _STATUS.search(text)
    if number and not isinstance(error, _DECISIVE):
        status = int(number.group(1) or number.group(2))
    if _METADATA_SERVICE.search(text) or (not number and _NO_LOGIN.search(text.partition("Debug source")[0])):
        return Answer(verb, key, code="NoCredentials")
    if not number and (one := _ONE_OF_MANY.search(text)):
        found = {"Message": one.group(1), "Code": one.group(2)}
        status = 403 if one.group(2) == "AccessDenied" else status
    code = found.get("Code") or ("BareRedirect" if "BareRedirect" in text else code)
    message, request = found.get("Message", ""), found.get("RequestId")
    azure = _AZURE_REQUEST.search(message)
    region = found.get("Region") or (m.group(1) if (m := _EXPECTING.search(message)) else None)
    failure = None if status else _failure(text)
    if not message and not number:
        message = _plain_reason(text)
    if azure:
        request, message = azure.group(1), message.partition("RequestId:")[0].strip()
    return Answer(verb, key, status, code, message, request, region, failure=failure)


def _defaults(error: BaseException) -> tuple[int | None, str | None]:
    return next((FOREIGN[c] for c in type(error).__mro__ if c in FOREIGN), (None, None))


def _failure(text: str) -> str | None:
    kind = _KIND.search(text)
    return _FAILURES[kind.group(1)] if kind else None


def _plain_reason(text: str) -> str:
    """The part of an obstore text that people can use."""
    for sign, reason in (
        ("dns error", "its name is not known"),
        ("ConnectionRefused", "connection refused"),
        ("InvalidContentType", "it does not speak TLS (http, not https?)"),
        ("certificate", "its certificate is not trusted"),
    ):
        if sign in text:
            return reason
    head = text.partition("\n\nDebug source")[0]
    return redact(head.rpartition(" - ")[2].rpartition("Generic ")[2])


def beyond_end(error: StoreError) -> bool:
    return error.details.get("status") == 416 or "Wanted range starting at" in error.message


def safe_cause(error: BaseException) -> BaseException | None:
    """The cause to keep: none, if its text could carry a credential."""
    return error if scrub(text := str(error)) == text and "Signature" not in text else None
