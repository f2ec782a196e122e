"""What a new user met: refusals that say what was refused, a log that names commands, waits that name the holder."""

from __future__ import annotations

import json
import re
import time

import pytest

from flows import flow, shell
from machines import Machine, Place, Team
from proxies import Proxy, proxy_to, refuse
from swamp.errors import AccessDenied
from swamp.store.explain import Endpoint as Store
from swamp.store.explain import Refusal, to_error

QUICK = {"SWAMP_REQUEST_TIMEOUT_MS": "2000", "SWAMP_DATASTORE_SYNC_TIMEOUT_MS": "4000", "SWAMP_LOCK_TIMEOUT_MS": "4000"}


# -- refusals


@pytest.fixture
def proxy(moto):
    with proxy_to(moto.endpoint) as made:
        yield made


def test_a_missing_right_is_told_with_what_was_refused_and_no_login(proxy: Proxy, moto, tmp_path, fresh_prefix):
    config = {**moto.config, "endpoint": proxy.endpoint}
    team = Team(tmp_path, Place(f"{moto.url}/{fresh_prefix()}", config, dict(moto.environ)))
    a = team.machine("a")
    a.put("web", "page", "x")
    proxy.when(lambda r: r.is_write and r.is_payload, refuse(403, "AccessDenied"))
    file = a.home / "owed"
    file.write_text("owed")
    error = a("data", "put", "web", "owed", str(file), env=QUICK).failed(69)
    assert re.search(r"PUT \S*(data|_packs)/\S+ was refused with HTTP 403: you may not write there", error["error"]), (
        error
    )
    assert "ask for the right to write" in error["hint"] and "login" not in json.dumps(error)
    assert error["details"]["verb"] == "PUT" and error["details"]["status"] == 403


@pytest.mark.parametrize(
    ("answer", "said", "hint"),
    [
        (Refusal("GET", "k", 403, "AccessDenied"), r"^GET k was refused with HTTP 403: you may not read", "ask for"),
        (
            Refusal("LIST", None, 403, "AccessDenied"),
            r"^LIST s3://b was refused with HTTP 403: you may not list",
            "ask",
        ),
        (Refusal("PUT", "k", 403, "ExpiredToken"), r"^PUT k was refused with HTTP 403: the session", "aws sso login"),
        (Refusal("GET", "k", 403, "InvalidAccessKeyId"), r"^GET k was refused .*: the session", "aws sso login"),
        (Refusal("GET", "k", 401), r"^GET k was refused with HTTP 401", "aws sso login"),
        (Refusal("GET", "k", 403, "RequestTimeTooSkewed"), r"^GET k was refused .* clock", "clock"),
        (Refusal("GET", "k", None, "NoCredentials"), r"^run `aws sso login.*no credentials", "aws sso login"),
    ],
)
def test_what_each_refusal_says(answer: Refusal, said: str, hint: str):
    error = to_error(Store("s3", "s3://b"), answer)
    assert isinstance(error, AccessDenied) and re.search(said, error.message), error.message
    assert error.hint is not None and hint in error.hint


# -- the log


def test_the_log_says_which_command_and_which_data(a: Machine):
    a.put("web", "page", "x")
    a.put("web", "other", "y")
    a("data", "delete", "web", "page", "--yes").ok()
    commits = a("log").ok()["items"]
    assert [c["command"] for c in commits[:3]] == ["data delete", "data put", "data put"]
    assert commits[0]["names"] == ["web/page"] and commits[1]["names"] == ["web/other"]
    text = a("datastore", "log", json=False).out
    assert "COMMAND" in text and "data delete" in text and "web/page" in text


# -- waiting


@pytest.mark.parametrize("where", ["bucket", "directory"])
def test_who_waits_for_a_lease_is_told_who_holds_it(local_team: Team, where: str):
    a = local_team.machine("a", joined=where == "bucket")
    a("model", "create", "command/shell", "slow", "--arg", "execute.run=touch running; sleep 6").ok()
    holder = a.start("model", "method", "run", "slow", "execute")
    while not (a.repo / "running").exists():
        time.sleep(0.1)
    second = a("model", "method", "run", "slow", "execute", "--input", "run=true")
    assert second.code == 0, second.err
    assert re.search(r"Waiting for the model command/shell/\S+, held by \S+@\S+ since 20", second.err), second.err
    assert holder.wait(timeout=60) == 0
    assert "Waiting" not in a("model", "method", "run", "slow", "execute", "--input", "run=true").err


# -- discovery


def test_a_discovery_is_told_to_people_too(local_team: Team, tmp_path):
    bucket = tmp_path / "bucket"
    (bucket / "outputs").mkdir(parents=True)
    (bucket / "outputs" / "old.yaml").write_text("id: x\n")
    a = local_team.machine("a", joined=False)
    told = a("datastore", "setup", *local_team.place.setup_args, json=False)
    assert told.code == 0 and "the store had no index, and one was made" in told.out, told


# -- doctor


def test_doctor_tells_only_what_it_repaired(a: Machine):
    a.put("web", "page", "x")
    a("data", "list").ok()
    assert a("datastore", "doctor", "--repair").json["repaired"] == []
    assert "Nothing had to be repaired" in a("datastore", "doctor", "--repair", json=False).out
    (a.repo / ".swamp" / "_catalog.db").write_bytes(b"not a database" * 100)
    a("datastore", "doctor", "--repair")
    assert a.names() == [("web", "page")]


# -- progress of a run


def test_steps_count_what_ran(a: Machine):
    flow(a, "some", shell("one", "true"), shell("never", "true", guard="false"), shell("two", "true"))
    a("run", "some").ok()
    [found] = a("workflow", "run", "search").ok()["items"]
    assert found["stepProgress"] == "2/3"


# -- names of what a script leaves


def test_what_a_script_leaves_is_called_as_its_file_and_twins_are_refused(a: Machine):
    (a.repo / "leave.py").write_text(
        "import os, pathlib, sys\nout = pathlib.Path(os.environ['SWAMP_OUTPUT_DIR'])\n"
        "(out / 'counts.json').write_text('{}')\n(out / 'orders.csv').write_text('a')\n"
        "if len(sys.argv) > 1: (out / 'counts').write_text('twin')\n"
    )
    a("model", "create", "python/script", "left", "--arg", "run.file=leave.py").ok()
    a("model", "method", "run", "left", "run").ok()
    assert {"counts", "orders.csv"} <= {name for model, name in a.names() if model == "left"}
    failed = a("model", "method", "run", "left", "run", "--input", 'args:json=["twin"]')
    assert failed.code == 1 and "would both be the data `counts`" in failed.json["error"]


# -- validation


def test_data_that_cannot_be_there_is_told_at_validation(a: Machine):
    a.put("website", "orders", "x")
    asks = "data.latest('{}', '{}').version > 0"

    def problems(model: str, name: str) -> list[dict[str, object]]:
        check = {"name": "check", "task": {"type": "assert", "expression": asks.format(model, name)}}
        each = shell("each", "true", forEach={"item": "h", "in": ["a"]})
        each["task"] = {**each["task"], "modelName": "host-${{ self.h }}"}  # type: ignore[dict-item]
        flow(a, "asks", shell("one", "echo ${{ " + asks.format(model, name) + " }}"), each, check)
        found = a("workflow", "validate", "asks").json["problems"]
        assert isinstance(found, list)
        return found

    for model, name in (("website", "orders"), ("website", "later"), ("m-one", "result"), ("host-x", "log")):
        assert problems(model, name) == [], (model, name)
    found = problems("websit", "orders")
    assert len(found) == 2 and "no model `websit`" in str(found[0]["message"]) and found[0]["suggestion"] == "website"
    found = problems("m-one", "resullt")
    assert "writes no data `resullt`" in str(found[0]["message"]) and found[0]["suggestion"] == "result"
    assert all("line" in problem for problem in found)


# -- whoever comes from Git


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("init", "did you mean `swamp repo init`?"),
        ("doctor", "did you mean `swamp datastore doctor`?"),
        ("get", "did you mean `swamp data get` or `swamp model get` or `swamp workflow get`?"),
        ("frobnicate", "see `swamp --help`"),
    ],
)
def test_a_command_without_its_group_is_told_where_it_is(tmp_path, typed: str, hint: str):
    error = Machine(tmp_path, tmp_path)(typed).failed(2)
    assert error["error"] == f"No such command '{typed}'." and error["hint"] == hint
