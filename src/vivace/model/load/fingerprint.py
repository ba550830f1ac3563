"""A cheap name for the contents of model files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from vivace.model.load.tensors import Tensor

_SAMPLE = 64


def fingerprint(headers: Iterable[bytes | memoryview], files: Iterable[Path], tensors: Iterable[Tensor]) -> str:
    """32 hex digits that change when the contents do.

    Covers every header byte (names, shapes, types, hyper-parameters, tokens), each file's size and time of
    modification, and of each tensor the first, middle and last 64 bytes. Not every weight is read: an edit that
    touches none of these and restores the time goes unseen. A copy with another time has another fingerprint.
    """
    hasher = hashlib.blake2b(digest_size=16)
    for header in headers:
        hasher.update(header)
    for file in files:
        status = os.stat(file)
        hasher.update(b"%d %d;" % (status.st_size, status.st_mtime_ns))
    for tensor in tensors:
        middle = len(tensor.data) // 2
        hasher.update(tensor.data[:_SAMPLE].data)
        hasher.update(tensor.data[middle : middle + _SAMPLE].data)
        hasher.update(tensor.data[-_SAMPLE:].data)
    return hasher.hexdigest()
