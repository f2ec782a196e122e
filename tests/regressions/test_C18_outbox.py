"""C18: a put with the store away is kept, and delivered once by the next command that reaches the store."""

from __future__ import annotations

import pytest

from kills import Killer
from machines import Machine, Place, Team
from serving import add_workflow

WORDS = "kept here, not shared: delivered when the store answers"


@pytest.fixture
def bucket(tmp_path):
    return tmp_path / "bucket"


def away(bucket) -> None:
    bucket.rename(bucket.with_name("away"))


def back(bucket) -> None:
    bucket.with_name("away").rename(bucket)


def kept_by(machine: Machine, model: str, name: str, text: str, *args: str) -> dict:
    file = machine.home / f"{name}.json"
    file.write_text(text)
    return machine("data", "put", model, name, str(file), *args).failed(69)


def texts(machine: Machine, model: str, name: str) -> list[str]:
    """The content of every version, oldest first."""
    return [machine.get(model, name, "--version", str(n))["content"] for n in sorted(machine.versions(model, name))]


def waiting(machine: Machine) -> int:
    return machine("datastore", "status").json["pending"]["outbox"]


def test_C18_what_was_kept_is_counted_listed_and_delivered_by_the_next_command(team: Team, bucket):
    a, b = team.machine("a"), team.machine("b")
    a.put("web", "report", "one")
    away(bucket)
    error = kept_by(a, "web", "report", "two", "--tag", "k=v", "--lifetime", "30d")
    assert WORDS in error["error"] and error["details"]["kept"]["name"] == "report"
    status = a("datastore", "status")
    assert status.code == 69 and status.json["pending"]["outbox"] == 1
    assert "1 kept put to deliver" in status.json["summary"]
    listed = a("data", "list").ok()
    assert [(i["version"], i.get("waiting")) for i in listed["items"]] == [(1, None), (None, True)]
    back(bucket)
    delivered = a.sync()
    assert [v["version"] for v in delivered["delivered"]] == [2]
    assert waiting(a) == 0
    found = b.get("web", "report")
    assert (found["version"], found["content"], found["contentType"]) == (2, "two", "application/json")
    assert found["tags"]["k"] == "v" and found["lifetime"] == "30d"


def test_C18_a_read_delivers_too_and_shows_the_number(team: Team, bucket):
    a, b = team.machine("a"), team.machine("b")
    a.put("web", "report", "one")
    away(bucket)
    kept_by(a, "web", "report", "two")
    back(bucket)
    for cache in a.caches:
        (cache / "asked").unlink(missing_ok=True)
    listed = a("data", "list")
    assert [i["version"] for i in listed.ok()["items"]] == [2] and "Delivered what was kept" in listed.err
    assert texts(b, "web", "report") == ["one", "two"]


def test_C18_the_order_is_kept_also_before_a_newer_put(team: Team, bucket):
    a = team.machine("a")
    a.put("web", "report", "1")
    away(bucket)
    for text in ("2", "3"):
        kept_by(a, "web", "report", text)
    kept_by(a, "other", "thing", "x")
    assert waiting(a) == 3
    back(bucket)
    a.put("web", "report", "4")
    assert texts(a, "web", "report") == ["1", "2", "3", "4"] and texts(a, "other", "thing") == ["x"]
    assert waiting(a) == 0


def test_C18_a_directory_and_a_machine_that_never_saw_the_store(team: Team, bucket):
    a = team.machine("a")
    a.put("web", "report", "1")
    fresh = Machine.make(team.directory, "fresh")
    (fresh.repo / ".swamp.yaml").write_text(
        (fresh.repo / ".swamp.yaml").read_text()
        + f"datastore:\n  type: '@swamp/file-datastore'\n  url: {team.place.url}\n"
    )
    parts = fresh.home / "parts"
    (parts / "deep").mkdir(parents=True)
    (parts / "deep" / "x").write_text("x")
    (parts / "y").write_text("y")
    away(bucket)
    assert WORDS in fresh("data", "put", "web", "dir", str(parts)).failed(69)["error"]
    back(bucket)
    fresh.sync()
    out = a.home / "out"
    a("data", "get", "web", "dir", "--output", str(out)).ok()
    assert (out / "deep" / "x").read_text() == "x" and (out / "y").read_text() == "y"


def test_C18_what_cannot_be_put_is_refused_and_not_kept(team: Team, bucket):
    a = team.machine("a")
    away(bucket)
    file = a.home / "f"
    file.write_text("x")
    a("data", "put", "web", "no/slash?\n", str(file)).failed(2)
    a("data", "put", "web", "x", str(file), "--lifetime", "soon").failed(2)
    assert waiting(a) == 0


def test_C18_methods_and_workflows_do_not_start_and_say_that_nothing_was_kept(team: Team, bucket):
    a = team.machine("a")
    a("model", "create", "command/shell", "m").ok()
    away(bucket)
    error = a("model", "method", "run", "m", "execute", "--input", f"run=touch {a.home}/ran").failed(69)
    assert "nothing ran and nothing was kept" in error["error"] and not (a.home / "ran").exists()
    assert waiting(a) == 0


def test_C18_a_sync_that_cannot_deliver_does_not_say_that_nothing_was_kept(team: Team, bucket):
    a = team.machine("a")
    a.put("web", "x", "1")
    away(bucket)
    a("data", "put", "web", "x", str(a.home / "input")).failed(69)
    error = a("datastore", "sync").failed(69)["error"]
    assert error.endswith("what was kept before still waits") and "nothing" not in error


def test_C18_a_run_whose_store_goes_away_meanwhile_does_not_say_that_nothing_ran(team: Team, bucket):
    """Who believed it would run it again, and do everything twice: the versions of its steps are here."""
    a = team.machine("a")
    add_workflow(a, "w", run=f"mv {bucket} {bucket.with_name('away')} && echo ran")
    ran = a("workflow", "run", "w")
    error = ran.failed(69)
    assert "nothing ran" not in error["error"] and "nothing was kept" not in error["error"], error
    assert "kept here" in error["error"] and "datastore sync` delivers it" in error["hint"], error
    back(bucket)
    assert a.status()["pending"]["writes"] >= 2
    a.sync()
    assert "ran" in team.machine("b").get("w-hello", "result")["content"]


def run_told_by(machine: Machine) -> dict:
    return machine("workflow", "history", "get", "latest").json


NESTED = """id: 00000000-0000-4000-8000-000000000077
name: outer
jobs:
  - name: all
    steps:
      - {name: inner, task: {type: workflow, workflowIdOrName: w}}
"""


@pytest.mark.parametrize("nested", [False, True])
def test_C18_a_run_that_succeeded_and_could_not_be_shared_is_told_as_that(team: Team, bucket, nested: bool):
    """Its steps did all that was asked: who reads `failed` would do everything again."""
    a = team.machine("a")
    add_workflow(a, "w", run=f"mv {bucket} {bucket.with_name('away')} && echo ran")
    if nested:
        (a.repo / "workflows" / "workflow-outer.yaml").write_text(NESTED)
    error = a("workflow", "run", "outer" if nested else "w").failed(69)
    assert "succeeded here, not shared yet" in error["error"] and "datastore sync" in error["hint"], error
    told = run_told_by(a)
    assert (told["status"], told["shared"], told.get("error")) == ("succeeded", False, None), told
    assert {step["status"] for job in told["jobs"] for step in job["steps"]} == {"succeeded"}
    assert told["completedAt"] and "ran" in a("workflow", "logs", "latest").out
    found = a("workflow", "run", "search", "--status", "succeeded").json
    assert found["total"] == 1 + nested and a("workflow", "run", "search", "--status", "failed").json["total"] == 0
    back(bucket)
    a.sync()
    for machine in (a, team.machine("b")):
        told = run_told_by(machine)
        assert (told["status"], "shared" in told) == ("succeeded", False), told
    assert "ran" in team.machine("c")("workflow", "logs", "latest").out


@pytest.mark.parametrize("words", [("run", "w"), ("resume", "latest"), ("cancel", "latest")])
def test_C18_a_run_makes_no_bucket_where_one_is_away(team: Team, bucket, words: tuple[str, str]):
    """An empty directory in its place would pass for the store: a mount that was not there for a moment."""
    a = team.machine("a")
    add_workflow(a, "w", run="exit 1")
    assert a("workflow", "run", "w").code == 1
    away(bucket)
    assert a("workflow", *words).code in (1, 2, 69)
    assert not bucket.exists()


def test_C18_a_run_whose_store_goes_away_before_its_last_step_has_failed(team: Team, bucket):
    a = team.machine("a")
    add_workflow(a, "w", run=f"mv {bucket} {bucket.with_name('away')} && echo ran")
    with (a.repo / "workflows" / "workflow-w.yaml").open("a") as file:
        file.write("      - {name: later, dependsOn: [{step: hello}], task: {type: assert, expression: 'true'}}\n")
    a("workflow", "run", "w").failed(69)
    told = run_told_by(a)
    assert told["status"] == "failed" and told["error"], told
    back(bucket)
    assert a("workflow", "resume", told["id"]).ok()["status"] == "succeeded"


@pytest.mark.inv("outbox.once")
def test_C18_killed_at_any_step_of_keeping_there_is_one_or_none(team: Team, bucket, tmp_path):
    a = team.machine("a")
    a.put("web", "report", "zero")
    away(bucket)
    file = a.home / "f"
    file.write_text("one")
    killer = Killer(tmp_path)
    ran, steps = killer.count(a, "data", "put", "web", "report", str(file))
    assert ran.code == 69 and waiting(a) == 1
    first = next(i for i, step in enumerate(steps) if "outbox" in step)
    kept = 1
    for at in range(first, len(steps), 2):
        died = killer.kill(a, at, "data", "put", "web", "report", str(file))
        now = waiting(a)
        assert now - kept in (0, 1) and (died.killed or now == kept + 1)
        kept = now
    back(bucket)
    a.sync()
    assert texts(a, "web", "report") == ["zero"] + ["one"] * kept and waiting(a) == 0


@pytest.mark.inv("outbox.once")
def test_C18_killed_at_any_step_of_delivering_it_is_there_once(killer: Killer, new_place, tmp_path):
    """Before each third step and, on S3, after its effect and before its answer."""
    place: Place = new_place()
    a = Team(tmp_path, place).machine("a")
    a.put("web", "report", "0")
    file = a.home / "f"
    outside = {"SWAMP_DATASTORE_SYNC_TIMEOUT_MS": "1500", "SWAMP_REQUEST_TIMEOUT_MS": "1500"}

    def keep(text: str) -> None:
        file.write_text(text)
        _unreachable(killer, place, lambda: a("data", "put", "web", "report", str(file), env=outside).failed(69))

    keep("1")
    done, steps = killer.count(a, "datastore", "sync")
    assert done.code == 0 and waiting(a) == 0
    expected = ["0", "1"]
    for number, at in enumerate(range(0, len(steps), max(1, len(steps) // 7))):
        keep(f"k{number}")
        expected.append(f"k{number}")
        killer.kill(a, at, "datastore", "sync", late=killer.proxy is not None and number % 2 == 1)
        place.shorten_leases(1.0)
        a.sync()
        a.sync()
        assert waiting(a) == 0
    assert texts(a, "web", "report") == expected


def _unreachable(killer: Killer, place: Place, act) -> None:
    from pathlib import Path
    from urllib.parse import urlsplit

    from servers.proxy import Rule

    if killer.proxy is not None:
        rule = Rule("drop", times=None)
        killer.proxy.rules.insert(0, rule)
        act()
        killer.proxy.rules.remove(rule)
        return
    where = Path(urlsplit(place.url).path)
    where.rename(where.with_name("elsewhere"))
    act()
    where.with_name("elsewhere").rename(where)


@pytest.mark.inv("outbox.once")
def test_C18_two_processes_deliver_once(team: Team, bucket):
    a = team.machine("a")
    a.put("web", "report", "0")
    for round_ in range(3):
        away(bucket)
        kept_by(a, "web", "report", f"r{round_}")
        back(bucket)
        both = [a.start("datastore", "sync"), a.start("data", "list", env={"SWAMP_FRESH": "always"})]
        for process in both:
            _, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
    a.sync()
    assert texts(a, "web", "report") == ["0", "r0", "r1", "r2"] and waiting(a) == 0


@pytest.mark.inv("outbox.once")
def test_C18_what_was_delivered_and_deleted_before_the_outbox_knew_stays_deleted(team: Team, bucket, monkeypatch):
    """A delivery that dies between its push and letting go of the put; meanwhile somebody deletes the version."""
    import swamp
    from swamp.cache.outbox import Outbox

    a, b = team.machine("a"), team.machine("b")
    a.put("web", "report", "one")
    away(bucket)
    kept_by(a, "web", "report", "two")
    back(bucket)
    for key, value in a.environment().items():
        monkeypatch.setenv(key, value)
    with monkeypatch.context() as patch, swamp.open_repo(a.repo) as repo:
        patch.setattr(Outbox, "drop", lambda *_: None)
        assert [version.version for version in repo.kept.deliver().versions] == [2]
    b("data", "delete", "web", "report", "--version", "2", "--yes").ok()
    assert waiting(a) == 1
    assert not a.sync().get("delivered") and waiting(a) == 0
    b.sync()
    assert texts(b, "web", "report") == ["one"]


@pytest.mark.inv("put.proven")
def test_C18_a_put_that_another_process_moved_aside_is_saved_again(team: Team, monkeypatch):
    """Between the save and the push a sync of the same machine meets another machine's version of that number: the
    push then has nothing of ours to deliver, and must not be taken for a delivery."""
    import swamp
    from swamp.data.metadata import Draft, Owner
    from swamp.data.names import DataName, auto_id

    a, b = team.machine("a"), team.machine("b")
    model = auto_id("manual/data", "web")
    with monkeypatch.context() as patch:
        for key, value in b.environment().items():
            patch.setenv(key, value)
        with swamp.open_repo(b.repo) as repo:  # without a lease, as a store without one would let it happen
            repo.artifacts.save(DataName.of("manual/data", model, "report"), Draft(Owner.manual(model)), b"theirs")
    for key, value in a.environment().items():
        monkeypatch.setenv(key, value)
    with swamp.open_repo(a.repo) as repo:
        push = repo.datastore.push

        def late(*args, **kwargs):
            monkeypatch.setattr(repo.datastore, "push", push)
            b.sync()
            assert a("datastore", "sync").code == 1, "a conflict, told to whoever synced"
            return push(*args, **kwargs)

        monkeypatch.setattr(repo.datastore, "push", late)
        done = repo.data.put("web", "report", b"mine")
    assert done.version.version == 2
    assert texts(b, "web", "report") == ["theirs", "mine"]


def test_C18_setup_elsewhere_does_not_leave_kept_puts_behind(team: Team, bucket, tmp_path):
    a = team.machine("a")
    a.put("web", "report", "1")
    away(bucket)
    kept_by(a, "web", "report", "2")
    moved = a("datastore", "setup", (tmp_path / "new").as_uri())
    assert moved.code == 1 and "still owes it" in moved.err
    back(bucket)
    a.setup((tmp_path / "new").as_uri())
    assert texts(a, "web", "report") == ["1", "2"]
