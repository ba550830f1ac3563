"""Which sequences run next, and how many rows of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from vivace.core.batch import Sequence, Turn


class SchedulePolicy(Protocol):
    """Pure decisions over lists; the engine keeps the books."""

    def next(self, waiting: list[Sequence]) -> Sequence:
        """Whom to admit next. While it does not fit, nobody else is admitted: no one starves."""
        ...

    def victim(self, holders: list[Sequence]) -> Sequence:
        """Whom to preempt when the cache is full. Never the same one for ever, so that all get done."""
        ...

    def turns(self, running: Iterable[Sequence], budget: int, chunk: int, extra_rows: int) -> list[Turn]:
        """At most `budget` rows in all and `chunk` of one sequence; at least one row if anything runs.

        A sequence with one token due may run `extra_rows` more, which count.
        """
        ...


@dataclass(frozen=True)
class FirstCome:
    """In order of arrival. Sequences that generate come before prompts, so a long prompt delays no one for long."""

    def next(self, waiting: list[Sequence]) -> Sequence:
        return waiting[0]

    def victim(self, holders: list[Sequence]) -> Sequence:
        """The youngest: the oldest always gets on."""
        return max(holders, key=lambda sequence: sequence.number)

    def turns(self, running: Iterable[Sequence], budget: int, chunk: int, extra_rows: int) -> list[Turn]:
        turns: list[Turn] = []
        prompts: list[tuple[Sequence, int]] = []
        left = budget
        for sequence in running:
            due = sequence.due
            if due > 1:
                prompts.append((sequence, due))
            elif left > extra_rows or not turns:
                turns.append(Turn(sequence, due))
                left -= 1 + extra_rows
        for sequence, due in prompts:
            if left <= 0:
                break
            rows = min(due, left, chunk)
            turns.append(Turn(sequence, rows))
            left -= rows
        return turns
