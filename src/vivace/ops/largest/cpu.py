from __future__ import annotations

from vivace.ops.registry import native
from vivace.ops.spec import Axes, Call, Inputs


def prepare(isa: str, axes: Axes, inputs: Inputs) -> Call:
    core, x, k = native(), inputs["x"], axes["k"]
    return lambda: (core.largest(x, k, isa),)
