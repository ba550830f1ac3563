"""An implementation against the reference, and a row among others against the row alone."""

from __future__ import annotations

import zlib

import numpy as np

from vivace.ops.registry import cpu
from vivace.ops.spec import Axes, Inputs, Op, Outputs, describe


def make_inputs(op: Op, axes: Axes) -> Inputs:
    """The same inputs for the same case, always."""
    return op.inputs(axes, np.random.default_rng(zlib.crc32(f"{op.name} {describe(axes)}".encode())))


def faults(op: Op, axes: Axes, isa: str) -> list[str]:
    """What is wrong with the native implementation in this case, a sentence each; empty when all is well."""
    inputs = make_inputs(op, axes)
    got = cpu(op.name)(isa, axes, inputs)()
    found = compare(op, op.reference(axes, inputs), got)
    if op.row_inputs and not found:
        found = _row_faults(op, axes, isa, inputs, got)
    return found


def compare(op: Op, expected: Outputs, got: Outputs) -> list[str]:
    found = []
    for name, tolerance, want, have in zip(op.outputs, op.tolerances, expected, got, strict=True):
        if want.shape != have.shape:
            found.append(f"{name} has shape {have.shape}, not {want.shape}")
            continue
        largest = float(np.abs(want).max(initial=0.0))
        error = float(np.abs(want.astype(np.float64) - have.astype(np.float64)).max(initial=0.0))
        if not error <= tolerance * largest:
            allowed = f"allowed is {tolerance:g} of the largest, {largest:.3g}"
            found.append(f"{name} is off by {error:.3g}; {allowed}")
    return found


def _row_faults(op: Op, axes: Axes, isa: str, inputs: Inputs, together: Outputs) -> list[str]:
    rows = len(inputs[op.row_inputs[0]])
    found = []
    for row in sorted({0, rows // 2, rows - 1}):
        alone = {n: x[row : row + 1].copy() if n in op.row_inputs else x for n, x in inputs.items()}
        for name, one, all_ in zip(op.outputs, cpu(op.name)(isa, axes, alone)(), together, strict=True):
            if one[0].tobytes() != all_[row].tobytes():
                found.append(f"row {row} of {name} has other bits among {rows} rows than alone")
    return found
