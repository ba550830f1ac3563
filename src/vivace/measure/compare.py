"""Alternating runs: ours and the peers' in turn, the machine's limits probed in between, ratios from pairs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vivace.measure.cases import SpeedTest
from vivace.measure.limits import Limits
from vivace.measure.speed import Interrupted, Runner, Timed


@dataclass
class Result:
    """Repetitions of one test on one engine. `limits[i]` was measured just before repetition i."""

    engine: str
    test: SpeedTest
    timed: list[Timed] = field(default_factory=list)
    limits: list[Limits] = field(default_factory=list)
    problem: str | None = None

    @property
    def tok_s(self) -> list[float]:
        return [self.test.total / timed.seconds for timed in self.timed]

    @property
    def median(self) -> float:
        return statistics.median(self.tok_s)


@dataclass(frozen=True)
class Ratio:
    """Ours over a peer's, pair by pair: the median, and the lowest and highest pair."""

    against: str
    test: SpeedTest
    median: float
    low: float
    high: float

    @property
    def faster(self) -> bool:
        """Whether every pair says so; a band that includes 1 claims nothing."""
        return self.low > 1

    @property
    def slower(self) -> bool:
        return self.high < 1


def alternate(
    runners: Sequence[Runner],
    tests: Sequence[SpeedTest],
    reps: int,
    probe: Callable[[], Limits],
    progress: Callable[[str], None] = lambda _: None,
    finished: Callable[[list[Result]], None] = lambda _: None,
) -> list[Result]:
    """Every test on every runner, one warm-up and then `reps` rounds; the order within a round turns about.

    A runner that cannot do a test leaves a `problem` and is skipped for it; ours, the first, must not fail.
    `finished` gets the results of a test when it is done. A Ctrl-C becomes Interrupted.
    """
    results: list[Result] = []
    try:
        _alternate(runners, tests, reps, probe, progress, finished, results)
    except KeyboardInterrupt:
        raise Interrupted(_whole_rounds(results)) from None
    return results


def _whole_rounds(results: list[Result]) -> list[Result]:
    """What was measured, without the round that was cut off, and without tests of which no round was whole."""
    rounds: dict[SpeedTest, int] = {}
    for row in results:
        if not row.problem:
            rounds[row.test] = min(len(row.timed), rounds.get(row.test, len(row.timed)))
    for row in results:
        del row.timed[rounds[row.test] :], row.limits[rounds[row.test] :]
    return [row for row in results if rounds[row.test]]


def _alternate(
    runners: Sequence[Runner],
    tests: Sequence[SpeedTest],
    reps: int,
    probe: Callable[[], Limits],
    progress: Callable[[str], None],
    finished: Callable[[list[Result]], None],
    results: list[Result],
) -> None:
    for test in tests:
        rows = [Result(runner.name, test) for runner in runners]
        results += rows
        for round_ in range(reps + 1):
            progress(f"{test}: {'warm-up' if round_ == 0 else f'{round_} of {reps}'}")
            limits = probe() if round_ else None
            pairs = list(zip(runners, rows, strict=True))
            for runner, row in pairs if round_ % 2 else reversed(pairs):
                if row.problem:
                    continue
                try:
                    timed = runner.run(test)
                except ValueError as error:
                    if runner is runners[0]:
                        raise
                    row.problem, row.timed, row.limits = str(error), [], []
                    continue
                if limits:
                    row.timed.append(timed)
                    row.limits.append(limits)
        finished(rows)


def ratios(results: Sequence[Result]) -> list[Ratio]:
    """The first engine of each test against the others."""
    found: list[Ratio] = []
    ours: dict[SpeedTest, Result] = {}
    for row in results:
        first = ours.setdefault(row.test, row)
        if row is first or not row.timed:
            continue
        pairs = [mine / other for mine, other in zip(first.tok_s, row.tok_s, strict=True)]
        found.append(Ratio(row.engine, row.test, statistics.median(pairs), min(pairs), max(pairs)))
    return found
