"""Exact selection from long rows without sorting them. Ties go to the lowest index."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Indices = NDArray[np.int64]

_GROUP = 64


def largest(values: Float32, k: int) -> Indices:
    """Indices of the k largest values, ascending; of equal ones the lowest."""
    if k >= len(values):
        return np.arange(len(values))
    near = np.flatnonzero(values >= _lower_bound(values, k))
    kept = values[near]
    border = np.partition(kept, len(kept) - k)[len(kept) - k]
    above = near[kept > border]
    ties = near[kept == border][: k - len(above)]
    return np.sort(np.concatenate((above, ties)))


def _lower_bound(values: Float32, k: int) -> float:
    """At least k values are >= it: the k-th largest of the maxima of groups."""
    groups = len(values) // _GROUP
    if groups < 4 * k:
        return float(np.partition(values, len(values) - k)[len(values) - k])
    maxima = values[: groups * _GROUP].reshape(_GROUP, groups).max(axis=0)  # along rows of memory: many at a time
    return float(np.partition(maxima, groups - k)[groups - k])


def descending(values: Float32, index: Indices) -> Indices:
    """`index` (ascending) ordered by value, the largest first; of equal ones the lowest first."""
    bits = (0.0 - values[index]).view(np.int32)  # of floats from 0 on, in their order; of others, in the opposite one
    order = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits).astype(np.int64) << 32
    return index[np.sort(order | np.arange(len(index))) & 0xFFFFFFFF]  # a sort of keys: a stable argsort takes longer


def log_sum_exp(values: Float32) -> float:
    """Natural logarithm of the sum of exponentials; -inf entries add nothing."""
    peak = float(values.max())
    return peak + float(np.log(np.exp(values - np.float32(peak)).sum(dtype=np.float64)))
