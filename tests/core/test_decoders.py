"""Decoders that guess give what plain decoding gives."""

from __future__ import annotations

import numpy as np
import pytest
from scripted import Brain, ScriptedExecutor, random_brain, tiny_spec
from toy_decoders import BlockFixedPoint, TreeSpeculative

from vivace.core.decoders.autoregressive import Autoregressive
from vivace.core.decoders.plain import absorb_plain, plain_segment
from vivace.core.engine import Engine
from vivace.core.request import Request, Sampling
from vivace.core.step import Segment, StepRequest, Write
from vivace.core.wiring import Wiring

VOCAB = 16


def drafter(brain: Brain, right: float) -> Brain:
    """Agrees with `brain` on a share of the contexts."""

    def guess(tokens: list[int]) -> np.ndarray:
        luck = np.random.default_rng([9, *tokens[-4:]]).random()
        return brain(tokens) if luck < right else random_brain(2, VOCAB)(tokens)

    return guess


def engines(right: float = 0.7, **options):
    brain = random_brain(3, VOCAB)
    spec = tiny_spec(VOCAB, 700, eos_ids=(15,))

    def models():
        return {"target": ScriptedExecutor(brain, spec), "draft": ScriptedExecutor(drafter(brain, right), spec)}

    pools = [models() for _ in range(3)]
    decoders = [Autoregressive(), TreeSpeculative(pools[1]["draft"].store), BlockFixedPoint()]
    return [Engine(pool, wiring=Wiring(decoder), **options) for pool, decoder in zip(pools, decoders, strict=True)]


def generate(engine: Engine, requests, samples=1):
    handles = [handle for request in requests for handle in engine.add(request, samples)]
    while engine.busy:
        engine.step()
        engine.check()
    engine.reset_cache()
    for executor in engine.models.values():
        assert executor.store.free_pages == executor.store.capacity_pages
    return handles


def requests(**sampling) -> list[Request]:
    random = np.random.default_rng(4)
    sampling = {"max_tokens": 40, "logprobs": 1, "prompt_logprobs": 0, **sampling}
    return [Request(random.integers(0, 15, n).tolist(), Sampling(**sampling), sample=n) for n in (1, 2, 63, 64, 130)]


def outcome(handles):
    return [(h.generated, h.logprobs, h.prompt_logprobs, h.finish_reason, h.error) for h in handles]


@pytest.mark.parametrize("chunk", [5, 512])
@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("right", [0.0, 0.7, 1.0])
def test_greedy_guessing_changes_nothing(chunk, ends, right):
    plain, speculative, block = engines(right, chunk=chunk)
    asked = requests(ignore_eos=not ends)
    expected = outcome(generate(plain, asked))
    assert outcome(generate(speculative, asked)) == expected
    assert outcome(generate(block, asked)) == expected


def test_a_tree_walked_by_keyed_samples_changes_nothing():
    plain, speculative, _ = engines()
    asked = requests(temperature=0.8, seed=3, repetition_penalty=1.2, min_tokens=9, top_p=0.95)
    assert outcome(generate(speculative, asked, 2)) == outcome(generate(plain, asked, 2))


def test_good_guesses_save_steps_of_the_target():
    plain, speculative, _ = engines(right=1.0)
    asked = requests(ignore_eos=True)[:1]
    (slow,), (fast,) = generate(plain, asked), generate(speculative, asked)
    assert slow.steps.target_forwards == 40 and fast.steps.target_forwards <= 10
    assert fast.steps.accepted_per_forward >= 4 and fast.steps.draft_forwards > 0
    assert speculative.stats.roles["draft"].forwards == fast.steps.draft_forwards


def test_drafts_of_the_model_itself_are_counted_as_drafts():
    class Looks(Autoregressive):
        def round(self, batch, budget):
            segments = [Segment(t.sequence.seq, t.tokens(), write=Write.SCRATCH) for t in batch.turns]
            yield [StepRequest(segments, role="draft")]
            return (yield from super().round(batch, budget))

    engine = Engine({"target": ScriptedExecutor(random_brain(3, VOCAB), tiny_spec(VOCAB, 700))}, wiring=Wiring(Looks()))
    (done,) = generate(engine, [Request([1, 2], Sampling(max_tokens=5, ignore_eos=True))])
    assert (done.steps.target_forwards, done.steps.draft_forwards) == (5, 5)
    assert (engine.stats.roles["target"].forwards, engine.stats.roles["draft"].forwards) == (5, 5)


def test_guesses_stay_within_the_context():
    for engine in engines(right=1.0):
        (done,) = generate(engine, [Request([1] * 690, Sampling(max_tokens=10, ignore_eos=True))])
        assert done.error is None and len(done.generated) == 10


def test_emits_hold_no_token_after_the_end():
    for engine in engines(right=1.0):
        handles = [handle for request in requests() for handle in engine.add(request)]
        emitted = {handle: [] for handle in handles}
        while engine.busy:
            for emit in engine.step():
                emitted[emit.sequence] += emit.token_ids
        assert [emitted[handle] for handle in handles] == [handle.generated for handle in handles]
        assert any(handle.finish_reason == "stop" for handle in handles)


class OneRequestEach(Autoregressive):
    """Yields a request for each sequence, all at once."""

    def round(self, batch, budget):
        results = yield [StepRequest([plain_segment(turn)]) for turn in batch.turns]
        store = batch.models["target"].store
        return [absorb_plain(turn, store, r.logits, None) for turn, r in zip(batch.turns, results, strict=True)]


class OneBuffer(ScriptedExecutor):
    """Gives its logits in the same memory each time."""

    def run(self, request):
        result = super().run(request)
        if len(result.logits):
            self.buffer = getattr(self, "buffer", result.logits[:1])
            self.buffer[:] = result.logits[-1]
            result.logits = self.buffer
        return result


def test_independent_requests_for_one_model():
    brain, spec = random_brain(3, VOCAB), tiny_spec(VOCAB)
    asked = requests(prompt_logprobs=None)
    plain = generate(Engine({"target": ScriptedExecutor(brain, spec)}), asked)
    split = generate(Engine({"target": OneBuffer(brain, spec)}, wiring=Wiring(OneRequestEach())), asked)
    assert outcome(split) == outcome(plain)


def test_guesses_count_in_the_budget():
    _, speculative, block = engines(right=1.0, token_budget=30)
    for engine in (speculative, block):
        generate(engine, requests(ignore_eos=True))
        assert max(engine.models["target"].batch_sizes) <= 30
