"""Rows to int8 in blocks of 32 with a zero point: x = scale * (code + zero point), codes over the whole range."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vivace.ops.spec import Array, Axes, Inputs, Op, Outputs

BLOCK = 32
SUM_BLOCK = 16


def quantise_rows(x: NDArray[np.float32]) -> tuple[Array, Array, Array, Array]:
    """float32 [m, n] to codes q int8 [m, n], scales d float32 and zero points z int32 [m, n / 32], and the sums of
    q + z, int32 [m, n / 16].

    With least and greatest of a block and 0: d = (greatest - least) / 255, z = round(least / d) + 128,
    q = min(round(x / d) - z, 127), to nearest even.
    """
    blocks = x.reshape(len(x), -1, BLOCK)
    greatest, least = np.maximum(blocks.max(axis=2), 0), np.minimum(blocks.min(axis=2), 0)
    d = greatest / np.float32(255) - least / np.float32(255)
    by = np.where(d > 0, d, np.float32(1))
    z = np.where(d > 0, np.rint(least / by) + 128, 0).astype(np.int32)
    levels = np.minimum(np.rint(blocks / by[:, :, None]).astype(np.int32), z[:, :, None] + 127)
    q = (levels - z[:, :, None]).astype(np.int8).reshape(x.shape)
    return q, d, z, levels.reshape(len(x), -1, SUM_BLOCK).sum(axis=2, dtype=np.int32)


def inputs(axes: Axes, random: np.random.Generator) -> Inputs:
    x = random.standard_normal((axes["m"], axes["n"])).astype(np.float32)
    x += random.uniform(-3, 3, (axes["m"], axes["n"] // BLOCK)).astype(np.float32).repeat(BLOCK, axis=1)
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
    outputs=("q", "d", "z", "s"),
    tolerances=(0, 0, 0, 0),
    cases=tuple({"m": m, "n": n} for m in (1, 3, 16) for n in (32, 96, 576, 896, 1536)),
    bench=({"m": 1, "n": 1536}, {"m": 64, "n": 8960}),
    bytes=lambda axes: axes["m"] * (5 * axes["n"] + 8 * axes["n"] // BLOCK + 4 * axes["n"] // SUM_BLOCK),
    flops=lambda axes: 4 * axes["m"] * axes["n"],
    row_inputs=("x",),
)
