from __future__ import annotations

from vivace.ops.registry import native
from vivace.ops.spec import Axes, Call, Inputs


def prepare(isa: str, axes: Axes, inputs: Inputs) -> Call:
    core = native()
    packed = core.pack(axes["type"], inputs["weights"], axes["cols"])
    a, bias = inputs["a"], inputs.get("bias")
    return lambda: (core.matmul(axes["type"], packed, axes["rows"], axes["cols"], a, bias, isa),)
