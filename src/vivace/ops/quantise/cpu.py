from __future__ import annotations

from vivace.ops.registry import native
from vivace.ops.spec import Axes, Call, Inputs


def prepare(isa: str, axes: Axes, inputs: Inputs) -> Call:
    core, x = native(), inputs["x"]
    return lambda: tuple(core.quantise(x, isa))
