"""Every op on every instruction set in every case, against the numpy reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vivace.ops import registry
from vivace.ops.check import compare, faults, make_inputs
from vivace.ops.spec import Axes, Op, describe

OPS = [registry.find(name) for name in registry.names()]
CASES = [pytest.param(op, axes, id=f"{op.name} {describe(axes)}") for op in OPS for axes in op.cases]


@pytest.mark.parametrize("isa", registry.ISAS)
@pytest.mark.parametrize(("op", "axes"), CASES)
def test_native(op: Op, axes: Axes, isa: str) -> None:
    pytest.importorskip("vivace._native", reason="the native core is not built")
    if why := registry.missing(isa):
        pytest.skip(why)
    assert faults(op, axes, isa) == []


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_cases_are_whole(op: Op) -> None:
    """Inputs repeat, the reference is finite and has the outputs it names, and the check would notice a change."""
    axes = op.cases[-1]
    inputs = make_inputs(op, axes)
    again = make_inputs(op, axes)
    assert all(np.array_equal(inputs[name], again[name]) for name in inputs)
    expected = op.reference(axes, inputs)
    assert len(expected) == len(op.outputs) == len(op.tolerances)
    assert all(np.isfinite(values).all() for values in expected)
    assert compare(op, expected, expected) == []
    for i, values in enumerate(expected):
        worse = values + np.abs(values).max() * max(2 * op.tolerances[i], 1e-3) + (values.dtype.kind == "i")
        assert compare(op, expected, (*expected[:i], worse, *expected[i + 1 :]))
        lost = np.full(values.shape, np.nan)
        assert compare(op, expected, (*expected[:i], lost, *expected[i + 1 :]))
    assert op.bytes(axes) > 0 and op.flops(axes) > 0
    assert all(set(a) == set(op.axes) for a in (*op.cases, *op.bench))


def test_unknown_names_give_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean matmul"):
        registry.find("matmull")


def test_ops_are_found_by_their_path() -> None:
    assert "matmul" in registry.names()
    assert all(replace(registry.find(name)).name == name for name in registry.names())
