"""`python -m swamp.testing.capabilities`: what each backend was seen to do, as a table for the documentation."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from swamp.errors import MissingTool, StoreError
from swamp.store.probe import Probed, probe
from swamp.testing.servers import STARTERS, start

TITLES = {
    "memory": "memory (one process)",
    "directory": "directory (`file://`)",
    "moto": "S3: moto",
    "ministack": "S3: ministack",
    "s3-double": "S3: strict double of this package",
    "azurite": "Azure Blob: azurite",
    "gcs": "GCS: strict double of the JSON API",
    "rclone": "S3: `rclone serve s3`",
    "gcs-emulator": "GCS: gcp-storage-emulator",
}
COLUMNS = {
    "createOnly": "create-only",
    "compareAndSwap": "compare-and-swap",
    "readAfterWrite": "read after write",
    "listAfterWrite": "list after write",
    "conditionalDelete": "conditional delete",
    "conditionalMultipart": "conditional multipart",
}


def table(names: Iterable[str]) -> str:
    """Markdown: one row per backend that could be started, measured now."""
    head = "| backend | " + " | ".join(COLUMNS.values()) + " | two machines may write at once |"
    rule = "|---" * (len(COLUMNS) + 2) + "|"
    return "\n".join([head, rule, *map(_row, names)])


def _row(name: str) -> str:
    try:
        with start(name) as server:
            return _cells(name, probe(server.open("capabilities")))
    except MissingTool as missing:
        return f"| {TITLES[name]} |" + " |" * len(COLUMNS) + f" not measured: {missing} |"
    except StoreError as error:
        return f"| {TITLES[name]} |" + " |" * len(COLUMNS) + f" failed: {error.message} |"


def _cells(name: str, seen: Probed) -> str:
    facts = seen.capabilities.to_json()
    tried = {finding.name for finding in seen.findings}
    cells = ["yes" if facts[c] else "**no**" if c in tried else "not tried" for c in COLUMNS]
    return f"| {TITLES[name]} | " + " | ".join(cells) + f" | {'yes' if seen.capabilities.safe else '**no**'} |"


def main(names: list[str]) -> int:
    sys.stdout.write(table(names or list(STARTERS)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
