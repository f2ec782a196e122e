"""A foreign error becomes one of ours: with what to do, what was said, and no secret."""

from __future__ import annotations

import inspect
import pickle
import traceback

import google.api_core.exceptions
import google.auth.exceptions
import google.cloud.storage.exceptions
import obstore.exceptions
import pytest
import requests.exceptions

from servers.proxy import FaultProxy, Rule
from servers.start import BUCKET
from swamp.errors import (
    AccessDenied,
    ConditionFailed,
    Misconfigured,
    ObjectMissing,
    OutcomeUnknown,
    StoreError,
    Unavailable,
    UsageError,
)
from swamp.store import clients, explain, gcs
from swamp.store.explain import CONNECT, CUT, TIMEOUT, Endpoint, Refusal, to_error
from swamp.store.open import open_store
from swamp.store.retry import RetryPolicy
from swamp.testing.listen import free_port

QUICK = RetryPolicy(seconds=0.2)


def xml(code, message="no", more=""):
    return f"<Error><Code>{code}</Code><Message>{message}</Message>{more}<RequestId>REQ-7</RequestId></Error>".encode()


def answered(moto, status, body=b"", verb="GET", headers=None):
    """The error that an S3 answer becomes."""
    moto.open()
    rule = Rule("answer", times=None, status=status, body=body, headers=headers or {})
    with FaultProxy(moto.endpoint, [rule]) as proxy:
        store = open_store(f"{moto.url}/p", {"endpoint": proxy.endpoint}, policy=QUICK)
        calls = {
            "GET": lambda: store.get("k"),
            "HEAD": lambda: store.head("k"),
            "PUT": lambda: store.put("k", b"x"),
            "LIST": lambda: list(store.list()),
            "DELETE": lambda: store.delete(["k"]),
        }
        with pytest.raises(StoreError) as caught:
            calls[verb]()
        return caught.value


ANSWERS = [
    (403, "AccessDenied", AccessDenied, "ask for the right to "),
    (403, "InvalidAccessKeyId", AccessDenied, "run `aws sso login"),
    (403, "SignatureDoesNotMatch", AccessDenied, "run `aws sso login"),
    (400, "ExpiredToken", AccessDenied, "run `aws sso login"),
    (401, "Unauthorized", AccessDenied, "run `aws sso login"),
    (403, "RequestTimeTooSkewed", AccessDenied, "set this machine's clock"),
    (404, "NoSuchBucket", Misconfigured, "there is no bucket"),
    (301, "PermanentRedirect", Misconfigured, "wrong region"),
    (400, "AuthorizationHeaderMalformed", Misconfigured, "wrong region"),
    (501, "NotImplemented", Misconfigured, "does not support"),
    (400, "InvalidRequest", StoreError, "was refused"),
    (412, "PreconditionFailed", ConditionFailed, "somebody else first"),
    (409, "ConditionalRequestConflict", ConditionFailed, "somebody else first"),
]


@pytest.mark.inv("store.errors-mapped")
@pytest.mark.parametrize(("status", "code", "kind", "start"), ANSWERS)
@pytest.mark.parametrize("verb", ["GET", "PUT", "LIST"])
def test_an_answer_becomes_the_error_that_says_what_to_do(moto, status, code, kind, start, verb):
    error = answered(moto, status, xml(code), verb)
    assert type(error) is kind
    assert start in error.message and error.hint
    if kind is AccessDenied:
        assert error.message.startswith(verb) and f"was refused with HTTP {status}" in error.message
    if not (status == 301 and verb):
        assert error.details["code"] == code
    assert error.details["verb"] == verb and (verb == "LIST" or error.details["key"] == "p/k")


@pytest.mark.inv("store.errors-mapped")
@pytest.mark.parametrize(("code", "kind"), [("AccessDenied", AccessDenied), ("InternalError", Unavailable)])
def test_a_verdict_on_one_of_many_deletes_is_taken_apart(code, kind):
    """A policy without s3:DeleteObject was "try again later", for a minute: the answer as a whole is 200."""
    text = f"Generic S3 error: DeleteObjects request failed for key shop/a b: Denied (code: {code})"
    error = to_error(
        Endpoint("s3", "s3://b"), clients.read_refusal(obstore.exceptions.GenericError(text), "DELETE", "shop/a b")
    )
    assert type(error) is kind and error.details["code"] == code


@pytest.mark.inv("store.errors-mapped")
def test_status_code_request_id_and_key_are_kept(moto):
    error = answered(moto, 400, xml("KeyTooLongError", "Your key is too long"), "PUT")
    facts = {k: error.details[k] for k in ("status", "code", "requestId", "key")}
    assert facts == {"status": 400, "code": "KeyTooLongError", "requestId": "REQ-7", "key": "p/k"}
    assert all(part in error.message for part in ("400", "KeyTooLongError", "REQ-7", "Your key is too long"))
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.message, again.hint, again.details) == (
        type(error),
        error.message,
        error.hint,
        error.details,
    )


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429, 408])
def test_transient_answers_are_unknown_for_a_write_and_unavailable_for_a_read(moto, status):
    assert type(answered(moto, status, xml("SlowDown"), "PUT")) is OutcomeUnknown
    assert type(answered(moto, status, xml("SlowDown"), "GET")) is Unavailable
    assert type(answered(moto, status, b"", "LIST")) is Unavailable


def test_a_missing_bucket_is_never_a_missing_object(moto, servers):
    """Else a typo in the bucket's name would look like an empty store."""
    moto.open()
    other = open_store("s3://this-one-is-not-there", {"endpoint": moto.endpoint})
    for call in (lambda: other.get("k"), lambda: list(other.list()), lambda: other.put("k", b""), other.level):
        with pytest.raises(Misconfigured, match="there is no bucket at s3://this-one-is-not-there"):
            call()
    gone = open_store("gs://not-there", servers["gcs"].config)
    for call in (lambda: gone.get("k"), lambda: list(gone.list()), lambda: gone.put("k", b""), lambda: gone.head("k")):
        with pytest.raises(Misconfigured, match="there is no bucket at gs://not-there"):
            call()


def test_a_missing_azure_container_is_told(azurite):
    azurite.open()
    gone = open_store("az://not-there", azurite.config)
    for call in (lambda: gone.get("k"), lambda: list(gone.list()), lambda: gone.put("k", b"")):
        with pytest.raises(Misconfigured, match="there is no bucket at az://not-there"):
            call()


def test_the_right_region_is_named(moto):
    more = "<Region>eu-west-1</Region>"
    error = answered(moto, 400, xml("AuthorizationHeaderMalformed", "the region is wrong", more))
    assert "it lies in eu-west-1" in error.message and "eu-west-1" in (error.hint or "")
    said = "The authorization header is malformed; the region 'us-east-1' is wrong; expecting 'ap-south-1'"
    assert "ap-south-1" in answered(moto, 400, xml("AuthorizationHeaderMalformed", said)).message


@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
def test_an_unreachable_endpoint_is_told_quickly(moto, azurite, kind):
    moto.open(), azurite.open()
    nowhere = f"http://127.0.0.1:{free_port()}"
    store = open_store(f"{kind}://{BUCKET}/p", {"endpoint": nowhere})
    for call in (lambda: store.get("k"), lambda: store.put("k", b"x"), lambda: list(store.list())):
        with pytest.raises(Unavailable, match="cannot reach") as caught:
            call()
        assert type(caught.value) is Unavailable, "nothing was sent: that is no unknown outcome"
        assert nowhere in caught.value.message and "endpoint" in (caught.value.hint or "")


def test_a_host_that_does_not_exist_is_told(moto):
    moto.open()
    store = open_store(f"s3://{BUCKET}", {"endpoint": "http://nobody.invalid:1"}, policy=QUICK)
    with pytest.raises(Unavailable, match=r"(cannot reach|endpoint=).*nobody\.invalid"):
        store.get("k")


def test_https_to_a_plain_server_is_explained(moto):
    moto.open()
    store = open_store(f"s3://{BUCKET}", {"endpoint": moto.endpoint.replace("http:", "https:")}, policy=QUICK)
    with pytest.raises(Unavailable, match="TLS"):
        store.get("k")


BAD_URLS = [
    "",
    "bucket",
    "http://x/y",
    "s3://",
    "s3:///key",
    "ftp://b/k",
    "file://host/dir",
    "gs://b#f",
    "s3://b/a/../c",
]


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_bad_address_is_refused_with_the_right_forms(url):
    with pytest.raises((Misconfigured, UsageError)) as caught:
        open_store(url)
    assert caught.value.exit_code == 2 and caught.value.hint


@pytest.mark.parametrize(
    "config", [{"colour": "red"}, {"requestTimeoutMs": "soon"}, {"pushConcurrency": 0}, {"endpoint": "x"}]
)
def test_a_bad_configuration_is_refused(config):
    with pytest.raises(Misconfigured) as caught:
        open_store("s3://bucket", config)
    assert next(iter(config)) in caught.value.message + (caught.value.hint or "") or "endpoint" in caught.value.message


ASYNCHRONOUS_ONLY = {"AsyncRestUnsupportedParameterError"}


def classes_of(*modules):
    for module in modules:
        for name, found in inspect.getmembers(module, inspect.isclass):
            own = found.__module__ == module.__name__ and name not in ASYNCHRONOUS_ONLY
            if own and issubclass(found, Exception) and not issubclass(found, Warning):
                yield found


@pytest.mark.inv("store.errors-mapped")
def test_every_class_of_obstore_is_in_the_table():
    unmapped = [c for c in classes_of(obstore.exceptions) if c not in clients.FOREIGN and c.__name__ != "NotFoundError"]
    assert unmapped == []
    assert all(issubclass(c, clients.CAUGHT) for c in clients.FOREIGN)


@pytest.mark.inv("store.errors-mapped")
def test_every_class_of_the_google_client_is_in_the_table():
    modules = (google.api_core.exceptions, google.auth.exceptions, google.cloud.storage.exceptions, requests.exceptions)
    found = list(classes_of(*modules))
    assert len(found) > 40
    assert [c for c in found if not issubclass(c, tuple(gcs.FOREIGN))] == []
    assert [c for c in found if not issubclass(c, gcs.CAUGHT)] == []


@pytest.mark.inv("store.errors-mapped")
@pytest.mark.parametrize("number", sorted(explain.OS_ERRORS))
def test_every_refusal_of_the_system_has_a_next_step(number):
    import os

    error = explain.explain_os(OSError(number, os.strerror(number)), "file:///b", "k")
    assert isinstance(error, explain.OS_ERRORS[number][0]) and error.hint and error.details["code"].startswith("E")


@pytest.mark.parametrize(
    ("failure", "verb", "kind"),
    [
        (CONNECT, "PUT", Unavailable),
        (TIMEOUT, "PUT", OutcomeUnknown),
        (CUT, "PUT", OutcomeUnknown),
        (CONNECT, "GET", Unavailable),
        (TIMEOUT, "GET", Unavailable),
        (CUT, "LIST", Unavailable),
    ],
)
def test_without_a_status_the_kind_of_failure_decides(failure, verb, kind):
    assert type(to_error(Endpoint("s3", "s3://b"), Refusal(verb, "k", failure=failure))) is kind


def test_an_upload_that_is_gone_may_have_been_completed():
    """CompleteMultipartUpload, sent again after its answer was lost, is answered with NoSuchUpload."""
    error = to_error(Endpoint("s3", "s3://b"), Refusal("PUT", "k", 404, "NoSuchUpload"))
    assert type(error) is OutcomeUnknown


def test_conditions_of_vendors_are_one():
    for status, code in [(412, None), (304, None), (409, "BlobAlreadyExists"), (409, "ConditionalRequestConflict")]:
        assert type(to_error(Endpoint("azure", "az://c"), Refusal("PUT", "k", status, code))) is ConditionFailed
    assert type(to_error(Endpoint("azure", "az://c"), Refusal("PUT", "k", 409, "LeaseIdMissing"))) is StoreError
    assert type(to_error(Endpoint("s3", "s3://b"), Refusal("GET", "k", 404, "NoSuchKey"))) is ObjectMissing


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("s3", 'aws sso login --profile "work"'),
        ("gcs", "gcloud auth application-default login"),
        ("azure", "az login"),
    ],
)
def test_each_cloud_names_its_own_login(kind, command):
    error = to_error(Endpoint(kind, "x://b", "work"), Refusal("GET", "k", 401))
    assert type(error) is AccessDenied and error.message.startswith("GET k was refused with HTTP 401")
    assert command in error.message and error.hint is not None and command in error.hint


CANARY = "CANARY5ecret"


def shown(error):
    text = "".join(traceback.format_exception(error))
    return text + repr(error) + str(error.details) + str(error.hint)


def test_an_answer_that_quotes_the_signature_leaks_nothing(moto):
    body = xml(
        "SignatureDoesNotMatch",
        f"Signature={CANARY} Credential={CANARY}/20260101 x-amz-security-token={CANARY}",
        f"<AWSAccessKeyId>{CANARY}</AWSAccessKeyId><StringToSign>{CANARY}</StringToSign>"
        f"<SignatureProvided>{CANARY}</SignatureProvided>",
    )
    for verb in ("GET", "PUT", "LIST"):
        assert CANARY not in shown(answered(moto, 403, body, verb))


def test_credentials_appear_in_no_message_and_no_repr(moto, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", f"AKIA{CANARY}")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    monkeypatch.setenv("AWS_SESSION_TOKEN", f"token-{CANARY}")
    stores = [
        open_store(f"s3://{BUCKET}/p", {"endpoint": f"http://127.0.0.1:{free_port()}"}, policy=QUICK),
        open_store("s3://not-there", {"endpoint": moto.endpoint}, policy=QUICK),
    ]
    for store in stores:
        assert CANARY not in repr(store) + store.url
        for call in (lambda s=store: s.get("k"), lambda s=store: s.put("k", b""), lambda s=store: list(s.list())):
            with pytest.raises(StoreError) as caught:
                call()
            assert CANARY not in shown(caught.value)


def test_a_shared_access_signature_leaks_nothing(azurite, monkeypatch):
    secret = f"BlobEndpoint={azurite.endpoint};SharedAccessSignature=sv=2021-08-06&sig={CANARY}&se=2030-01-01"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", secret + ";AccountName=devstoreaccount1")
    store = open_store(f"az://{BUCKET}", policy=QUICK)
    for call in (lambda: store.get("k"), lambda: store.put("k", b""), lambda: list(store.list())):
        with pytest.raises(StoreError) as caught:
            call()
        assert CANARY not in shown(caught.value)
        assert isinstance(caught.value, AccessDenied) and " was refused" in caught.value.message


@pytest.mark.parametrize(
    "url", [f"s3://key:{CANARY}@bucket/p", f"s3://bucket/p?secret={CANARY}", f"s3://b?sig_token={CANARY}"]
)
def test_credentials_in_an_address_are_refused_and_not_repeated(url):
    with pytest.raises(Misconfigured) as caught:
        open_store(url)
    assert CANARY not in shown(caught.value)


@pytest.mark.parametrize(
    "name", ["secretAccessKey", "accessKeyId", "session_token", "accountKey", "sasToken", "password"]
)
def test_credentials_in_the_configuration_are_refused_and_not_repeated(name):
    with pytest.raises(Misconfigured, match="credentials do not belong") as caught:
        open_store("s3://bucket", {name: CANARY})
    assert CANARY not in shown(caught.value)
