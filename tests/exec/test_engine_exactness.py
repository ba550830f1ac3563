"""What a request gives does not depend on how the engine ran it (docs/design/exactness.md)."""

from __future__ import annotations

import numpy as np
import pytest
from exactness import Gate, Setting, random_settings
from scripted import ScriptedExecutor, random_brain, tiny_spec
from toy_decoders import TreeSpeculative

from toys import FAMILIES, toy_checkpoint
from vivace.core.engine import Engine
from vivace.core.request import Request, Sampling
from vivace.core.step import StepResult
from vivace.core.wiring import Wiring

PAGES = 200
FACTORS = [
    *(Setting(batch=n) for n in (3, 16)),
    *(Setting(batch=2, chunk=n) for n in (1, 7, 64)),
    Setting(threads=2),
    Setting(batch=8, samples=3),
    Setting(batch=16, budget=20),
    Setting(warm=True),
    Setting(batch=4, chunk=50, warm=True),
    Setting(batch=4, chunk=50, preempt=3),
]


def native(checkpoint):
    module = pytest.importorskip("vivace.exec.native", reason="the native core is not built")
    return module.NativeExecutor(checkpoint, threads=1, capacity_pages=PAGES)


def scripted() -> ScriptedExecutor:
    return ScriptedExecutor(random_brain(1, 64), tiny_spec(64), PAGES)


TOYS = [(family, weights) for family in FAMILIES for weights in ("F32", "Q8_0")]


@pytest.fixture(scope="module", params=[*TOYS, pytest.param("SmolLM2", marks=pytest.mark.models)], ids=str)
def gate(request):
    if request.param == "SmolLM2":
        from vivace.model.load import load_checkpoint

        executor = native(load_checkpoint(request.getfixturevalue("smollm2")))
    else:
        family, weights = request.param
        executor = native(toy_checkpoint(family, 1, weights))
    yield Gate(executor)
    executor.close()


@pytest.mark.parametrize("setting", FACTORS, ids=str)
def test_one_factor(gate, setting):
    gate.check(setting)
    if setting.warm:  # all of them but the last token, and the parts of pages not worth a copy
        total = sum(len(request.prompt) - 1 for request in gate.requests)
        assert gate.cached > 0.8 * total


def test_random_combinations(gate):
    for setting, prompts in random_settings(50 if gate.executor.spec.vocab < 1000 else 200, seed=11):
        gate.check(setting, prompts)


def test_greedy_speculation(gate):
    """A tree of guesses, drafted by the model itself with mistakes, gives the tokens of plain decoding."""
    target, draft = gate.executor, ScriptedExecutor(None, gate.executor.spec, PAGES)
    prompts = range(12)
    expected = [gate.reference(prompt, 0).tokens for prompt in prompts]
    known = {tuple(gate.requests[p].prompt): expected[p] for p in prompts}

    def guess(tokens: list[int]) -> np.ndarray:
        """Every other token of the truth is the first guess, the others are second."""
        logits = np.zeros(target.spec.vocab, np.float32)
        for prompt, truth in known.items():
            at = len(tokens) - len(prompt)
            if 0 <= at < len(truth) and tuple(tokens[: len(prompt)]) == prompt:
                logits[truth[at]] = 3
                logits[(truth[at] + 1) % target.spec.vocab] = 2 if at % 4 else 4
        return logits

    draft.brain = guess
    engine = Engine({"target": target, "draft": draft}, wiring=Wiring(TreeSpeculative(draft.store)))
    handles = [handle for prompt in prompts for handle in engine.add(gate.requests[prompt])]
    while engine.busy:
        engine.step()
        engine.check()
    assert [handle.error for handle in handles if handle.error] == []
    assert [tuple(handle.generated) for handle in handles] == expected
    assert sum(handle.steps.target_forwards for handle in handles) < 5 * len(handles)
    engine.reset_cache()


# The gate itself


def test_the_gate_passes_an_exact_executor():
    gate = Gate(scripted(), prompts=8)
    for setting in FACTORS:
        gate.check(setting)


class Off(ScriptedExecutor):
    """Logits one bit off whenever `when(request)` says so."""

    threads = 1

    def __init__(self, when) -> None:
        super().__init__(random_brain(1, 64), tiny_spec(64), PAGES)
        self.when = when

    def run(self, request) -> StepResult:
        result = super().run(request)
        if self.when(self, request):
            result.logits.view(np.int32)[:, 0] ^= 1
        return result

    def set_threads(self, threads: int) -> None:
        self.threads = threads


@pytest.mark.parametrize(
    ("when", "setting"),
    [
        (lambda _, request: len(request.segments) > 1, Setting(batch=3)),
        (lambda _, request: request.rows == 1 and request.segments[0].positions is None, Setting(chunk=1)),
        (lambda self, _: self.threads == 2, Setting(threads=2)),
        (lambda self, request: self.store.length(request.segments[0].seq) == 63, Setting(samples=2)),
    ],
    ids=["batch", "chunks", "threads", "forks"],
)
def test_the_gate_sees_one_bit(when, setting):
    gate = Gate(Off(lambda *_: False), prompts=8)
    gate.check(setting)
    gate.executor.when = when
    with pytest.raises(AssertionError, match="differ"):
        gate.check(setting)


# Rows taken over from the cache


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["native", "reference"])
def test_known_rows_give_the_same_tokens(name, family):
    """A conversation of several turns, far longer than the window of the model that has one (32)."""
    if name == "native":
        executor = native(toy_checkpoint(family, 2))
    else:
        from vivace.exec.reference import ReferenceExecutor

        executor = ReferenceExecutor(toy_checkpoint(family, 2), capacity_pages=PAGES)
    random = np.random.default_rng(3)
    warm, cold = (Engine({"target": executor}, prefix_cache=on) for on in (True, False))
    tokens: list[int] = random.integers(0, 512, 100).tolist()
    for turn in range(3):
        sampling = Sampling(max_tokens=24, temperature=float(turn % 2), seed=turn, logprobs=2)
        again = [*warm.add(Request(tokens, sampling)), *cold.add(Request(tokens, sampling))]
        for engine in (warm, cold):
            while engine.busy:
                engine.step()
        found, expected = again
        assert found.generated == expected.generated
        if name == "native":
            assert found.logprobs == expected.logprobs
        assert expected.cached_tokens == 0 and found.cached_tokens >= (0, 100, 160)[turn]
        tokens = [*tokens, *found.generated, *random.integers(0, 512, 40).tolist()]
    warm.reset_cache()
    executor.store.check()
    assert executor.store.free_pages == PAGES
    executor.close()
