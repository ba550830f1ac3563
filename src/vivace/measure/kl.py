"""How far one model's next-token distributions are from another's."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


def kl(expected: NDArray[np.float32], found: NDArray[np.float32]) -> Float64:
    """KL(expected || found) in nats of each row of logits [..., vocab], in float64.

    Raises ValueError for unlike shapes and for logits that are not numbers.
    """
    if expected.shape != found.shape:
        raise ValueError(f"logits of unlike shapes: {list(expected.shape)} and {list(found.shape)}")
    p, q = _log_softmax(expected), _log_softmax(found)
    rows: Float64 = (np.exp(p) * (p - q)).sum(-1)
    if np.isnan(rows).any():
        raise ValueError(f"{int(np.isnan(rows).sum())} rows have logits that are not finite")
    return rows


def mean_kl(expected: NDArray[np.float32], found: NDArray[np.float32]) -> float:
    """The mean of `kl` over all rows."""
    return float(kl(expected, found).mean())


def _log_softmax(logits: NDArray[np.float32]) -> Float64:
    x = logits.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))
