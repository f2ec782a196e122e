"""What the tests of this directory share."""

from pathlib import Path


def write_files(root: Path, files: dict[str, bytes]) -> None:
    for path, body in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(body)
