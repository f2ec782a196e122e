"""What the tests of this directory share."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def write_files(root: Path, files: dict[str, bytes]) -> None:
    for path, body in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(body)


@contextmanager
def native_format(session: Any) -> Iterator[None]:
    """Inside, the format `swamp` is read by Spark's own reader; what a test loads later is the Python source again."""
    from swamp.datasets.compile import CLASS, make_native

    assert make_native(session)
    try:
        yield
    finally:
        loader = session._jvm.java.lang.Thread.currentThread().getContextClassLoader()
        loader.loadClass(CLASS).getField("PLANNERS").get(None).remove(session._jsparkSession)
