"""The serving loop over scripted models: what is generated, how it ends, and what is left behind."""

from __future__ import annotations

import signal

import numpy as np
import pytest
from scripted import CharTokenizer, ScriptedExecutor, forced_brain, random_brain, tiny_spec

from vivace.core.batch import Sequence
from vivace.core.decoders.autoregressive import Autoregressive
from vivace.core.engine import Engine, RequestError
from vivace.core.request import Request, Sampling
from vivace.core.step import StepError
from vivace.core.wiring import Wiring

VOCAB = 64
SAMPLED = Sampling(max_tokens=12, temperature=1.0, seed=5, logprobs=2, prompt_logprobs=1)


def engine_of(brain=None, vocab=VOCAB, pages=64, eos_ids=(), max_context=4096, **options) -> Engine:
    executor = ScriptedExecutor(brain or random_brain(1, vocab), tiny_spec(vocab, max_context, eos_ids), pages)
    return Engine({"target": executor}, **options)


def finish(engine: Engine) -> None:
    while engine.busy:
        engine.step()
        engine.check()
    engine.reset_cache()
    assert engine.store.free_pages == engine.store.capacity_pages


def generate(engine: Engine, *requests: Request, samples: int = 1) -> list[Sequence]:
    handles = [handle for request in requests for handle in engine.add(request, samples)]
    finish(engine)
    return handles


def forced(script: list[int], prompt: int = 3, vocab: int = 258, **options) -> Engine:
    return engine_of(forced_brain(script, prompt, vocab), vocab, tokenizer=CharTokenizer(), **options)


def say(text: str, **sampling) -> Sequence:
    script = [*text.encode(), 257]
    (done,) = generate(forced(script), Request([1, 2, 3], Sampling(**{"max_tokens": 40, **sampling})))
    return done


def everything(handle: Sequence) -> tuple:
    return handle.generated, handle.logprobs, handle.prompt_logprobs, handle.finish_reason


@pytest.mark.parametrize("options", [{"chunk": 1}, {"chunk": 7}, {"token_budget": 3}, {"max_sequences": 2}])
def test_company_and_chunks_change_nothing(options):
    random = np.random.default_rng(0)
    requests = [Request(random.integers(0, VOCAB, n).tolist(), SAMPLED, sample=n) for n in (1, 2, 30, 64, 65, 130)]
    alone = [everything(generate(engine_of(), request)[0]) for request in requests]
    together = generate(engine_of(**options), *requests)
    assert [everything(handle) for handle in together] == alone


@pytest.mark.parametrize("prompt", [1, 2, 64, 65, 100])
def test_samples_of_a_prompt_equal_requests_of_their_own(prompt):
    tokens = list(range(1, 64)) * 2
    request = Request(tokens[:prompt], SAMPLED)
    forks = generate(engine_of(chunk=16), request, samples=4)
    alone = [generate(engine_of(), Request(tokens[:prompt], SAMPLED, sample=i))[0] for i in range(4)]
    assert [everything(handle) for handle in forks] == [everything(handle) for handle in alone]
    assert len({tuple(handle.generated) for handle in forks}) == 4
    assert [handle.cached_tokens for handle in forks] == [0] + [prompt - 1] * 3


def test_samples_share_the_pages_of_the_prompt():
    engine = engine_of()
    engine.add(Request([1] * 640, Sampling(max_tokens=3)), 4)
    while engine.waiting or len(engine.running) < 4:
        engine.step()
    assert engine.store.capacity_pages - engine.store.free_pages <= 10 + 4


def test_decoding_does_not_wait_for_a_long_prompt():
    engine = engine_of(token_budget=8)
    (short,) = engine.add(Request([1], Sampling(max_tokens=5)))
    engine.step()
    engine.add(Request([2] * 100, Sampling(max_tokens=1)))
    for _ in range(4):
        engine.step()
    assert short.finished and engine.models["target"].batch_sizes == [1, 8, 8, 8, 8]


def test_no_round_is_longer_than_a_step_of_its_models():
    models = {name: ScriptedExecutor(random_brain(1, VOCAB), tiny_spec(VOCAB)) for name in ("target", "draft")}
    models["draft"].max_rows = 8
    generate(Engine(models), Request([1] * 20, Sampling(max_tokens=1)), Request([2] * 3, Sampling(max_tokens=1)))
    assert models["target"].batch_sizes == [8, 8, 7]


def test_only_the_last_row_of_a_prompt_has_logits():
    asked = []
    brain = random_brain(1, VOCAB)
    engine = engine_of(lambda tokens: asked.append(len(tokens)) or brain(tokens), chunk=10)
    generate(engine, Request([1] * 35, Sampling(max_tokens=3)))
    assert asked == [35, 36, 37]


def test_the_last_token_needs_no_room():
    engine = engine_of(pages=2)
    for _ in range(2):
        engine.add(Request([1] * 32, Sampling(max_tokens=33)))
    engine.step()
    assert len(engine.running) == 2
    finish(engine)


def test_more_requests_than_fit_are_served_in_turn():
    engine = engine_of(pages=4)
    random = np.random.default_rng(1)
    requests = [Request(random.integers(0, VOCAB, 40).tolist(), Sampling(max_tokens=80)) for _ in range(9)]
    handles = [engine.add(requests[i], samples=1 + i % 3) for i in range(9)]
    finish(engine)
    for request, group in zip(requests, handles, strict=True):
        (alone,) = generate(engine_of(), request)
        assert all(handle.generated == alone.generated for handle in group)


@pytest.mark.parametrize("seed", range(25))
def test_no_one_runs_out_of_pages(seed):
    """Random requests, samples and cancellations in a store that holds a few of them."""
    random = np.random.default_rng(seed)
    pages = int(random.integers(3, 9))
    engine = engine_of(
        pages=pages, token_budget=int(random.integers(4, 200)), chunk=int(random.integers(1, 150)), max_sequences=5
    )
    handles: list[Sequence] = []
    for _ in range(12):
        prompt = int(random.integers(1, 64 * pages - 70))
        tokens = int(random.integers(0, min(64 * (pages - 1) - prompt, 90)))
        sampling = Sampling(max_tokens=tokens, temperature=float(random.integers(0, 2)))
        request = Request(random.integers(0, VOCAB, prompt).tolist(), sampling)
        handles += engine.add(request, int(random.integers(1, 5)))
        for _ in range(random.integers(0, 6)):
            engine.step()
            engine.check()
        if random.random() < 0.2:
            engine.cancel(handles[random.integers(0, len(handles))])
    finish(engine)
    assert {handle.finish_reason for handle in handles} <= {"length", "cancelled"}


def test_end_of_text():
    done = say("Hi!", logprobs=1)
    assert (done.text, done.finish_reason) == ("Hi!", "stop")
    assert done.generated == [*b"Hi!", 257] and len(done.logprobs) == 4


def test_end_of_text_is_ignored_on_request():
    done = say("Hi!", ignore_eos=True, max_tokens=6)
    assert (done.finish_reason, done.generated) == ("length", [*b"Hi!", 257, 0, 0])


@pytest.mark.parametrize("min_tokens", range(6))
def test_nothing_ends_before_min_tokens(min_tokens):
    """Tokens are counted from the first generated one; the one that ends the text comes after them."""
    done = say("Hi!", min_tokens=min_tokens)
    if min_tokens <= 3:
        assert (done.text, done.generated) == ("Hi!", [*b"Hi!", 257])
    else:  # the end is banned where the script has it, and then comes token 0 up to max_tokens
        assert done.finish_reason == "length" and 257 not in done.generated
    done = say("Hi!", min_tokens=min_tokens, stop_token_ids=(ord("!"),))
    assert (len(done.generated) == 3) == (min_tokens <= 2)
    done = say("a.b.c.", min_tokens=min_tokens, stop=(".",))
    assert done.text == ("a" if min_tokens <= 1 else "a.b" if min_tokens <= 3 else "a.b.c")


def test_every_end_token_ends_the_text():
    """The model's own, the tokenizer's and the request's."""
    for end, reason in ((5, "stop"), (257, "stop"), (9, "stop"), (6, "length")):
        engine = forced([65, 66, end, 67], eos_ids=(5, 7))
        (done,) = generate(engine, Request([1, 2, 3], Sampling(max_tokens=4, stop_token_ids=(9,))))
        assert done.finish_reason == reason and len(done.generated) == (3 if reason == "stop" else 4)
        ignoring = Request([1, 2, 3], Sampling(max_tokens=4, stop_token_ids=(9,), ignore_eos=True))
        (done,) = generate(forced([65, 66, end, 67], eos_ids=(5, 7)), ignoring)
        assert done.finish_reason == ("stop" if end == 9 else "length")


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 1e-6, 2e-5])
@pytest.mark.parametrize(
    "shape", [{}, {"top_p": 1e-9}, {"top_p": 0.9}, {"top_k": 3}, {"min_p": 1.0}, {"typical_p": 1e-9}]
)
def test_no_temperature_is_too_small(temperature, shape):
    request = Request([4, 2], Sampling(max_tokens=10, temperature=temperature, seed=3, **shape))
    assert (
        generate(engine_of(), request)[0].generated
        == generate(engine_of(), Request([4, 2], Sampling(max_tokens=10)))[0].generated
    )


def test_seeds_count_for_each_request_and_sample():
    asked = [Request([4, 2], Sampling(max_tokens=10, temperature=1.0, seed=seed)) for seed in (1, 2, -1)]
    engine = engine_of()
    handles = [handle for request in asked for handle in engine.add(request, 4)]
    finish(engine)
    assert len({tuple(handle.generated) for handle in handles}) == 12
    again = [generate(engine_of(), request, samples=4) for request in reversed(asked)]
    assert [h.generated for group in reversed(again) for h in group] == [h.generated for h in handles]


def test_stop_token_ids():
    done = say("Hello", stop_token_ids=(ord("l"),))
    assert (done.text, done.finish_reason, done.generated) == ("He", "stop", [*b"Hel"])
    assert say("Hello", stop_token_ids=(ord("l"),), include_stop=True).text == "Hel"


def test_stop_strings_cut_the_text_and_not_the_tokens():
    done = say("one. two. three", stop=("wo. t",), logprobs=0)
    assert (done.text, done.finish_reason) == ("one. t", "stop_sequence")
    assert bytes(done.generated) == b"one. two. t" and len(done.logprobs) == len(done.generated)
    assert say("one. two. three", stop=("wo. t",), include_stop=True).text == "one. two. t"


def test_text_held_back_for_a_stop_string_is_not_lost():
    assert say("one. tw", stop=("two",)).text == "one. tw"
    assert say("one. tw", stop=("two",), max_tokens=7).text == "one. tw"


def test_half_a_character_at_the_end():
    assert say("né", max_tokens=2).text == "n\ufffd"


def test_emits_add_up_to_the_text():
    engine = forced([*"Zoë ÷ 2".encode(), 257])
    (handle,) = engine.add(Request([1, 2, 3], Sampling(max_tokens=40, stop=("÷ 3",))))
    emits = []
    while engine.busy:
        emits += engine.step()
    assert "".join(emit.text for emit in emits) == handle.text == "Zoë ÷ 2"
    assert [i for emit in emits for i in emit.token_ids] == handle.generated
    assert [emit.finish_reason for emit in emits if emit.finish_reason] == ["stop"]


def test_prompt_only():
    (done,) = generate(engine_of(), Request([5, 6, 7], Sampling(max_tokens=0, prompt_logprobs=0)))
    assert (done.generated, done.finish_reason) == ([], "length")
    brain = random_brain(1, VOCAB)
    for i in (1, 2):
        logits = brain([5, 6, 7][:i]).astype(np.float64)
        expected = logits[[5, 6, 7][i]] - np.log(np.exp(logits).sum())
        assert done.prompt_logprobs[i] == {[5, 6, 7][i]: pytest.approx(expected, abs=1e-5)}


def test_log_probabilities_are_of_the_distribution_before_any_stage():
    plain, changed = (
        generate(engine_of(), Request([9, 8], Sampling(max_tokens=1, logprobs=3, **stages)))[0]
        for stages in ({}, {"temperature": 0.3, "top_k": 1, "repetition_penalty": 1.7})
    )
    assert plain.logprobs == changed.logprobs


def test_not_a_number_fails_one_request_alone():
    healthy = random_brain(1, VOCAB)

    def brain(tokens):
        logits = healthy(tokens)
        if tokens[0] == 13 and len(tokens) == 5:
            logits[3] = np.nan
        return logits

    engine = engine_of(brain)
    good, bad, other = generate(engine, *(Request([first, 2, 3], Sampling(max_tokens=6)) for first in (1, 13, 2)))
    assert bad.finish_reason == "error" and "1 of 64 logits are not numbers" in str(bad.error)
    assert len(bad.generated) == 2
    for handle in (good, other):
        assert handle.generated == generate(engine_of(), handle.request)[0].generated


def test_a_failing_step_ends_its_requests_and_no_others():
    engine = engine_of()
    run, executor = engine.models["target"].run, engine.models["target"]

    def broken(request):
        if executor.batch_sizes[-1:] == [2]:
            executor.batch_sizes.append(0)
            raise StepError("the step is broken")
        return run(request)

    executor.run = broken
    first = engine.add(Request([1, 2], Sampling(max_tokens=4)))[0]
    engine.step()
    second = engine.add(Request([1, 2], Sampling(max_tokens=4)))[0]
    finish(engine)
    assert (first.finish_reason, second.finish_reason) == ("error", "error") or second.finish_reason == "length"
    assert "the step is broken" in str(first.error)


def test_an_interrupt_leaves_the_engine_usable():
    engine = engine_of()
    (handle,) = engine.add(Request([1, 2], Sampling(max_tokens=4)))
    engine.step()
    run = engine.models["target"].run

    def interrupted(request):
        run(request)
        raise KeyboardInterrupt

    engine.models["target"].run = interrupted
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    engine.models["target"].run = run
    engine.check()
    finish(engine)
    assert handle.generated == generate(engine_of(), handle.request)[0].generated


@pytest.mark.parametrize("where", ["reserve", "commit", "fork", "drop", "new"])
@pytest.mark.parametrize("after", [0, 1, 5])
def test_control_c_waits_until_the_books_are_right(where, after, monkeypatch):
    """A real signal in the midst of the store's work raises only once the call of the engine is over."""
    engine = engine_of()
    original, calls = getattr(engine.store, where), 0

    def interrupted(*args):
        nonlocal calls
        calls += 1
        if calls == after + 1:
            signal.raise_signal(signal.SIGINT)
            raised.append(where)  # still here
        return original(*args)

    raised: list[str] = []
    monkeypatch.setattr(engine.store, where, interrupted)
    asked = [Request([1, 2, 3], Sampling(max_tokens=4)), Request(list(range(9)), Sampling(max_tokens=4))]
    handles = []
    interrupts = 0
    for request in asked * 3:
        try:
            handles += engine.add(request, 2)
        except KeyboardInterrupt:
            interrupts += 1
    while engine.busy:
        try:
            engine.step()
        except KeyboardInterrupt:
            interrupts += 1
        engine.check()
    assert raised == [where] and interrupts == 1
    expected = {len(h.request.prompt): h.generated for h in generate(engine_of(), *asked)}
    assert len(handles) == 12 and all(h.generated == expected[len(h.request.prompt)] for h in handles)


def test_token_ids_beyond_the_vocabulary_are_refused():
    for request in (Request([VOCAB], Sampling()), Request([1], Sampling(stop_token_ids=(2**70,)))):
        with pytest.raises(RequestError, match=r"is outside the vocabulary 0..63"):
            engine_of().add(request)


class KeepsRecent(Autoregressive):
    """Evicts all but the last 8 rows after each round."""

    plain_rows = False

    def round(self, batch, budget):
        emits = yield from super().round(batch, budget)
        store = batch.models["target"].store
        for turn in batch.turns:
            seq = turn.sequence.seq
            store.keep(seq, None, None, np.arange(max(0, store.length(seq) - 8), store.length(seq)))
        return emits


@pytest.mark.parametrize("failure", [None, KeyboardInterrupt])
def test_evicted_rows_have_run(failure):
    """The store holds fewer rows than tokens have run; an interrupted round goes on from where it was."""
    engine = engine_of(wiring=Wiring(KeepsRecent()))
    (handle,) = engine.add(Request(list(range(30)), Sampling(max_tokens=20)))
    run, positions = engine.models["target"].run, []

    def noted(request):
        positions.extend(engine.store.next_position(s.seq) + i for s in request.segments for i in range(s.rows))
        return run(request)

    def interrupted(request):
        run(request)
        raise KeyboardInterrupt

    engine.models["target"].run = noted
    for _ in range(5):
        engine.step()
        engine.check()
    if failure:
        engine.models["target"].run = interrupted
        with pytest.raises(failure):
            engine.step()
        engine.models["target"].run = noted
        engine.check()
    assert engine.store.length(handle.seq) == 8
    finish(engine)
    assert positions == list(range(30 + 19)) and len(handle.generated) == 20
    assert handle.memory.kv_resident_bytes == 8 * engine.store.spec.token_bytes()


@pytest.mark.parametrize("rounds", [0, 1, 3, 5])
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_cancel(rounds, victim):
    engine = engine_of(chunk=20)
    handles = engine.add(Request([1] * 50, Sampling(max_tokens=9)), 3)
    for _ in range(rounds):
        engine.step()
    engine.cancel(handles[victim])
    engine.cancel(handles[victim])
    engine.check()
    finish(engine)
    (alone,) = generate(engine_of(), handles[0].request)
    for i, handle in enumerate(handles):
        assert handle.finish_reason == ("cancelled" if i == victim else "length")
        assert handle.generated == alone.generated[: len(handle.generated)]


def test_too_long_says_by_how_much():
    too_long = Request([1] * 70, Sampling(max_tokens=50))
    with pytest.raises(RequestError, match=r"need 120 positions, 20 more than .* of 100: .* lower max_tokens$"):
        engine_of(max_context=100).add(too_long)
    with pytest.raises(RequestError, match=r"20 more than the context of 100: .*, or load with a larger context$"):
        engine_of(max_context=200, context=100).add(too_long)
    with pytest.raises(RequestError, match="need 5 pages of cache, 2 more than the 3 there are"):
        engine_of(pages=3).add(Request([1] * 200, Sampling(max_tokens=57)))
    with pytest.raises(RequestError, match="empty"):
        engine_of().add(Request([]))


def test_a_request_that_just_fits_is_served():
    (done,) = generate(engine_of(pages=3, max_context=192), Request([1] * 100, Sampling(max_tokens=92)))
    assert len(done.generated) == 92


def test_a_token_without_text_fails_its_request():
    engine = engine_of(forced_brain([65, 259], 3, 260), 260, tokenizer=CharTokenizer())
    (done,) = generate(engine, Request([1, 2, 3], Sampling(max_tokens=5)))
    assert done.finish_reason == "error" and "259" in str(done.error) and done.text == "A"


def test_counts():
    engine = engine_of(chunk=10)
    first, second = generate(engine, *(Request([1] * n, Sampling(max_tokens=5)) for n in (25, 1)))
    assert (first.steps.target_forwards, first.steps.accepted_per_forward) == (7, 1.0)
    assert second.steps.target_forwards == 5
    stats = engine.stats
    assert (stats.requests, stats.prompt_tokens, stats.generated_tokens) == (2, 26, 10)
    assert stats.finished == {"length": 2}
    assert stats.roles["target"].rows == 25 + 1 + 4 + 4
