"""Sessions: where settings come from, and each way in which Spark cannot start says what to do."""

import os
import re
import socket
import stat
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swamp.bulk import executors
from swamp.bulk.choose import Chooser
from swamp.bulk.jobs import Jobs
from swamp.bulk.session import JAVA_OPTIONS, _java_options, remote_answers
from swamp.bulk.settings import (
    HIDDEN,
    HIDDEN_EVERYWHERE,
    SparkSettings,
    conf_of,
    find_java,
    parse_version,
    python_of,
    resolve_settings,
)
from swamp.bulk.spread import Beacon, Beat, spool_dir
from swamp.env import SYSTEM
from swamp.errors import Misconfigured, MissingTool, UsageError
from swamp.index.root import ROOT_KEY
from swamp.store.open import StoreSpec
from swamp.sync.bulk import Work
from swamp.sync.progress import IdleTimeout, Progress


@pytest.mark.parametrize(
    ("banner", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25-ea"', 25),
        ("something else", 0),
    ],
)
def test_java_versions_are_read(banner, major):
    assert parse_version(banner) == major


def fake_java(folder, banner):
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{banner}' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IEXEC)
    return {"JAVA_HOME": str(folder), "PATH": ""}


def test_no_java_says_how_to_install_it_everywhere(tmp_path):
    for environ in ({"PATH": str(tmp_path)}, {"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]}):
        with pytest.raises(MissingTool) as error:
            find_java(environ)
        for word in ("apt install", "brew install", "conda install", "JAVA_HOME", "inline"):
            assert word in error.value.hint


@pytest.mark.parametrize("version", ["11.0.2", "25.0.1", "1.8.0"])
def test_a_java_that_spark_cannot_run_on_is_named(tmp_path, version):
    with pytest.raises(MissingTool, match="17 and 21") as error:
        find_java(fake_java(tmp_path, f'openjdk version "{version}"'))
    assert str(tmp_path) in error.value.message


def test_java_17_and_21_are_good(tmp_path):
    assert find_java(fake_java(tmp_path / "a", 'openjdk version "17.0.1"')).major == 17
    assert find_java(fake_java(tmp_path / "b", 'openjdk version "21.0.1"')).major == 21


def test_flag_beats_environment_beats_file():
    block = {"master": "spark://file:7077", "conf": {"spark.x": True}}
    assert resolve_settings(block, {}).master == "spark://file:7077"
    assert resolve_settings(block, {}).conf == {"spark.x": "true"}
    assert resolve_settings(block, {"SWAMP_SPARK_MASTER": "yarn"}).master == "yarn"
    assert resolve_settings(block, {"SWAMP_SPARK_MASTER": "yarn"}, master="local[3]").master == "local[3]"
    assert resolve_settings({}, {}).master == "local[*]"
    assert resolve_settings({}, {"SPARK_REMOTE": "sc://h:1"}).remote == "sc://h:1"
    assert resolve_settings({"remote": "sc://h:1"}, {}, master="local[1]").remote is None
    assert resolve_settings({}, {}, master="k8s://https://h:6443").master == "k8s://https://h:6443"


def test_a_master_that_does_not_exist_is_a_usage_error():
    with pytest.raises(UsageError, match="not one Spark knows"):
        resolve_settings({"master": "loca[*]"}, {})


def test_local_sessions_bind_to_loopback_and_the_users_conf_wins():
    conf = conf_of(SparkSettings("local[2]", None, {"spark.driver.memory": "3g"}))
    assert conf["spark.master"] == "local[2,4]"  # a task may have four attempts: they never share a key
    assert conf["spark.driver.bindAddress"] == "127.0.0.1"
    assert conf["spark.ui.enabled"] == "false"
    assert conf["spark.driver.memory"] == "3g"
    assert "spark.sql.python.filterPushdown.enabled" not in conf  # it would give wrong answers: test_whole.py
    assert "spark.driver.bindAddress" not in conf_of(SparkSettings("spark://h:7077"))


def test_what_a_user_hides_is_the_users_own_choice():
    ours = conf_of(SparkSettings("local[2]"))[HIDDEN]
    assert re.sub(ours.replace(r":\d{1,5}/", ":1234/"), "*", "webhdfs://127.0.0.1:1234/0f-1e/2/part") == (
        "webhdfs://127.0.0.1:1234/*/2/part"
    )
    assert conf_of(SparkSettings("local[2]", None, {HIDDEN: "x"}))[HIDDEN] == "x"
    assert HIDDEN not in conf_of(SparkSettings("local[2]", None, {HIDDEN_EVERYWHERE: "x"}))
    assert HIDDEN not in conf_of(SparkSettings("spark://h:7077"))


def test_on_few_cores_a_short_command_does_without_the_second_compiler(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert SparkSettings("local[*]").for_work(1_000).brief
    assert not SparkSettings("local[*]").for_work(10_000_000).brief
    assert not SparkSettings("spark://h:7077").for_work(1_000).brief
    assert not SparkSettings("local[*]").brief  # a user's own jobs may run for hours
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert not SparkSettings("local[*]").for_work(1_000).brief


@pytest.mark.parametrize("before", [None, "-XX:TieredStopAtLevel=4 -Dx=1"])
def test_what_others_say_of_java_comes_after_ours_and_stays(monkeypatch, before):
    monkeypatch.delenv(JAVA_OPTIONS, raising=False)
    if before:
        monkeypatch.setenv(JAVA_OPTIONS, before)
    with _java_options(SparkSettings("local[2]")):
        assert os.environ.get(JAVA_OPTIONS) == before
    with _java_options(SparkSettings("local[2]", brief=True)):
        assert os.environ[JAVA_OPTIONS] == " ".join(filter(None, ("-XX:TieredStopAtLevel=1", before)))
    assert os.environ.get(JAVA_OPTIONS) == before


def test_a_master_that_does_not_answer_is_found_out_at_once():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and never listens: nobody else can have it meanwhile
        _found_out(unused.getsockname()[1])


def _found_out(port):
    code = f"""
from swamp.bulk.session import open_session
from swamp.bulk.settings import SparkSettings
from swamp.errors import Unavailable
try:
    open_session(SparkSettings("spark://127.0.0.1:{port}"))
except Unavailable as error:
    print(error.message, "|", error.hint)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "does not answer" in done.stdout and "inline" in done.stdout
    assert not remote_answers({"SPARK_REMOTE": f"sc://127.0.0.1:{port}"})


def test_sizes_and_the_ui_of_a_cluster_are_the_clusters():
    """Options that we give win over `spark-defaults.conf`: there are only those that our own jobs need."""
    conf = conf_of(SparkSettings("yarn"))
    assert set(conf) == {
        "spark.master",
        "spark.app.name",
        "spark.ui.showConsoleProgress",
        "spark.submit.deployMode",
        "spark.sql.session.timeZone",
        "spark.sql.execution.arrow.pyspark.enabled",
        "spark.sql.execution.arrow.maxRecordsPerBatch",
    }
    assert conf_of(SparkSettings("yarn", None, {"spark.driver.memory": "8g"}))["spark.driver.memory"] == "8g"


def test_the_executors_python_is_the_users_word_on_a_cluster():
    packed, theirs = "./environment/bin/python", {"PYSPARK_PYTHON": "/opt/conda/bin/python"}
    assert python_of(SparkSettings("yarn"), theirs) == "/opt/conda/bin/python"
    assert python_of(SparkSettings("yarn", None, {"spark.pyspark.python": packed}), theirs) == packed
    assert python_of(SparkSettings("yarn"), {}) == sys.executable
    assert python_of(SparkSettings("local[*]"), theirs) == sys.executable, "here the workers import this very package"


def test_our_archive_stands_beside_the_users_own(tmp_path):
    archive = tmp_path / "swamp.tar.gz"
    archive.write_bytes(b"")
    theirs = {"spark.archives": "hdfs:///envs/conda.tar.gz#environment", "spark.executorEnv.PYTHONPATH": "./more"}
    conf = conf_of(SparkSettings("yarn", None, {**theirs, "spark.swamp.archive": str(archive)}))
    assert conf["spark.archives"] == f"hdfs:///envs/conda.tar.gz#environment,{archive}#swamp-code"
    assert conf["spark.executorEnv.PYTHONPATH"] == "./more:./swamp-code"


@pytest.mark.parametrize("address", ["s3a://lake/swamp.tar.gz", "hdfs:///apps/swamp.tar.gz"])
def test_an_archive_may_lie_where_only_spark_reads(address, monkeypatch):
    conf = conf_of(SparkSettings("yarn", None, {"spark.swamp.archive": address}))
    assert conf["spark.archives"] == f"{address}#swamp-code"


def test_paths_of_this_machine_say_so_to_a_jvm_whose_default_is_hdfs(tmp_path, spark):
    """An edge node: `fs.defaultFS` is a cluster's. Parts on this machine's disk are read here all the same."""
    from swamp.datasets.native import _path_of
    from swamp.datasets.place import FileRef, Folder

    part = tmp_path / "a b" / "part.parquet"
    part.parent.mkdir()
    pq.write_table(pa.table({"id": [1, 2, 3]}), part)
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    before = hadoop.get("fs.defaultFS")
    hadoop.set("fs.defaultFS", "hdfs://nobody.invalid:8020")
    try:
        path = _path_of(Folder(str(tmp_path)), FileRef("a b/part.parquet", str(part), part.stat().st_size))
        assert spark.read.parquet(path).count() == 3
    finally:
        hadoop.set("fs.defaultFS", before)


def test_a_driver_behind_a_router_listens_where_it_is_and_is_found_where_it_is_said_to_be():
    beacon = Beacon("203.0.113.7", "token", "127.0.0.1")
    try:
        assert beacon.address.host == "203.0.113.7"
        with Beat(replace(beacon.address, host="127.0.0.1")) as beat:  # as the router would hand it on
            beat.add(2, 30)
        until = time.monotonic() + 60
        while not (heard := beacon.take()).alive:
            assert time.monotonic() < until
        assert (heard.files, heard.size, beacon.heard) == (2, 30, True)
    finally:
        beacon.close()
    without_a_word = Beacon("203.0.113.7", "token")  # no bindAddress: it listens everywhere
    without_a_word.close()


@pytest.mark.parametrize(("master", "heard", "active", "alive"), [
    ("spark://h:7077", False, 1, True),   # UDP is blocked: Spark's own word counts
    ("spark://h:7077", True, 1, False),   # signs come through: a task that gives none stands still
    ("spark://h:7077", False, 0, False),  # nobody has an executor
    ("local[2,4]", False, 1, False),
])  # fmt: skip
def test_a_network_that_swallows_signs_of_life_is_no_standstill(master, heard, active, alive):
    jobs = Jobs.__new__(Jobs)
    jobs._context, jobs._beacon = SimpleNamespace(master=master), SimpleNamespace(heard=heard)
    job = SimpleNamespace(stage_infos=lambda: [SimpleNamespace(numActiveTasks=active)])
    assert jobs._works_unheard(job) is alive


def test_executors_that_may_not_read_the_store_are_found_out_before_the_work(tmp_path):
    (tmp_path / "empty").mkdir()
    assert executors._reads_store(StoreSpec((tmp_path / "empty").as_uri()))() == "read"
    (tmp_path / "refused").mkdir()
    away = StoreSpec((tmp_path / "refused").as_uri())
    away.open().put(ROOT_KEY, b"not for you")
    assert executors._reads_store(away)() != "read"
    jobs = SimpleNamespace(parallelism=2, run=lambda *_: ["read", executors._reads_store(away)()])
    with pytest.raises(Misconfigured, match="a Spark executor cannot read") as error:
        executors.check_store(jobs, SparkSettings("yarn"), away, IdleTimeout(SYSTEM, 60))
    assert "spark.executorEnv" in error.value.hint


def test_tasks_spool_where_spark_lets_them(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path}/a,{tmp_path}/none,{tmp_path}/b")
    assert [spool_dir(number) for number in range(3)] == [f"{tmp_path}/a", f"{tmp_path}/b", f"{tmp_path}/a"]
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    assert spool_dir() is None


def test_an_archive_that_is_not_there_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        conf_of(SparkSettings("spark://h:7077", None, {"spark.swamp.archive": str(tmp_path / "none")}))


def test_the_package_holds_the_code_and_its_clients(tmp_path):
    from swamp.bulk.executors import build_archive

    made = build_archive(tmp_path / "swamp.tar.gz", exclude=["google-cloud-storage"])
    with tarfile.open(made.file) as archive:
        names = archive.getnames()
    assert "swamp/bulk/kernels.py" in names
    assert any(name.startswith("obstore/") for name in names)
    assert not any(name.startswith(("pyspark/", "pyarrow/", "google/")) for name in names)
    assert not any("__pycache__" in name for name in names)


def test_choosing_in_process_imports_no_spark():
    code = """
import sys
from swamp.bulk.choose import Chooser, choose_engine
from swamp.sync.bulk import Work
chooser = Chooser("auto", {}, None, None, None, None)
assert chooser(Work("upload", 3, 100)).name == "inline"
print(sorted({"pyspark", "pyarrow", "pandas"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_auto_says_why_it_stayed_in_process_and_spark_fails_clearly_without_java(tmp_path):
    code = """
from pathlib import Path
from swamp.errors import MissingTool
from swamp.bulk.choose import Chooser
from swamp.store.open import StoreSpec
from swamp.sync.bulk import Work
spec = StoreSpec(Path("bucket").absolute().as_uri())
large = Work("upload", 10_000_000, 10**13)
auto = Chooser("auto", {}, spec, spec.open(), Path("."), None)
print(auto(large).name, "|", auto(large).reason)
remote = Chooser("auto", {"master": "spark://elsewhere:7077"}, spec, spec.open(), Path("."), None)
print(remote(large).name, "|", remote(large).reason)
try:
    Chooser("spark", {}, spec, spec.open(), Path("."), None)(large)
except MissingTool as error:
    print("error", error.message, "|", error.hint)
"""
    (tmp_path / "bucket").mkdir()
    environ = {"PATH": "/nowhere", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env=environ, cwd=tmp_path
    )
    first, second, third = done.stdout.splitlines()
    assert first.startswith("inline") and "Java" in first
    assert second.startswith("inline") and "cannot see the cache" in second
    assert third.startswith("error Spark needs Java") and "apt install" in third


@pytest.mark.parametrize(("cores", "master", "stage", "obstacle"), [
    (2, "local[*]", "upload", "2 cores move files as fast without it"),
    (2, "local[2]", "download", "2 cores move files as fast without it"),
    (8, "local[*]", "upload", None),
    (2, "local[*]", "compare", None),
    (2, "spark://elsewhere:7077", "upload", None),
])  # fmt: skip
def test_a_machine_of_few_cores_moves_files_by_itself(tmp_path, monkeypatch, cores, master, stage, obstacle):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setenv("SWAMP_SPARK_MASTER", master)
    spec = StoreSpec((tmp_path / "bucket").as_uri())
    chooser = Chooser("auto", {"conf": {"spark.swamp.sharedCache": "true"}}, spec, spec.open(), tmp_path, Progress())
    assert chooser._obstacle(False, Work(stage, 10_000_000, 10**13)) == obstacle
