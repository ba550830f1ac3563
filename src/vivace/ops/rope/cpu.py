from __future__ import annotations

from vivace.ops.registry import native
from vivace.ops.spec import Axes, Call, Inputs


def prepare(isa: str, axes: Axes, inputs: Inputs) -> Call:
    core, x, cos, sin = native(), inputs["x"], inputs["cos"], inputs["sin"]
    return lambda: (core.rope(x, cos, sin, isa),)
