from __future__ import annotations

from vivace.ops.registry import native
from vivace.ops.spec import Axes, Call, Inputs


def prepare(isa: str, axes: Axes, inputs: Inputs) -> Call:
    core, gate, up = native(), inputs["gate"], inputs["up"]
    return lambda: (core.gelu_tanh_mul(gate, up, isa),)
