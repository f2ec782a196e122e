"""Spark steps: one application per run, inputs by data name, datasets as new versions that everyone can read."""

from __future__ import annotations

import os
import shutil

import pytest
from benches import shell

from machines import Machine, Team

pytestmark = pytest.mark.timeout(600)
SMALL = {"SWAMP_SPARK_MASTER": "local[1]"}

GENERATE = """
import json, os, pathlib
out = pathlib.Path(os.environ["SWAMP_OUTPUT_DIR"])
with (out / "events.jsonl").open("w") as file:
    for i in range(1000):
        file.write(json.dumps({"host": f"h{i % 4}", "ms": i}) + "\\n")
"""
INDENTED = GENERATE.replace("\n", "\n              ")

PIPELINE = f"""id: 5eba0000-0000-4000-8000-000000000001
name: pipeline
jobs:
  - name: generate
    steps:
      - name: events
        task:
          type: model_method
          modelType: python/script
          modelName: events
          methodName: run
          inputs:
            script: |{INDENTED}
      - name: note-${{{{ self.n }}}}
        forEach: {{item: n, in: [1, 2]}}
        task: {shell("note-${{ self.n }}", "echo note ${{ self.n }}")}
      - {{name: broken, allowFailure: true, task: {shell("broken", "exit 1")}}}
  - name: aggregate
    dependsOn: [{{job: generate}}]
    steps:
      - name: per-host
        task:
          type: model_method
          modelType: spark/sql
          modelName: per-host
          methodName: run
          inputs:
            query: SELECT host, count(*) AS n, CAST(sum(ms) AS BIGINT) AS ms FROM t GROUP BY host ORDER BY host
            inputs: {{t: events/events.jsonl}}
      - name: slowest
        task:
          type: model_method
          modelType: spark/python
          modelName: slowest
          methodName: run
          inputs:
            script: |
              def run(spark, context, limit):
                  frame = spark.sql("SELECT * FROM t WHERE ms >= 998")
                  context.write_resource("facts", {{"rows": frame.count(), "app": spark.sparkContext.applicationId}})
                  return frame.limit(limit)
            arguments: {{limit: 5}}
            inputs: {{t: {{model: events, name: events.jsonl, version: 1}}}}
            output: rows
      - name: wrong
        allowFailure: true
        task:
          type: model_method
          modelType: spark/sql
          modelName: wrong
          methodName: run
          inputs: {{query: SELECT nope FROM nowhere}}
  - name: check
    dependsOn: [{{job: aggregate}}]
    steps:
      - name: total
        task:
          type: model_method
          modelType: spark/sql
          modelName: total
          methodName: run
          inputs: {{query: SELECT sum(n) AS n FROM t, inputs: {{t: per-host/table}}}}
      - {{name: ok, task: {{type: assert, expression: "data.latest('slowest', 'facts').attributes.rows == 2"}}}}
"""


def rows_of(machine: Machine, model: str, name: str) -> list[dict]:
    import pyarrow.parquet as parquet

    target = machine.home / f"{model}-{name}"
    machine("data", "get", model, name, "--output", str(target)).ok()
    found: list[dict] = parquet.read_table(target).to_pylist()
    return found


@pytest.fixture(autouse=True)
def _java() -> None:
    if shutil.which("java") is None:
        required = "spark" in os.environ.get("SWAMP_REQUIRE", "").split(",")
        (pytest.fail if required else pytest.skip)("Spark needs Java 17 or newer")


def test_a_spark_step_on_the_embedded_default(machine: Machine):
    text = (
        PIPELINE.split("jobs:")[0]
        + """jobs:
  - name: j
    steps:
      - name: s
        task: {type: model_method, modelType: spark/sql, modelName: m, methodName: run, inputs: {query: SELECT 7 AS x}}
"""
    )
    (machine.repo / "workflows" / "workflow-pipeline.yaml").write_text(text)
    assert machine("workflow", "run", "pipeline", env=SMALL, timeout=500).ok()["status"] == "succeeded"
    assert rows_of(machine, "m", "table") == [{"x": 7}]


def test_a_workflow_with_spark_steps_and_a_reader_elsewhere(file_team: Team):
    writer = file_team.machine("writer")
    (writer.repo / "workflows" / "workflow-pipeline.yaml").write_text(PIPELINE)
    ran = writer("workflow", "run", "pipeline", env=SMALL, timeout=500)
    done = ran.ok()
    steps = {step["name"]: step for job in done["jobs"] for step in job["steps"]}
    assert done["status"] == "succeeded"
    assert (steps["broken"]["status"], steps["wrong"]["status"]) == ("failed", "failed")
    assert "TABLE_OR_VIEW_NOT_FOUND" in steps["wrong"]["error"]
    assert steps["per-host"]["dataArtifacts"] == [{"name": "table", "version": 1, "modelName": "per-host"}]
    reader = file_team.machine("reader")
    assert rows_of(reader, "per-host", "table") == [
        {"host": f"h{i}", "n": 250, "ms": sum(range(i, 1000, 4))} for i in range(4)
    ]
    assert sorted(row["ms"] for row in rows_of(reader, "slowest", "rows")) == [998, 999]
    assert rows_of(reader, "total", "table") == [{"n": 1000}]
    found = reader("data", "query", 'modelName == "per-host"').ok()["results"][0]
    assert found["contentType"] == "application/vnd.apache.parquet"
    assert (found["workflowRunId"], found["stepName"], found["ownerType"]) == (done["id"], "per-host", "model-method")
    assert reader("workflow", "run", "search").ok()["results"][0]["status"] == "succeeded"
