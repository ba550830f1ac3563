"""How fast the engine runs a test, at the level of steps: no tokenising, no sampling, fixed ids, no early end."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from vivace.core.machine import peak_rss_bytes
from vivace.core.step import NO_LOGITS, Executor, Int32, Segment, StepRequest
from vivace.kv.spec import PAGE
from vivace.measure.cases import SpeedTest

CHUNK = 512  # rows of a prompt that run in one step; what the peers use too


@dataclass(frozen=True)
class Timed:
    seconds: float
    peak_rss_bytes: int


class Interrupted(KeyboardInterrupt):
    """A Ctrl-C among repetitions; `results` is what the whole ones gave, as the caller would have got it."""

    def __init__(self, results: list[Any]) -> None:
        super().__init__()
        self.results = results


class Runner(Protocol):
    """Something that can be timed: our engine, or a peer in its own process."""

    name: str

    def run(self, test: SpeedTest) -> Timed:
        """One repetition. Raises ValueError when it cannot run this test."""
        ...

    def close(self) -> None: ...


class EngineRunner:
    """The executor of a loaded model."""

    name = "vivace"

    def __init__(self, executor: Executor, seed: int = 0) -> None:
        self.executor = executor
        self._random = random.Random(seed)
        self._prefilled: tuple[int, int] | None = None  # (depth, sequence)

    def run(self, test: SpeedTest) -> Timed:
        with self.prepared(test) as repetition:
            start = time.perf_counter()
            repetition()
            seconds = time.perf_counter() - start
        return Timed(seconds, peak_rss_bytes())

    @contextmanager
    def prepared(self, test: SpeedTest) -> Iterator[Callable[[], None]]:
        """The part of a repetition whose time counts, ready to be called once."""
        sequences = [self._deep(test.depth) for _ in range(test.batch)]
        run = self._prompts if test.kind == "pp" else self._generate
        try:
            yield lambda: run(sequences, test.tokens)
        finally:
            for seq in sequences:
                self.executor.store.drop(seq)

    def _prompts(self, sequences: list[int], tokens: int) -> None:
        for seq in sequences:
            self._prefill(seq, tokens)

    def _generate(self, sequences: list[int], tokens: int) -> None:
        for _ in range(tokens):
            self.executor.run(StepRequest([Segment(seq, self._ids(1)) for seq in sequences]))
            for seq in sequences:
                self.executor.store.commit(seq)

    def close(self) -> None:
        self.executor.close()

    def _deep(self, depth: int) -> int:
        """A new sequence of that many tokens; the work of filling it is done once and then forked."""
        store = self.executor.store
        if depth == 0:
            return store.new()
        if self._prefilled is None or self._prefilled[0] != depth:
            if self._prefilled is not None:
                store.drop(self._prefilled[1])
            seq = store.new()
            self._prefill(seq, depth)
            self._prefilled = depth, seq
        return store.fork(self._prefilled[1])

    def _prefill(self, seq: int, tokens: int) -> None:
        for done in range(0, tokens, CHUNK):
            rows = min(CHUNK, tokens - done)
            wanted = None if done + rows == tokens else NO_LOGITS
            self.executor.run(StepRequest([Segment(seq, self._ids(rows), logits=wanted)]))
            self.executor.store.commit(seq)

    def _ids(self, count: int) -> Int32:
        vocab = self.executor.spec.vocab
        return np.array([self._random.randrange(vocab) for _ in range(count)], np.int32)


def pages_needed(tests: list[SpeedTest]) -> int:
    """Cache pages for the widest test, and for the prefilled sequence that deep tests are forked from."""
    return max(test.batch * (test.cells // PAGE + 2) + test.depth // PAGE + 2 for test in tests)
