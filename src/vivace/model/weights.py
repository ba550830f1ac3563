"""Weights as they lie in a file: raw blocks of a named type, read lazily."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from vivace.model.spec import ModelSpec

if TYPE_CHECKING:
    from vivace.model.tokenizer import Tokenizer


class Matrix(Protocol):
    """A matrix of `rows` x `cols` values in the blocks of `type` (GGUF type name: "F32", "Q4_K", ...).

    `data` is uint8 [rows, bytes of a row]; it may be made anew whenever it is asked for. `row_order`, when given, is
    the row of `data` to read for each row of the matrix. `nbytes` is the size of `data`. `source` is what lies in
    memory or in a mapped file: what `data` is, or is made from.
    """

    @property
    def type(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def data(self) -> NDArray[np.uint8]: ...
    @property
    def row_order(self) -> NDArray[np.int64] | None: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def source(self) -> NDArray[np.uint8]: ...

    def dequantise(self, first: int = 0, last: int | None = None) -> NDArray[np.float32]:
        """Rows first..last as float32 [last - first, cols]."""
        ...


@dataclass(frozen=True)
class StoredMatrix:
    """A matrix as it is stored. `data` is most often a view of a mapped file.

    Families whose files keep rows in another order have a `row_order`.
    """

    type: str
    rows: int
    cols: int
    data: NDArray[np.uint8]
    row_order: NDArray[np.int64] | None = None

    def dequantise(self, first: int = 0, last: int | None = None) -> NDArray[np.float32]:
        from vivace.model.load.dequantise import dequantise

        last = self.rows if last is None else last
        rows = self.data[first:last] if self.row_order is None else self.data[self.row_order[first:last]]
        return dequantise(self.type, rows, self.cols)

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)

    @property
    def source(self) -> NDArray[np.uint8]:
        return self.data


@dataclass(frozen=True)
class Checkpoint:
    """What a loader returns: the model as data, its weights by the names of `ModelSpec`, and its tokenizer."""

    name: str
    path: str
    fingerprint: str  # identifies the weights: changes when the file's contents do
    spec: ModelSpec
    matrices: Mapping[str, Matrix]
    vectors: Mapping[str, NDArray[np.float32]]
    make_tokenizer: Callable[[], Tokenizer]
    file_bytes: int

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights in the types in which they are used."""
        return sum(m.nbytes for m in self.matrices.values()) + sum(v.nbytes for v in self.vectors.values())

    def for_context(self, context: int) -> Checkpoint:
        """The same weights with the rotary factors for a context of `context` tokens (see `ModelSpec.for_context`)."""
        return replace(self, spec=self.spec.for_context(context))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Built when first asked for."""
        return self.make_tokenizer()
