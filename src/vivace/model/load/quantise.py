"""Float rows to Q8_0 blocks, so that a folder of float weights runs on the int8 kernels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vivace.model.load.tensors import row_bytes
from vivace.model.weights import StoredMatrix

_CHUNK_VALUES = 1 << 20  # bounds the float32 copies


def quantise_q8_0(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """float32 [rows, cols] to Q8_0 rows [rows, cols / 32 * 34]: d = max|x| / 127 stored as a half float, codes x / d.

    Codes are rounded half away from zero with the unrounded d; blocks of zeros have d = 0. Raises ValueError for
    values that are not finite or too large for a half-float d.
    """
    rows, cols = values.shape
    blocks = values.reshape(-1, 32)
    d = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    if not (d <= np.finfo(np.float16).max).all():
        raise ValueError("has values that Q8_0 cannot hold")
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.where(d == 0, np.float32(0), np.float32(1) / d)
    scaled = blocks * inverse
    magnitude = np.abs(scaled)
    whole = np.floor(magnitude)
    codes = np.sign(scaled) * (whole + np.floor(2 * (magnitude - whole)))
    out = np.empty((len(blocks), 34), np.uint8)
    out[:, :2] = d.astype("<f2").view(np.uint8)
    out[:, 2:] = codes.astype(np.int8).view(np.uint8)
    return out.reshape(rows, row_bytes("Q8_0", cols))


def quantise_matrix(matrix: StoredMatrix) -> StoredMatrix:
    """The same matrix in Q8_0, in the order of its rows as the model reads them."""
    out = np.empty((matrix.rows, row_bytes("Q8_0", matrix.cols)), np.uint8)
    step = max(1, _CHUNK_VALUES // matrix.cols)
    for first in range(0, matrix.rows, step):
        last = min(first + step, matrix.rows)
        out[first:last] = quantise_q8_0(matrix.dequantise(first, last))
    return StoredMatrix("Q8_0", matrix.rows, matrix.cols, out)
