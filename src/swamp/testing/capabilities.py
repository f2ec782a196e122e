"""`python -m swamp.testing.capabilities TYPE-OR-URL [CONFIG]`: what a store was seen to do, as a table for its docs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Final

from swamp.store.open import open_store
from swamp.store.port import ObjectStore
from swamp.store.probe import Probed, probe

COLUMNS: Final = {
    "createOnly": "create-only",
    "compareAndSwap": "compare-and-swap",
    "readAfterWrite": "read after write",
    "listAfterWrite": "list after write",
    "conditionalDelete": "conditional delete",
    "conditionalMultipart": "conditional multipart",
}


def table(stores: Mapping[str, ObjectStore]) -> str:
    """Markdown: one row per store, measured now by the probe that `swamp datastore setup` uses."""
    head = "| store | " + " | ".join(COLUMNS.values()) + " | two machines may write at once |"
    line = "|---" * (len(COLUMNS) + 2) + "|"
    return "\n".join([head, line, *(_row(title, probe(store)) for title, store in stores.items())])


def _row(title: str, seen: Probed) -> str:
    facts = seen.capabilities.to_json()
    tried = {finding.name for finding in seen.findings}
    cells = ["yes" if facts[c] else "**no**" if c in tried else "not tried" for c in COLUMNS]
    return f"| {title} | " + " | ".join(cells) + f" | {'yes' if seen.capabilities.safe else '**no**'} |"


def main(where: str, config: str = "{}") -> int:
    sys.stdout.write(table({where: open_store(where, json.loads(config))}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
