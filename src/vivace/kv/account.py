"""Exact byte counts of a store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from vivace.kv.cells import Cells
from vivace.kv.lists import Sequence
from vivace.kv.spec import PAGE


@dataclass(frozen=True, slots=True)
class KVBytes:
    """A cell that several sequences share counts once."""

    resident: int  # cells in use
    reserved: int  # address space of all cells
    shared: int  # the part of `resident` that more than one list holds
    undo: int  # copies of replaced rows


def count_bytes(cells: Cells, sequences: Iterable[Sequence]) -> KVBytes:
    spec, pool = cells.spec, cells.pool
    cell = np.array([spec.cell_bytes(layer) for layer, _ in cells.lanes], np.int64)
    shared = (pool.refs[:, : pool.high] > 1).sum(axis=1)
    return KVBytes(
        resident=int(pool.lane_used @ cell),
        reserved=pool.capacity * spec.page_bytes(),
        shared=int(shared @ cell),
        undo=sum(k.nbytes + v.nbytes for s in sequences for _, rows in s.replaced for k, v in rows),
    )


def count_read_bytes(cells: Cells, s: Sequence, layer: int | None, window: int | None) -> int:
    total = 0
    for i in range(len(cells.spec.layers)) if layer is None else (layer,):
        row_bytes = cells.spec.cell_bytes(i) // PAGE
        for key in cells.keys(i, None):
            rows = s.list_of(key).length + s.pending
            total += row_bytes * (rows if window is None else min(rows, window))
    return total
