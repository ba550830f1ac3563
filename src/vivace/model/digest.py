"""The SHA-256 of files, by which what was fetched is known to be what it must be."""

from __future__ import annotations

from pathlib import Path

BLOCK = 1 << 20  # bytes read at a time


def sha256_of(path: Path) -> str:
    """64 hex digits."""
    import hashlib  # not before something is fetched

    sha = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            sha.update(block)
    return sha.hexdigest()
