"""Which paths belong together: a version is committed, conflicted or held back as a whole. inv[unit.whole]"""

from __future__ import annotations

import re
from typing import Final

METADATA: Final = "metadata.yaml"
MANIFEST: Final = "parts.parquet"
_CONTENT: Final = frozenset({METADATA, MANIFEST, "raw"})
_RECORDS: Final = ("outputs/", "workflow-runs/")
SPARK_PART: Final = r"/raw/part-\d+-\d+-[0-9a-f]{16}\.parquet$"
LARGE_PART: Final = 1 << 20
"""From so many bytes on a part that Spark has written stays in the store, unless this machine chose to have all."""
_FIRST_VERSION_PART: Final = 4  # data / type / model id / name / N


def unit_of(path: str) -> str:
    """The version directory of a data path; any other path is a unit of its own."""
    if not path.startswith("data/"):
        return path
    parts = path.split("/")
    for i in range(_FIRST_VERSION_PART, len(parts) - 1):
        if parts[i].isdecimal() and parts[i + 1] in _CONTENT:
            return "/".join(parts[: i + 1])
    return path


def cut_before(path: str) -> str:
    """The last place at or before `path` where the paths can be cut in two without cutting a unit. inv[unit.whole]

    All paths of a unit begin with its directory: no cut below a directory that could be one.
    """
    parts = path.split("/") if path.startswith("data/") else []
    for i in range(_FIRST_VERSION_PART, len(parts) - 1):
        if parts[i].isdecimal():
            return "/".join(parts[: i + 1]) + "/"
    return path


def name_of(path: str) -> str | None:
    """The directory of the data name that a version's file belongs to; None for any other path."""
    unit = unit_of(path)
    return None if unit == path else unit.rpartition("/")[0]


def is_version(unit: str, path: str) -> bool:
    """Whether `path` belongs to a unit larger than itself."""
    return unit != path


def metadata_of(unit: str) -> str:
    return f"{unit}/{METADATA}"


def is_content(path: str) -> bool:
    """Whether a lazy cache may leave this file in the bucket: only the raw bytes of a version."""
    unit = unit_of(path)
    return unit != path and path not in (metadata_of(unit), f"{unit}/{MANIFEST}")


def is_large_part(path: str, size: int) -> bool:
    """Whether this is a large part of a dataset that Spark has written: nobody wants all of those on every laptop."""
    return size >= LARGE_PART and re.search(SPARK_PART, path) is not None and is_content(path)


def is_record(path: str) -> bool:
    """Output and run records name versions, so they go last and wait for what they name."""
    return path.startswith(_RECORDS)


def names_unit(record: bytes, unit: str) -> bool:
    """Whether a record's bytes name the version directory `unit` (and not `…/12` for `…/1`)."""
    needle = unit.encode()
    start = record.find(needle)
    while start >= 0:
        after = record[start + len(needle) : start + len(needle) + 1]
        if not after.isdigit():
            return True
        start = record.find(needle, start + 1)
    return False
