"""Requests start from rows that earlier or running ones have in the cache, and nothing changes but the work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scripted import ScriptedExecutor, random_brain, tiny_spec
from test_engine import VOCAB, engine_of, everything, finish, generate
from toy_decoders import BlockFixedPoint

from vivace.core.engine import Engine
from vivace.core.request import Request, Sampling
from vivace.core.room import PrefixKey
from vivace.core.wiring import Wiring
from vivace.kv.prefix import WORTH
from vivace.kv.spec import PAGE
from vivace.model.spec import RopeSpec

SAMPLED = Sampling(max_tokens=10, temperature=1.0, seed=5, logprobs=2)


def serve(engine: Engine, tokens, sampling: Sampling = SAMPLED, **request):
    """One request, run to its end, the cache kept."""
    (handle,) = engine.add(Request(list(tokens), sampling, **request))
    while engine.busy:
        engine.step()
        engine.check()
    return handle


def alone(tokens, sampling: Sampling = SAMPLED):
    return serve(engine_of(prefix_cache=False), tokens, sampling)


def tokens_of(seed: int, n: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, n).tolist()


@pytest.mark.parametrize("length", [1, 2, WORTH, 63, 64, 65, 66, 128, 129, 200])
def test_the_very_same_prompt_again(length):
    engine, prompt = engine_of(), tokens_of(1, length)
    first, again = serve(engine, prompt), serve(engine, prompt)
    assert everything(again) == everything(first) == everything(alone(prompt))
    assert first.cached_tokens == 0
    rest = (length - 1) % PAGE
    assert again.cached_tokens == length - 1 - (rest if rest < WORTH else 0)
    assert engine.stats.roles["target"].rows == 2 * (length + 9) - again.cached_tokens


@pytest.mark.parametrize("cut", [1, WORTH - 1, WORTH, 40, 63, 64, 65, 100, 128, 150])
def test_a_common_beginning(cut):
    engine, prompt = engine_of(), tokens_of(1, 150)
    other = [*prompt[:cut], *tokens_of(2, 70)]
    other[cut] = (prompt[cut] + 1) % VOCAB if cut < 150 else other[cut]
    serve(engine, prompt)
    found = serve(engine, other)
    assert everything(found) == everything(alone(other))
    assert found.cached_tokens == (cut if cut % PAGE >= WORTH else cut - cut % PAGE)


def test_a_conversation_runs_only_what_is_new():
    engine, tokens = engine_of(), tokens_of(1, 80)
    for turn in range(4):
        ran = engine.stats.roles["target"].rows if turn else 0
        handle = serve(engine, tokens)
        assert everything(handle) == everything(alone(tokens))
        before = tokens
        tokens = [*tokens, *handle.generated, *tokens_of(turn, 30)]
        if turn:
            new = engine.stats.roles["target"].rows - ran
            assert new <= 30 + 1 + 9 + WORTH, "the last reply's last token, the new text, the new reply"
    assert handle.cached_tokens >= len(before) - 30 - 1 - WORTH


def test_from_a_sequence_that_still_runs():
    engine, prompt = engine_of(), tokens_of(1, 130)
    (first,) = engine.add(Request(prompt, SAMPLED))
    engine.step()
    (second,) = engine.add(Request([*prompt, 1, 2], SAMPLED))
    finish(engine)
    assert (first.cached_tokens, second.cached_tokens) == (0, 128)
    assert everything(first) == everything(alone(prompt))
    assert everything(second) == everything(alone([*prompt, 1, 2]))


def test_prompts_of_one_burst_wait_for_what_they_share():
    """Each starts when the round has room for its rows, and by then the first one's prompt is known."""
    engine, shared = engine_of(token_budget=200, chunk=200), tokens_of(1, 192)
    prompts = [[*shared, *tokens_of(10 + i, 20)] for i in range(4)]
    handles = generate(engine, *(Request(prompt, SAMPLED) for prompt in prompts))
    assert [handle.cached_tokens for handle in handles] == [0, 192, 192, 192]
    assert [everything(handle) for handle in handles] == [everything(alone(prompt)) for prompt in prompts]


def test_samples_start_from_known_rows():
    engine, prompt = engine_of(), tokens_of(1, 129)
    serve(engine, prompt)
    handles = generate(engine, Request(prompt, SAMPLED), samples=3)
    assert [handle.cached_tokens for handle in handles] == [128, 128, 128]
    fresh = generate(engine_of(prefix_cache=False), Request(prompt, SAMPLED), samples=3)
    assert [everything(handle) for handle in handles] == [everything(handle) for handle in fresh]


def test_a_report_on_the_prompt_runs_all_of_it():
    engine, prompt = engine_of(), tokens_of(1, 100)
    sampling = replace(SAMPLED, prompt_logprobs=1)
    serve(engine, prompt)
    found = serve(engine, prompt, sampling)
    assert found.cached_tokens == 0 and everything(found) == everything(alone(prompt, sampling))


def test_prompt_only_again():
    engine, prompt = engine_of(), tokens_of(1, 100)
    sampling = Sampling(max_tokens=0)
    assert [serve(engine, prompt, sampling).cached_tokens for _ in range(2)] == [0, 99]


def test_salts_separate():
    engine, prompt = engine_of(), tokens_of(1, 100)
    found = [serve(engine, prompt, salt=salt).cached_tokens for salt in ("a", "b", "a", "")]
    assert found == [0, 0, 99, 0]


@pytest.mark.parametrize("other", ["model", "weights", "rotary", "plan", "adapter"])
def test_all_that_shapes_the_rows_separates(other):
    engine, prompt = engine_of(), tokens_of(1, 100)
    serve(engine, prompt)
    key = engine.room.key
    engine.room.key = key._replace(**{other: (RopeSpec(5e5, 2),) if other == "rotary" else "another"})
    assert serve(engine, prompt).cached_tokens == 0
    engine.room.key = key
    assert serve(engine, prompt).cached_tokens == 99


def test_keys_name_weights_and_rotary_factors():
    def key(*rope: object, weights: str = "a") -> PrefixKey:
        spec = tiny_spec(VOCAB)
        block = replace(spec.blocks[0], attention=replace(spec.blocks[0].attention, rope=RopeSpec(*rope)))
        return PrefixKey.of(replace(spec, blocks=(*spec.blocks, block)), weights, "")

    assert key(1e4, 2) == key(1e4, 2) != key(1e4, 2, weights="b")
    assert len({key(1e4, 2), key(1e4, 2, (1.5,)), key(2e4, 2), key(1e4, 2, None, 1.1)}) == 4


def test_off():
    engine, prompt = engine_of(prefix_cache=False), tokens_of(1, 100)
    assert [serve(engine, prompt).cached_tokens for _ in range(2)] == [0, 0]
    assert engine.store.free_pages == engine.store.capacity_pages


def test_failed_requests_leave_nothing():
    healthy = random_brain(1, VOCAB)

    def brain(tokens):
        return healthy(tokens) if len(tokens) < 105 else np.full(VOCAB, np.nan, np.float32)

    engine = engine_of(brain)
    assert serve(engine, tokens_of(1, 100)).finish_reason == "error"
    assert engine.store.capacity_pages - engine.store.free_pages == 1  # the prompt's whole page is sound


def test_cancelled_requests_leave_what_ran():
    engine, prompt = engine_of(chunk=67), tokens_of(1, 150)
    (handle,) = engine.add(Request(prompt, SAMPLED))
    engine.step()
    engine.cancel(handle)
    assert serve(engine, prompt).cached_tokens == 64  # and 3, too few to copy a page for


def test_rows_of_a_block_are_no_prefix():
    """They saw later rows: only the prompt is remembered."""
    spec = tiny_spec(VOCAB)
    engine = Engine({"target": ScriptedExecutor(random_brain(1, VOCAB), spec)}, wiring=Wiring(BlockFixedPoint()))
    prompt = tokens_of(1, 100)
    first = serve(engine, prompt, Sampling(max_tokens=60))
    assert serve(engine, [*prompt, *first.generated, 1], Sampling(max_tokens=2)).cached_tokens == 100


def test_the_cache_gives_way():
    engine = engine_of(pages=6)
    for i in range(8):
        prompt = tokens_of(i, 100)
        assert everything(serve(engine, prompt)) == everything(alone(prompt))
    assert engine.store.free_pages < 2
    assert serve(engine, tokens_of(7, 100)).cached_tokens == 99  # the last one is still there
    assert serve(engine, tokens_of(0, 100)).cached_tokens == 0
    big = tokens_of(9, 6 * 64 - 10)
    assert everything(serve(engine, big)) == everything(alone(big))


@pytest.mark.parametrize("seed", range(30))
def test_any_mixture_is_exact(seed):
    """Prompts that begin alike, in a store that holds a few, with cancellations: nothing shows but in the counts."""
    random = np.random.default_rng(seed)
    pages = int(random.integers(5, 14))
    engine = engine_of(
        pages=pages,
        token_budget=int(random.integers(4, 200)),
        chunk=int(random.integers(1, 150)),
        max_sequences=int(random.integers(1, 6)),
    )
    handles, texts = [], [tokens_of(100 + i, 150) for i in range(2)]
    for _ in range(14):
        base = texts[random.integers(len(texts))]
        prompt = [*base[: random.integers(0, len(base) + 1)], *random.integers(0, VOCAB, random.integers(1, 40))]
        prompt = [int(token) for token in prompt[: 64 * (pages - 1) - 30]]
        sampling = Sampling(
            max_tokens=int(random.integers(0, 25)),
            temperature=float(random.integers(0, 2)),
            logprobs=1,
            prompt_logprobs=0 if random.random() < 0.2 else None,
        )
        handles += engine.add(
            Request(prompt, sampling, salt="x" * int(random.random() < 0.2)), int(random.integers(1, 4))
        )
        for _ in range(random.integers(0, 12)):
            engine.step()
            engine.check()
        done = handles[random.integers(len(handles))]
        texts.append(list(done.tokens))
        if random.random() < 0.15:
            engine.cancel(done)
    finish(engine)
    expected = {}
    for handle in handles:
        request = handle.request
        key = tuple(request.prompt), request.sampling, handle.chooser.sample
        if key not in expected:
            own = replace(request, sample=handle.chooser.sample)
            expected[key] = generate(engine_of(prefix_cache=False), own)[0]
        fresh = expected[key]
        if handle.finish_reason == "cancelled":
            assert handle.generated == fresh.generated[: len(handle.generated)]
        else:
            assert everything(handle) == everything(fresh)
