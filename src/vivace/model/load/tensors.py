"""Tensors as they lie in a file: named types, their blocks, and flat views of the mapped bytes."""

from __future__ import annotations

import math
import mmap
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vivace.model.errors import ModelError

# name: (values of a block, bytes of a block)
BLOCKS: Mapping[str, tuple[int, int]] = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
    "IQ4_NL": (32, 18),
    "IQ4_XS": (256, 136),
}
FLOAT_TYPES = frozenset({"F32", "F16", "BF16"})


def row_bytes(kind: str, cols: int) -> int:
    """Bytes of a stored row of `cols` values, a multiple of the block of `kind` (else ValueError)."""
    values, size = BLOCKS[kind]
    if cols % values:
        raise ValueError(f"has rows of {cols} values, which {kind} blocks of {values} do not divide")
    return cols // values * size


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file. `type` is a key of BLOCKS or another type of the format, which nothing here can read."""

    name: str
    type: str
    shape: tuple[int, ...]  # outermost first
    data: NDArray[np.uint8]  # flat view of the mapped file

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class TensorFile(Protocol):
    """What both readers return: where the tensors came from, and the tensors by the file's own names."""

    path: Path
    tensors: Mapping[str, Tensor]


def check_regular(path: Path) -> None:
    """Raises ModelError for what opening may wait for without end, as for a pipe, and OSError for what is not there."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ModelError(f"{path}: is no regular file; models are read in place, so copy it to one")


def map_file(path: Path) -> NDArray[np.uint8]:
    """The bytes of a file as a read-only mapping; raises ModelError when it cannot be opened or is empty."""
    try:
        check_regular(path)
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise ModelError(f"{path}: the file is empty")
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except OSError as error:
        raise ModelError(f"{path}: cannot be opened: {error.strerror or error}") from None
