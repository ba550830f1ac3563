"""When the cache is full the youngest sequence gives way and starts again later; nothing shows in what it says."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from scripted import CharTokenizer, ScriptedExecutor, random_brain, tiny_spec
from test_engine import VOCAB, engine_of, everything, finish, generate
from toy_decoders import BlockFixedPoint, TreeSpeculative

from vivace.core.engine import Engine, RequestError
from vivace.core.request import Request, Sampling
from vivace.core.wiring import Wiring

LONG = Sampling(max_tokens=150, temperature=1.0, seed=3, logprobs=1)


def requests(count: int, seed: int = 0, sampling: Sampling = LONG) -> list[Request]:
    random = np.random.default_rng(seed)
    return [Request(random.integers(0, VOCAB, random.integers(1, 60)).tolist(), sampling, i) for i in range(count)]


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("pages", [4, 5, 7])
def test_a_tiny_cache_gives_the_tokens_of_a_large_one(pages, prefix_cache):
    tiny, large = engine_of(pages=pages, prefix_cache=prefix_cache), engine_of(pages=200)
    asked = requests(8)
    found, expected = generate(tiny, *asked), generate(large, *asked)
    assert [everything(handle) for handle in found] == [everything(handle) for handle in expected]
    assert tiny.stats.preemptions > 0 and large.stats.preemptions == 0
    assert sum(handle.preemptions for handle in found) == tiny.stats.preemptions
    assert tiny.stats.finished == {"length": 8} and tiny.stats.generated_tokens == 8 * 150


def test_the_oldest_is_never_stopped():
    engine = engine_of(pages=4)
    handles = generate(engine, *requests(6))
    assert handles[0].preemptions == 0 and handles[0].steps.target_forwards == 150


def test_more_run_at_once_than_could_all_get_to_their_end():
    engine = engine_of(pages=4)
    for request in requests(3, sampling=Sampling(max_tokens=10)) + requests(1):
        engine.add(request)
    engine.step()
    assert len(engine.running) >= 2
    finish(engine)


@pytest.mark.parametrize("victim", range(5))
def test_streams_lose_and_repeat_nothing(victim):
    """What each step says adds up to the text, also across preemptions and a cancellation."""
    brain = random_brain(1, 258)
    sampling = Sampling(max_tokens=150, temperature=0.5, stop=("zz", "\ufffd" * 12))

    def run(pages: int, cancel_at: int):
        engine = Engine(
            {"target": ScriptedExecutor(brain, tiny_spec(258, eos_ids=(257,)), pages)}, tokenizer=CharTokenizer()
        )
        handles = [engine.add(Request([65 + i] * 50, sampling))[0] for i in range(5)]
        texts, tokens, steps = defaultdict(str), defaultdict(list), 0
        while engine.busy:
            for emit in engine.step():
                texts[emit.sequence] += emit.text
                tokens[emit.sequence] += emit.token_ids
            engine.check()
            steps += 1
            if steps == cancel_at:
                before = len(handles[victim].text)
                engine.cancel(handles[victim])
                texts[handles[victim]] += handles[victim].text[before:]
        assert [texts[handle] for handle in handles] == [handle.text for handle in handles]
        assert [tokens[handle] for handle in handles] == [handle.generated for handle in handles]
        return handles, engine.stats.preemptions

    found, preemptions = run(4, 100)
    expected, none = run(200, 10**9)
    assert preemptions > 0 and none == 0
    for i, (handle, whole) in enumerate(zip(found, expected, strict=True)):
        if i == victim and handle.finish_reason == "cancelled":
            assert handle.generated == whole.generated[: len(handle.generated)]
        else:
            assert everything(handle) == everything(whole) and handle.text == whole.text


@pytest.mark.parametrize("seed", range(20))
def test_at_any_time(seed):
    """Running or waiting with pages, in the middle of a prompt, before and after its copies fork."""
    random = np.random.default_rng(seed)
    sampling = Sampling(max_tokens=20, temperature=1.0, logprobs=1, prompt_logprobs=1, repetition_penalty=1.3)
    asked = [Request(random.integers(0, VOCAB, random.integers(1, 150)).tolist(), sampling, 10 * i) for i in range(5)]
    samples = [int(random.integers(1, 4)) for _ in asked]
    engine = engine_of(chunk=int(random.integers(1, 90)), token_budget=99, prefix_cache=seed % 2 > 0, max_sequences=4)
    handles = [handle for request, n in zip(asked, samples, strict=True) for handle in engine.add(request, n)]
    while engine.busy:
        engine.step()
        if (holders := engine._holders()) and random.random() < 0.4 and engine.stats.preemptions < 60:
            engine._preempt(holders[random.integers(len(holders))])
        engine.check()
    fresh = [generate(engine_of(), request, samples=n) for request, n in zip(asked, samples, strict=True)]
    assert [everything(handle) for handle in handles] == [everything(handle) for group in fresh for handle in group]
    assert engine.stats.preemptions > 10


def test_guesses_are_dropped_and_made_again():
    brain, spec = random_brain(3, VOCAB), tiny_spec(VOCAB)

    def engine(pages: int) -> Engine:
        target, draft = ScriptedExecutor(brain, spec, pages), ScriptedExecutor(brain, spec, 200)
        return Engine({"target": target, "draft": draft}, wiring=Wiring(TreeSpeculative(draft.store)))

    asked = requests(6, sampling=Sampling(max_tokens=120))
    tiny = engine(4)
    found, expected = generate(tiny, *asked), generate(engine_of(brain, pages=200), *asked)
    assert [handle.generated for handle in found] == [handle.generated for handle in expected]
    assert tiny.stats.preemptions > 0
    assert tiny.models["draft"].store.free_pages == 200


def test_sequences_that_cannot_be_computed_again_are_not_stopped():
    brain, spec = random_brain(3, VOCAB), tiny_spec(VOCAB)
    engine = Engine({"target": ScriptedExecutor(brain, spec, 4)}, wiring=Wiring(BlockFixedPoint()))
    found = generate(engine, *requests(4, sampling=Sampling(max_tokens=120)))
    assert engine.stats.preemptions == 0 and {handle.finish_reason for handle in found} == {"length"}


def test_what_never_fits_says_by_how_much():
    engine = engine_of(pages=4)
    engine.add(Request([1] * 10, Sampling(max_tokens=246)))
    with pytest.raises(RequestError, match="need 5 pages of cache, 1 more than the 4 there are"):
        engine.add(Request([1] * 10, Sampling(max_tokens=247)))
    finish(engine)


def test_pages_that_someone_else_holds_end_the_request_with_a_reason():
    engine = engine_of(pages=4)
    seq = engine.store.new()
    engine.store.reserve(seq, np.arange(190, dtype=np.int32))
    engine.store.commit(seq)
    (handle,) = engine.add(Request([1] * 100, Sampling(max_tokens=5)))
    while engine.busy:
        engine.step()
    assert handle.finish_reason == "error" and "1 page(s) short of 4" in str(handle.error)
