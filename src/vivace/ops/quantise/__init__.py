"""Rows to int8 in blocks of 32: scales d = max|x| / 127, codes x / d to nearest even, sums of 16 codes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vivace.ops.spec import Array, Axes, Inputs, Op, Outputs

BLOCK = 32
SUM_BLOCK = 16


def quantise_rows(x: NDArray[np.float32]) -> tuple[Array, Array, Array]:
    """float32 [m, n] to codes int8 [m, n], scales float32 [m, n / 32], sums int32 [m, n / 16]."""
    blocks = x.reshape(len(x), -1, BLOCK)
    d = np.abs(blocks).max(axis=2) / np.float32(127)
    inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d > 0)
    q = np.rint(blocks * inverse[:, :, None]).astype(np.int8).reshape(x.shape)
    return q, d, q.reshape(len(x), -1, SUM_BLOCK).sum(axis=2, dtype=np.int32)


def inputs(axes: Axes, random: np.random.Generator) -> Inputs:
    x = random.standard_normal((axes["m"], axes["n"])).astype(np.float32)
    x *= np.exp(random.uniform(-8, 8, (axes["m"], axes["n"] // BLOCK))).astype(np.float32).repeat(BLOCK, axis=1)
    x[axes["m"] // 2, :BLOCK] = 0  # a block of zeros
    return {"x": x}


def reference(axes: Axes, inputs: Inputs) -> Outputs:
    return quantise_rows(inputs["x"])


OP = Op(
    name="quantise",
    summary=__doc__,
    axes=("m", "n"),
    inputs=inputs,
    reference=reference,
    outputs=("q", "d", "s"),
    tolerances=(0, 0, 0),
    cases=tuple({"m": m, "n": n} for m in (1, 3, 16) for n in (32, 96, 576, 896, 1536)),
    bench=({"m": 1, "n": 1536}, {"m": 64, "n": 8960}),
    bytes=lambda axes: axes["m"] * (5 * axes["n"] + 4 * axes["n"] // BLOCK + 4 * axes["n"] // SUM_BLOCK),
    flops=lambda axes: 4 * axes["m"] * axes["n"],
    row_inputs=("x",),
)
