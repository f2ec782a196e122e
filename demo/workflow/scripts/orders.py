"""A step of the nightly workflow: the orders of one region, as JSON lines."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

PRODUCTS = ("anvil", "rope", "lamp")


def orders(region: str) -> list[dict[str, Any]]:
    """Made up, and the same every time."""
    bias = len(region) + ord(region[0])
    return [
        {"region": region, "product": PRODUCTS[i % 3], "units": (i * bias) % 7 + 1, "price": (i * 13) % 40 + 5}
        for i in range(200)
    ]


if __name__ == "__main__":
    lines = [json.dumps(order) for order in orders(sys.argv[1])]
    (Path(os.environ["SWAMP_OUTPUT_DIR"]) / "orders.jsonl").write_text("\n".join(lines) + "\n")
