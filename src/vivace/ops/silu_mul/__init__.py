"""gate / (1 + exp(-gate)) * up."""

from __future__ import annotations

import numpy as np

from vivace.ops.gated import gated_op
from vivace.ops.spec import Array


def silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


OP = gated_op("silu_mul", __doc__, silu)
