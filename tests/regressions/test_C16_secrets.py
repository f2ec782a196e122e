"""C16: a secret reached the bucket: cut in two, in an encoding, in a tail, in a name, or too short to mask."""

from __future__ import annotations

import base64
import gzip
import json
from urllib.parse import quote, quote_plus

import pytest

from machines import Machine, Team
from swamp.models.mask import base64_forms, literal_forms

SECRET = "p4\"ss\\w/ö rd+of the=base&x'y"
KEY = "-----BEGIN KEY-----\n" + "\n".join(f"line{n}{'abcdefghij' * 5}" for n in range(4)) + "\n-----END KEY-----"
FORMS = {form for form in (literal_forms(SECRET) | literal_forms(KEY)) if "BEGIN" not in form and "END" not in form}


def shell(run: str, **more: str) -> str:
    """A workflow of one shell step that fails nobody."""
    step = {
        "name": more.get("step", "leak"),
        "allowFailure": True,
        "task": {
            "type": "model_method",
            "modelType": "command/shell",
            "modelName": more.get("model", "leaky"),
            "methodName": "execute",
            "inputs": {"run": run},
        },
    }
    inputs = {"type": "object", "properties": {"pin": {"type": "string", "writeOnly": True}}}
    return json.dumps({"id": "wf-leak", "name": "leak", "inputs": inputs, "jobs": [{"name": "j", "steps": [step]}]})


def leaks(team: Team) -> list[str]:
    """Objects of the bucket, and their names, in which the secret shows in any encoding."""
    found = []
    for key, body in team.place.objects().items():
        text = key + (gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body).decode("utf-8", "replace")
        flat = text.replace("\n", "").replace("\\n", "")
        hits = {f for f in FORMS if f in text} | {f for f in base64_forms(SECRET) | base64_forms(KEY) if f in flat}
        found += [f"{key}: {hit}" for hit in hits]
    return found


@pytest.fixture
def a(team: Team) -> Machine:
    machine = team.machine("a")
    machine.env |= {"DB_PASSWORD": SECRET, "DEPLOY_KEY": KEY}
    return machine


def says(a: Machine, code: str) -> str:
    """What a script that prints secrets is recorded to have said."""
    file = a.repo / "say.py"
    file.write_text(f"import os, json, base64, sys\nS, K = os.environ['DB_PASSWORD'], os.environ['DEPLOY_KEY']\n{code}")
    (a.repo / "workflows" / "workflow-leak.yaml").write_text(shell("python3 say.py"))
    ran = a("workflow", "run", "leak", "--input", "pin=12345678")
    assert ran.json["status"] == "succeeded", ran.out + ran.err
    assert SECRET not in ran.out + ran.err
    return str(json.loads(a.get("leaky", "result")["content"])["stdout"])


@pytest.mark.inv("secrets.stream")
@pytest.mark.parametrize("before", [65536 - 5, 65536 - len(SECRET.encode()) + 1, 131072 - 12])
def test_C16_a_secret_across_a_read_boundary_is_masked(team: Team, a: Machine, before: int):
    said = says(a, f"sys.stdout.write('x' * {before}); sys.stdout.write(S + 'tail'); sys.stdout.flush()")
    assert said.endswith("x***tail") and leaks(team) == []


@pytest.mark.inv("secrets.stream")
def test_C16_a_secret_in_the_tail_that_is_kept_of_much_output_is_masked(team: Team, a: Machine):
    said = says(a, "sys.stdout.write(('y' * 997 + S) * 2000); print('end')")
    assert said.endswith("***end\n") and leaks(team) == []


@pytest.mark.inv("secrets.stream")
def test_C16_a_secret_that_comes_byte_by_byte_is_masked(team: Team, a: Machine):
    said = says(a, "import time\nfor b in S.encode(): os.write(1, bytes([b])); time.sleep(0.002)\nprint()")
    assert said == "***\n" and leaks(team) == []


def test_C16_a_secret_is_masked_in_every_encoding(team: Team, a: Machine):
    said = says(
        a,
        "from urllib.parse import quote, quote_plus\n"
        "print(json.dumps({'v': S})); print(json.dumps(json.dumps(S))); print(json.dumps(S, ensure_ascii=False))\n"
        "print('https://u:' + quote(S, safe='') + '@h/?q=' + quote_plus(S) + '&r=' + quote(S).lower())\n"
        "print('Basic ' + base64.b64encode(('user:' + S + '!').encode()).decode())\n"
        "print(base64.encodebytes(b'z' * 50 + S.encode() + b'z' * 20).decode())\n"
        "print(base64.urlsafe_b64encode(S.encode()).decode(), S.encode().hex(), repr(S), [S.encode()])\n",
    )
    assert SECRET not in said and quote(SECRET, safe="") not in said and quote_plus(SECRET) not in said
    assert base64.b64encode(SECRET.encode()).decode()[:8] not in said
    assert '{"v": "***"}' in said and leaks(team) == []


def test_C16_a_key_of_many_lines_is_masked_as_a_whole_by_line_and_folded(team: Team, a: Machine):
    folded = "base64.encodebytes(K.encode())"
    said = says(a, f"print(K, json.dumps(K), K.splitlines()[2]); print({folded}); print({folded}.decode())")
    assert "abcdefghij" not in said and leaks(team) == []


def test_C16_a_file_of_json_that_a_script_leaves_is_masked(team: Team, a: Machine):
    (a.repo / "left.py").write_text(
        "import os, json\nS = os.environ['DB_PASSWORD']\n"
        "json.dump({'n': 12345678, S: [S, 'x' + S]}, open(os.environ['SWAMP_OUTPUT_DIR'] + '/found.json', 'w'))\n"
    )
    a("model", "create", "python/script", "left", "--arg", "run.file=left.py").ok()
    a("model", "method", "run", "left", "run").ok()
    assert json.loads(a.get("left", "found")["content"]) == {"n": 12345678, "***": ["***", "x***"]}
    assert leaks(team) == []


@pytest.mark.inv("secrets.too-short")
def test_C16_a_value_that_is_too_short_to_mask_is_refused_with_the_reason(team: Team, a: Machine):
    a.env["PIN"] = "q7z"
    flow = a.repo / "workflows" / "workflow-leak.yaml"
    flow.write_text(shell("echo ${{ env.PIN }}"))
    [step] = a("workflow", "run", "leak", "--input", "pin=12345678").json["jobs"][0]["steps"]
    assert step["status"] == "failed" and "PIN" in step["error"] and "too short to be masked" in step["error"]
    flow.write_text(shell("echo ${{ inputs.pin }}"))
    error = a("workflow", "run", "leak", "--input", "pin=q7z").failed(2)
    assert "`pin`" in error["error"] and "too short to be masked" in error["error"] and error["hint"]
    flow.write_text(shell("echo ok ${{ env.PIN == 'no' }}"))  # a comparison says nothing of the value
    assert a("workflow", "run", "leak", "--input", "pin=12345678").ok()["status"] == "succeeded"
    assert not [key for key, body in team.place.objects().items() if b"q7z" in body or "q7z" in key]


@pytest.mark.inv("secrets.too-short")
def test_C16_a_password_of_the_environment_that_cannot_be_masked_is_not_passed_on(team: Team, a: Machine):
    a.env["API_PASSWORD"] = "q7z"
    (a.repo / "workflows" / "workflow-leak.yaml").write_text(shell("echo got [$API_PASSWORD]; env"))
    assert a("workflow", "run", "leak", "--input", "pin=12345678").ok()["status"] == "succeeded"
    said = json.loads(a.get("leaky", "result")["content"])["stdout"]
    assert said.startswith("got []")
    assert "API_PASSWORD is not passed on" in "\n".join(a("model", "output", "logs", "leaky").ok()["lines"])
    assert not [key for key, body in team.place.objects().items() if b"q7z" in body]


def test_C16_an_error_that_repeats_what_was_not_found_is_masked(team: Team, a: Machine):
    a.env["WHERE"] = "canary-of-a-place"
    (a.repo / "models" / "command" / "shell").mkdir(parents=True)
    (a.repo / "models" / "command" / "shell" / "asks.yaml").write_text(
        json.dumps(
            {
                "id": "id-asks",
                "name": "asks",
                "type": "command/shell",
                "methods": {"execute": {"arguments": {"run": "${{ data.latest(env.WHERE, env.WHERE).version }}"}}},
            }
        )
    )
    for verbose in ((), ("-v",)):
        ran = a("model", "method", "run", "asks", "execute", *verbose)
        assert ran.code == 1 and "***" in ran.err and "canary-of-a-place" not in ran.out + ran.err, ran.err
    (a.repo / "workflows" / "workflow-leak.yaml").write_text(
        shell("${{ data.latest(env.WHERE, 'x').attributes }}", model="other")
    )
    ran = a("workflow", "run", "leak", "--input", "pin=12345678", "-v")
    assert "canary-of-a-place" not in ran.out + ran.err
    assert not [key for key, body in team.place.objects().items() if b"canary-of-a-place" in body]


@pytest.mark.inv("secrets.no-names")
@pytest.mark.parametrize("where", ["step", "model"])
def test_C16_no_name_is_made_of_a_secret(team: Team, a: Machine, where: str):
    a.env["PLACE"] = "canary-of-a-place"
    for expression in ("x-${{ env.PLACE }}", "x-${{ inputs.pin }}"):
        (a.repo / "workflows" / "workflow-leak.yaml").write_text(shell("echo hi", **{where: expression}))
        ran = a("workflow", "run", "leak", "--input", "pin=canary-of-a-place")
        assert "comes from a secret" in ran.json["jobs"][0]["steps"][0]["error"]
        assert "canary-of-a-place" not in ran.out + ran.err
    assert not [key for key, body in team.place.objects().items() if b"canary-of-a-place" in body + key.encode()]


@pytest.mark.inv("secrets.no-names")
def test_C16_data_that_a_script_names_after_a_secret_is_refused(team: Team, a: Machine):
    a.env["DB_PASSWORD"] = "canary-of-a-name"
    (a.repo / "left.py").write_text(
        "import os, pathlib\nout = pathlib.Path(os.environ['SWAMP_OUTPUT_DIR'])\n"
        "(out / os.environ['DB_PASSWORD']).write_text('x')\n"
    )
    a("model", "create", "python/script", "left", "--arg", "run.file=left.py").ok()
    ran = a("model", "method", "run", "left", "run")
    assert ran.code == 1 and "holds a secret" in ran.json["error"] and "canary" not in ran.out + ran.err
    assert not [key for key, body in team.place.objects().items() if b"canary-of-a-name" in body + key.encode()]


def test_C16_a_number_that_is_a_secret_is_masked_and_asked_for_again(team: Team, a: Machine):
    flow = json.loads(shell("exit 3"))
    flow["inputs"]["properties"]["pin"] = {"type": "integer", "writeOnly": True}
    flow["jobs"][0]["steps"][0]["allowFailure"] = False
    (a.repo / "workflows" / "workflow-leak.yaml").write_text(json.dumps(flow))
    run = a("workflow", "run", "leak", "--input", "pin=94837261").json
    assert a("workflow", "history", "get", run["id"]).ok()["inputs"] == {"pin": "***"}
    assert "is not in the record" in a("workflow", "resume", run["id"]).failed(2)["error"]
    assert not [key for key, body in team.place.objects().items() if b"94837261" in body]
