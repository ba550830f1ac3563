"""Time as the engine sees it."""

from __future__ import annotations

from time import perf_counter
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds from an arbitrary start, never decreasing."""
        ...


class WallClock:
    def now(self) -> float:
        return perf_counter()
