"""The tanh form of GELU of the gate, times up."""

from __future__ import annotations

import numpy as np

from vivace.ops.gated import gated_op
from vivace.ops.spec import Array


def gelu_tanh(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


OP = gated_op("gelu_tanh_mul", __doc__, gelu_tanh)
