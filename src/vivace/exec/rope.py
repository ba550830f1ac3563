"""Angles of the rotary embedding, the same for every executor."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vivace.model.spec import RopeSpec


def rope_table(rope: RopeSpec, positions: NDArray[np.integer]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """cos and sin, float32 [positions, dim / 2], of angles taken in float64."""
    if rope.long_factors is not None:
        raise ValueError("a model with two sets of rotary factors: choose one with `Checkpoint.for_context` first")
    frequencies = rope.theta ** (-np.arange(0, rope.dim, 2, dtype=np.float64) / rope.dim)
    if rope.factors is not None:
        frequencies /= np.array(rope.factors)
    angles = positions[:, None] * frequencies
    cos, sin = np.cos(angles) * rope.attention_factor, np.sin(angles) * rope.attention_factor
    return cos.astype(np.float32), sin.astype(np.float32)
