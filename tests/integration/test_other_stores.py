"""Stores with other truths: one that ignores conditions, Google's, and a plug-in's."""

from __future__ import annotations

import pytest

from machines import Place, Team


def place_on(running, prefix: str) -> Place:
    return Place(f"{running.url}/{prefix}", dict(running.config), dict(running.environ))


def test_a_store_that_ignores_conditions_is_found_out_and_still_works(rclone, tmp_path, fresh_prefix):
    """The user is told in plain words; one machine after the other loses nothing."""
    team = Team(tmp_path, place_on(rclone, fresh_prefix()))
    a = team.machine("a", joined=False)
    done = a.setup(*team.place.setup_args)
    assert done["capabilities"]["compareAndSwap"] is False
    assert ["two machines must not write at once" in warning for warning in done["warnings"]] == [True], "told once"
    a.put("web", "report", "1")
    b = team.machine("b")
    b.put("web", "report", "2")
    a.sync()
    assert a.versions("web", "report") == [2, 1]
    assert "must not write at once" in a.status()["message"]
    checks = {c["name"]: c for c in a("datastore", "doctor").json["checks"]}
    assert checks["probe"]["ok"] is False and checks["probe"]["fix"]


def test_google_cloud_storage(gcs, tmp_path, fresh_prefix):
    team = Team(tmp_path, place_on(gcs, fresh_prefix()))
    a = team.machine("a")
    a.put("web", "report", "1")
    b = team.machine("b")
    assert b.get("web", "report")["content"] == "1"
    b("data", "delete", "web", "report", "--yes").ok()
    a.sync()
    assert a.names() == []


def test_a_bucket_that_does_not_exist_is_named(moto, tmp_path):
    team = Team(tmp_path, Place("s3://no-such-bucket-here/x", dict(moto.config), dict(moto.environ)))
    a = team.machine("a", joined=False)
    failed = a("datastore", "setup", *team.place.setup_args)
    assert failed.code == 2 and "no-such-bucket-here" in failed.error["error"] and failed.error["hint"]


@pytest.mark.parametrize("action", ["set", "unset"])
def test_moving_in_and_out_of_a_namespace(local_team: Team, action: str):
    a = local_team.machine("a", *(("--namespace", "team-a") if action == "unset" else ()))
    a.put("web", "report", "1")
    words = ("set", "team-a") if action == "set" else ("unset",)
    moved = a("datastore", "namespace", *words).ok()
    assert moved["filesPushed"] == 4 and moved.get("namespace") == ("team-a" if action == "set" else None)
    assert a.get("web", "report")["content"] == "1"
    assert a.status()["namespace"] == moved.get("namespace")


def test_a_directory_of_parts_and_standard_input(local_team: Team):
    import json
    import subprocess

    from machines import SWAMP

    a, b = local_team.machine("a"), local_team.machine("b")
    parts = a.home / "parts"
    (parts / "sub").mkdir(parents=True)
    (parts / "one").write_text("1")
    (parts / "sub" / "two").write_text("2")
    made = a("data", "put", "web", "dataset", str(parts)).ok()
    assert [p["name"] for p in made["parts"]] == ["one", "sub/two"]
    words = [str(SWAMP), "data", "put", "web", "piped", "-", "--json"]
    done = subprocess.run(words, input=b"from a pipe", env=a.environment(), cwd=a.repo, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["contentType"] == "text/plain", "by its first bytes, as a file's"
    b.sync()
    b("data", "get", "web", "dataset", "--output", str(b.home / "out")).ok()
    assert (b.home / "out" / "sub" / "two").read_text() == "2"
    b("data", "get", "web", "piped", "--output", str(b.home / "piped")).ok()
    assert (b.home / "piped").read_text() == "from a pipe"


def test_on_a_terminal_there_are_tables_bars_and_questions(local_team: Team):
    """A pseudo-terminal: nothing breaks, destructive commands ask, `n` changes nothing."""
    import os
    import pty

    from machines import SWAMP

    a = local_team.machine("a")
    a.put("web", "report", "1")

    def on_terminal(*words: str, answer: bytes = b"") -> str:
        pid, master = pty.fork()
        if pid == 0:
            os.chdir(a.repo)
            os.execve(str(SWAMP), ["swamp", *words], {**a.environment(), "TERM": "xterm", "COLUMNS": "200"})
        if answer:
            os.write(master, answer)
        seen = b""
        while True:
            try:
                chunk = os.read(master, 4096)
            except OSError:
                break
            if not chunk:
                break
            seen += chunk
        os.waitpid(pid, 0)
        return seen.decode(errors="replace")

    assert "report" in on_terminal("data", "list")
    assert "Commands" in on_terminal("--help")
    assert "[y/N]" in on_terminal("data", "delete", "web", "report", answer=b"n\n")
    assert a.names() == [("web", "report")]
    assert "In sync" in on_terminal("datastore", "sync")
    assert "Traceback" not in on_terminal("datastore", "verify")
    assert "Deleted" in on_terminal("data", "delete", "web", "report", answer=b"y\n")
    assert a.names() == []
