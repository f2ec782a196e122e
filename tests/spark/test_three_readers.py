"""Odd types, odd parts and odd queries: Spark's own reader, the same over lent parts and over copies of them, the
format over it, and the Python source answer as a plain DataFrame of the same rows does."""

from decimal import Decimal

import pytest
from spark_files import native_format
from test_datasets import load

import swamp.spark
from swamp.bulk.settings import COPY_BYTES
from swamp.datasets import native
from swamp.datasets.copies import shelf_at
from swamp.datasets.place import open_place
from swamp.datasets.source import find_asked

pytestmark = pytest.mark.timeout(900)

COLUMNS = """
    id bigint, n int, price decimal(38, 10), cents decimal(9, 2), at timestamp, local timestamp_ntz, day date,
    flag boolean, raw binary, ratio float, tags map<string, array<int>>, lines array<struct<sku: string, n: int>>,
    address struct<city: string, geo: struct<lat: double, lon: double>>"""
QUERIES = [
    "select * from $T",
    "select count(*), count(n), count(address.geo.lat), count(get(lines, 0).sku) from $T",
    "select 'a' k, count(*) c from $T where n = 1 union all select 'b', count(*) from $T where n is null "
    "union all select 'all', count(*) from $T",
    "select l.id, r.id from $T l join $T r on l.n = r.n and l.id < r.id where l.flag and not r.flag",
    "select l.id, r.price from $T l left join (select * from $T where price > 0) r on l.id = r.id where l.id % 5 = 0",
    "select n, sum(price), sum(cents), min(local), max(at), min(day) from $T group by n",
    "select id, explode_outer(lines) from $T where id < 12",
    "select id from $T where address is null or address.geo is null",
    "select id from $T where price = cast('123456789012345678901234567.0123456789' as decimal(38, 10))",
    "select id from $T where local >= timestamp_ntz '1969-12-31 23:59:59' and local < timestamp_ntz '2026-03-29 02:30'",
    "select id from $T where id in (select id from $T where n = 2) and get(tags['a'], 0) = 1",
    "select count(*), (select count(*) from $T where flag) from $T where isnan(ratio)",
    "select hex(raw), count(*) from $T group by raw having count(*) > 1",
    "select id from $T where n = 1 except select id from $T where flag",
]


@pytest.fixture(scope="module")
def three(spark, tmp_path_factory):
    """The same rows under several names. One task of eight has no rows; some columns are null throughout a part."""
    from swamp.repo.config import init_repo, write_config

    home = tmp_path_factory.mktemp("three")
    (home / "bucket").mkdir()
    init_repo(home / "repo")
    write_config(home / "repo", {"datastore": {"type": "file", "url": (home / "bucket").as_uri()}})
    frame = spark.createDataFrame([row(number) for number in range(40)], COLUMNS).repartitionByRange(8, "n").cache()
    swamp.spark.write(frame, "web", "events", repo=home / "repo")
    views = {"plain": frame, "source": load(spark, home / "repo")}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(native, "_path_of", lambda *_: "")
        patched.setattr(native, "_never_changes", lambda *_: False)  # nothing of it is kept for the next one
        views["lent"] = swamp.spark.read(spark, "web", "events", repo=home / "repo")
        with native_format(spark):
            views["format_lent"] = load(spark, home / "repo")
        patched.setenv("SWAMP_HOME", str(home / "home"))
        views["copies"] = read_copies(spark, home)
    views["native"] = swamp.spark.read(spark, "web", "events", repo=home / "repo")
    views["again"] = swamp.spark.read(spark, "web", "events", repo=home / "repo")
    with native_format(spark):
        views["format"] = load(spark, home / "repo")
    for name, view in views.items():
        view.createOrReplaceTempView(f"three_{name}")
    yield spark
    frame.unpersist()


def read_copies(spark, home):
    place = open_place({"repo": str(home / "repo")})
    parts = find_asked(place, {"repo": str(home / "repo"), "model": "web", "name": "events"}).files
    shelf = shelf_at(home / "home")
    for part in parts:
        copy = shelf.begin(part.size, part.sha256)
        copy.add(0, place.read(part))
        shelf.put(copy, 1 << 30)
    spark.conf.set(COPY_BYTES, str(1 << 30))
    try:
        return swamp.spark.read(spark, "web", "events", repo=home / "repo")
    finally:
        spark.conf.set(COPY_BYTES, "0")


def row(number):
    import datetime as dt

    def sometimes(value, every):
        return None if number % every == 0 else value

    return (
        number,
        sometimes(number % 4, 7),
        sometimes(Decimal("123456789012345678901234567.0123456789") * (-1) ** number, 3),
        sometimes(Decimal(number * 100 - 1999) / 100, 5),
        sometimes(dt.datetime(1900 + number * 5, 3, 29, 2, 30, 0, 123456, dt.UTC), 6),
        sometimes(dt.datetime(1950 + number * 3, 3, 29, 2, 29, 59, 999999), 4),
        sometimes(dt.date(1500 + number * 20, 2, 28), 9),
        sometimes(number % 2 == 0, 8),
        sometimes(bytes([0, number % 3, 255]), 10),
        sometimes(float("nan") if number % 11 == 0 else -0.0 if number % 5 == 0 else number / 3, 13),
        sometimes({"a": [1, None], "": []} if number % 2 else {"a": None}, 3),
        sometimes([] if number % 4 == 1 else [(None, number), None, ("x" * number, None)], 5),
        sometimes(("city", None) if number % 3 else (None, (number / 7, None)), 6),
    )


def answers(spark, text, name):
    return sorted(map(str, spark.sql(text.replace("$T", f"three_{name}")).collect()))


@pytest.mark.inv("source.whole")
def test_every_reader_answers_as_a_plain_dataframe_does(three):
    marks = {"native": "FileScan", "lent": "webhdfs:", "copies": "/home/parts/used/", "again": "FileScan"}
    marks |= {"format": "NativeParquetScan", "format_lent": "NativeParquetScan"}
    for name, mark in {**marks, "source": "BatchScan"}.items():
        table = three.table(f"three_{name}")  # a plan cuts long paths off
        assert mark in "\n".join((table._jdf.queryExecution().executedPlan().toString(), *table.inputFiles()))
    wrong = []
    for text in QUERIES:
        plain = answers(three, text, "plain")
        wrong += [(name, text) for name in (*marks, "source") if answers(three, text, name) != plain]
    assert not wrong


@pytest.mark.inv("source.whole")
def test_a_cached_reader_and_its_filters_stay_apart(three):
    for name in ("native", "lent", "copies", "format", "format_lent", "source"):
        whole = three.table(f"three_{name}")
        kept = whole.where("n = 1").cache()
        try:
            few = kept.count()
            assert 0 < few < 40 == whole.count() and whole.where("n = 1").count() == few == kept.count(), name
            assert whole.where("n = 2").unionAll(whole.where("n = 1")).count() == whole.where("n in (1, 2)").count()
        finally:
            kept.unpersist()
