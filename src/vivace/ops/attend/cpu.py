from __future__ import annotations

from vivace.ops.registry import native
from vivace.ops.spec import Axes, Call, Inputs


def prepare(isa: str, axes: Axes, inputs: Inputs) -> Call:
    core, softcap = native(), axes["softcap"]
    q, k, v, first, last = (inputs[name] for name in ("q", "k", "v", "first", "last"))
    return lambda: (core.attend(q, k, v, first, last, softcap, isa),)
