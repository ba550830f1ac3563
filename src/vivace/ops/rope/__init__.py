"""Rotary embedding, half-split: (x[i], x[i + half]) turned by the angle whose cosine and sine are given."""

from __future__ import annotations

import numpy as np

from vivace.ops.spec import Axes, Inputs, Op, Outputs


def inputs(axes: Axes, random: np.random.Generator) -> Inputs:
    m, half = axes["m"], axes["half"]
    angle = random.integers(0, 8192, (m, 1)) * 10000.0 ** (-np.arange(half) / half)
    return {
        "x": random.standard_normal((m, 2 * half)).astype(np.float32),
        "cos": np.cos(angle).astype(np.float32),
        "sin": np.sin(angle).astype(np.float32),
    }


def reference(axes: Axes, inputs: Inputs) -> Outputs:
    first, second = np.split(inputs["x"].astype(np.float64), 2, axis=1)
    cos, sin = inputs["cos"], inputs["sin"]
    return (np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=1),)


OP = Op(
    name="rope",
    summary=__doc__,
    axes=("m", "half"),
    inputs=inputs,
    reference=reference,
    outputs=("out",),
    tolerances=(2e-7,),
    cases=tuple({"m": m, "half": half} for m in (1, 3, 16) for half in (1, 8, 15, 16, 32, 48, 64, 128)),
    bench=({"m": 16, "half": 32}, {"m": 512, "half": 64}),
    bytes=lambda axes: 24 * axes["m"] * axes["half"],
    flops=lambda axes: 6 * axes["m"] * axes["half"],
    row_inputs=("x", "cos", "sin"),
)
