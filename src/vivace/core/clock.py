"""Time as the engine sees it: real, or simulated."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds from an arbitrary start, never decreasing."""
        ...


class WallClock:
    def now(self) -> float:
        return perf_counter()


@dataclass(slots=True)
class VirtualClock:
    """Moves only when told to."""

    seconds: float = 0.0

    def now(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.seconds += seconds
