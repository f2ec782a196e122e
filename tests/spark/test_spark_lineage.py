"""The demo's workflow and code on Spark: every version that was read is an edge of the lineage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from swamp.models.context import RunContext
from swamp.repo.lineage import Lineage, lineage_of
from swamp.wiring import open_repo
from swamp.workflows.run import Driver

DEMO = Path(__file__).parents[2] / "demo" / "workflow"

CODE = """
id: 2f1c8a52-6f0e-4a53-9d1e-5b0f6f1f3a13
name: code
jobs:
  - name: all
    steps:
      - name: make
        task:
          type: model_method
          modelType: spark/python
          modelName: made
          methodName: run
          inputs:
            output: rows
            script: |
              import swamp.spark
              def run(spark, context):
                  native = swamp.spark.read(spark, "web", "first", repo=context.repo_dir)
                  asked = spark.read.format("swamp").option("repo", str(context.repo_dir))
                  other = asked.option("model", "web").option("name", "second").load()
                  context.read("web", "third")
                  return native.union(other)
"""


def edges(found: Lineage) -> set[tuple[str, str]]:
    def called(path: str) -> str:
        node = found.by_path[path]
        return f"{node.model}/{node.name}@{node.version}"

    return {(called(first), called(second)) for first, second in found.edges}


@pytest.mark.timeout(300)
def test_every_edge_of_the_demos_workflow(spark, shared_repo):
    shutil.copytree(DEMO, shared_repo, dirs_exist_ok=True)
    with open_repo(shared_repo) as repo:
        done = Driver(RunContext(repo)).start("nightly", {"regions": ["north", "south"]})
        assert done.status == "succeeded"
        found = lineage_of(repo, repo.data.get("revenue", "by_product"))
        assert edges(found) == {
            ("orders-north/orders.jsonl@1", "revenue/by_product@1"),
            ("orders-south/orders.jsonl@1", "revenue/by_product@1"),
        }
        for region in ("north", "south"):
            below = lineage_of(repo, repo.data.get(f"orders-{region}", "orders.jsonl"))
            assert [node.title for node in below.outputs] == ["revenue/by_product version 1"]
        output = repo.outputs.get(found.by_path[found.of].made_by["outputId"])
        assert len(output.inputs) == 2 and output.provenance.step_name == "revenue"


@pytest.mark.timeout(300)
def test_what_code_reads_with_sparks_own_words_is_noted(spark, shared_repo):
    import swamp

    (shared_repo / "workflows").mkdir(exist_ok=True)
    (shared_repo / "workflows" / "workflow-code.yaml").write_text(CODE)
    with swamp.open(shared_repo) as repo:
        for name in ("first", "second", "third"):
            repo.write("web", name, [{"n": 1}])
        done = Driver(RunContext(repo)).start("code", {})
        assert done.status == "succeeded", [step.error for _, step in done.steps]
        assert edges(repo.lineage("made", "rows", down=False)) == {
            (f"web/{name}@1", "made/rows@1") for name in ("first", "second", "third")
        }
