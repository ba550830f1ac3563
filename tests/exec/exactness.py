"""The exactness gate over the whole engine: tokens and logits, bit for bit, against each request alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from vivace.core.batch import Sequence as Handle
from vivace.core.engine import Engine
from vivace.core.request import Request, Sampling
from vivace.core.step import Executor, StepRequest, StepResult

PROMPTS = 50
GENERATED = 6


@dataclass(frozen=True)
class Setting:
    """Everything that must not matter."""

    batch: int = 1
    chunk: int = 512
    budget: int = 512
    threads: int = 1
    samples: int = 1  # forks of each prompt, beside the request itself
    warm: bool = False  # the cache knows the prompts, and what was said to them, already
    preempt: int = 0  # so many rounds apart, the youngest sequence is stopped and starts again

    def __str__(self) -> str:
        cache = ", warm" * self.warm + f", preempted every {self.preempt}" * bool(self.preempt)
        return (
            f"batch {self.batch}, chunk {self.chunk}, budget {self.budget}, threads {self.threads}, "
            f"{self.samples}x{cache}"
        )


class Recorder:
    """Passes an engine's steps on to an executor and keeps the last row of logits of every sequence in them."""

    engine: Engine

    def __init__(self, executor: Executor) -> None:
        self.executor, self.store, self.spec = executor, executor.store, executor.spec
        self.fingerprint, self.max_rows = executor.fingerprint, executor.max_rows
        self.rows: dict[Handle, list[bytes]] = {}

    def run(self, request: StepRequest) -> StepResult:
        result = self.executor.run(request)
        for i, segment in enumerate(request.segments):
            if len(rows := result.of(i)):
                self.rows.setdefault(self.engine.running[segment.seq], []).append(rows[-1].tobytes())
        return result


@dataclass(frozen=True)
class Outcome:
    tokens: tuple[int, ...]
    logits: tuple[bytes, ...]


class Gate:
    """Prompts of mixed lengths, every third one sampled, and what an executor gives for each of them alone."""

    def __init__(self, executor: Executor, *, longest: int = 150, prompts: int = PROMPTS) -> None:
        self.executor = executor
        random = np.random.default_rng(7)
        lengths = [1, 2, 63, 64, 65, 128, longest, *random.integers(1, longest, prompts - 7).tolist()]
        self.requests = [
            Request(
                random.integers(0, executor.spec.vocab, length).tolist(),
                Sampling(max_tokens=GENERATED, temperature=float(i % 3 == 0), top_p=0.9, seed=i, ignore_eos=True),
            )
            for i, length in enumerate(lengths)
        ]
        self.cached = 0  # prompt tokens of the last run that the cache knew
        self.alone: dict[tuple[int, int], Outcome] = {}

    def reference(self, prompt: int, sample: int) -> Outcome:
        """Of one request on one thread with nothing beside it."""
        key = prompt, sample
        if key not in self.alone:
            request = replace(self.requests[prompt], sample=sample)
            (self.alone[key],) = self._run([request], Setting())
        return self.alone[key]

    def check(self, setting: Setting, prompts: Sequence[int] | None = None) -> None:
        """Runs the prompts under `setting`; raises AssertionError for the first that differs."""
        chosen = range(len(self.requests)) if prompts is None else prompts
        expected = [self.reference(prompt, sample) for prompt in chosen for sample in range(setting.samples)]
        found = self._run([self.requests[prompt] for prompt in chosen], setting)
        for i, (was, now) in enumerate(zip(expected, found, strict=True)):
            prompt = chosen[i // setting.samples]
            where = f"prompt {prompt}, sample {i % setting.samples} ({setting})"
            for step, (row, other) in enumerate(zip(was.logits, now.logits, strict=True)):
                assert row == other, f"{where}: logits of token {step} differ"
            assert was.tokens == now.tokens, f"{where}: tokens differ"

    def _run(self, requests: Sequence[Request], setting: Setting) -> list[Outcome]:
        self.executor.set_threads(setting.threads)
        recorder = Recorder(self.executor)
        engine = recorder.engine = Engine(
            {"target": recorder},  # type: ignore[dict-item]
            chunk=setting.chunk,
            token_budget=setting.budget,
            max_sequences=setting.batch,
            prefix_cache=setting.warm or setting.preempt > 0,
        )
        if setting.warm:
            self._finish(engine, requests, setting)
        handles = self._finish(engine, requests, setting)
        engine.reset_cache()
        engine.check()
        failed = [str(handle.error) for handle in handles if handle.error]
        assert not failed, failed[0]
        self.cached = sum(handle.cached_tokens for handle in handles)
        return [Outcome(tuple(handle.generated), tuple(recorder.rows[handle])) for handle in handles]

    def _finish(self, engine: Engine, requests: Sequence[Request], setting: Setting) -> list[Handle]:
        handles = [handle for request in requests for handle in engine.add(request, setting.samples)]
        rounds = 0
        while engine.busy:
            engine.step()
            rounds += 1
            if setting.preempt and rounds % setting.preempt == 0 and engine.running and rounds < 20 * len(handles):
                engine._preempt(engine.policy.victim(list(engine.running.values())))
        return handles


def random_settings(count: int, seed: int) -> list[tuple[Setting, list[int]]]:
    """Settings drawn at random, each with a few prompts."""
    random = np.random.default_rng(seed)
    drawn = []
    for _ in range(count):
        setting = Setting(
            batch=int(random.choice([1, 2, 3, 5, 16])),
            chunk=int(random.choice([1, 7, 13, 64, 512])),
            budget=int(random.choice([3, 16, 64, 200, 512])),
            threads=int(random.integers(1, 3)),
            samples=int(random.integers(1, 4)),
            warm=bool(random.integers(2)),
            preempt=int(random.choice([0, 0, 2, 5])),
        )
        drawn.append((setting, random.choice(PROMPTS, int(random.integers(1, 6)), replace=False).tolist()))
    return drawn
