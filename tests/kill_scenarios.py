"""The commands of the kill -9 matrix: how each is prepared, what it acknowledges, what must be there in the end."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kills import Died, Killer, Tally, Versions, assert_no_help_needed, being, owed, whole
from machines import Machine, Place, Ran, Team
from peers import Peer, content
from swamp.commit import commit as committing
from swamp.wiring import open_repo


def text_of(n: int) -> bytes:
    return f"entry {n}\n".encode() * 2000


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@dataclass
class Scenario:
    """One command. `team` shares one bucket; the machine `a` runs what is killed."""

    team: Team
    new_place: Callable[[], Place]
    acknowledged: dict[str, Any] = field(default_factory=dict)
    answers: int = 0
    risks: ClassVar[frozenset[str]] = frozenset({"journal", "staged", "unnamed payload"})
    begins: ClassVar[str] = r"^PUT .*(~|/_packs/)|/tree/[a-z]"
    """The first step at which anything can be at risk."""
    warms_up: ClassVar[bool] = True
    """Whether the first run does more than the others: then the second one is counted."""

    def __post_init__(self) -> None:
        self.a = self.machine()

    @property
    def place(self) -> Place:
        return self.team.place

    def machine(self) -> Machine:
        return self.team.machine("a")

    def ready(self, n: int) -> tuple[str, ...]:
        """Prepares the n-th command; its words."""
        raise NotImplementedError

    def acknowledge(self, n: int, ran: Ran) -> None:
        self.acknowledged[str(n)] = ran.json

    def again(self, n: int) -> None:
        """What a user does after a crash: the same command once more."""
        ran = self.a(*self.ready_again(n))
        ran.ok()
        self.acknowledge(n, ran)
        self.answers += 1

    def ready_again(self, n: int) -> tuple[str, ...]:
        return self.ready(n)

    def at_risk(self) -> set[str]:
        return owed(self.a, self.place) & self.risks

    def fresh(self) -> Machine:
        return self.team.machine("fresh")

    def check(self) -> None:
        self.a.sync()
        fresh = self.fresh()
        self.compare(fresh, whole(fresh.tree))
        assert_no_help_needed(self.a)

    def compare(self, fresh: Machine, there: Versions) -> None:
        raise NotImplementedError


class DataPut(Scenario):
    def ready(self, n: int) -> tuple[str, ...]:
        file = self.a.home / f"input-{n}"
        file.write_bytes(text_of(n))
        return ("data", "put", "ledger", f"entry-{n}", str(file))

    def compare(self, fresh: Machine, there: Versions) -> None:
        for (_, name, _), checksum in there.items():
            assert checksum == digest(text_of(int(name.removeprefix("entry-")))), name
        assert {f"entry-{n}" for n in self.acknowledged} <= {name for _, name, _ in there}


class MethodRun(Scenario):
    def machine(self) -> Machine:
        made = self.team.machine("a")
        made("model", "create", "command/shell", "runner").ok()
        return made

    def ready(self, n: int) -> tuple[str, ...]:
        return ("model", "method", "run", "runner", "execute", "--input", f"run=echo value-{n}")

    def acknowledge(self, n: int, ran: Ran) -> None:
        for artifact in ran.json["dataArtifacts"]:
            self.acknowledged[f"{artifact['name']}/{artifact['version']}"] = n

    def compare(self, fresh: Machine, there: Versions) -> None:
        root = next((fresh.tree / "data" / "command" / "shell").iterdir())
        for place, n in self.acknowledged.items():
            assert f"value-{n}" in (root / place / "raw").read_text(), place
        records = "".join(f.read_text() for f in (fresh.tree / "outputs").rglob("*") if f.is_file())
        for name, version in re.findall(r"data/command/shell/[^/\s]+/(result|log)/(\d+)", records):
            assert ("runner", name, int(version)) in there, "a record names a version that is not there"


WORKFLOW = """id: 7d5a8f1e-0c35-4b21-9a5e-2f6f5d9f0a11
name: pair
inputs: {type: object, properties: {n: {type: string}}}
jobs:
  - name: j
    steps:
      - {name: one, task: {type: model_method, modelType: command/shell, modelName: one, methodName: execute,
          inputs: {run: "echo one-${{ inputs.n }}"}}}
      - {name: two, task: {type: model_method, modelType: command/shell, modelName: two, methodName: execute,
          inputs: {run: "echo two-${{ inputs.n }}"}}}
"""


class WorkflowRun(Scenario):
    def machine(self) -> Machine:
        made = self.team.machine("a")
        (made.repo / "workflows" / "workflow-pair.yaml").write_text(WORKFLOW)
        return made

    def ready(self, n: int) -> tuple[str, ...]:
        return ("workflow", "run", "pair", "--input", f"n={n}")

    def acknowledge(self, n: int, ran: Ran) -> None:
        assert ran.json["status"] == "succeeded"
        steps = [step for job in ran.json["jobs"] for step in job["steps"]]
        self.acknowledged[ran.json["id"]] = [a for step in steps for a in step["dataArtifacts"]]

    def compare(self, fresh: Machine, there: Versions) -> None:
        runs = {r["runId"]: r for r in fresh("workflow", "run", "search", "--limit", "100").ok()["results"]}
        for run, artifacts in self.acknowledged.items():
            assert runs[run]["status"] == "succeeded"
            for artifact in artifacts:
                assert (artifact["modelName"], artifact["name"], artifact["version"]) in there, (run, artifact)
        assert all(r["status"] in ("succeeded", "failed") for r in runs.values()), "a dead run is not told as running"


class Push(Scenario):
    """Several versions that were written and never pushed: at risk from the first step on."""

    begins = ""

    def ready(self, n: int) -> tuple[str, ...]:
        write(self.a, [f"entry-{n}-{i}" for i in range(4)], text_of(n))
        return ("datastore", "sync", "--push")

    def ready_again(self, n: int) -> tuple[str, ...]:
        return ("datastore", "sync", "--push")

    def compare(self, fresh: Machine, there: Versions) -> None:
        assert set(there.values()) == {digest(text_of(int(name.split("-")[1]))) for _, name, _ in there}
        expected = {f"entry-{n}-{i}" for n in self.acknowledged for i in range(4)}
        assert expected <= {name for _, name, _ in there}


class Pull(Scenario):
    """Another machine has pushed; the downloads are what is at risk."""

    warms_up = False
    risks = frozenset({"staging", "deferred", "behind"})
    begins = r"^GET .*(~|/_packs/)|staging"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.b = self.team.machine("b")

    def ready(self, n: int) -> tuple[str, ...]:
        write(self.b, [f"entry-{n}-{i}" for i in range(4)], text_of(n), push=True)
        return ("datastore", "sync", "--pull")

    def ready_again(self, n: int) -> tuple[str, ...]:
        return ("datastore", "sync", "--pull")

    def at_risk(self) -> set[str]:
        """Also: some of the new files are in the tree, some are not."""
        mine, theirs = (set((m.tree / "data").rglob("raw")) for m in (self.a, self.b))
        return super().at_risk() | ({"behind"} if len(mine) < len(theirs) else set())

    def compare(self, fresh: Machine, there: Versions) -> None:
        assert whole(self.a.tree) == whole(self.b.tree) == there


class SetUp(Scenario):
    """With a migration: a plain directory's data moves into a bucket of its own each time."""

    warms_up = False
    risks = frozenset({"journal", "staged", "unnamed payload", "half moved"})
    begins = r"^PUT .*(/data/.*~|/_packs/)|/tree/data/"

    def machine(self) -> Machine:
        self.template = self.team.machine("template", joined=False)
        for n in range(3):
            self.template.put("web", f"entry-{n}", text_of(n))
        return self.template

    def ready(self, n: int) -> tuple[str, ...]:
        shutil.copytree(self.template.repo, self.team.directory / f"m{n}" / "repo")
        self.a = Machine(self.team.directory / f"m{n}" / "home", self.team.directory / f"m{n}" / "repo", self.place.env)
        self.a.home.mkdir()
        self.team = Team(self.team.directory, self.new_place())
        return self.ready_again(n)

    def ready_again(self, n: int) -> tuple[str, ...]:
        return ("datastore", "setup", *self.place.setup_args)

    def at_risk(self) -> set[str]:
        """Also: configured or not, the data lies in two places, or has left the first."""
        moving = any(self.a.caches) and (self.a.repo / ".swamp" / "data").exists()
        return super().at_risk() | ({"half moved"} if moving else set())

    def again(self, n: int) -> None:
        super().again(n)
        fresh = Peer(store=self.place.open(), home=self.team.directory / "fresh", name=str(n))
        fresh.pull()
        fresh.engine.close()
        expected = {("web", f"entry-{i}", 1): digest(text_of(i)) for i in range(3)}
        assert whole(fresh.tree) == whole(self.a.tree) == expected
        assert not list((self.a.repo / ".swamp").glob("data/**/raw")), "the source is cleaned up"

    def check(self) -> None:
        assert whole(self.fresh().tree) == whole(self.a.tree)
        assert_no_help_needed(self.a)


class Collect(Scenario):
    """`datastore gc` without an undo window: what is live must stay, whatever it was doing when it died."""

    warms_up = False
    risks = frozenset({"collecting", "lease", "unnamed segment"})
    begins = r"^PUT |/unfinished/"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peer = Peer(store=self.place.open(), home=self.team.directory / "peers", name="p")

    def ready(self, n: int) -> tuple[str, ...]:
        for turn in range(2):
            for i in range(4):
                self.peer.write(f"files/{n}-{i}", f"{n} {i} {turn}")
            self.peer.write(f"files/{n}-gone", "gone")
            self.peer.push()
        self.peer.delete(f"files/{n}-gone")
        self.peer.push()
        return ("datastore", "gc", "--keep-days", "0", "--yes")

    def ready_again(self, n: int) -> tuple[str, ...]:
        return ("datastore", "gc", "--keep-days", "0", "--yes")

    def acknowledge(self, n: int, ran: Ran) -> None:
        self.acknowledged[str(n)] = ran.json["deleted"]

    def check(self) -> None:
        self.peer.engine.close()
        super().check()

    def compare(self, fresh: Machine, there: Versions) -> None:
        found = {f.name: f.read_text() for f in (fresh.tree / "files").iterdir()}
        turns = {name.split("-")[0] for name in found}
        assert found == {f"{n}-{i}": f"{n} {i} 1" for n in turns for i in range(4)} and len(turns) >= 2
        assert sum(self.acknowledged.values()) > 0, "it never collected anything"
        left = [k for k in self.place.objects("files/") if k.split("~")[0].endswith("-gone")]
        assert left == [], "garbage of a dead collector stays for ever"


class Compact(Scenario):
    warms_up = False
    risks = frozenset({"lease", "unnamed segment"})
    begins = r"^PUT |/unfinished/"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peer = Peer(store=self.place.open(), home=self.team.directory / "peers", name="p")

    def at_risk(self) -> set[str]:
        """A segment counts if this very command has made it: those of earlier ones wait for a collection."""
        found = super().at_risk()
        return found if set(self.place.objects("_index/")) - self.before else found - {"unnamed segment"}

    def ready(self, n: int) -> tuple[str, ...]:
        self._write(n)
        self.before = set(self.place.objects("_index/"))
        return ("datastore", "compact")

    def _write(self, n: int) -> None:
        kept, committing.LAYER_ROWS = committing.LAYER_ROWS, 3  # segments without thousands of files
        try:
            for turn in range(2):
                for i in range(4):
                    self.peer.write(f"files/{n}-{i}", f"{n} {i} {turn}")
                self.peer.write(f"files/{n}-gone", "gone")
                self.peer.push()
                self.peer.delete(f"files/{n}-gone")
                self.peer.push()
        finally:
            committing.LAYER_ROWS = kept

    def ready_again(self, n: int) -> tuple[str, ...]:
        return ("datastore", "compact")

    def acknowledge(self, n: int, ran: Ran) -> None:
        self.acknowledged[str(n)] = ran.json["segmentsBefore"] - ran.json["segmentsAfter"]

    def check(self) -> None:
        self.expected = content(self.peer.engine)
        self.peer.engine.close()
        super().check()

    def compare(self, fresh: Machine, there: Versions) -> None:
        found = {f"files/{f.name}": f.read_text() for f in (fresh.tree / "files").iterdir()}
        assert found == self.expected and found
        assert not any(name.endswith("-gone") for name in found)
        assert sum(self.acknowledged.values()) > 0, "it never merged anything"


SCENARIOS: dict[str, type[Scenario]] = {
    "data-put": DataPut,
    "method-run": MethodRun,
    "workflow-run": WorkflowRun,
    "push": Push,
    "pull": Pull,
    "setup": SetUp,
    "gc": Collect,
    "compact": Compact,
}


def write(machine: Machine, names: list[str], body: bytes, *, push: bool = False) -> None:
    """Versions in a machine's cache, announced and (unless `push`) not pushed."""
    from swamp.data.metadata import Draft, Owner
    from swamp.data.names import DataName, auto_id
    from swamp.data.records import MANUAL_TYPE

    model = auto_id(MANUAL_TYPE, "ledger")
    with being(machine), open_repo(machine.repo) as repo:
        for name in names:
            draft = Draft(owner=Owner.manual(model), content_type="text/plain", tags={"modelName": "ledger"})
            repo.artifacts.save(DataName.of(MANUAL_TYPE, model, name), draft, body)
        if push:
            repo.datastore.sync("push")


def run_matrix(scenario: Scenario, killer: Killer, points: int) -> Tally:
    """Kills the command at so many points between its first effect and its end, and goes on as a user would."""
    tally = Tally(f"{type(scenario).__name__} on {scenario.place.url.partition(':')[0]}")
    steps = _count(scenario, killer, tally)
    begin = next((i for i, step in enumerate(steps) if re.search(scenario.begins, step)), 0)
    last = begin + (len(steps) - 1 - begin) * 0.95  # the last steps are of a command that has said its answer
    for i in range(points):
        at = begin + round(i * (last - begin) / max(1, points - 1))
        words = scenario.ready(i + 1)  # before `a` is read: setup makes a machine each time
        died = killer.kill(scenario.a, at, *words, late=i % 2 == 1)
        tally.add(died, scenario.at_risk() if died.killed else set())
        _judge(scenario, i + 1, died)
        if died.killed and (i % 2 or i == points - 1 or isinstance(scenario, SetUp)):
            scenario.again(i + 1)
    scenario.check()
    tally.acknowledged += scenario.answers
    return tally


def _count(scenario: Scenario, killer: Killer, tally: Tally) -> list[str]:
    """The steps of a run that nobody kills."""
    steps: list[str] = []
    for n in (1000, 1001) if scenario.warms_up else (1000,):
        words = scenario.ready(n)
        ran, steps = killer.count(scenario.a, *words)
        ran.ok()
        scenario.acknowledge(n, ran)
        tally.acknowledged += 1
    return steps


def _judge(scenario: Scenario, n: int, died: Died) -> None:
    assert died.killed or died.ran.code == 0, died.ran
    if died.acknowledged:
        scenario.acknowledge(n, died.ran)
