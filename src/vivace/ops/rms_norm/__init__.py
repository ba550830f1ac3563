"""Each row divided by its root mean square, times a weight: x / sqrt(mean(x^2) + eps) * w."""

from __future__ import annotations

import numpy as np

from vivace.ops.spec import Array, Axes, Inputs, Op, Outputs, normal

EPS = 1e-5


def inputs(axes: Axes, random: np.random.Generator) -> Inputs:
    return {
        "x": 3 * normal(random, axes["m"], axes["n"]),
        "w": normal(random, axes["n"]),
    }


def reference(axes: Axes, inputs: Inputs) -> Outputs:
    x: Array = inputs["x"].astype(np.float64)
    return (x / np.sqrt((x * x).mean(axis=1, keepdims=True) + EPS) * inputs["w"],)


OP = Op(
    name="rms_norm",
    summary=__doc__,
    axes=("m", "n"),
    inputs=inputs,
    reference=reference,
    outputs=("out",),
    tolerances=(5e-7,),
    cases=tuple({"m": m, "n": n} for m in (1, 3, 16) for n in (1, 15, 16, 17, 64, 100, 576, 896, 1536)),
    bench=({"m": 1, "n": 1536}, {"m": 64, "n": 1536}),
    bytes=lambda axes: 4 * (2 * axes["m"] * axes["n"] + axes["n"]),
    flops=lambda axes: 4 * axes["m"] * axes["n"],
    row_inputs=("x",),
)
