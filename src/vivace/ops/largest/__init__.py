"""The ids of the k largest of a row of logits, in order, never those that are -inf; of equal ones the lowest first."""

from __future__ import annotations

import numpy as np

from vivace.ops.spec import Axes, Inputs, Op, Outputs, normal


def inputs(axes: Axes, random: np.random.Generator) -> Inputs:
    """Rounded, so that many are equal; every third is -inf, but never so many that fewer than k are left."""
    x = np.round(4 * normal(random, axes["n"])) / 4
    barred = np.arange(0, axes["n"], 3)[: max(0, axes["n"] - axes["k"])]
    x[barred] = -np.inf
    return {"x": x}


def reference(axes: Axes, inputs: Inputs) -> Outputs:
    return (np.argsort(-inputs["x"], kind="stable")[: axes["k"]],)


OP = Op(
    name="largest",
    summary=__doc__,
    axes=("n", "k"),
    inputs=inputs,
    reference=reference,
    outputs=("ids",),
    tolerances=(0,),
    cases=(
        *({"n": n, "k": 1} for n in (1, 15, 17, 600)),
        *({"n": n, "k": k} for n in (511, 512, 513, 5000) for k in (2, 40, 256)),
        {"n": 16, "k": 16},
        {"n": 49152, "k": 40},
        {"n": 151937, "k": 256},
    ),
    bench=({"n": 49152, "k": 40}, {"n": 262144, "k": 40}),
    bytes=lambda axes: 4 * axes["n"],
    flops=lambda axes: axes["n"],
)
