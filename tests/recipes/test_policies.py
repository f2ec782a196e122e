"""The S3 policies of docs/recipes/policies, enforced: moto judges each request by its user's rights."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from machines import Machine
from servers.start import start

POLICIES = Path(__file__).parents[2] / "docs" / "recipes" / "policies"
BUCKET, PREFIX = "team-data", "shop"


class Account:
    """A moto server with one bucket, and a user whose rights can be changed."""

    def __init__(self, server) -> None:
        import boto3

        self.endpoint = server.endpoint
        login = {"aws_access_key_id": "root", "aws_secret_access_key": "root", "region_name": "us-east-1"}
        self.iam = boto3.client("iam", endpoint_url=self.endpoint, **login)
        boto3.client("s3", endpoint_url=self.endpoint, **login).create_bucket(Bucket=BUCKET)
        self.iam.create_user(UserName="worker")
        key = self.iam.create_access_key(UserName="worker")["AccessKey"]
        self.login = {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}

    def grant(self, policy: dict) -> None:
        self._judge("inf")
        self.iam.put_user_policy(UserName="worker", PolicyName="p", PolicyDocument=json.dumps(as_moto_reads_it(policy)))
        self._judge("0")

    def _judge(self, after: str) -> None:
        """From so many requests on every one is judged."""
        plain = {"Content-Type": "text/plain"}  # a form's body is taken apart before moto sees it
        request = urllib.request.Request(f"{self.endpoint}/moto-api/reset-auth", after.encode(), plain, method="POST")
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30).close()

    def machine(self, folder: Path, name: str) -> Machine:
        return Machine.make(
            folder, name, {**self.login, "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
        )

    def setup_args(self, prefix: str = PREFIX) -> tuple[str, ...]:
        config = {"bucket": BUCKET, "prefix": prefix, "endpoint": self.endpoint, "forcePathStyle": True}
        return ("datastore", "setup", "@swamp/s3-datastore", "--config", json.dumps(config))


def published(name: str) -> dict:
    return json.loads((POLICIES / f"s3-{name}.json").read_text())


def as_moto_reads_it(policy: dict) -> dict:
    """moto is not AWS: it knows no `s3:prefix`, and judges a delete of many keys by the bucket."""
    statements = [{k: v for k, v in s.items() if k != "Condition"} for s in policy["Statement"]]
    bucket = f"arn:aws:s3:::{BUCKET}"
    if any("s3:DeleteObject" in s["Action"] for s in statements):
        statements.append({"Effect": "Allow", "Action": "s3:DeleteObject", "Resource": bucket})
    return policy | {"Statement": statements}


def without(policy: dict, action: str) -> dict:
    statements = []
    for statement in policy["Statement"]:
        actions = [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
        left = [name for name in actions if name != action]
        if left:
            statements.append(statement | {"Action": left})
    return policy | {"Statement": statements}


@pytest.fixture(scope="module")
def account():
    with start("moto") as server:
        yield Account(server)


@pytest.fixture(scope="module")
def shared(account, tmp_path_factory) -> Machine:
    """The writer has set the store up and put something in."""
    account.grant(published("writer"))
    machine = account.machine(tmp_path_factory.mktemp("writer"), "a")
    machine(*account.setup_args()).ok()
    machine.put("m", "n", "1")
    return machine


def test_the_writer_works_with_exactly_this(account, shared):
    account.grant(published("writer"))
    (shared.repo / "large").write_bytes(b"x" * (9 << 20))  # in parts
    shared("data", "put", "m", "large", str(shared.repo / "large")).ok()
    shared("data", "delete", "m", "large", "--yes").ok()
    shared.sync()
    shared("datastore", "gc").ok()


def test_the_writer_gets_nowhere_else(account, shared, tmp_path):
    account.grant(published("writer"))
    told = account.machine(tmp_path, "b")(*account.setup_args("payroll")).failed(69)
    assert told["code"] == "access-denied"


def test_the_reader_reads_and_is_refused_a_write(account, shared, tmp_path):
    account.grant(published("reader"))
    reader = account.machine(tmp_path, "r")
    reader(*account.setup_args()).ok()
    assert reader.get("m", "n")["content"] == "1"
    (reader.repo / "f").write_text("2")
    told = reader("data", "put", "m", "n", str(reader.repo / "f")).failed(69)
    assert told["code"] == "access-denied"


def test_without_reading_setup_is_refused(account, shared, tmp_path):
    account.grant(without(published("writer"), "s3:GetObject"))
    told = account.machine(tmp_path, "c")(*account.setup_args()).failed(69)
    assert told["code"] == "access-denied" and told["details"]["verb"] in ("GET", "HEAD")  # one right in S3


@pytest.mark.parametrize("action", ["s3:ListBucket", "s3:PutObject", "s3:DeleteObject"])
def test_without_any_of_these_a_machine_only_reads_and_is_told_why(account, shared, tmp_path, action):
    account.grant(without(published("writer"), action))
    machine = account.machine(tmp_path, "d")
    (warning,) = machine(*account.setup_args()).ok()["warnings"]
    verb = action[3:].removesuffix("Object").removesuffix("Bucket").upper()
    assert f"may read and not write ({verb} " in warning and "403" in warning


def test_the_policies_say_the_same_for_everybody():
    """What stands in the files is JSON with the places of the page in it, and nothing is granted on everything."""
    for path in sorted(POLICIES.glob("*.json")):
        text = path.read_text()
        assert json.loads(text) and '"*"' not in text
        if path.stem.startswith("s3"):
            resources = {s["Resource"] for s in json.loads(text)["Statement"]}
            assert resources == {f"arn:aws:s3:::{BUCKET}", f"arn:aws:s3:::{BUCKET}/{PREFIX}/*"}
