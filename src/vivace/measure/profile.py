"""Where the time of a test goes, by operation of the step."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from vivace.exec.native import NativeExecutor
from vivace.measure.cases import SpeedTest
from vivace.measure.speed import EngineRunner


@dataclass(frozen=True)
class Share:
    """One operation, over all layers and steps of a test. Threads meet after it: the time of the slowest counts."""

    op: str
    seconds: float
    share: float  # of all operations


def profile(executor: NativeExecutor, runner: EngineRunner, test: SpeedTest) -> list[Share]:
    """The operations of a repetition of the test, the longest first. Filling the cache before it is not counted."""
    with runner.prepared(test) as repetition:
        executor.op_times(True)
        repetition()
        times = executor.op_times(False)
    sums: dict[str, int] = defaultdict(int)
    for name, _, ns in times:
        sums[name] += ns
    total = sum(sums.values()) or 1
    return sorted((Share(op, ns / 1e9, ns / total) for op, ns in sums.items()), key=lambda share: -share.seconds)
