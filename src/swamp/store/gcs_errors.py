"""Takes the Google client's errors apart: the one table of this adapter."""

from __future__ import annotations

from typing import Any, Final

from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.cloud.storage import exceptions as media
from requests import exceptions as http
from urllib3 import exceptions as wire

from swamp.store.explain import CONNECT, CUT, TIMEOUT, Refusal

# inv[store.errors-mapped]: what each foreign class means when it carries no HTTP status: a failure or a code.
FOREIGN: Final[dict[type[BaseException], tuple[str | None, str | None]]] = {
    api.GoogleAPIError: (CUT, None),
    auth.GoogleAuthError: (None, "NoCredentials"),
    auth.RefreshError: (None, "ExpiredToken"),
    auth.TransportError: (CONNECT, None),
    media.InvalidResponse: (CUT, None),
    media.DataCorruption: (CUT, None),
    media.InvalidPathError: (None, "InvalidPath"),
    http.RequestException: (CUT, None),
    http.ConnectTimeout: (CONNECT, None),
    http.Timeout: (TIMEOUT, None),
    http.ConnectionError: (CUT, None),
    http.InvalidURL: (CONNECT, None),
    wire.HTTPError: (CUT, None),
    wire.ReadTimeoutError: (TIMEOUT, None),
}
_NEVER_CONNECTED: Final = (
    "NewConnectionError",
    "NameResolutionError",
    "ConnectTimeout",
    "Connection refused",
    "SSLError",
)
CAUGHT: Final = tuple(FOREIGN)


def read_refusal(error: BaseException, verb: str, key: str | None) -> Refusal:
    """Takes an error of the Google client apart."""
    response = getattr(error, "response", None)
    if response is not None and getattr(response, "status_code", None):
        return read_response(response, verb, key)
    failure, code = next((FOREIGN[c] for c in type(error).__mro__ if c in FOREIGN), (CUT, None))
    if isinstance(error, http.ConnectionError) and any(sign in str(error) for sign in _NEVER_CONNECTED):
        failure = CONNECT
    status = getattr(error, "code", None)
    return Refusal(verb, key, status if isinstance(status, int) else None, code, failure=failure)


def read_response(response: Any, verb: str, key: str | None) -> Refusal:
    code, text = _reason(response)
    if "bucket does not exist" in text.lower():
        code = "NoSuchBucket"
    after = response.headers.get("Retry-After", "")
    return Refusal(
        verb,
        key,
        response.status_code,
        code,
        text.partition("\n")[0],
        response.headers.get("X-GUploader-UploadID"),
        retry_after=float(after) if after.isdigit() else None,
    )


def _reason(response: Any) -> tuple[str | None, str]:
    """Google's own reason and message: in JSON, except for media, where the message is all there is."""
    try:
        error = response.json()["error"]
        return str(error["errors"][0]["reason"]), str(error["message"])
    except (KeyError, TypeError, IndexError, ValueError):
        return None, str(response.text)
    except (http.RequestException, wire.HTTPError):
        return None, ""


def safe_cause(error: BaseException) -> BaseException | None:
    """Authentication errors can quote tokens: they are not kept as a cause."""
    return None if isinstance(error, auth.GoogleAuthError) else error
