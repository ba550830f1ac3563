"""Random stored rows: every code is possible."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vivace.model.load.dequantise import dequantise
from vivace.model.load.tensors import BLOCKS, row_bytes

# Bytes of a block at which half-float scales lie.
_SCALES = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
}
_FLOATS = {"F32": "<f4", "F16": "<f2"}


def random_rows(
    kind: str, rows: int, cols: int, random: np.random.Generator, deviation: float = 1.0
) -> NDArray[np.uint8]:
    """uint8 [rows, bytes of a row] of values around 0 with about this standard deviation."""
    if kind not in _SCALES:
        values: NDArray[np.float32] = (deviation * random.standard_normal((rows, cols))).astype(np.float32)
        if kind == "BF16":
            return np.ascontiguousarray((values.view(np.uint32) >> 16).astype("<u2")).view(np.uint8)
        return values.astype(_FLOATS[kind]).view(np.uint8)
    blocks = random.integers(0, 256, (rows * cols // BLOCKS[kind][0], BLOCKS[kind][1]), np.uint8)
    scales = random.uniform(0.01, 0.1, (len(_SCALES[kind]), len(blocks), 1))
    scales *= random.choice([-1, 1], scales.shape)
    _put_scales(kind, blocks, scales)
    found = float(dequantise(kind, blocks[:1000], BLOCKS[kind][0]).std())
    _put_scales(kind, blocks, scales * (deviation / found))
    return blocks.reshape(rows, row_bytes(kind, cols))


def _put_scales(kind: str, blocks: NDArray[np.uint8], scales: NDArray[np.float64]) -> None:
    for at, values in zip(_SCALES[kind], scales, strict=True):
        blocks[:, at : at + 2] = values.astype("<f2").view(np.uint8)
