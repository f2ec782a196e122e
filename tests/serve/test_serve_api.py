"""The API: the documents of `--json`, described truthfully, and errors with the status that fits them."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from machines import Machine, Team
from serving import Serving, add_workflow, serving, until

GATE = """\
id: 00000000-0000-4000-8000-00000000aaaa
name: gate
jobs:
  - name: main
    steps:
      - {name: ask, task: {type: manual_approval, prompt: "Go on?"}}
      - name: after
        dependsOn: [{step: ask}]
        task:
          {type: model_method, modelType: command/shell, modelName: next, methodName: execute, inputs: {run: "true"}}
"""


def without_time(document: Any) -> Any:
    """What two answers a moment apart may differ in."""
    if isinstance(document, dict):
        return {
            k: without_time(v)
            for k, v in document.items()
            if k not in ("latencyMs", "next", "requests", "ageMs", "total", "fresh")
        }
    return [without_time(inner) for inner in document] if isinstance(document, list) else document


def test_the_documents_are_those_of_the_command_line(server: Serving) -> None:
    machine = server.machine
    machine.put("web", "page", "one")
    machine.put("web", "page", "two")
    run = server.deliver("one").json()["runId"]
    server.ended(run)
    pairs = {
        "/api/v1/data": ("data", "list"),
        "/api/v1/data/web/page": ("data", "get", "web", "page"),
        "/api/v1/data/web/page?version=1": ("data", "get", "web", "page", "--version", "1"),
        "/api/v1/data/web/page/versions/1": ("data", "get", "web", "page", "--version", "1"),
        "/api/v1/data/web/page/versions": ("data", "versions", "web", "page"),
        "/api/v1/datastore/locks": ("datastore", "lock", "status"),
        "/api/v1/datastore/log": ("datastore", "log"),
        "/api/v1/workflows": ("workflow", "list"),
        "/api/v1/workflows/deploy": ("workflow", "get", "deploy"),
        "/api/v1/models": ("model", "list"),
        "/api/v1/models/deploy-hello": ("model", "get", "deploy-hello"),
        "/api/v1/types": ("model", "type", "list"),
        "/api/v1/types/command/shell": ("model", "type", "describe", "command/shell"),
        f"/api/v1/runs/{run}": ("workflow", "history", "get", run),
    }
    for path, command in pairs.items():
        told, printed = without_time(server.get(path)), without_time(machine(*command).ok())
        assert {**told, **printed} == told, path
    status, printed = server.get("/api/v1/datastore/status"), machine.status()
    assert set(printed) <= set(status) and set(printed["cache"]) - {"path"} == set(status["cache"])
    assert status["seq"] == printed["seq"]


def test_every_documented_answer_is_a_real_one(machine: Machine) -> None:
    (machine.repo / "workflows" / "workflow-gate.yaml").write_text(GATE)
    with serving(machine) as server:
        document = server.get("/api/v1/openapi.json")
        run = server.deliver("one").json()["runId"]
        server.ended(run)
        first = server.ask("POST", "/api/v1/workflows/gate/runs")
        assert first.status_code == 202, first.text
        waiting = first.json()["id"]
        rejected = server.ask("POST", "/api/v1/workflows/gate/runs").json()["id"]
        for one in (waiting, rejected):
            until(lambda one=one: server.get(f"/api/v1/runs/{one}")["status"] == "suspended")
        asked = {
            ("put", "/api/v1/data/{model}/{name}"): ("/api/v1/data/web/page", {"data": b"hello"}),
            ("get", "/api/v1/data"): ("/api/v1/data", {}),
            ("get", "/api/v1/data/{model}/{name}"): ("/api/v1/data/web/page", {}),
            ("get", "/api/v1/data/{model}/{name}/versions"): ("/api/v1/data/web/page/versions", {}),
            ("get", "/api/v1/data/{model}/{name}/versions/{version}"): ("/api/v1/data/web/page/versions/1", {}),
            ("get", "/api/v1/data/{model}/{name}/versions/{version}/preview"): (
                "/api/v1/data/web/page/versions/1/preview", {}),
            ("get", "/api/v1/data/{model}/{name}/diff"): ("/api/v1/data/web/page/diff?from=1&to=1", {}),
            ("get", "/api/v1/data/{model}/{name}/lineage"): ("/api/v1/data/web/page/lineage?version=1", {}),
            ("post", "/api/v1/query"): ("/api/v1/query", {"json": {"predicate": "modelName == 'web'"}}),
            ("delete", "/api/v1/data/{model}/{name}"): ("/api/v1/data/web/page", {}),
            ("get", "/api/v1/datastore/status"): ("/api/v1/datastore/status", {}),
            ("post", "/api/v1/datastore/sync"): ("/api/v1/datastore/sync", {"json": {}}),
            ("get", "/api/v1/datastore/log"): ("/api/v1/datastore/log?limit=2", {}),
            ("get", "/api/v1/datastore/log/{seq}"): ("/api/v1/datastore/log/1", {}),
            ("get", "/api/v1/datastore/locks"): ("/api/v1/datastore/locks", {}),
            ("post", "/api/v1/datastore/locks/release"): ("/api/v1/datastore/locks/release", {"json": {}}),
            ("get", "/api/v1/datastore/conflicts"): ("/api/v1/datastore/conflicts", {}),
            ("get", "/api/v1/datastore/doctor"): ("/api/v1/datastore/doctor", {}),
            ("post", "/api/v1/datastore/undelete"): ("/api/v1/datastore/undelete", {"json": {"since": "1h"}}),
            ("get", "/api/v1/types"): ("/api/v1/types", {}),
            ("get", "/api/v1/types/{type}"): ("/api/v1/types/command/shell", {}),
            ("get", "/api/v1/models"): ("/api/v1/models", {}),
            ("get", "/api/v1/models/{model}"): ("/api/v1/models/deploy-hello", {}),
            ("get", "/api/v1/models/{model}/methods"): ("/api/v1/models/deploy-hello/methods", {}),
            ("post", "/api/v1/models/{model}/methods/{method}/run"): (
                "/api/v1/models/deploy-hello/methods/execute/run", {"json": {"inputs": {"run": "echo hi"}}}),
            ("get", "/api/v1/workflows"): ("/api/v1/workflows", {}),
            ("get", "/api/v1/workflows/{name}"): ("/api/v1/workflows/deploy", {}),
            ("post", "/api/v1/workflows/{name}/runs"): (
                "/api/v1/workflows/deploy/runs", {"json": {"inputs": {"ref": "x"}}}),
            ("post", "/api/v1/runs"): ("/api/v1/runs", {"json": {"workflow": "deploy"}}),
            ("get", "/api/v1/runs"): ("/api/v1/runs", {}),
            ("get", "/api/v1/runs/{run}"): (f"/api/v1/runs/{run}", {}),
            ("get", "/api/v1/runs/{run}/logs"): (f"/api/v1/runs/{run}/logs", {}),
            ("post", "/api/v1/runs/{run}/approve"): (f"/api/v1/runs/{waiting}/approve", {"json": {"reason": "yes"}}),
            ("post", "/api/v1/runs/{run}/reject"): (f"/api/v1/runs/{rejected}/reject", {"json": {}}),
            ("post", "/api/v1/runs/{run}/resume"): (f"/api/v1/runs/{rejected}/resume", {"json": {}}),
            ("get", "/api/v1/deliveries"): ("/api/v1/deliveries", {}),
            ("get", "/api/v1/deliveries/{delivery}"): ("/api/v1/deliveries/one", {}),
            ("post", "/api/v1/deliveries/replay"): ("/api/v1/deliveries/replay", {"json": {"id": "one"}}),
            ("get", "/api/v1/session"): ("/api/v1/session", {}),
        }  # fmt: skip
        for (method, template), (path, more) in asked.items():
            answer = server.ask(method.upper(), path, **more)
            described = document["paths"][template][method]["responses"]
            assert str(answer.status_code) in described, (method, path, answer.status_code, answer.text)
            check(document, described[str(answer.status_code)], answer.json())
        assert server.ended(waiting)["status"] == "succeeded", "approved runs go on by themselves"
        known = {(method, path) for path, found in document["paths"].items() for method in found}
        rest = known - set(asked)
        assert rest <= {
            ("get", "/api/v1/events"), ("post", "/hooks/{route}"), ("post", "/api/v1/session/logout"),
            ("post", "/api/v1/runs/{run}/cancel"), ("post", "/api/v1/datastore/conflicts/resolve"),
            ("get", "/api/v1/datastore/conflicts/compare"),
            ("get", "/api/v1/data/{model}/{name}/versions/{version}/content"), ("get", "/api/v1/schedules"),
        }, rest  # fmt: skip  # these have tests of their own


def check(document: dict[str, Any], described: dict[str, Any], answer: Any) -> None:
    schema = {**described["content"]["application/json"]["schema"], "components": document["components"]}
    jsonschema.Draft202012Validator(schema).validate(answer)


def test_errors_are_documents_with_the_status_that_fits(server: Serving) -> None:
    expected = {
        ("GET", "/api/v1/data/nobody/nothing"): (404, "not-found"),
        ("GET", "/api/v1/runs/none"): (404, "not-found"),
        ("GET", "/api/v1/runs?status=odd"): (400, "usage"),
        ("GET", "/api/v1/runs?limit=0"): (400, "usage"),
        ("GET", "/api/v1/runs?cursor=%00"): (400, "usage"),
        ("POST", "/api/v1/workflows/none/runs"): (404, "not-found"),
        ("POST", "/api/v1/runs/none/approve"): (404, "not-found"),
        ("PATCH", "/api/v1/data"): (405, "method-not-allowed"),
        ("GET", "/api/v1/none"): (404, "not-found"),
    }
    for (method, path), (status, code) in expected.items():
        answer = server.ask(method, path)
        assert (answer.status_code, answer.json()["code"]) == (status, code), (path, answer.text)
    answer = server.ask("POST", "/api/v1/workflows/deploy/runs", json={"inputs": {"ref": 3}})
    assert answer.status_code == 400 and "ref" in answer.json()["error"]


def test_content_is_streamed_with_ranges_and_never_run(server: Serving) -> None:
    page = b"<html><script>alert(1)</script>" + bytes(range(256)) * 100
    server.ask("PUT", "/api/v1/data/web/page", data=page, headers={"Content-Type": "text/html"})
    path = "/api/v1/data/web/page/versions/1/content"
    whole = server.ask("GET", path)
    assert whole.content == page
    assert whole.headers["content-type"].startswith("application/octet-stream")
    assert whole.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in whole.headers["content-security-policy"]
    part = server.ask("GET", path, headers={"Range": "bytes=5-14"})
    assert (part.status_code, part.content) == (206, page[5:15])
    assert server.ask("GET", path, headers={"Range": "bytes=999999-"}).status_code == 416
    assert server.ask("GET", path.replace("/1/", "/7/")).status_code == 404


def test_lists_are_paged_without_gaps(server: Serving) -> None:
    for number in range(7):
        server.ask("PUT", f"/api/v1/data/m{number}/n", data=b"x")
    names, cursor = [], ""
    while True:
        page = server.get(f"/api/v1/data?limit=3{cursor}")
        names += [item["modelName"] for item in page["items"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert names == [f"m{number}" for number in range(7)]
    ids = [server.deliver(f"d{n}").json()["runId"] for n in range(5)]
    for one in ids:
        server.ended(one)
    found = [item["id"] for item in server.runs(workflow="deploy", limit=2)]
    assert sorted(found) == sorted(ids)
    commits, cursor = [], ""
    while True:
        page = server.get(f"/api/v1/datastore/log?limit=4{cursor}")
        commits += [item["seq"] for item in page["items"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert commits == list(range(commits[0], 0, -1))


def paged(server: Serving, path: str) -> list[Any]:
    """Every item of a list, in pages of two."""
    found, cursor = [], ""
    while True:
        page = server.get(f"{path}?limit=2{cursor}")
        found += page["items"]
        if page["next"] is None:
            return found
        cursor = f"&cursor={page['next']}"


def test_the_log_is_paged_by_the_store_not_by_what_this_machine_knows_of_it(team: Team, server: Serving) -> None:
    """A machine that was behind counted the commits before a page by its own number, and ended the list early."""
    other = team.machine("other")
    for number in range(6):
        other.put("m", f"n{number}", "x")
        commits = [commit["seq"] for commit in paged(server, "/api/v1/datastore/log")]
        assert commits == list(range(commits[0], 0, -1))


def test_the_same_key_again_finds_the_same_run(server: Serving) -> None:
    key = {"Idempotency-Key": "once"}
    first, second = (server.ask("POST", "/api/v1/workflows/deploy/runs", headers=key) for _ in range(2))
    assert first.status_code == second.status_code == 202
    assert first.json()["id"] == second.json()["id"]
    server.ended(first.json()["id"])
    assert len(server.runs(workflow="deploy")) == 1


def test_cancelling_is_a_signal_and_the_record_says_so(machine: Machine) -> None:
    add_workflow(machine, run="sleep 600")
    with serving(machine) as server:
        run = server.ask("POST", "/api/v1/workflows/deploy/runs").json()["id"]
        until(lambda: server.get(f"/api/v1/runs/{run}")["status"] == "running")
        assert server.ask("POST", f"/api/v1/runs/{run}/cancel").json() == {"id": run, "status": "cancelling"}
        assert server.ended(run)["status"] == "cancelled"
        assert server.ask("POST", f"/api/v1/runs/{run}/cancel").status_code == 400


@pytest.mark.inv("conflict.kept")
def test_a_conflict_of_two_machines_is_shown_and_resolved(team, machine: Machine) -> None:
    """Two machines write the same record while one of them cannot push."""
    other = team.machine("b")
    machine.put("web", "page", "base")
    other.sync()
    for one, text in ((machine, "title\nmine\nmore\n"), (other, "title\ntheirs\n")):
        file = one.tree / "files" / "note.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    other("datastore", "sync", "--full")
    with serving(machine) as server:
        server.ask("POST", "/api/v1/datastore/sync", json={"full": True})
        [conflict] = until(lambda: server.get("/api/v1/datastore/conflicts")["items"])
        assert conflict["path"] == "files/note.txt" and conflict["choices"] == ["mine", "theirs"]
        compared = server.get("/api/v1/datastore/conflicts/compare", params={"id": conflict["id"]})
        [file] = compared["files"]
        assert (file["mineSize"], file["theirsSize"], file["text"], file["truncated"]) == (16, 13, True, False)
        assert [(row["change"], row["mine"], row["theirs"]) for row in file["rows"]] == [
            ("same", "title", "title"), ("changed", "mine", "theirs"), ("mine", "more", None)]  # fmt: skip
        document = server.get("/api/v1/openapi.json")
        check(document, document["paths"]["/api/v1/datastore/conflicts/compare"]["get"]["responses"]["200"], compared)
        assert server.ask("GET", "/api/v1/datastore/conflicts/compare?id=../../x").status_code == 404
        wrong = server.ask("POST", "/api/v1/datastore/conflicts/resolve", json={"id": "no", "keep": "mine"})
        assert wrong.status_code == 404
        done = server.ask("POST", "/api/v1/datastore/conflicts/resolve", json={"id": conflict["id"], "keep": "mine"})
        assert done.status_code == 200, done.text
        assert server.get("/api/v1/datastore/conflicts")["items"] == []
    other.sync()
    assert (other.tree / "files" / "note.txt").read_text() == "title\nmine\nmore\n"
