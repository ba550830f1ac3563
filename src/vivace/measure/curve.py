"""What a step costs by its number of rows, beside what the machine needs at least for it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from vivace.core.cost import measure
from vivace.core.step import Executor
from vivace.measure.cases import SpeedTest
from vivace.measure.limits import Limits, work
from vivace.model.weights import Checkpoint

ROWS = tuple(range(1, 65))
_AT_ONCE = 8  # row counts measured between two probes of the machine


@dataclass(frozen=True)
class Point:
    """A step of `rows` rows of one sequence, all with logits, and the least time that reading and arithmetic take."""

    rows: int
    seconds: float
    reading: float
    arithmetic: float


def row_curve(executor: Executor, checkpoint: Checkpoint, probe: Callable[[], Limits], repeats: int) -> list[Point]:
    """A point for each of ROWS, from an empty cache. The machine is probed before and after every few of them."""
    points = []
    for first in range(0, len(ROWS), _AT_ONCE):
        rows = ROWS[first : first + _AT_ONCE]
        before = probe()
        table = measure(executor, rows, depths=(0,), repeats=repeats)
        limits = (before, probe())
        bytes_s = statistics.mean(limit.bytes_s for limit in limits)
        ops_s = statistics.mean(limit.int8_ops_s for limit in limits)
        for count, (seconds,) in zip(rows, table.seconds, strict=True):
            needed = work(checkpoint, SpeedTest("tg", 1, batch=count))
            points.append(Point(count, seconds, needed.bytes / bytes_s, needed.ops / ops_s))
    return points
