"""Segments that lie about the size of a page, the number of values, the length of a text. Refused in bounded memory.

Each file is made in one process and read in another, which says by how much it has grown.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MAKE = """
import io, sys
import pyarrow as pa, pyarrow.parquet as pq
from swamp.index.columns import segment_schema
_made = pa.schema(segment_schema())
def _schema():
    return _made

MIB = 1 << 20
def text(value, rows, each=32):
    return pa.chunked_array([pa.array([value] * each)] * (rows // each))  # the pieces share their memory

def table(rows, **columns):
    plain = dict(path="p", kind="entry", key="k", sha256="s", lastModified="t", extra="")
    found = {name: text(value, rows) for name, value in plain.items()}
    found |= {"size": pa.array([1] * rows), "seq": pa.array([1] * rows), "missing": pa.array([False] * rows)}
    found |= {"id": pa.nulls(rows, pa.string()), "idSeq": pa.nulls(rows, pa.int64())}
    found |= columns
    return pa.table([found[name].cast(f.type) for name, f in zip(_schema().names, _schema())], schema=_schema())

def write(made, **options):
    out = io.BytesIO()
    options = {"compression": "zstd", "use_dictionary": False, "row_group_size": len(made), **options}
    pq.write_table(made, out, **options)
    return bytearray(out.getvalue())

def varint(number, width=0):
    found = bytearray()
    number *= 2  # zigzag
    while number > 127 or len(found) + 1 < width:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes(found) + bytes([number])

def lie(data, true, false):
    old = varint(true)
    found = data.find(old, len(data) - 20_000)
    assert found > 0, true
    while found > 0:
        data[found : found + len(old)] = varint(false, len(old))
        found = data.find(old, found)

def pages():
    "Pages of 128 MiB in a column that claims to have a hundred bytes."
    made = write(table(128, extra=text("x" * MIB, 128)), data_page_size=1 << 30, write_batch_size=1 << 20)
    group = pq.ParquetFile(io.BytesIO(made)).metadata.row_group(0)
    lie(made, group.column(8).total_uncompressed_size, 100)
    lie(made, group.total_byte_size, 100)
    return made

def groups():
    "Most of a gibibyte in one row group, and the footer says so."
    long = text("x" * 1000, 1 << 18)
    return write(table(1 << 18, path=long, sha256=long, extra=long))

def prefixes():
    "A thousand paths and keys of a mebibyte that share all but their ends: a file of a few hundred bytes each."
    long = text("x" * MIB, 1024)
    return write(table(1024, path=long, key=long), column_encoding=dict.fromkeys(("path", "key"), "DELTA_BYTE_ARRAY"))

def dictionaries():
    "One time stamp of a mebibyte, named by every row."
    made = table(1024, lastModified=text("x" * MIB, 1024), extra=text("y" * MIB, 1024))
    return write(made, use_dictionary=["lastModified", "extra"], dictionary_pagesize_limit=8 * MIB)

made = globals()[sys.argv[1]]()
assert len(made) < 2_000_000, len(made)
open(sys.argv[2], "wb").write(made)
"""
READ = """
import sys
from pathlib import Path
from swamp.errors import CorruptData
from swamp.index.entry import Entry
from swamp.index.segment import Segment, write_segment
from segments import read_segment
from dataclasses import replace
from swamp.bulk.kernels import OfRanges
from swamp.index.lookup import all_rows
from swamp.index.root import EVERYTHING, Writer, first_root
from swamp.store.open import StoreSpec

def in_process(file):
    return read_segment(file.read_bytes(), 1)

def from_a_file(file):
    return read_segment(file, 1)

def on_spark(file):
    "What a task does; no Spark is needed for it."
    data = file.read_bytes()
    ref = Segment(data, rows_of(data), "", "~").ref("_index/x.parquet", 1)
    folder = file.parent / f"{file.name}.bucket"
    folder.mkdir()
    spec = StoreSpec(folder.as_uri())
    spec.open().put(ref.key, data)
    root = first_root("store", "op", "2026-01-01T00:00:00.000Z", Writer("repo", "host", "user", 1, "0"))
    return OfRanges(spec, replace(root, segments=(ref,)), all_rows)([EVERYTHING])

def rows_of(data):
    import pyarrow as pa, pyarrow.parquet as pq
    return pq.read_metadata(pa.BufferReader(data)).num_rows

hostile, reader = Path(sys.argv[1]), globals()[sys.argv[2]]
good = hostile.with_name("good.parquet")
good.write_bytes(write_segment([Entry("p", "k", 1, None, "", 1)]).data)
assert len(list(reader(good))) == 1
def peak():
    return int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) >> 10
before = peak()
try:
    for row in reader(hostile):
        pass
    print("read", peak() - before)
except CorruptData as error:
    assert error.hint
    print("refused", peak() - before)
"""
FUZZ = """
import random, resource
from swamp.errors import CorruptData
from swamp.index.entry import Entry
from swamp.index.segment import write_segment
from segments import read_segment

good = write_segment([Entry(f"p{i:04d}", f"k{i}", i, "ab" * 32, f"t{i % 9}", i) for i in range(1, 200)]).data
rows = list(read_segment(good, 1000))
before = int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])
required = good.replace(b"\\x25\\x02\\x18", b"\\x25\\x00\\x18")  # columns that may be empty, said to be required
assert required != good
try:
    list(read_segment(required, 1000))
except CorruptData as error:
    assert error.hint
rng, refused = random.Random(7), 0
for _ in range(1500):
    data = bytearray(good)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(data) - 2500 if rng.random() < 0.7 else 0, len(data) - 8)
        new = bytes([255, 255, 255, 255, 7]) if rng.random() < 0.3 else bytes([rng.randrange(256)])
        data[at : at + len(new)] = new
    try:
        assert all(isinstance(row.path, str) for row in read_segment(bytes(data), 1000))
    except CorruptData as error:
        assert error.hint
        refused += 1
print(refused, (int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) - before) >> 10)
"""


def run(code: str, *args: str) -> list[list[str]]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}  # for tests/segments.py
    done = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=200, env=environment
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.inv("segment.bounded")
@pytest.mark.parametrize("reader", ["in_process", "from_a_file", "on_spark"])
@pytest.mark.parametrize(
    ("kind", "most"),
    [("groups", 64), ("pages", 64), ("prefixes", 900), ("dictionaries", 64)],
)
def test_a_small_file_that_claims_gigabytes_is_refused_in_bounded_memory(tmp_path, kind, most, reader):
    """In MiB. The bytes of the file stay what they are; the claims are what grows."""
    file = tmp_path / "segment.parquet"
    run(MAKE, kind, str(file))
    for said, grown in run(READ, str(file), reader):
        assert said == "refused" and int(grown) < most, (said, grown)


@pytest.mark.inv("segment.bounded")
def test_a_process_that_reads_thousands_of_damaged_segments_lives_and_stays_small():
    """Footers that contradict themselves ended the process within Arrow: no error, no last words."""
    [[refused, grown]] = run(FUZZ)
    assert int(refused) > 600 and int(grown) < 256, (refused, grown)
