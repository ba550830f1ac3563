"""What a store tells or hands out: byte counts, and sequences as plain arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivace.kv.lists import Int32, ListKey
from vivace.kv.plain import Float32
from vivace.kv.spec import KVSpec


@dataclass(frozen=True, slots=True)
class KVBytes:
    """Exact counts. A cell that several sequences share counts once."""

    resident: int  # cells in use
    reserved: int  # address space of all cells
    shared: int  # the part of `resident` that more than one list holds
    undo: int  # copies of replaced rows


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
