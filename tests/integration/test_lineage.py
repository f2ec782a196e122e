"""What was made from what: recorded by runs and programs, asked on another machine."""

from __future__ import annotations

import http.server
import json
import os
import sys
import threading
from pathlib import Path

import jsonschema
import pytest

import swamp
from machines import Machine, Team
from swamp.data.metadata import Draft, Metadata, Owner, decode, encode

WORKFLOW = """
id: 2f1c8a52-6f0e-4a53-9d1e-5b0f6f1f3a12
name: chain
jobs:
  - name: all
    steps:
      - name: expression
        task: {type: model_method, modelType: command/shell, modelName: said, methodName: execute,
               inputs: {run: "echo ${{ data.latest('web', 'config').attributes.word }}"}}
      - name: script
        task:
          type: model_method
          modelType: python/script
          modelName: scripted
          methodName: run
          inputs:
            script: |
              import os, pathlib, swamp
              with swamp.open() as repo:
                  words = repo.read("web", "words", version=1).text()
                  repo.write("web", "aside", words.upper())
              (pathlib.Path(os.environ["SWAMP_OUTPUT_DIR"]) / "count.json").write_text(str(len(words)))
      - name: shell
        task: {type: model_method, modelType: command/shell, modelName: shelled, methodName: execute,
               inputs: {run: "swamp data cat web words > /dev/null && echo hi | swamp data put web piped -"}}
      - name: each-${{ self.host }}
        forEach: {item: host, in: "${{ data.latest('web', 'hosts').attributes.hosts }}"}
        task: {type: model_method, modelType: command/shell, modelName: "each-${{ self.host }}", methodName: execute,
               inputs: {run: "echo ${{ self.host }}"}}
      - name: asked
        dependsOn: [{step: expression}]
        task: {type: model_method, modelType: command/shell, modelName: asked, methodName: execute,
               inputs: {run: "echo ${{ size(data.query('modelName == \\"said\\" && name == \\"result\\"')) }}"}}
"""


@pytest.fixture
def two(local_team: Team, monkeypatch) -> tuple[Machine, Machine]:
    a, b = local_team.machine("a"), local_team.machine("b")
    for name, value in a.environment().items():
        if name != "PATH":
            monkeypatch.setenv(name, value)
    return a, b


def edges(document: dict) -> set[tuple[str, str]]:
    def called(one: dict) -> str:
        return f"{one['modelName']}/{one['name']}@{one['version']}"

    return {(called(edge["from"]), called(edge["to"])) for edge in document["edges"]}


FACET = {"type": "object", "required": ["_producer", "_schemaURL"]}
DATASET = {
    "type": "object",
    "required": ["namespace", "name"],
    "properties": {
        "namespace": {"type": "string"},
        "name": {"type": "string"},
        "facets": {"additionalProperties": FACET},
    },
    "additionalProperties": False,
}
JOB = {"type": "object", "required": ["namespace", "name"], "additionalProperties": {"type": "string"}}
RUN_EVENT = {
    "type": "object",
    "required": ["eventTime", "producer", "schemaURL", "run", "job"],
    "properties": {
        "eventType": {"enum": ["START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"]},
        "eventTime": {"type": "string", "format": "date-time"},
        "producer": {"type": "string", "format": "uri"},
        "schemaURL": {"pattern": "^https://openlineage.io/spec/2-0-2/OpenLineage.json#/\\$defs/RunEvent$"},
        "run": {
            "type": "object",
            "required": ["runId"],
            "properties": {
                "runId": {"type": "string", "format": "uuid"},
                "facets": {"additionalProperties": FACET, "properties": {"parent": {"required": ["run", "job"]}}},
            },
            "additionalProperties": False,
        },
        "job": JOB,
        "inputs": {"type": "array", "items": DATASET},
        "outputs": {"type": "array", "items": DATASET},
    },
    "additionalProperties": False,
}
"""What the specification 2-0-2 asks of a RunEvent. `openlineage-python` 1.54 reads the same events without complaint;
it ships classes and no schema, and would bring ten packages."""


def check_event(event: dict) -> None:
    jsonschema.validate(event, RUN_EVENT, format_checker=jsonschema.FormatChecker())


def test_a_workflow_records_what_its_steps_read_and_every_machine_can_tell(two):
    a, b = two
    env = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    with swamp.open(a.repo) as repo:
        repo.write("web", "config", {"word": "hello"})
        repo.write("web", "words", "one")
        repo.write("web", "words", "two")
        repo.write("web", "hosts", {"hosts": ["x", "y"]})
    (a.repo / "workflows").mkdir(exist_ok=True)
    (a.repo / "workflows" / "workflow-chain.yaml").write_text(WORKFLOW)
    events = a.home / "events.jsonl"
    a("workflow", "run", "chain", env={**env, "SWAMP_LINEAGE_TO": str(events)}).ok()

    found = b("data", "lineage", "web", "config").ok()
    assert edges(found) == {
        ("web/config@1", "said/result@1"),
        ("web/config@1", "said/log@1"),
        ("said/result@1", "asked/result@1"),
        ("said/result@1", "asked/log@1"),
    }
    assert edges(b("data", "lineage", "web", "config", "--depth", "1").ok()) == {
        ("web/config@1", "said/result@1"),
        ("web/config@1", "said/log@1"),
    }
    assert edges(b("data", "lineage", "scripted", "count", "--up").ok()) == {("web/words@1", "scripted/count@1")}
    assert edges(b("data", "lineage", "web", "aside", "--up").ok()) == {("web/words@1", "web/aside@1")}
    assert edges(b("data", "lineage", "web", "piped", "--up").ok()) == {("web/words@2", "web/piped@1")}
    assert edges(b("data", "lineage", "shelled", "result", "--up").ok()) == {("web/words@2", "shelled/result@1")}
    assert ("web/hosts@1", "each-y/result@1") in edges(b("data", "lineage", "web", "hosts", "--down").ok())
    made = next(node for node in found["nodes"] if node["modelName"] == "asked")
    assert made["madeBy"]["workflowName"] == "chain" and made["madeBy"]["stepName"] == "asked"

    output = b("model", "output", "get", made["madeBy"]["outputId"]).ok()
    assert [(one["modelName"], one["name"]) for one in output["inputs"]] == [("said", "result")]
    told = [json.loads(line) for line in events.read_text().splitlines()]
    ended = {event["job"]["name"]: event for event in told if event["eventType"] == "COMPLETE"}
    assert len(told) == 12 and ended["chain.script"]["inputs"][0]["name"] == "web/words"
    assert ended["chain.script"]["inputs"][0]["facets"]["version"]["datasetVersion"] == "1"
    assert {"scripted/count", "scripted/result"} <= {one["name"] for one in ended["chain.script"]["outputs"]}
    assert ended["chain.script"]["run"]["facets"]["parent"]["job"]["name"] == "chain"
    for event in told:
        check_event(event)


def test_a_program_says_what_a_version_was_made_from(two):
    a, b = two
    with swamp.open(a.repo) as repo:
        raw = repo.write("web", "raw", "1")
        assert repo.lineage("web", "raw").inputs == ()
        repo.read("web", "raw")
        repo.write("web", "clean", "2")
        clean = repo.read("web", "clean")
        repo.write("web", "report", "3", inputs=[clean])
        repo.write("web", "alone", "4", inputs=[])
        found = repo.lineage("web", "clean")
        assert [node.title for node in found.inputs] == ["web/raw version 1"]
        assert [node.title for node in found.outputs] == ["web/report version 1"]
        assert "made from 1, used by 1" in repr(found) and "web/raw" in found._repr_html_()
        assert raw.reference["path"] == found.inputs[0].path
        assert repo.lineage("web", "alone").edges == ()
    text = b("data", "lineage", "web", "report", json=False).out
    assert text == "web/report version 1\n  made from:\n    web/clean version 1\n      web/raw version 1\n"
    drawn = b("data", "lineage", "web", "raw", "--format", "mermaid", json=False).out
    assert drawn.startswith("flowchart LR") and drawn.count("-->") == 2
    lines = b("data", "lineage", "web", "raw", "--format", "openlineage", json=False).out.splitlines()
    assert [json.loads(line)["outputs"][0]["name"] for line in lines] == ["web/clean", "web/report"]
    assert b("data", "lineage", "web", "raw", "--format", "json", json=False).out.startswith("{")
    b("data", "lineage", "web", "raw", "--format", "dot").failed(2)
    # What was deleted since is still named.
    b("data", "delete", "web", "raw", "--yes").ok()
    gone = b("data", "lineage", "web", "report").ok()
    assert [node["here"] for node in gone["nodes"] if node["name"] == "raw"] == [False]


def test_a_kept_put_keeps_what_it_was_made_from(two, local_team: Team):
    a, b = two
    bucket = Path(local_team.place.url.removeprefix("file://"))
    with swamp.open(a.repo) as repo:
        repo.write("web", "raw", "1")
        repo.read("web", "raw")
        bucket.rename(bucket.with_name("away"))
        with pytest.raises(swamp.errors.Unavailable):
            repo.write("web", "clean", "2")
        bucket.with_name("away").rename(bucket)
    a.sync()
    assert edges(b("data", "lineage", "web", "clean").ok()) == {("web/raw@1", "web/clean@1")}


def test_events_go_to_a_url_and_one_that_is_away_fails_no_run(two):
    a, _ = two
    got: list[dict] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(201)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    a("model", "create", "command/shell", "disk").ok()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/api/v1/lineage"
        run = ("model", "method", "run", "disk", "execute", "--input")
        a(*run, "run=exit 1", env={"SWAMP_LINEAGE_TO": url})
        server.shutdown()
    assert [event["eventType"] for event in got] == ["START", "FAIL"]
    for event in got:
        check_event(event)
    assert got[1]["run"]["facets"]["errorMessage"]["message"] and got[1]["job"]["name"] == "disk.execute"
    done = a(*run, "run=true", env={"SWAMP_LINEAGE_TO": url})
    assert done.code == 0 and "was not sent" in done.err


def test_metadata_with_inputs_is_read_by_those_who_know_them_not_and_odd_ones_are_no_damage():
    read = {"name": "raw", "version": 3, "modelName": "web", "path": "data/manual/data/m-1/raw/3"}
    draft = Draft(Owner("manual", "m-1"), inputs=(read,), output_id="o-1")
    meta = Metadata("i", "clean", 1, draft, "2026-11-17T12:00:00.000Z", 1, "00")
    again = decode(encode(meta), "data/manual/data/m-1/clean/1/metadata.yaml")
    assert again == meta and again.extra == {}
    for odd in (b"inputs: {a: b}\n", b"inputs: [1, {path: x}]\n", b"inputs: text\n"):
        plain = encode(Metadata("i", "clean", 1, Draft(Owner("manual", "m-1")), meta.created_at, 1, "00"))
        assert decode(plain + odd, "x").draft.inputs == ()
