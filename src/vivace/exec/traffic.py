"""Counts the bytes that steps move: weights, and keys and values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vivace.core.step import StepRequest, Write
from vivace.exec.rows import Rows
from vivace.kv.spec import PAGE
from vivace.kv.store import KVStore
from vivace.model.weights import Checkpoint


class Traffic:
    """Of the steps of one model over one store."""

    def __init__(self, checkpoint: Checkpoint, store: KVStore) -> None:
        self._store = store
        spec = checkpoint.spec
        sizes = {name: matrix.nbytes for name, matrix in checkpoint.matrices.items()}
        sizes |= {name: vector.nbytes for name, vector in checkpoint.vectors.items()}
        self._layer_bytes = np.zeros(len(spec.blocks), np.int64)
        for name, size in sizes.items():
            if name.startswith("blocks."):
                self._layer_bytes[int(name.split(".")[1])] += size
        self._head_bytes = sizes["embed" if spec.tied_head else "head"] + sizes["final_norm"]
        self._embedding_bytes = sizes["embed"] // spec.vocab
        self._windows = [block.attention.window for block in spec.blocks]
        self._key_bytes = [store.spec.cell_bytes(i) // PAGE for i in range(len(spec.blocks))]  # and its value's
        self._token_bytes = [n * shape.kv_heads for n, shape in zip(self._key_bytes, store.spec.layers, strict=True)]

    def weights(self, request: StepRequest, rows: Rows) -> int:
        """Stored bytes that the step's products, norms and look-ups read."""
        first, last, mask = rows.first_layer, rows.last_layer, request.layer_mask
        runs = self._layer_bytes[first:last] if mask is None else self._layer_bytes[layers_run(request, rows)]
        total = int(runs.sum())
        if len(rows.wanted):
            total += self._head_bytes
        return total + int(np.count_nonzero(rows.tokens >= 0)) * self._embedding_bytes

    def cache(self, request: StepRequest, rows: Rows) -> tuple[int, int]:
        """Bytes of keys and values read, each once for the rows of a segment that see it, and written."""
        layers, store, mask = range(rows.first_layer, rows.last_layer), self._store, request.layer_mask
        token = sum(self._token_bytes[layer] for layer in layers)
        whole = mask is None and all(self._windows[layer] is None for layer in layers)
        read = written = 0
        for index, segment in enumerate(request.segments):
            begin, end = rows.bounds[index], rows.bounds[index + 1]
            if whole and not store.overrides(segment.seq):
                read += token * (store.length(segment.seq) + store.pending(segment.seq))
                written += token * (end - begin)
                continue
            for layer in layers:
                ran = np.ones(end - begin, np.bool_) if mask is None else mask[begin:end, layer]
                if not ran.any():
                    continue
                written += self._token_bytes[layer] * int(ran.sum())
                absent = rows.ordinals[begin:end][~ran] if segment.write is not Write.REPLACE else _NONE
                read += self._key_bytes[layer] * self._seen(
                    segment.seq, layer, int(rows.positions[begin:end][ran].min()), absent
                )
        return read, written

    def _seen(self, seq: int, layer: int, oldest: int, absent: NDArray[np.int32]) -> int:
        """Keys of all heads of a layer that rows from position `oldest` on see, without those of absent rows."""
        store, window = self._store, self._windows[layer]
        overrides, shared = store.overrides(seq), store.positions(seq, pending=True)
        seen = 0
        for head in range(store.spec.layers[layer].kv_heads):
            own = overrides.get((layer, head))
            positions, shift = shared, 0
            if own is not None:
                positions, shift = own.row_positions[: own.length + store.pending(seq)], own.length - store.length(seq)
            hidden = 0 if window is None else int(np.searchsorted(positions, oldest - window, "right"))
            seen += len(positions) - hidden - int(np.count_nonzero(absent + shift >= hidden))
        return seen


_NONE = np.empty(0, np.int32)


def layers_run(request: StepRequest, rows: Rows) -> list[int]:
    """Layers of the step that any row runs."""
    layers, mask = range(rows.first_layer, rows.last_layer), request.layer_mask
    return [layer for layer in layers if mask is None or mask[:, layer].any()]
