"""The plain stored form: one plane of cells per layer, in half floats (bits) or float32.

Cell (layer, head, page) holds the keys of 64 rows as [dim][64] and then their values as [64][dim].
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivace.kv.spec import PAGE, KVSpec

Float32 = NDArray[np.float32]
Index = NDArray[np.int64]
Part = tuple[int, Index]  # a layer and some of its heads
Rows = list[tuple[NDArray[Any], NDArray[Any]]]  # per part: keys and values [heads, rows, dim] in stored form

HALF_MAX = 65504.0
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


def reserve(size: int) -> mmap.mmap:
    """That many zero bytes of address space; memory becomes resident when it is touched."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)


class Plain:
    """Planes of lazily committed zero memory, and row-wise access to them."""

    def __init__(self, spec: KVSpec, capacity_pages: int) -> None:
        self.spec = spec
        self._half = spec.value_bytes == 2
        dtype = np.uint16 if self._half else np.float32
        self.planes: list[NDArray[Any]] = []
        self._maps: list[mmap.mmap] = []
        self._keys: list[NDArray[Any]] = []  # [heads, pages, dim, 64] views
        self._values: list[NDArray[Any]] = []  # [heads, pages, 64, dim] views
        for layer, shape in enumerate(spec.layers):
            heads, dim = shape.kv_heads, shape.head_dim
            size = max(1, capacity_pages * heads * spec.cell_bytes(layer))
            memory = reserve(size)
            plane = np.frombuffer(memory, dtype, heads * capacity_pages * 2 * dim * PAGE)
            plane = plane.reshape(heads, capacity_pages, 2, dim * PAGE)
            self.planes.append(plane)
            self._maps.append(memory)
            self._keys.append(plane[:, :, 0].reshape(heads, capacity_pages, dim, PAGE))
            self._values.append(plane[:, :, 1].reshape(heads, capacity_pages, PAGE, dim))

    def encode(self, x: Float32) -> NDArray[Any]:
        """To the stored form, rounding to nearest even; beyond the half range the largest half; NaN stays NaN."""
        if not self._half:
            return np.asarray(x, np.float32)
        return np.clip(x, -HALF_MAX, HALF_MAX).astype(np.float16).view(np.uint16)

    def decode(self, x: NDArray[Any]) -> Float32:
        if not self._half:
            return np.asarray(x, np.float32)
        return np.ascontiguousarray(x).view(np.float16).astype(np.float32)

    def read(self, parts: Iterable[Part], pages: NDArray[np.int32], ordinals: Index) -> Rows:
        """Copies of the rows at `ordinals` of a page list."""
        page, slot = pages[ordinals // PAGE], ordinals % PAGE
        return [
            (self._keys[layer][heads[:, None], page, :, slot], self._values[layer][heads[:, None], page, slot])
            for layer, heads in parts
        ]

    def write(self, parts: Iterable[Part], pages: NDArray[np.int32], ordinals: Index, rows: Rows) -> None:
        page, slot = pages[ordinals // PAGE], ordinals % PAGE
        for (layer, heads), (k, v) in zip(parts, rows, strict=True):
            self._keys[layer][heads[:, None], page, :, slot] = k
            self._values[layer][heads[:, None], page, slot] = v

    def copy_page(self, parts: Iterable[Part], source: int, target: int) -> None:
        for layer, heads in parts:
            plane = self.planes[layer]
            plane[heads, target] = plane[heads, source]

    def discard(self, layer: int, head: int, first: int, last: int) -> int:
        """Gives the memory of cells first..last-1 back to the system; returns the bytes (whole memory pages only)."""
        cell, pages = self.spec.cell_bytes(layer), self.planes[layer].shape[1]
        unit = mmap.PAGESIZE
        start: int = -(-(head * pages + first) * cell // unit) * unit
        end: int = (head * pages + last) * cell // unit * unit
        if end <= start:
            return 0
        self._maps[layer].madvise(mmap.MADV_DONTNEED, start, end - start)
        return end - start
