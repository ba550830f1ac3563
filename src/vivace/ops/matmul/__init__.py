"""Weights in their stored form times rows of activations that were quantised to int8 in blocks of 32."""

from __future__ import annotations

import numpy as np

from vivace.model.load.dequantise import dequantise
from vivace.model.load.tensors import BLOCKS, FLOAT_TYPES, row_bytes
from vivace.ops.matmul.blocks import random_rows
from vivace.ops.quantise import quantise_rows
from vivace.ops.spec import Array, Axes, Inputs, Op, Outputs, normal


def inputs(axes: Axes, random: np.random.Generator) -> Inputs:
    made: Inputs = {
        "weights": random_rows(axes["type"], axes["rows"], axes["cols"], random),
        "a": normal(random, axes["m"], axes["cols"]),
    }
    if axes.get("bias"):
        made["bias"] = normal(random, axes["rows"])
    return made


def reference(axes: Axes, inputs: Inputs) -> Outputs:
    a: Array = inputs["a"].astype(np.float64)
    if axes["type"] not in FLOAT_TYPES:
        q, d, z, _ = quantise_rows(inputs["a"])
        a = (q + z.repeat(32, axis=1)) * d.astype(np.float64).repeat(32, axis=1)
    out = a @ dequantise(axes["type"], inputs["weights"], axes["cols"]).astype(np.float64).T
    return (out + inputs["bias"] if "bias" in inputs else out,)


def _axes(kind: str, m: int, rows: int, cols: int, bias: int = 0) -> Axes:
    return {"type": kind, "rows": rows, "cols": cols, "m": m, "bias": bias}


_SMALL = tuple(kind for kind, (values, _) in BLOCKS.items() if values == 32)  # blocks in pairs, or one alone at the end


def _cases() -> tuple[Axes, ...]:
    shapes = [(1, 16, 256), (1, 40, 512), (2, 16, 768), (3, 17, 256), (5, 33, 1024), (8, 64, 256), (16, 48, 512)]
    shapes += [(17, 31, 256), (64, 16, 512), (65, 50, 256)]
    cases = [_axes(kind, m, rows, cols, m % 2) for kind in BLOCKS for m, rows, cols in shapes]
    cases += [_axes(kind, m, 20, cols) for kind in _SMALL for m in (1, 7) for cols in (32, 96, 576)]
    cases += [_axes(kind, 3, 19, 45) for kind in sorted(FLOAT_TYPES)]
    return tuple(cases)


_BENCH = [("Q4_1", 1536, 576), ("Q5_0", 4864, 896), ("Q8_0", 4096, 576), ("Q4_K", 8960, 1536), ("Q6_K", 1536, 8960)]
_BENCH += [(kind, 8960, 1536) for kind in ("Q4_0", "Q5_1", "Q2_K", "Q3_K", "Q5_K", "IQ4_NL", "IQ4_XS")]


def _bytes(axes: Axes) -> int:
    return int(axes["rows"] * row_bytes(axes["type"], axes["cols"]) + 4 * axes["m"] * (axes["rows"] + axes["cols"]))


OP = Op(
    name="matmul",
    summary=__doc__,
    axes=("type", "rows", "cols", "m", "bias"),
    inputs=inputs,
    reference=reference,
    outputs=("out",),
    tolerances=(2e-6,),
    cases=_cases(),
    bench=tuple(_axes(kind, m, rows, cols) for kind, rows, cols in _BENCH for m in (1, 8, 64)),
    bytes=_bytes,
    flops=lambda axes: 2 * axes["m"] * axes["rows"] * axes["cols"],
    row_inputs=("a",),
)
