"""`make demo`: two machines, one bucket that is a directory, and everything that could go wrong in five minutes.

Every step is checked, with the real command line in real processes. The first promise that does not hold ends the
demo with exit code 1; `--keep` leaves the machines on disk to look at.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from stage import Audience, Broken, Machine, kill

from serving import serve

HERE = Path(__file__).parent
REGIONS = ("north", "south")
COMMANDS = 8
MOST_COMMANDS = 40
ROUNDS = 3


def main() -> int:
    audience = Audience()
    root = Path(tempfile.mkdtemp(prefix="swamp-demo-"))
    try:
        play(root, audience)
    except Broken as broken:
        print(f"\nBROKEN PROMISE: {broken}\n\neverything is still in {root}", file=sys.stderr)
        return 1
    if "--keep" in sys.argv:
        print(f"\n   everything is still in {root}")
    else:
        shutil.rmtree(root, ignore_errors=True)
    return 0


def play(root: Path, audience: Audience) -> None:
    ann, ben = Machine("ann", root, audience), Machine("ben", root, audience)
    bucket = f"file://{root}/bucket"
    share(ann, bucket, audience)
    produce(ann, audience)
    join(ben, bucket, audience)
    analyse(ben, audience)
    race(ann, ben, audience)
    crash(ann, ben, audience)
    lose_everything(ann, ben, audience)
    undo(ann, ben, audience)
    serve(ann, audience)
    audience.end()


# --- the main job -------------------------------------------------------------------------------------------------


def share(ann: Machine, bucket: str, audience: Audience) -> None:
    audience.chapter("Ann makes a repository and gives it a bucket")
    ann.prepare()
    ann.swamp("repo", "init")
    made = ann.swamp("datastore", "setup", bucket)
    able = made["capabilities"]
    audience.promise(
        able["createOnly"] and able["compareAndSwap"],
        "setup tried the bucket out: create-only and compare-and-swap are enforced",
        made,
    )
    ann.write("scan.json", '{"hosts": 3, "zone": "north"}\n')
    ann.swamp("data", "put", "inventory", "scan", "scan.json", "--tag", "team=blue")
    again = ann.swamp("datastore", "sync")
    audience.promise(
        again["fastPath"] and again["requests"] == 1 and again["filesPushed"] == 0,
        "a sync with nothing to do is one request: `data put` had already delivered",
        again,
    )


def produce(ann: Machine, audience: Audience) -> None:
    audience.chapter("Ann runs a workflow: shell, Python and Spark steps")
    shutil.copytree(HERE / "workflow", ann.repo, dirs_exist_ok=True)
    ran = ann.swamp("workflow", "run", "nightly", "--input", f"regions:json={json.dumps(REGIONS)}")
    steps = {step["name"]: step["status"] for job in ran["jobs"] for step in job["steps"]}
    audience.promise(
        ran["status"] == "succeeded" and len(steps) == 5 and set(steps.values()) == {"succeeded"},
        "five steps succeeded: shell, a script per region, Spark SQL over their data, an assertion",
        ran,
    )


def join(ben: Machine, bucket: str, audience: Audience) -> None:
    audience.chapter("Ben, on another machine, joins with nothing but the URL")
    ben.prepare()
    ben.swamp("repo", "init")
    made = ben.swamp("datastore", "setup", bucket)
    audience.promise(made["filesPulled"] > 0 and not made["errors"], "setup brought the team's data", made)
    listed = {(i["modelName"], i["name"]) for i in ben.swamp("data", "list")["items"]}
    wanted = {("inventory", "scan"), ("host", "result"), ("revenue", "by_product")}
    audience.promise(wanted <= listed, "data of the shell step, the Spark step and the put is listed", sorted(listed))
    runs = ben.swamp("workflow", "run", "search", "nightly", "--status", "succeeded")
    audience.promise(runs["total"] == 1, "the finished run is in Ben's history", runs)
    found = ben.swamp("data", "query", 'tags.team == "blue" && attributes.hosts > 2')
    audience.promise(
        [row["name"] for row in found["results"]] == ["scan"], "a query looks into tags and content", found
    )


def analyse(ben: Machine, audience: Audience) -> None:
    audience.chapter("Ben asks with SQL, and reads and writes datasets from his own Spark session")
    rows = ben.swamp("sql", "SELECT modelName, count(*) AS n FROM versions GROUP BY modelName ORDER BY modelName")
    models = [row["modelName"] for row in rows]
    audience.promise({"inventory", "revenue"} <= set(models), "SQL sees every version", rows)
    audience.say("ben$ python notebook.py     # spark.read.format('swamp') … df.write.format('swamp')")
    ran = subprocess.run(
        [sys.executable, HERE / "notebook.py", ben.repo], env=ben.environment(), capture_output=True, text=True,
        timeout=900,
    )  # fmt: skip
    if ran.returncode != 0:
        raise Broken(f"the Spark session failed\n{ran.stderr[-4000:]}")
    seen = json.loads(ran.stdout.splitlines()[-1])
    audience.promise(seen["read"] == expected(), "Spark reads the dataset straight from the bucket, row for row", seen)
    audience.promise(seen["written"] == seen["back"] > 0, "a dataset written from Spark reads back equal", seen)
    ben.swamp("datastore", "sync", "--pull")
    versions = ben.swamp("data", "versions", "notebook", "squares")
    audience.promise(versions["total"] == 1, "and is one new version, committed once", versions)


def expected() -> dict[str, int]:
    """What the Spark step must have computed, computed another way."""
    sys.path.insert(0, str(HERE / "workflow" / "scripts"))
    from orders import orders

    totals: dict[str, int] = {}
    for region in REGIONS:
        for order in orders(region):
            totals[order["product"]] = totals.get(order["product"], 0) + order["units"] * order["price"]
    return totals


# --- what could go wrong ------------------------------------------------------------------------------------------


def race(ann: Machine, ben: Machine, audience: Audience) -> None:
    audience.chapter("Both write the same name at the same time")
    written = set()
    for n in range(ROUNDS):
        started = []
        for machine in (ann, ben):
            text = f"{machine.name} {n}\n"
            machine.write("note.txt", text)
            written.add(digest(text))
            audience.command(machine.name, ("data", "put", "notes", "today", "note.txt", "&"))
            started.append((machine, machine.start("data", "put", "notes", "today", "note.txt")))
        for machine, process in started:
            _, err = process.communicate(timeout=600)
            audience.quietly(process.returncode == 0, f"{machine.name}'s put ends well", err)
    seen = [checksums(pulled(machine), "notes", "today") for machine in (ann, ben)]
    audience.promise(
        all(sorted(one) == sorted(written) for one in seen),
        f"{2 * ROUNDS} racing writes are {2 * ROUNDS} versions on both machines: nobody overwrote anybody",
        seen,
    )


def crash(ann: Machine, ben: Machine, audience: Audience) -> None:
    audience.chapter("Ben's commands are killed with kill -9, at the worst moments")
    ben.write("entry.txt", text_of(-1))
    ben.swamp("data", "put", "ledger", "entry--1", "entry.txt")
    acknowledged, at_risk = {("entry--1", digest(text_of(-1)))}, 0
    run = 0
    while run < COMMANDS or (at_risk < COMMANDS / 2 and run < MOST_COMMANDS):  # a fast machine escapes now and then
        n, run = run, run + 1
        moment, reached = MOMENTS[n % len(MOMENTS)]
        ben.write("entry.txt", text_of(n))
        process = ben.start("data", "put", "ledger", f"entry-{n}", "entry.txt")
        while process.poll() is None and not reached(ben, f"entry-{n}"):
            time.sleep(0.001)
        code, _ = kill(process)
        audience.command("ben", ("data", "put", "ledger", f"entry-{n}", "entry.txt"))
        audience.say(f"killed {moment}" if code else "acknowledged")
        at_risk += code != 0
        if code == 0:
            acknowledged.add((f"entry-{n}", digest(text_of(n))))
    audience.promise(at_risk >= COMMANDS / 2, f"{at_risk} of {run} commands died with work in flight", at_risk)
    recover(ann, ben, acknowledged, run, audience)


def text_of(n: int) -> str:
    return f"entry {n}\n" * 20_000


def announced(ben: Machine, name: str) -> bool:
    return any(ben.home.rglob(f"data/*/*/*/{name}"))


def uploaded(ben: Machine, name: str) -> bool:
    """A pack came since the file was made that is being put."""
    since = (ben.repo / "entry.txt").stat().st_mtime_ns
    return any(pack.stat().st_mtime_ns > since for pack in (ben.root / "bucket" / "_packs").iterdir())


def committed(ben: Machine, name: str) -> bool:
    return name in (ben.root / "bucket" / ".datastore-index.json").read_text(errors="replace")


def never(ben: Machine, name: str) -> bool:
    return False


MOMENTS = (
    ("as the version appeared in the cache", announced),
    ("as an upload appeared in the bucket", uploaded),
    ("after the commit, before it was told so", committed),
    ("", never),
)


def recover(ann: Machine, ben: Machine, acknowledged: set[tuple[str, str]], run: int, audience: Audience) -> None:
    committed_then = {f"entry-{n}" for n in range(run) if committed(ben, f"entry-{n}/")}
    synced = ben.swamp("datastore", "sync")
    audience.promise(not synced["failed"] and not synced["conflicts"], "the next sync needs no help", synced)
    pulled(ann)
    there = {(i["name"], c) for i in listed(ann, "ledger") for c in checksums(ann, "ledger", i["name"])}
    audience.promise(acknowledged <= there, "everything acknowledged is on Ann's machine", sorted(there))
    names = {name for name, _ in there}
    audience.promise(committed_then <= names, "so is what was committed by a command that died", sorted(names))
    whole = {(f"entry-{n}", digest(text_of(n))) for n in range(-1, run)}
    audience.promise(there <= whole, "and nothing there is torn or doubled", sorted(there))
    checked = ann.swamp("datastore", "verify", "--engine", "inline")
    audience.promise(
        checked["checked"] > 0 and not checked["missing"] and not checked["corrupt"],
        f"verify read {checked['checked']} objects of the bucket: none missing, none corrupt",
        checked,
    )
    after = ben.swamp("datastore", "status", quiet=True)
    audience.promise(
        after["healthy"] and not any(after["pending"].values()) and not after["lock"]["held"],
        "no work is left over and no lock is stuck",
        after,
    )


def lose_everything(ann: Machine, ben: Machine, audience: Audience) -> None:
    audience.chapter("Ben's cache is deleted by hand")
    before = listed(ben)
    shutil.rmtree(ben.home)
    audience.say(f"ben$ rm -rf {ben.home.name}")
    back = ben.swamp("datastore", "sync")
    audience.promise(back["filesPulled"] > 0 and back["filesDeleted"] == 0, "the next sync restores it", back)
    audience.promise(listed(ben) == before, "everything is back", listed(ben))
    audience.promise(listed(pulled(ann)) == before, "and nothing was deleted for Ann", listed(ann))


def undo(ann: Machine, ben: Machine, audience: Audience) -> None:
    audience.chapter("Ann deletes something, and wants it back")
    before = checksums(ann, "inventory", "scan")
    ann.swamp("data", "delete", "inventory", "scan", "--yes")
    audience.promise("inventory" not in models(pulled(ben)), "a delete reaches Ben", listed(ben))
    restored = ann.swamp("datastore", "undelete", "--since", "1h")
    audience.quietly(bool(restored["restored"]), "undelete restores something", restored)
    audience.promise(
        checksums(pulled(ben), "inventory", "scan") == before, "and so does its undo, with the same bytes", restored
    )


# --- looking ------------------------------------------------------------------------------------------------------


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def pulled(machine: Machine) -> Machine:
    machine.swamp("datastore", "sync", "--pull", quiet=True)
    return machine


def listed(machine: Machine, *model: str) -> list[dict[str, Any]]:
    items = machine.swamp("data", "list", *model, quiet=True)["items"]
    return sorted(items, key=lambda item: (item["modelName"], item["name"]))


def models(machine: Machine) -> set[str]:
    return {item["modelName"] for item in listed(machine)}


def checksums(machine: Machine, model: str, name: str) -> list[str]:
    return [v["checksum"] for v in machine.swamp("data", "versions", model, name, quiet=True)["versions"]]


if __name__ == "__main__":
    sys.exit(main())
