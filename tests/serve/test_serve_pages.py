"""The pages, driven as a person drives them: a real browser, a real server, a second machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import requests

from browsing import Visit, browsing, visiting
from machines import Machine, Team
from serving import Serving, add_workflow, serving, until

pytestmark = pytest.mark.timeout(600)
APPROVAL = """\
id: 11111111-1111-4111-8111-111111111111
name: gated
jobs:
  - name: build
    steps:
      - name: compile
        task: {type: model_method, modelType: command/shell, modelName: gated-build, methodName: execute,
               inputs: {run: "echo built"}}
  - name: release
    dependsOn: [{job: build, condition: {type: succeeded}}]
    steps:
      - name: gate
        task: {type: manual_approval, prompt: "Ship it?"}
      - name: ship
        dependsOn: [{step: gate, condition: {type: succeeded}}]
        task: {type: model_method, modelType: command/shell, modelName: gated-ship, methodName: execute,
               inputs: {run: "echo shipped"}}
"""

MANY = """\
id: 22222222-2222-4222-8222-222222222222
name: many
jobs:
  - name: collect
    steps:
      - name: scan-${{ self.zone }}
        forEach: {item: zone, in: [a, b]}
        task: {type: model_method, modelType: command/shell, modelName: "scan-${{ self.zone }}", methodName: execute,
               inputs: {run: "echo scanned"}}
      - name: join
        dependsOn: [{step: "scan-${{ self.zone }}"}]
        task: {type: model_method, modelType: command/shell, modelName: join, methodName: execute,
               inputs: {run: "echo joined"}}
  - name: publish
    dependsOn: [{job: collect}]
    steps:
      - name: report
        task: {type: model_method, modelType: command/shell, modelName: report, methodName: execute,
               inputs: {run: "echo told"}}
"""


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return Path(os.environ.get("SWAMP_PICTURES") or tmp_path / "pictures")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browsing() as found:
        yield found


@pytest.fixture
def visit(browser: Any, server: Serving, pictures: Path) -> Iterator[Visit]:
    assert server.login is not None
    with visiting(browser, server.login, server.url, pictures) as found:
        yield found
        found.check_clean()


def test_a_person_logs_in_and_finds_every_page(machine: Machine, server: Serving, visit: Visit) -> None:
    machine.put(
        "web", "report", '{"total": 3, "rows": [1, 2]}', "--content-type", "application/json", "--tag", "team=web"
    )
    machine.put("web", "report", '{"total": 4, "rows": [1, 2]}', "--content-type", "application/json")
    machine.put("web", "table", "a,b\n1,x\n2,y\n", "--content-type", "text/csv")
    add_workflow(machine, "count", "echo ${{ data.latest('web', 'report').attributes.total }}")
    machine("workflow", "run", "count").ok()
    for path, heading in (("/", "Overview"), ("/data", "Data"), ("/runs", "Runs"), ("/commits", "Commits"),
                          ("/datastore", "Datastore"), ("/events", "Events")):  # fmt: skip
        visit.open(path)
        assert visit.page.inner_text("h1") == heading
        assert visit.page.get_attribute("nav a[aria-current]", "href") == path
        visit.picture(heading.lower())
    visit.open("/data?q=rep")
    visit.page.click("text=report")
    visit.see('"total": 4')
    visit.picture("artifact")
    visit.page.click("text=What changed since version 1")
    visit.see("total")
    visit.open("/data/count-hello/log")
    visit.page.click("#about a:text-is('web/report 2')")
    visit.page.click("text=Lineage")
    visit.wait(".descent g.chosen:has-text('web/report 2')")
    visit.picture("lineage")
    visit.page.click(".descent a:has-text('count-hello/log 1')")
    visit.wait(".descent g.chosen:has-text('count-hello/log 1')")
    visit.open("/data/web/table")
    visit.see("2 rows")
    visit.open("/datastore?doctor=true")
    visit.see("reachab")
    visit.open("/data?cel=" + quote("name =="))
    visit.wait("[role=alert].card")
    visit.open("/data?cel=" + quote('size > 0 && name == "table"'))
    visit.see("1 name")
    visit.open("/data/web/table/lineage")
    visit.see("Made from nothing that is known")


def test_a_run_is_started_from_its_form_and_its_steps_turn_green_without_a_reload(
    machine: Machine, server: Serving, visit: Visit
) -> None:
    add_workflow(machine, "slow", "sleep 2; echo '<img src=x onerror=alert(1)> done'")
    visit.open("/runs")
    visit.page.click("#start a:text-is('slow')")
    visit.page.fill("input[name=ref]", "v1")
    visit.wait("button[data-ready]:enabled")
    visit.page.keyboard.press("Enter")
    visit.page.wait_for_url("**/runs/*-*")
    visit.mark()
    visit.wait("g[data-step=hello][data-status=succeeded]")
    visit.wait("#state .status.succeeded")
    visit.check_not_reloaded()
    until(lambda: "<img src=x onerror=alert(1)> done" in visit.page.inner_text("#log"))
    assert visit.page.query_selector("#log img") is None
    visit.picture("run")
    [run] = server.runs(workflow="slow")
    assert run["trigger"]["kind"] == "api"


def test_a_form_whose_script_has_not_come_yet_sends_nothing(machine: Machine, server: Serving, visit: Visit) -> None:
    add_workflow(machine, "slow", "true")
    visit.page.route("**/swamp.js*", lambda route: route.abort())
    visit.open("/runs/new/slow")
    visit.page.fill("input[name=ref]", "v1")
    visit.page.keyboard.press("Enter")
    assert visit.page.is_disabled("button:text-is('Run now')")
    assert "?" not in visit.page.url and visit.page.input_value("input[name=ref]") == "v1"
    visit.complaints.clear()  # the browser says that the script is missing


def test_a_run_that_waits_is_approved_and_goes_on(machine: Machine, server: Serving, visit: Visit) -> None:
    (machine.repo / "workflows" / "workflow-gated.yaml").write_text(APPROVAL)
    visit.open("/runs/new/gated")
    visit.page.click("button:text-is('Run now')")
    visit.page.wait_for_url("**/runs/*-*")
    visit.mark()
    visit.wait("g[data-step=compile][data-status=succeeded]")
    visit.wait("button:text-is('Approve')")
    visit.picture("approval")
    visit.page.click("button:text-is('Approve')")
    visit.wait("g[data-step=ship][data-status=succeeded]")
    visit.check_not_reloaded()


def test_a_conflict_of_a_second_machine_appears_and_is_resolved(
    team: Team, machine: Machine, server: Serving, visit: Visit
) -> None:
    other = team.machine("b")
    for one, text in ((machine, "the title\n<b>mine</b>\n"), (other, "the title\ntheirs\n")):
        file = one.tree / "files" / "note.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    visit.open("/datastore")  # before there is a conflict: the server looks at the store by itself, too
    visit.see("Nobody's work stands against another's.")
    visit.mark()
    other("datastore", "sync", "--full")
    server.ask("POST", "/api/v1/datastore/sync", json={"full": True})
    visit.wait("#conflicts button:text-is('Keep mine')")
    visit.check_not_reloaded()
    visit.page.click("#conflicts a:text-is('Compare')")
    row = visit.wait(".beside tr.changed")
    assert [cell.inner_text() for cell in row.query_selector_all("td")] == ["<b>mine</b>", "theirs"]
    visit.picture("conflict")
    visit.page.click("#choice button:text-is('Keep mine')")
    visit.page.wait_for_url("**/datastore")
    visit.see("Nobody's work stands against another's.")
    other.sync()
    assert (other.tree / "files" / "note.txt").read_text() == "the title\n<b>mine</b>\n"


def test_a_lock_is_seen_and_released(team: Team, machine: Machine, server: Serving, visit: Visit) -> None:
    other = team.machine("b")
    add_workflow(other, "holder", "sleep 600")
    held = other.start("workflow", "run", "holder", group=True)
    try:
        until(lambda: server.get("/api/v1/datastore/locks")["models"])
        visit.open("/datastore")
        visit.wait("#locks button:text-is('Release')")
        visit.picture("locks")
        visit.page.click("#locks button:text-is('Release')")
        until(lambda: not server.get("/api/v1/datastore/locks")["models"])
    finally:
        held.kill()
        held.wait()


def test_what_was_deleted_is_brought_back_from_its_commit(machine: Machine, server: Serving, visit: Visit) -> None:
    machine.put("web", "precious", "exists nowhere else")
    machine("data", "delete", "web", "precious", "--yes").ok()
    visit.open("/commits")
    visit.page.click("#list tbody tr:first-child a")
    visit.page.click("tr:has-text('/raw') button:text-is('Undelete')")
    until(lambda: ("web", "precious") in machine.names())
    assert machine.get("web", "precious")["content"] == "exists nowhere else"


def test_a_token_is_typed_into_the_form(server: Serving, visit: Visit) -> None:
    visit.page.goto("about:blank")  # an open page would be refused its event stream, and say so
    visit.page.context.clear_cookies()
    visit.open("/runs")
    assert visit.page.url == f"{server.url}/login"
    visit.picture("login")
    visit.page.fill("input[name=token]", server.token("viewer"))
    visit.page.keyboard.press("Enter")
    visit.page.wait_for_url(f"{server.url}/")
    visit.see("Overview")
    visit.open("/datastore")
    assert visit.page.query_selector("button") is None


def test_what_failed_says_why_and_a_commit_says_what(machine: Machine, server: Serving, visit: Visit) -> None:
    add_workflow(machine, "prices", "echo '<b>no such column</b>' >&2; exit 3")
    run = server.ask("POST", "/api/v1/runs", json={"workflow": "prices"}).json()["id"]
    assert server.ended(run)["status"] == "failed"
    visit.open("/")
    visit.wait("#failed .why:has-text('<b>no such column</b>')")
    visit.open("/commits")
    visit.wait("#list td:has-text('workflow run prices-hello/log')")


def test_steps_are_drawn_in_the_order_of_what_they_wait_for(machine: Machine, server: Serving, visit: Visit) -> None:
    (machine.repo / "workflows" / "workflow-many.yaml").write_text(MANY)
    run = server.ask("POST", "/api/v1/runs", json={"workflow": "many"}).json()["id"]
    assert server.ended(run)["status"] == "succeeded"
    visit.open(f"/runs/{run}")
    places = {
        box.get_attribute("data-step"): box.query_selector("rect").bounding_box()
        for box in visit.page.query_selector_all("#graph g[data-step]")
    }
    order = ["scan-a", "join", "report"]
    assert [places[name]["x"] for name in order] == sorted({places[name]["x"] for name in order})
    assert places["scan-a"]["x"] == places["scan-b"]["x"] and places["scan-a"]["y"] < places["scan-b"]["y"]
    assert len(visit.page.query_selector_all("#graph g.job")) == 2
    assert len(visit.page.query_selector_all("#graph path")) == 3, "two scans to the join, one job to the other"


def test_names_are_shown_as_text(machine: Machine, server: Serving, visit: Visit) -> None:
    name = "<script>alert(1)</script>".replace("/", "_")
    machine.put("web", name, "x", "--tag", "a=<b>bold")
    visit.open("/data")
    visit.see(name)
    assert visit.page.query_selector("#list script, #list b") is None


def test_a_phone_and_the_dark_see_the_same(browser: Any, server: Serving, pictures: Path) -> None:
    assert server.login is not None
    with visiting(browser, server.login, server.url, pictures, color_scheme="dark", is_mobile=False) as visit:
        visit.page.set_viewport_size({"width": 390, "height": 800})
        for path in ("/", "/data", "/runs", "/datastore"):
            visit.open(path)
            assert visit.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path
        visit.picture("phone")
        visit.check_clean()


def test_a_viewer_sees_no_button_and_nobody_sees_a_page_without_a_login(server: Serving) -> None:
    page = server.ask("GET", "/datastore", role="viewer")
    assert page.status_code == 200 and "Sync now" not in page.text and "Release" not in page.text
    answer = requests.get(f"{server.url}/runs", headers={"Accept": "text/html"}, allow_redirects=False, timeout=30)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    for path in ("/static/../app.py", "/static/%2e%2e%2fapp.py", "/static/..%5capp.py", "/static/render.py"):
        assert server.ask("GET", path).status_code == 404, path


def test_an_error_is_a_page_for_a_person_and_a_document_for_a_program(server: Serving) -> None:
    for path in ("/runs/none", "/data/nobody/nothing", "/commits/99999", "/nowhere"):
        page = server.ask("GET", path, headers={"Accept": "text/html"})
        assert page.status_code == 404 and page.headers["content-type"].startswith("text/html"), path
        assert server.ask("GET", path).json()["code"] == "not-found"


def test_runs_of_every_state_have_their_pages(machine: Machine, server: Serving) -> None:
    """A template that names a field which a state lacks fails as a whole."""
    (machine.repo / "workflows" / "workflow-gated.yaml").write_text(APPROVAL)
    for name, command in (("good", "echo done"), ("bad", "exit 3"), ("long", "sleep 600")):
        add_workflow(machine, name, command)
    over = {"good": "succeeded", "bad": "failed", "gated": "suspended", "long": "running"}

    def run(workflow: str, status: str) -> str:
        made = str(server.ask("POST", "/api/v1/runs", json={"workflow": workflow}).json()["id"])
        until(lambda: server.get(f"/api/v1/runs/{made}")["status"] == status)
        return made

    runs = [run(workflow, status) for workflow, status in over.items()]
    cancelled = run("long", "running")
    told = server.ask("POST", f"/api/v1/runs/{cancelled}/cancel")
    assert told.status_code < 300, told.text
    until(lambda: server.get(f"/api/v1/runs/{cancelled}")["status"] == "cancelled")
    states = ("succeeded", "failed", "suspended", "running", "cancelled")
    pages = ("/", "/runs", "/events", *(f"/runs?status={one}" for one in states))
    for path in (*pages, *(f"/runs/{one}" for one in (*runs, cancelled))):
        page = server.ask("GET", path, headers={"Accept": "text/html"})
        assert page.status_code == 200, (path, page.text)
    text = server.ask("GET", "/runs").text
    assert all(f'class="status {state}"' in text for state in states) and "at main.hello" in text


def test_pages_show_no_path_of_the_machine(machine: Machine, server: Serving) -> None:
    machine.put("web", "report", "x")
    for path in ("/", "/data", "/data/web/report", "/runs", "/commits", "/datastore?doctor=true", "/events"):
        text = server.ask("GET", path, headers={"Accept": "text/html"}).text
        assert str(machine.repo) not in text and str(machine.repo.parent) not in text, path


def test_a_page_of_a_plain_directory_too(tmp_path: Path) -> None:
    plain = Machine.make(tmp_path, "plain")
    plain.put("web", "report", "x")
    with serving(plain) as server:
        for path in ("/", "/data", "/data/web/report", "/runs", "/commits", "/datastore", "/events"):
            assert server.ask("GET", path).status_code == 200, path
