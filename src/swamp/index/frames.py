"""zstd frames, in packs and in the pages of segments: nobody makes room for more of one than it is said to hold.

Python 3.14 has zstd in its standard library; until then its backport, a megabyte, stands in.
"""

from __future__ import annotations

import sys
import threading
from typing import Final

if sys.version_info >= (3, 14):
    from compression import zstd as zstd
else:
    from backports import zstd as zstd

LEVEL: Final = 1
"""Level 3 takes twice the time on what does not compress, and saves 2 % more on what does."""
_OPTIONS: Final[dict[int, int]] = {
    zstd.CompressionParameter.compression_level: LEVEL,
    zstd.CompressionParameter.checksum_flag: 1,
}
_mine = threading.local()


def pack(body: bytes) -> bytes:
    """One frame of these bytes, with its size and a checksum."""
    if not hasattr(_mine, "compressor"):  # one for each thread: making one costs more than a small file
        _mine.compressor = zstd.ZstdCompressor(options=_OPTIONS)
    made: bytes = _mine.compressor.compress(body, zstd.ZstdCompressor.FLUSH_FRAME)
    return made


def expand(frame: bytes | memoryview, size: int) -> bytes:
    """The `size` bytes of one frame; room is made for no more of them. Raises ValueError on everything else."""
    try:
        reader = zstd.ZstdDecompressor()
        found = reader.decompress(frame, size + 1)  # the one more that tells a frame which goes on
    except zstd.ZstdError as error:
        raise ValueError(f"not a zstd frame: {error}") from error
    if len(found) != size or not reader.eof or reader.unused_data:
        raise ValueError(f"a zstd frame that does not hold {size} bytes")
    return found
