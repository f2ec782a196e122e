"""Who may do what: tokens, roles on every route, logins that count once, other sites, hostile requests."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests

from machines import Team
from serving import Serving, serving, signed

EXAMPLES = {"model": "m", "name": "n", "version": "1", "run": "r", "type": "command/shell", "method": "execute",
            "delivery": "d", "route": "deploy"}  # fmt: skip
PUBLIC = {"/hooks/{route}"}


def operations(server: Serving) -> list[tuple[str, str, str]]:
    """(method, path with examples, template) of everything that the description has."""
    paths = server.get("/api/v1/openapi.json")["paths"]
    return [
        (
            method.upper(),
            re.sub(r"{(\w+)(?::path)?}", lambda found: EXAMPLES.get(found.group(1), "1"), template),
            template,
        )
        for template, operations in paths.items()
        for method in operations
    ]


@pytest.mark.inv("serve.roles")
def test_every_route_needs_a_token_and_mutating_ones_more_than_a_viewers(server: Serving) -> None:
    found = operations(server)
    assert len(found) > 30
    answers = set()
    for method, path, template in found:
        if template in PUBLIC:
            continue
        refused = server.ask(method, path, role=None)
        assert refused.status_code == 401, (method, path)
        answers.add(refused.text)
        assert server.ask(method, path, role=None, headers={"Authorization": "Bearer nonsense"}).text in answers
        if method != "GET" and template not in ("/api/v1/query", "/api/v1/session/logout"):
            viewer = server.ask(method, path, role="viewer", json={})
            assert (viewer.status_code, viewer.json()["code"]) == (403, "forbidden"), (method, path)
    assert len(answers) == 1, "one answer for every reason"
    assert server.ask("POST", "/api/v1/datastore/locks/release", role="operator", json={}).status_code == 403
    assert server.ask("GET", "/api/v1/nothing-here", role=None).status_code == 401


def test_tokens_are_kept_as_hashes_and_can_be_revoked(server: Serving) -> None:
    word = server.token("viewer")
    folder = server.machine.repo / ".swamp"
    assert all(word.encode() not in file.read_bytes() for file in folder.glob("serve.db*"))
    assert server.ask("GET", "/api/v1/session", role="viewer").json()["role"] == "viewer"
    [known] = [t for t in server.machine("serve", "token", "list").ok()["items"] if t["role"] == "viewer"]
    server.machine("serve", "token", "revoke", known["id"]).ok()
    assert server.ask("GET", "/api/v1/session", role="viewer").status_code == 401
    server.machine("serve", "token", "revoke", known["id"]).failed(1)
    server.machine("serve", "token", "create", "--role", "king").failed(2)


def logged_in(server: Serving) -> requests.Session:
    browser = requests.Session()
    answer = browser.get(str(server.login), allow_redirects=False)
    assert answer.status_code == 303
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
    return browser


def test_a_login_counts_once(server: Serving) -> None:
    browser = logged_in(server)
    assert browser.get(f"{server.url}/api/v1/session").json()["role"] == "admin"
    assert requests.get(str(server.login), allow_redirects=False).status_code == 401
    another = server.machine("serve", "login").ok()["login"]
    assert requests.get(another, allow_redirects=False).status_code == 303


def test_a_token_logs_a_browser_in_with_its_role_until_it_is_revoked(server: Serving) -> None:
    """Who has no shell on the server's machine, such as behind a proxy, has a token."""
    form = requests.get(f"{server.url}/login", headers={"Accept": "text/html"}, timeout=30)
    assert form.status_code == 200 and 'type="password"' in form.text
    assert form.headers["Referrer-Policy"] == "same-origin", "otherwise a browser's POST has no Origin"
    made = server.machine("serve", "token", "create", "--role", "viewer", "--name", "ann").ok()
    browser = requests.Session()
    for word, origin in (("nonsense", server.url), ("", server.url), (made["token"], "https://evil.example")):
        refused = browser.post(f"{server.url}/login", data={"token": word}, headers={"Origin": origin}, timeout=30)
        assert refused.status_code in (401, 403) and not browser.cookies and made["token"] not in refused.text
    headers = {"Origin": server.url}
    entered = browser.post(
        f"{server.url}/login", data={"token": made["token"]}, headers=headers, allow_redirects=False, timeout=30
    )
    assert entered.status_code == 303 and "HttpOnly" in entered.headers["Set-Cookie"]
    seen = browser.get(f"{server.url}/api/v1/session", timeout=30).json()
    assert (seen["role"], seen["name"], seen["kind"]) == ("viewer", "ann", "session")
    change = {**headers, "X-CSRF-Token": seen["csrf"]}
    assert browser.post(f"{server.url}/api/v1/datastore/sync", headers=change, timeout=30).status_code == 403
    server.machine("serve", "token", "revoke", made["id"]).ok()
    assert browser.get(f"{server.url}/api/v1/session", timeout=30).status_code == 401


@pytest.mark.inv("serve.origin")
def test_behind_a_proxy_logins_name_the_public_url_and_a_browser_changes_from_there(team: Team) -> None:
    """As a proxy would ask that keeps the Host, and as one that does not."""
    machine, public = team.machine("b"), "https://swamp.example.org"
    with serving(machine, "--behind-proxy", "--public-url", "https://Swamp.example.org:443/") as server:
        assert server.url.startswith("http://127.0.0.1:") and str(server.login).startswith(f"{public}/login?token=")
        assert machine("serve", "login").ok()["login"].startswith(f"{public}/login?token=")
        for host in ("swamp.example.org", server.url.removeprefix("http://")):
            word = machine("serve", "login").ok()["login"].removeprefix(public)
            entered = requests.get(server.url + word, headers={"Host": host}, allow_redirects=False, timeout=30)
            cookie = entered.headers["Set-Cookie"]
            assert entered.status_code == 303 and "secure" in cookie.lower()
            browser = {"Host": host, "Cookie": cookie.partition(";")[0]}
            csrf = requests.get(f"{server.url}/api/v1/session", headers=browser, timeout=30).json()["csrf"]
            for origin, status in (
                (public, 200),
                ("https://evil.example", 403),
                ("https://swamp.example.org:8443", 403),
            ):
                change = {**browser, "Origin": origin, "X-CSRF-Token": csrf}
                done = requests.post(f"{server.url}/api/v1/datastore/sync", headers=change, timeout=30)
                assert done.status_code == status, (host, origin, done.text)
        other = requests.get(f"{server.url}/healthz", headers={"Host": "evil.example"}, timeout=30)
        assert other.status_code == 403


@pytest.mark.inv("serve.origin")
def test_a_browsers_change_needs_its_origin_and_its_token(server: Serving) -> None:
    browser = logged_in(server)
    csrf = browser.get(f"{server.url}/api/v1/session").json()["csrf"]
    url, good = f"{server.url}/api/v1/workflows/deploy/runs", {"Origin": server.url, "X-CSRF-Token": csrf}
    for headers in (
        {},
        {"Origin": server.url},
        {"X-CSRF-Token": csrf},
        {**good, "Origin": "https://evil.example"},
        {**good, "Origin": "null"},
        {**good, "X-CSRF-Token": "x"},
        {**good, "Sec-Fetch-Site": "cross-site"},
    ):
        assert browser.post(url, headers=headers).status_code == 403, headers
    assert browser.post(url, headers=good).status_code == 202
    bearer = {"Authorization": f"Bearer {server.token('operator')}"}
    assert requests.post(url, headers={**bearer, "Origin": "https://evil.example"}).status_code == 403
    assert browser.post(f"{server.url}/api/v1/session/logout", headers=good).status_code == 204
    assert browser.get(f"{server.url}/api/v1/session").status_code == 401


def test_a_name_that_points_here_is_not_served(server: Serving) -> None:
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "a@127.0.0.1", "localhost.evil"):
        for path in ("/healthz", "/api/v1/session", "/"):
            assert server.ask("GET", path, headers={"Host": host}).status_code in (400, 403), (host, path)
    port = urlsplit(server.url).port
    assert server.ask("GET", "/healthz", headers={"Host": f"localhost:{port}"}).status_code == 200


def test_answers_tell_browsers_to_be_strict(server: Serving) -> None:
    for path in ("/healthz", "/api/v1/session", "/nothing"):
        headers = server.ask("GET", path).headers
        policy = headers["Content-Security-Policy"]
        assert "script-src 'self'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "server" not in headers


TRAVERSALS = [
    "..%2f..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd", "....//etc", "%00", "a%0d%0aSet-Cookie:x", "%ff",
    "~root", "C:%5cwindows", "x" * 3000, "<script>alert(1)</script>", "'; DROP TABLE deliveries; --",
]  # fmt: skip


def test_traversal_in_every_path_parameter(server: Serving, tmp_path: Path) -> None:
    pages = ("/data/{model}/{name}", "/data/{model}/{name}/diff?from=1&to=2",
             "/data/{model}/{name}/lineage", "/runs/{run}", "/runs/new/{workflow}",
             "/commits/{seq}", "/static/{name}", "/datastore/conflict?id={id}")  # fmt: skip
    paths = {**server.get("/api/v1/openapi.json")["paths"], **{path: ["get"] for path in pages}}
    for template, operations in paths.items():
        for bad in TRAVERSALS:
            path = re.sub(r"{(\w+)(?::path)?}", lambda _, bad=bad: bad, template)
            for method in operations:
                if "{" not in template:
                    continue
                answer = server.ask(method.upper(), path, json={} if method != "get" else None)
                # These are names like any other; whatever is a name is only ever a name.
                fine = (200, 201) if bad in ("~root", "'; DROP TABLE deliveries; --") else ()
                assert 400 <= answer.status_code < 500 or answer.status_code in fine, (method, path, answer.text)
                assert "root:" not in answer.text and str(tmp_path) not in answer.text
                assert answer.headers["content-type"].startswith(("application/json", "text/plain")), path
    assert server.get("/api/v1/deliveries")["items"] == []


@pytest.mark.inv("serve.no-paths")
def test_no_answer_shows_where_things_are(server: Serving, tmp_path: Path) -> None:
    run = server.deliver("one").json()["runId"]
    server.ended(run)
    server.machine.put("web", "page", "hello")
    for method, path, _ in operations(server):
        if method != "GET" or path.endswith("/events"):
            continue
        for real in (path, path.replace("/m/", "/web/").replace("/n", "/page"), path.replace("/r", f"/{run}", 1)):
            answer = server.ask("GET", real)
            assert str(tmp_path) not in answer.text, (real, answer.text)
    assert str(tmp_path) not in server.ask("GET", f"/api/v1/runs/{run}").text
    assert str(tmp_path) not in server.ask("GET", "/api/v1/datastore/doctor").text


def raw(server: Serving, data: bytes, seconds: float = 20.0) -> bytes:
    """What the server says to these bytes, until it closes or time is up."""
    host, port = urlsplit(server.url).hostname, urlsplit(server.url).port
    with socket.create_connection((host, port), timeout=seconds) as wire:
        wire.sendall(data)
        found = b""
        try:
            while part := wire.recv(65536):
                found += part
        except TimeoutError:
            pass
        return found


def test_bodies_and_headers_are_bounded(server: Serving) -> None:
    big = server.ask("PUT", "/api/v1/data/m/n", data=b"x" * (10 * 1024 * 1024 + 1))
    assert (big.status_code, big.json()["code"]) == (413, "too-large")
    counted = server.ask("PUT", "/api/v1/data/m/n", data=(b"x" * 65536 for _ in range(200)))
    assert counted.status_code == 413
    fits = server.ask("PUT", "/api/v1/data/m/n", data=b"x" * (1024 * 1024))
    assert fits.status_code == 201
    assert server.ask("GET", "/healthz", headers={f"X-{n}": "a" for n in range(150)}).status_code == 431
    assert raw(server, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 70_000).startswith(b"HTTP/1.1 400")
    assert raw(server, b"\x16\x03\x01 not http\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert requests.get(f"{server.url}/healthz").status_code == 200


def test_a_connection_that_says_nothing_is_closed(server: Serving) -> None:
    assert raw(server, b"GET /healthz HTTP/1.1\r\nHost: loc", seconds=40) == b""


def test_guessing_is_slowed_down(server: Serving) -> None:
    answers = [
        server.ask("GET", "/api/v1/session", role=None, headers={"Authorization": f"Bearer {n}"}) for n in range(150)
    ]
    late = [answer for answer in answers if answer.status_code == 429]
    assert late and int(late[0].headers["Retry-After"]) >= 1
    assert {answer.status_code for answer in answers} == {401, 429}


def test_signatures_are_not_guessed_either(server: Serving) -> None:
    body = b'{"ref": "x"}'
    codes = {
        requests.post(f"{server.url}/hooks/deploy", data=body, headers=signed(body, "x", f"secret {n}")).status_code
        for n in range(150)
    }
    assert codes == {401, 429}
    assert server.get("/api/v1/deliveries")["items"] == []
