"""What the native core reads in place: packed weights and rotation tables, at addresses that never move."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivace import _native
from vivace.exec.rope import rope_table
from vivace.kv.plain import reserve
from vivace.model.spec import RopeSpec
from vivace.model.weights import Checkpoint, Matrix

PARTS = ("q", "k", "v", "o", "gate", "up", "down")  # of a block, in the order of execution


class RopeTable:
    """cos and sin by position, computed and resident as far as they are needed; the arrays never move."""

    _GROWTH = 1024

    def __init__(self, rope: RopeSpec, positions: int) -> None:
        self.rope = rope
        self.cos, self.sin = (
            np.frombuffer(reserve(4 * positions * (rope.dim // 2)), np.float32).reshape(positions, -1) for _ in range(2)
        )
        self.ready = 0

    def cover(self, position: int) -> None:
        while self.ready <= position:
            rows = np.arange(self.ready, min(self.ready + self._GROWTH, len(self.cos)))
            self.cos[rows[0] : rows[-1] + 1], self.sin[rows[0] : rows[-1] + 1] = rope_table(self.rope, rows)
            self.ready += len(rows)


class PackedWeights:
    """Every matrix of a checkpoint in the order of execution, packed into one arena."""

    def __init__(self, checkpoint: Checkpoint, pool: _native.Pool) -> None:
        self.checkpoint = checkpoint
        order = [f"blocks.{i}.{part}" for i in range(len(checkpoint.spec.blocks)) for part in PARTS]
        head = "embed" if checkpoint.spec.tied_head else "head"
        matrices = {name: checkpoint.matrices[name] for name in [*order, head]}
        sizes = {name: _packed_bytes(matrix) for name, matrix in matrices.items()}
        self.nbytes = sum(sizes.values())
        self.arena = _native.Arena(self.nbytes)
        self.addresses: dict[str, int] = {}
        at = self.arena.address
        for name, matrix in matrices.items():
            self.addresses[name] = at
            _pack(matrix, at, pool)
            at += sizes[name]
        self.head = self.linear(head)

    def linear(self, name: str) -> _native.Linear:
        matrix = self.checkpoint.matrices[name]
        bias = self.checkpoint.vectors.get(f"{name}.bias")
        return _native.Linear(
            matrix.type, matrix.rows, matrix.cols, self.addresses[name], 0 if bias is None else address(bias)
        )


def address(array: NDArray[Any]) -> int:
    where: int = array.__array_interface__["data"][0]
    return where


def _packed_bytes(matrix: Matrix) -> int:
    tiles = -(-matrix.rows // 16)
    return tiles * _native.tile_bytes(matrix.type, matrix.cols)


def _pack(matrix: Matrix, target: int, pool: _native.Pool) -> None:
    order = None if matrix.row_order is None else np.ascontiguousarray(matrix.row_order, np.int64)
    data, source = matrix.data, matrix.source
    _native.pack_matrix(
        pool, matrix.type, address(data), data.strides[0], matrix.rows, matrix.cols,
        0 if order is None else address(order), target,
    )  # fmt: skip
    # Only pages of a file come back when they are read again; those of an ordinary array would be lost.
    if _is_mapped(source):
        _native.release_pages(address(source), source.nbytes)


def _is_mapped(data: Any) -> bool:
    while isinstance(data, np.ndarray):
        data = data.base
    return isinstance(data.obj if isinstance(data, memoryview) else data, mmap.mmap)
