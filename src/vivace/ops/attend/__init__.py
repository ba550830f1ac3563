"""Attention of queries that share one KV head over half-float keys and values; each query sees a range of ordinals."""

from __future__ import annotations

import numpy as np

from vivace.ops.spec import Axes, Inputs, Op, Outputs


def inputs(axes: Axes, random: np.random.Generator) -> Inputs:
    """Keys and values are float32 that half floats hold exactly. Query 0 sees everything, query 1 nothing."""
    queries, keys, dim = axes["queries"], axes["keys"], axes["dim"]
    first = random.integers(0, keys, queries)
    last = random.integers(0, keys, queries)
    first, last = np.minimum(first, last), np.maximum(first, last) + 1
    first[0], last[0] = 0, keys
    first[1:2] = last[1:2]
    return {
        "q": (random.standard_normal((queries, dim)) * 3 / dim**0.5).astype(np.float32),
        "k": random.standard_normal((keys, dim)).astype(np.float16).astype(np.float32),
        "v": random.standard_normal((keys, dim)).astype(np.float16).astype(np.float32),
        "first": first.astype(np.int32),
        "last": last.astype(np.int32),
    }


def reference(axes: Axes, inputs: Inputs) -> Outputs:
    cap = axes["softcap"]
    logits = inputs["q"].astype(np.float64) @ inputs["k"].astype(np.float64).T
    if cap:
        logits = cap * np.tanh(logits / cap)
    ordinal = np.arange(axes["keys"])
    seen = (ordinal >= inputs["first"][:, None]) & (ordinal < inputs["last"][:, None])
    peak = np.where(seen, logits, -np.inf).max(axis=1, keepdims=True, initial=-1e300)
    weight = np.where(seen, np.exp(np.minimum(logits - peak, 0)), 0)
    total = weight.sum(axis=1, keepdims=True)
    return (weight @ inputs["v"].astype(np.float64) / np.where(total > 0, total, 1),)


_SHAPES = [(1, 1, 64), (1, 63, 64), (3, 64, 64), (3, 65, 64), (6, 255, 128), (6, 256, 128), (7, 257, 64)]
_SHAPES += [(2, 1000, 256), (4, 300, 16), (4, 700, 80), (20, 600, 64), (33, 513, 128)]
_BENCH = [(3, 64), (7, 64), (6, 128), (96, 64)]


def _axes(queries: int, keys: int, dim: int, softcap: float = 0.0) -> Axes:
    return {"queries": queries, "keys": keys, "dim": dim, "softcap": softcap}


OP = Op(
    name="attend",
    summary=__doc__,
    axes=("queries", "keys", "dim", "softcap"),
    inputs=inputs,
    reference=reference,
    outputs=("out",),
    tolerances=(2e-6,),
    cases=tuple(_axes(*shape, softcap=cap) for shape in _SHAPES for cap in (0.0, 2.0)),
    bench=tuple(_axes(queries, 4096, dim) for queries, dim in _BENCH),
    bytes=lambda axes: 4 * axes["keys"] * axes["dim"] + 8 * axes["queries"] * axes["dim"],
    flops=lambda axes: 4 * axes["queries"] * axes["keys"] * axes["dim"],
    row_inputs=("q", "first", "last"),
)
