"""Float weights in another type, so that a model takes less memory and runs on the int8 kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vivace.model.errors import ModelError
from vivace.model.load.dequantise import dequantise
from vivace.model.load.quantise import TARGETS, quantise
from vivace.model.load.tensors import BLOCKS, FLOAT_TYPES, row_bytes
from vivace.model.weights import Checkpoint, Matrix

KEEP = "keep"  # weights as they are stored
DEFAULT = "Q8_0"
WEIGHTS = (*TARGETS, KEEP)
_CHUNK_VALUES = 1 << 16  # the float32 copies stay in the caches


@dataclass(frozen=True)
class ConvertedMatrix:
    """A matrix in another type than its file's, in the order of its rows as the model reads them.

    It is converted anew whenever its `data` is asked for, and keeps none of it: that is once, when it is packed.
    `name` is that of the matrix in the ModelError for rows that the type does not divide and values it cannot hold.
    """

    type: str
    stored: Matrix
    name: str

    def __post_init__(self) -> None:
        try:
            row_bytes(self.type, self.stored.cols)
        except ValueError as error:
            raise ModelError(f"{self.name} {error}") from None

    @property
    def rows(self) -> int:
        return self.stored.rows

    @property
    def cols(self) -> int:
        return self.stored.cols

    @property
    def data(self) -> NDArray[np.uint8]:
        out = np.empty((self.rows, row_bytes(self.type, self.cols)), np.uint8)
        step = max(1, _CHUNK_VALUES // self.cols)
        for first in range(0, self.rows, step):
            last = min(first + step, self.rows)
            out[first:last] = self._converted(first, last)
        return out

    @property
    def row_order(self) -> None:
        return None

    @property
    def nbytes(self) -> int:
        return self.rows * row_bytes(self.type, self.cols)

    @property
    def source(self) -> NDArray[np.uint8]:
        return self.stored.source

    def dequantise(self, first: int = 0, last: int | None = None) -> NDArray[np.float32]:
        return dequantise(self.type, self._converted(first, self.rows if last is None else last), self.cols)

    def _converted(self, first: int, last: int) -> NDArray[np.uint8]:
        try:
            return quantise(self.type, self.stored.dequantise(first, last))
        except ValueError as error:
            raise ModelError(f"{self.name} {error}: not to be had as {self.type}") from None


def default_weights(path: Path) -> str:
    """How the weights of a model are loaded when nothing is said: folders hold floats, GGUF files what was chosen."""
    return DEFAULT if path.is_dir() else KEEP


def converted(checkpoint: Checkpoint, weights: str) -> Checkpoint:
    """The model with its matrices of the types that `type_at_load` gives them."""

    def matrix_of(name: str, stored: Matrix) -> Matrix:
        kind = type_at_load(name, stored, weights, checkpoint.spec.tied_head)
        return stored if kind == stored.type else ConvertedMatrix(kind, stored, f"{checkpoint.path}: matrix '{name}'")

    if weights == KEEP:
        return checkpoint
    matrices = {name: matrix_of(name, stored) for name, stored in checkpoint.matrices.items()}
    return replace(checkpoint, fingerprint=f"{checkpoint.fingerprint}-{weights}", matrices=matrices)


def type_at_load(name: str, matrix: Matrix, weights: str, tied_head: bool) -> str:
    """The type that matrix `name` of a model gets when its `weights` are asked for in that type.

    What is quantised already stays, and so do rows that the block does not divide, and an embedding that is not the
    head: a step looks a few of its rows up in the file. The matrix of the head decides over every token and is seldom
    more than a fifth of the weights: it gets at least eight bits.
    """
    looked_up = name == "embed" and not tied_head
    if weights == KEEP or matrix.type not in FLOAT_TYPES or looked_up:
        return matrix.type
    is_head = name == ("embed" if tied_head else "head")
    kind = DEFAULT if is_head and weights not in FLOAT_TYPES else weights
    return matrix.type if matrix.cols % BLOCKS[kind][0] else kind
