"""Over a row of logits: the maximum, its lowest index, and the sum of exp(x - maximum)."""

from __future__ import annotations

import numpy as np

from vivace.ops.spec import Array, Axes, Inputs, Op, Outputs, normal


def inputs(axes: Axes, random: np.random.Generator) -> Inputs:
    """The maximum stands at two places, so that the lower index has to be found."""
    x = 5 * normal(random, axes["n"])
    x[random.integers(0, axes["n"], 2)] = 40.0
    return {"x": x}


def reference(axes: Axes, inputs: Inputs) -> Outputs:
    x: Array = inputs["x"].astype(np.float64)
    return np.array(x.max()), np.array(x.argmax()), np.array(np.exp(x - x.max()).sum())


OP = Op(
    name="logit_stats",
    summary=__doc__,
    axes=("n",),
    inputs=inputs,
    reference=reference,
    outputs=("max", "argmax", "sum_exp"),
    tolerances=(0, 0, 5e-7),
    cases=tuple({"n": n} for n in (1, 2, 15, 16, 17, 100, 1000, 49152, 151937)),
    bench=({"n": 49152}, {"n": 151936}),
    bytes=lambda axes: 4 * axes["n"],
    flops=lambda axes: 10 * axes["n"],
)
