"""The address under which programs of others import the `swamp` format; it lives in `datasets/source.py`."""

from swamp.datasets.source import SwampDataSource

__all__ = ["SwampDataSource"]
