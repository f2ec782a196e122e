"""Canaries instead of credentials, in every place where credentials can be, and then a search through everything."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest

from jobs import require_java
from machines import Machine, Place, Ran, Team

AWS, TOKEN, AZURE = (
    "canaryAWSsecret0123456789abcdefghijklmnop",
    "canarySESSIONtoken0123456789",
    "canaryAZUREkey0123456789abcdef",
)
PASSWORD, INPUT, HIDDEN = (
    "canaryPASSWORD-of-the-database",
    "canaryINPUT-typed-by-hand",
    "canaryENV-without-a-telling-name",
)
AZURE_KEY = base64.b64encode(AZURE.encode()).decode()
CANARIES = (AWS, TOKEN, AZURE, AZURE_KEY, PASSWORD, INPUT, HIDDEN)
WORKFLOW = """id: 3c1de7b0-6c35-4b21-9a5e-2f6f5d9f0a12
name: leaky
inputs: {type: object, properties: {pin: {type: string, writeOnly: true}}}
jobs:
  - name: j
    steps:
      - name: says
        task: {type: model_method, modelType: command/shell, modelName: says, methodName: execute,
          inputs: {run: "echo said $DB_PASSWORD and ${{ env.PLAIN }} and ${{ inputs.pin }}; env"}}
      - name: fails
        allowFailure: true
        task: {type: model_method, modelType: command/shell, modelName: fails, methodName: execute,
          inputs: {run: "echo failed $DB_PASSWORD ${{ env.PLAIN }} >&2; exit 3"}}
      - name: breaks
        allowFailure: true
        task: {type: assert, expression: "env.PLAIN == 'x' && int(env.DB_PASSWORD) > 1"}
"""


@pytest.fixture
def machine(moto, tmp_path, fresh_prefix) -> Machine:
    login = {**moto.environ, "AWS_SECRET_ACCESS_KEY": AWS, "AWS_SESSION_TOKEN": TOKEN}
    made = Team(tmp_path, Place(f"{moto.url}/{fresh_prefix()}", dict(moto.config), login)).machine("a")
    made.env |= {"DB_PASSWORD": PASSWORD, "PLAIN": HIDDEN}
    return made


def leaks(place: Path) -> list[str]:
    """Every file below that holds a canary."""
    files = [p for p in place.rglob("*") if p.is_file()]
    return [str(p) for p in files if any(c.encode() in p.read_bytes() for c in CANARIES)]


def clean(ran: Ran) -> Ran:
    found = [c for c in CANARIES if c in ran.out + ran.err]
    assert not found, f"{ran.args} says {found}:\n{ran.out}\n{ran.err}"
    return ran


@pytest.mark.inv("secrets.never-written")
def test_no_credential_is_written_or_said_anywhere(machine: Machine, moto, tmp_path):
    (machine.repo / "workflows" / "workflow-leaky.yaml").write_text(WORKFLOW)
    ran = clean(machine("workflow", "run", "leaky", "--input", f"pin={INPUT}", "-v"))
    assert ran.json["status"] == "succeeded", ran.out
    said = json.loads(machine.get("says", "result")["content"])["stdout"]
    assert said.startswith("said *** and *** and ***"), said
    for words in (
        ("data", "get", "says", "log"),
        ("model", "output", "logs", "says"),
        ("model", "output", "get", "fails"),
        ("workflow", "history", "get", ran.json["id"]),
        ("data", "query", "size >= 0", "--select", "attributes"),
        ("datastore", "status"),
        ("datastore", "doctor"),
        ("datastore", "log"),
    ):
        clean(machine(*words))
    place = Place(
        json.loads(machine("datastore", "status").out)["url"].partition("?")[0], dict(moto.config), machine.env
    )
    stored = place.objects()
    assert len(stored) > 5 and not [k for k, body in stored.items() if any(c.encode() in body for c in CANARIES)]
    assert leaks(tmp_path) == []


@pytest.mark.inv("secrets.never-written")
def test_no_error_repeats_a_credential(machine: Machine, moto, tmp_path):
    """Also with -v, which shows where an error came from."""
    wrong = {"endpoint": "http://127.0.0.1:9", "requestTimeoutMs": 300}
    connection = (
        f"DefaultEndpointsProtocol=http;AccountName=x;AccountKey={AZURE_KEY};BlobEndpoint=http://127.0.0.1:9/x;"
    )
    quick = {"SWAMP_REQUEST_TIMEOUT_MS": "300", "SWAMP_DATASTORE_SYNC_TIMEOUT_MS": "500"}
    for words, env in (
        (("s3://elsewhere/x", "--config", json.dumps(wrong)), {}),
        (("az://elsewhere/x",), {"AZURE_STORAGE_CONNECTION_STRING": connection}),
        (("az://elsewhere/x",), {"AZURE_STORAGE_CONNECTION_STRING": f"AccountKey={AZURE_KEY}"}),
        ((f"s3://user:{AWS}@bucket/x",), {}),
        (("s3://bucket/x", "--config", json.dumps({"secretAccessKey": AWS, "region": "us-east-1"})), {}),
        (("s3://bucket/x", "--config", json.dumps({"endpoint": f"http://user:{AWS}@127.0.0.1:9"})), {}),
    ):
        for verbose in ((), ("-v",)):
            ran = clean(machine("datastore", "setup", *words, *verbose, env={**quick, **env}, timeout=60))
            assert ran.code in (1, 2, 69), ran
    assert leaks(tmp_path) == []


LISTED = """
import swamp
from swamp.bulk.session import open_session, stop_session
from swamp.bulk.settings import resolve_settings

with swamp.open_repo() as repo:
    session = open_session(resolve_settings(repo.settings.spark))
    print([tuple(row) for row in session.sql("SET").collect()])
    stop_session(session)
"""


@pytest.mark.inv("secrets.never-written")
@pytest.mark.timeout(600)
def test_no_credential_is_in_the_configuration_of_spark(machine: Machine, tmp_path):
    """Every property of the session that swamp opens, as a user's own program can list them; and its log."""
    require_java()
    words = [sys.executable, "-c", LISTED]
    told = subprocess.run(
        words, cwd=machine.repo, env=machine.environment(), capture_output=True, text=True, timeout=500
    )
    shown = clean(Ran(tuple(words), told.returncode, told.stdout, told.stderr))
    assert shown.code == 0 and "spark.master" in shown.out, shown
    assert leaks(tmp_path) == []
