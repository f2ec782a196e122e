"""An address, the configuration and the standard login chains become a store; nothing is imported in vain."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from servers.start import BUCKET
from swamp.errors import AccessDenied, Misconfigured
from swamp.store.login import aws_login, azure_login
from swamp.store.open import StoreSpec, open_store, parse_target
from swamp.testing.running import ACCESS, SECRET


def modules_after(code):
    login = "os.environ['AWS_ACCESS_KEY_ID'] = os.environ['AWS_SECRET_ACCESS_KEY'] = 'x'"
    told = "print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    script = f"import sys, json, os\n{login}\n{code}\n{told}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stdout))


HEAVY = {"google", "azure", "pyarrow", "pandas", "pyspark", "boto3", "botocore", "arro3", "requests", "obstore"}


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("import swamp.store.open", set()),
        ("import swamp.store.open as o, tempfile; o.open_store('file://' + tempfile.mkdtemp()).put('k', b'x')", set()),
        ("import swamp.store.open as o; o.open_store('memory://m').put('k', b'x')", {"obstore"}),
        ("import swamp.store.open as o; o.open_store('s3://b', {'endpoint': 'http://127.0.0.1:1'})", {"obstore"}),
        ("import swamp.store.probe, swamp.store.layers, swamp.store.retry", set()),
    ],
)
def test_clients_that_are_not_used_are_not_imported(code, allowed):
    assert modules_after(code) & HEAVY <= allowed


def test_a_spec_survives_pickling_and_opens_the_same_place(fresh_prefix):
    spec = StoreSpec(f"memory://{fresh_prefix()}/team", {"requestTimeoutMs": 500}, "ns")
    spec.open().put("k", b"x")
    again = pickle.loads(pickle.dumps(spec))
    assert again == spec and again.open().get("k").body == b"x"
    assert open_store(spec.url).get("ns/k").body == b"x"


def test_the_types_of_the_command_line_are_addresses():
    config = {"bucket": "b", "prefix": "team/data", "region": "eu-west-1"}
    target = parse_target("@swamp/s3-datastore", config)
    assert (target.kind, target.bucket, target.prefix) == ("s3", "b", "team/data")
    assert parse_target("@swamp/gcs-datastore", {"bucket": "b"}).kind == "gcs"
    assert parse_target("@swamp/azure-datastore", {"container": "c"}).bucket == "c"
    with pytest.raises(Misconfigured):
        parse_target("@swamp/s3-datastore", {})


def test_an_address_says_where_it_is_and_opens_again(moto):
    moto.open()
    store = open_store(f"{moto.url}/team/data", moto.config)
    assert store.url == f"s3://{BUCKET}/team/data?endpoint={moto.endpoint}"
    store.put("k", b"x")
    assert open_store(store.url).get("k").body == b"x"


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_the_endpoint_comes_from_the_environment_too(moto, monkeypatch, fresh_prefix, name):
    moto.open()
    monkeypatch.setenv(name, moto.endpoint)
    store = open_store(f"s3://{BUCKET}/{fresh_prefix()}")
    store.put("k", b"x")
    assert moto.endpoint in store.url


def test_the_emulator_of_google_comes_from_the_environment(gcs, monkeypatch, fresh_prefix):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.endpoint.removeprefix("http://"))
    store = open_store(f"gs://{BUCKET}/{fresh_prefix()}")
    store.put("k", b"x")
    assert store.get("k").body == b"x" and gcs.endpoint in store.url


@pytest.fixture
def no_login(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "config").write_text(
        "[default]\nregion = eu-north-1\n[profile work]\nregion = eu-west-3\n[profile roles]\nrole_arn = arn:x\n"
    )
    (tmp_path / "credentials").write_text(
        f"[default]\naws_access_key_id = wrong-one\naws_secret_access_key = wrong\n"
        f"[work]\naws_access_key_id = {ACCESS}\naws_secret_access_key = {SECRET}\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return tmp_path


def test_profiles_of_the_shared_credentials_file_log_in(rclone, no_login, monkeypatch, fresh_prefix):
    """rclone checks signatures: the wrong profile is refused, the right one works."""
    with pytest.raises(AccessDenied, match='aws sso login --profile "default"'):
        open_store(f"{rclone.url}/{fresh_prefix()}", rclone.config).put("k", b"x")
    monkeypatch.setenv("AWS_PROFILE", "work")
    store = open_store(f"{rclone.url}/{fresh_prefix()}", rclone.config)
    store.put("k", b"x")
    assert store.get("k").body == b"x"


def test_the_environment_wins_over_profiles(no_login):
    env = {"AWS_ACCESS_KEY_ID": "a", "AWS_PROFILE": "work", "AWS_CONFIG_FILE": str(no_login / "config")}
    login = aws_login(env | {"AWS_SHARED_CREDENTIALS_FILE": str(no_login / "credentials")})
    assert login.settings == {} and (login.profile, login.region) == ("work", "eu-west-3")
    assert SECRET not in repr(
        aws_login({"AWS_PROFILE": "work"} | {"AWS_SHARED_CREDENTIALS_FILE": str(no_login / "credentials")})
    )


def test_a_profile_that_does_not_exist_is_told(no_login, monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(Misconfigured, match='no AWS profile "nobody"'):
        open_store("s3://b")


def test_without_any_login_it_says_what_to_do(no_login, monkeypatch):
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(AccessDenied, match=r'^run `aws sso login --profile "default"`.*no credentials were found'):
        open_store("s3://b")


def test_a_role_without_boto_says_what_to_do(no_login, monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "boto3" else real(name, *a))
    monkeypatch.setenv("AWS_PROFILE", "roles")
    with pytest.raises(AccessDenied, match=r"^run `eval .*--profile roles"):
        open_store("s3://b")


def test_azure_connection_strings(azurite, monkeypatch, fresh_prefix):
    store = azurite.open(fresh_prefix())
    store.put("k", b"x")
    login = azure_login(dict(azurite.environ))
    assert login.endpoint == azurite.endpoint and "AccountKey" not in repr(login)
    emulator = azure_login({"AZURE_STORAGE_CONNECTION_STRING": "UseDevelopmentStorage=true"})
    assert emulator.endpoint == "http://127.0.0.1:10000/devstoreaccount1"
    china = "AccountName=acc;AccountKey=a2V5;EndpointSuffix=core.chinacloudapi.cn"
    assert azure_login({"AZURE_STORAGE_CONNECTION_STRING": china}).endpoint == "https://acc.blob.core.chinacloudapi.cn"
    with pytest.raises(Misconfigured):
        azure_login({"AZURE_STORAGE_CONNECTION_STRING": "nonsense"})


def test_azure_without_an_account_asks_for_one(monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
    with pytest.raises(Misconfigured, match="which storage account"):
        open_store("az://container", environ={})


def test_one_memory_name_is_one_store(fresh_prefix):
    name = fresh_prefix()
    open_store(f"memory://{name}").put("k", b"x")
    assert open_store(f"memory://{name}").get("k").body == b"x"
    assert list(open_store(f"memory://{name}2").list()) == []


REQUEST = """
import os, sys
from pathlib import Path
from swamp.errors import Unavailable
from swamp.store.open import open_store
os.cpu_count = lambda: 2
store = open_store("s3://bucket?endpoint=http://127.0.0.1:9")

def ask():
    try:
        store.head("key")
    except Unavailable:
        return
    raise SystemExit("nobody listens there")
"""
THREADS = """
ask()
names = [(p / "comm").read_text().strip() for p in Path("/proc/self/task").iterdir()]
print(names.count("tokio-rt-worker"), os.environ.get("TOKIO_WORKER_THREADS"))
"""
FORKED = """
if os.fork() == 0:
    ask()
    os._exit(7)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def run_script(code, asked=None):
    environment = {k: v for k, v in os.environ.items() if k != "TOKIO_WORKER_THREADS"}
    environment |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    environment |= {"TOKIO_WORKER_THREADS": asked} if asked else {}
    command = [sys.executable, "-c", REQUEST + code]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
@pytest.mark.parametrize(("asked", "found"), [(None, "1 None"), ("3", "3 3")])
def test_the_client_has_one_thread_on_two_cores_or_as_many_as_the_user_says(asked, found):
    assert run_script(THREADS, asked) == found


def test_who_has_opened_a_store_may_still_fork():
    """The client's threads start with the first request: in the child they would be missing."""
    assert run_script(FORKED) == "7"
