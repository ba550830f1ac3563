"""What a step costs on this machine: measured, kept, and asked by schedulers and draft shapes."""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from vivace.core.machine import cache_folder, machine_name
from vivace.core.step import NO_LOGITS, Int32, Segment, StepError, StepRequest, all_rows
from vivace.kv.spec import PAGE

if TYPE_CHECKING:
    from vivace.core.step import Executor

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
DEPTHS = (0, 256, 1024, 4096)
_FEED = 512  # rows of a step that fills the cache


@dataclass(frozen=True)
class CostTable:
    """`seconds[i][j]`: a step of rows[i] rows of one sequence, all with logits, behind depths[j] committed tokens."""

    rows: tuple[int, ...]
    depths: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]

    def time_of(self, rows: int, depth: int) -> float:
        """Seconds of a step, bilinear between what was measured and along the last slope beyond it."""
        i, x = _between(self.rows, rows)
        j, y = _between(self.depths, depth)
        if len(self.depths) == 1:
            return _line(self.seconds[i][0], self.seconds[i + 1][0], x)
        below = _line(self.seconds[i][j], self.seconds[i][j + 1], y)
        above = _line(self.seconds[i + 1][j], self.seconds[i + 1][j + 1], y)
        return max(0.0, _line(below, above, x))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> CostTable:
        """Raises ValueError when the text is not a cost table."""
        try:
            data = json.loads(text)
            rows, depths = (tuple(int(x) for x in data[name]) for name in ("rows", "depths"))
            seconds = tuple(tuple(float(x) for x in row) for row in data["seconds"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a cost table: {error}") from None
        if len(seconds) != len(rows) or len(rows) < 2 or any(len(row) != len(depths) for row in seconds) or not depths:
            raise ValueError("not a cost table: its sizes do not agree")
        return cls(rows, depths, seconds)


def _between(grid: Seq[int], value: int) -> tuple[int, float]:
    """The interval of the grid to read `value` from, and where in it: 0 its start, 1 its end."""
    i = max(0, min(bisect_right(grid, value) - 1, len(grid) - 2))
    return i, 0.0 if len(grid) == 1 else (value - grid[i]) / (grid[i + 1] - grid[i])


def _line(start: float, end: float, where: float) -> float:
    return start + (end - start) * where


def measure(executor: Executor, rows: Seq[int] = ROWS, depths: Seq[int] = DEPTHS, repeats: int = 5) -> CostTable:
    """Time steps of the executor, the median of `repeats` each.

    Row counts that it does not take in one step, and depths that do not fit its cache or model, are left out. Takes
    seconds for a small model and a minute for a large one. The store is left as it was.
    """
    rows = [count for count in rows if count <= executor.max_rows]
    limit = executor.store.free_pages * PAGE - max(rows)
    if executor.spec.max_context:
        limit = min(limit, executor.spec.max_context - max(rows))
    fitting = tuple(depth for depth in depths if depth <= limit)
    if not fitting:
        raise StepError(f"measuring needs {min(depths) + max(rows)} tokens of cache, and {limit + max(rows)} are free")
    seq = executor.store.new()
    try:
        columns = []
        for depth in fitting:
            _fill(executor, seq, depth)
            columns.append([_time(executor, seq, count, repeats) for count in rows])
    finally:
        executor.store.drop(seq)
    return CostTable(tuple(rows), fitting, tuple(zip(*columns, strict=True)))


def _fill(executor: Executor, seq: int, depth: int) -> None:
    while (missing := depth - executor.store.length(seq)) > 0:
        tokens = _tokens(executor, min(missing, _FEED, executor.max_rows))
        executor.run(StepRequest([Segment(seq, tokens, logits=NO_LOGITS)], role="measure"))
        executor.store.commit(seq)


def _time(executor: Executor, seq: int, rows: int, repeats: int) -> float:
    request = StepRequest([Segment(seq, _tokens(executor, rows), logits=all_rows(rows))], role="measure")
    times = []
    for _ in range(repeats + 1):
        start = perf_counter()
        executor.run(request)
        times.append(perf_counter() - start)
        executor.store.rollback(seq)
    return float(np.median(times[1:]))  # the first one warms up


def _tokens(executor: Executor, count: int) -> Int32:
    return ((np.arange(count) * 7 + 1) % executor.spec.vocab).astype(np.int32)


def cost_table(executor: Executor, plan_key: str = "") -> CostTable:
    """The table of this executor with this plan on this machine: read from the cache folder, or measured and kept."""
    path = cost_path(executor, plan_key)
    try:
        return CostTable.from_json(path.read_text())
    except (OSError, ValueError):
        table = measure(executor)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(table.to_json())
        part.replace(path)  # whole, or not at all, for another process that reads it
    except OSError:
        pass  # measured again next time
    return table


def cost_path(executor: Executor, plan_key: str = "") -> Path:
    """Where the table is kept, by all that its times depend on."""
    kind = (executor.name, executor.isa, executor.fingerprint, plan_key, machine_name(), str(executor.threads))
    key = sha256("\0".join(kind).encode()).hexdigest()[:32]
    return cache_folder() / "cost" / f"{key}.json"
