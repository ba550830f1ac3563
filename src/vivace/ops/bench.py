"""How fast a native implementation is in its benchmark cases, as a share of what one thread could do at best."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from vivace.ops.check import make_inputs
from vivace.ops.registry import cpu
from vivace.ops.spec import Axes, Op


@dataclass(frozen=True)
class Timing:
    """Medians over calls from Python on one thread; the call and its result's allocation are included."""

    op: str
    axes: Axes
    isa: str
    seconds: float
    bytes_s: float
    ops_s: float


def measure(op: Op, axes: Axes, isa: str, seconds: float = 0.3) -> Timing:
    """Calls the op for about `seconds`, at least five times. Operands that fit are in cache."""
    call = cpu(op.name)(isa, axes, make_inputs(op, axes))
    call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    median = statistics.median(times)
    return Timing(op.name, axes, isa, median, op.bytes(axes) / median, op.flops(axes) / median)
