"""Sequences as plain arrays, to move between stores."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivace.kv.cells import Cells
from vivace.kv.lists import Int32, ListKey, Sequence, padded, pages_for
from vivace.kv.plain import Float32
from vivace.kv.spec import KVSpec


@dataclass(frozen=True, slots=True)
class KVRows:
    """The rows of one (layer, head), in stored form."""

    k: NDArray[Any]  # [rows, dim]
    v: NDArray[Any]
    positions: Int32
    bias: Float32 | None = None


@dataclass(frozen=True, slots=True)
class KVBlob:
    """A sequence outside any store. `positions` are those of its common list."""

    spec: KVSpec
    positions: Int32
    next_position: int
    lists: dict[ListKey, KVRows]
    states: dict[str, Any] = field(default_factory=dict)  # of those who took part in the store, by name

    def check(self, spec: KVSpec) -> None:
        """Raises ValueError unless the blob is whole and fits a store of this spec."""
        if self.spec != spec:
            raise ValueError(f"the blob was made for {self.spec}, this store is {spec}")
        keys = {(i, head) for i, layer in enumerate(spec.layers) for head in range(layer.kv_heads)}
        if set(self.lists) != keys:
            raise ValueError(f"the blob lacks or adds lists: {sorted(keys ^ set(self.lists))}")
        dtype = np.uint16 if spec.value_bytes == 2 else np.float32
        for (layer, head), rows in self.lists.items():
            shape = (len(rows.positions), spec.layers[layer].head_dim)
            fits = rows.k.shape == rows.v.shape == shape and rows.k.dtype == rows.v.dtype == dtype
            if not fits or (rows.bias is not None and rows.bias.shape != shape[:1]):
                raise ValueError(f"rows of layer {layer}, head {head} are not {dtype.__name__} {shape}")
            if not np.isin(rows.positions, self.positions).all():
                raise ValueError(f"layer {layer}, head {head} has positions that the common list has not")
        for positions in (self.positions, *(rows.positions for rows in self.lists.values())):
            if (np.diff(positions) <= 0).any() or (len(positions) and positions[-1] >= self.next_position):
                raise ValueError("the positions of the blob do not ascend to its next position")


def export_rows(cells: Cells, s: Sequence, layers: Seq[int], states: dict[str, Any]) -> KVBlob:
    """Copies of the committed rows of these layers, with the states of those who take part."""
    lists = {}
    for i, layer in enumerate(layers):
        for key in cells.keys(layer, None):
            rows, index = s.list_of(key), np.arange(s.list_of(key).length)
            k, v = cells.plain.read([cells.part(*key)], rows.pages, index)[0]
            bias = padded(s.biases[key], index) if key in s.biases else None
            lists[i, key[1]] = KVRows(k[0], v[0], rows.positions.copy(), bias)
    spec = KVSpec(tuple(cells.spec.layers[layer] for layer in layers), cells.spec.value_bytes)
    return KVBlob(spec, s.main.positions.copy(), s.next_position, lists, states)


def adopt_rows(cells: Cells, blob: KVBlob) -> Sequence:
    """A sequence with the rows of a blob. Raises ValueError and OutOfPages, having taken nothing."""
    blob.check(cells.spec)
    s = Sequence(cells.common_list())
    ragged = [key for key, rows in blob.lists.items() if not np.array_equal(rows.positions, blob.positions)]
    placed = [(cells.detach(s, key), blob.lists[key].positions) for key in ragged] + [(s.main, blob.positions)]
    for rows, positions in placed:
        rows.make_room(len(positions))
        rows.row_positions[: len(positions)] = positions
        rows.length = len(positions)
    whole = pages_for(s.main.length) if len(s.main.lanes) else 0
    cells.pool.require(whole, {cells.lanes[key]: pages_for(s.overrides[key].length) for key in ragged})
    for rows in s.lists():
        for _ in range(pages_for(rows.length)):
            rows.push(cells.take(s, rows))
    for key, source in blob.lists.items():
        rows = s.list_of(key)
        cells.plain.write([cells.part(*key)], rows.pages, np.arange(rows.length), [(source.k[None], source.v[None])])
        if source.bias is not None:
            s.biases[key] = source.bias.copy()
    s.next_position = blob.next_position
    s.pruned = (s.main.length, s.next_position)
    s.sealed = s.main.length if ragged else 0
    return s
