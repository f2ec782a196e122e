"""The demo's last chapter: the server is started, an event arrives, and its run is watched over the event stream."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

from stage import SWAMP, Audience, Machine

SECRET = "only the demo and its server know this"
HOOK = """
serve:
  webhooks:
    - route: /hooks/deploy
      workflow: deploy
      scheme: github
      secret: "@env=HOOK_SECRET"
      inputs: {ref: "${{ event.body.ref }}"}
"""
WORKFLOW = """\
id: 5d0d6f3e-7a55-4a41-9d0c-1f6f1a1f0d01
name: deploy
inputs: {type: object, properties: {ref: {type: string}}, required: [ref]}
jobs:
  - name: main
    steps:
      - name: build
        task:
          type: model_method
          modelType: command/shell
          modelName: build
          methodName: execute
          inputs: {run: "echo building ${{ inputs.ref }}"}
"""


def serve(ann: Machine, audience: Audience) -> None:
    """Start the server, fire a signed webhook, watch its run, and leave the page open while somebody looks."""
    audience.chapter("Ann starts the server, and a webhook arrives")
    ann.write("workflows/workflow-deploy.yaml", WORKFLOW)
    config = ann.repo / ".swamp.yaml"
    config.write_text(config.read_text() + HOOK)
    token = ann.swamp("serve", "token", "create", "--role", "viewer", quiet=True)["token"]
    audience.command(ann.name, ("serve", "--port", "0"))
    process = subprocess.Popen(
        [SWAMP, "serve", "--port", "0", "--json"], cwd=ann.repo, env={**ann.environment(), "HOOK_SECRET": SECRET},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        _watch(ready["url"], token, audience)
        _stay(ready, audience)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=120)
    audience.promise(process.returncode == 0, "SIGTERM: the server takes nothing new, pushes, and ends with 0")


def _watch(url: str, token: str, audience: Audience) -> None:
    body = json.dumps({"ref": "main"}).encode()
    request = urllib.request.Request(f"{url}/api/v1/events", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=300) as stream:
        first, again = _deliver(url, body), _deliver(url, body)
        audience.promise(
            (first["status"], again["status"]) == ("queued", "duplicate"),
            "a signed webhook is on disk before it is answered, and the same delivery again is known",
            (first, again),
        )
        for kind, event in _events(stream):
            if event.get("runId") != again["runId"]:
                continue
            if kind in ("run", "step", "log"):
                audience.say(f"{kind}: {event.get('step', '')} {event.get('line') or event['status']}".strip())
            if kind == "run" and event["status"] not in ("running", "pending"):
                seen = event
                break
    audience.promise(
        seen["status"] == "succeeded" and seen["trigger"]["deliveryId"] == "demo-1",
        "its run was watched live, step by step, and its record says why it ran",
        seen,
    )


def _deliver(url: str, body: bytes) -> Any:
    mark = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    headers = {"X-Hub-Signature-256": f"sha256={mark}", "X-GitHub-Delivery": "demo-1"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/hooks/deploy", body, headers), timeout=60) as answer:
        return json.load(answer)


def _events(stream: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    kind = ""
    for raw in stream:
        name, _, value = raw.decode().rstrip("\n").partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            yield kind, json.loads(value)


def _stay(ready: dict[str, Any], audience: Audience) -> None:
    """The URL, for as long as somebody is at the terminal and wants to look."""
    audience.say(f"the server is at {ready['url']}; log in once with")
    print(f"   {ready['login']}", flush=True)
    if sys.stdin.isatty() and sys.stdout.isatty() and not os.environ.get("CI"):
        input("   look around, then press Enter to end the demo ")
