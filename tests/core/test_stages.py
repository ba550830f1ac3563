"""Each logit stage against its definition, written out slowly, and their order."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from math import exp, inf, isclose, log, sqrt

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from vivace.core.request import STAGES, Sampling
from vivace.sampling.chooser import Chooser
from vivace.sampling.dry import Dry
from vivace.sampling.filters import MinP, Temperature, TopK, TopNSigma, TopP, TypicalP, Xtc
from vivace.sampling.keyed import XTC, uniform
from vivace.sampling.penalties import FrequencyPenalty, PresencePenalty, RepetitionPenalty
from vivace.sampling.rules import AllowedIds, BannedIds, LogitBias, NoEndBefore, id_array
from vivace.sampling.trail import TokenCounts, Trail
from vivace.slots.logits import Candidates, Context, LogitStage

VOCAB = 300
Row = dict[int, float]  # what is left: {token: logit}


@st.composite
def rows(draw: st.DrawFn) -> Row:
    """Some of the vocabulary or all of it, many logits equal, some impossible."""
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    logits = np.round(random.standard_normal(VOCAB) * draw(st.sampled_from([0.5, 2.0, 8.0])), 1)
    logits[random.random(VOCAB) < draw(st.sampled_from([0.0, 0.3]))] = -inf
    left = np.flatnonzero(random.random(VOCAB) < draw(st.sampled_from([0.02, 0.5, 2.0])))
    row = {int(i): float(np.float32(logits[i])) for i in left}
    return dict(sorted({**row, 7: 1.0}.items()))


def candidates(row: Row) -> Candidates:
    ids = sorted(row)
    return Candidates(np.array(ids, np.int32), np.array([row[i] for i in ids], np.float32))


def run(stage: LogitStage, row: Row, context: Context | None = None) -> Row:
    left = stage.apply(candidates(row), context or Context([1, 2, 3], 3))
    assert (np.diff(left.ids) > 0).all()
    return dict(zip(left.ids.tolist(), left.logits.tolist(), strict=True))


def probabilities(row: Row) -> Row:
    peak = max(row.values())
    total = sum(exp(x - peak) for x in row.values())
    return {i: exp(x - peak) / total for i, x in row.items()}


def reach(row: Row, order: list[int], p: float) -> Row:
    share, kept, mass = probabilities(row), [], 0.0
    for i in order:
        kept.append(i)
        mass += share[i]
        if mass >= p:
            break
    return {i: row[i] for i in sorted(kept)}


def odd(low: int, high: int) -> st.SearchStrategy[float]:
    """Numbers that no sum of a few probabilities meets."""
    return st.integers(low, high - 1).map(lambda i: (i + 0.3719) / 1000)


@given(rows(), st.integers(1, 50))
def test_top_k(row: Row, k: int) -> None:
    best = sorted(row, key=lambda i: (-row[i], i))[:k]
    assert run(TopK(k), row) == {i: row[i] for i in sorted(best)}


@given(rows(), odd(1, 1000))
def test_top_p(row: Row, p: float) -> None:
    assert run(TopP(p), row) == reach(row, sorted(row, key=lambda i: (-row[i], i)), p)


@given(rows(), odd(1, 1000))
def test_typical_p(row: Row, p: float) -> None:
    share = probabilities(row)
    expected = -sum(q * log(q) for q in share.values() if q)

    def distance(i: int) -> float:
        return round(abs(-log(share[i]) - expected), 4) if share[i] else 1000  # float32 tells no more apart

    ranked = sorted((abs(-log(q) - expected), q) for q in share.values() if q)
    near_ties = ((a, b) for a, b in pairwise(ranked) if b[0] - a[0] < 1e-3 and not isclose(a[1], b[1], rel_tol=1e-3))
    assume(not any(near_ties))  # one more, one less surprising than expected, by as much: either may come first
    found = run(TypicalP(p), row)
    wanted = reach(row, sorted(row, key=lambda i: (distance(i), i)), p)
    assert sorted(map(distance, found)) == pytest.approx(sorted(map(distance, wanted)), abs=2e-4)


def test_typical_p_may_drop_the_most_probable() -> None:
    """Entropy 1.37: a probability of 0.2 surprises by 1.61, one of 0.45 by 0.80."""
    row = {0: log(0.45), 1: log(0.2), 2: log(0.2), 3: log(0.15)}
    assert list(run(TypicalP(0.3), row)) == [1, 2]


@given(rows(), odd(1, 1000))
def test_min_p(row: Row, p: float) -> None:
    share = probabilities(row)
    assert run(MinP(p), row) == {i: row[i] for i in row if share[i] >= p * max(share.values())}


@given(rows(), st.integers(1, 60).map(lambda i: i / 13))
def test_top_n_sigma(row: Row, n: float) -> None:
    possible = [x for x in row.values() if x > -inf]
    mean = sum(possible) / len(possible)
    sigma = sqrt(sum((x - mean) ** 2 for x in possible) / len(possible))
    assert run(TopNSigma(n), row) == {i: x for i, x in row.items() if x >= max(possible) - n * sigma - 1e-7}


@given(rows(), odd(1, 600))
def test_xtc(row: Row, threshold: float) -> None:
    share = probabilities(row)
    top = sorted((i for i in row if share[i] >= threshold), key=lambda i: (-row[i], i))
    expected = {i: -inf if i in top[:-1] else x for i, x in row.items()}
    assert run(Xtc(1.0, threshold, 0, 0), row) == expected
    assert run(Xtc(0.0, threshold, 0, 0), row) == row


def test_xtc_tosses_a_coin_of_its_own_for_each_position() -> None:
    row = {0: 1.0, 1: 1.0, 2: 0.5, 3: 0.0}
    tossed = []
    for position in range(2000):
        at = Context([0] * position, 0)
        tossed.append(run(Xtc(0.3, 0.1, 5, 2), row, at) != row)
        assert tossed[-1] == (uniform(5, 2, position, XTC) < 0.3)
    assert abs(np.mean(tossed) - 0.3) < 0.05
    drawn = [uniform(5, 2, position) < 0.3 for position in range(2000)]
    assert abs(np.corrcoef(tossed, drawn)[0, 1]) < 0.1


@pytest.mark.parametrize("temperature", [1e30, 1e39, 1e300])
def test_a_huge_temperature_makes_all_that_is_possible_equal(temperature: float) -> None:
    assert run(Temperature(temperature), {1: 5.0, 2: -inf, 3: -20.0}) == pytest.approx({1: 0.0, 2: -inf, 3: 0.0})


@pytest.mark.parametrize(
    "stage", [Temperature(0.3), TopK(3), TopP(0.2), MinP(0.9), TopNSigma(0.1)], ids=lambda stage: stage.name
)
@given(row=rows())
def test_stages_that_say_so_keep_the_argmax(stage: LogitStage, row: Row) -> None:
    assert stage.keeps_argmax
    left = run(stage, row)
    assert max(left, key=lambda i: (left[i], -i)) == max(row, key=lambda i: (row[i], -i))


@given(st.sets(st.integers(0, 9)), st.lists(st.integers(0, 9), unique=True))
@example({0, 1}, [1, 0, 2])  # the first of the vocabulary, and not all of it
def test_tokens_are_found_among_those_left(left: set[int], ids: list[int]) -> None:
    made = Candidates(np.array(sorted(left), np.int32), np.zeros(len(left), np.float32))
    places, found = made.locate(np.array(ids, np.int32))
    assert made.ids[places].tolist() == [i for i in ids if i in left]
    assert found.tolist() == [i in left for i in ids]


# Penalties and rules


@st.composite
def contexts(draw: st.DrawFn, vocab: int = VOCAB) -> Context:
    tokens = st.lists(st.integers(0, min(vocab, 12) - 1), max_size=25)
    prompt = draw(tokens)
    return Context([*prompt, *draw(tokens)], len(prompt), tuple(draw(tokens)))


def near(found: Row, expected: Row) -> None:
    assert list(found) == list(expected)
    assert list(found.values()) == pytest.approx(list(expected.values()), rel=1e-5, abs=1e-5)


@given(rows(), contexts(), st.sampled_from([0.5, 1.3]))
def test_repetition_penalty(row: Row, at: Context, penalty: float) -> None:
    seen = {*at.tokens, *at.path}
    changed = {i: x / penalty if x > 0 else x * penalty for i, x in row.items() if i in seen}
    near(run(RepetitionPenalty(penalty), row, at), row | changed)


@given(rows(), contexts(), st.sampled_from([-0.7, 1.5]))
def test_presence_and_frequency_penalty_count_generated_tokens(row: Row, at: Context, penalty: float) -> None:
    counts = Counter([*at.tokens[at.prompt :], *at.path])
    once = {i: x - penalty * (i in counts) for i, x in row.items()}
    near(run(PresencePenalty(penalty), row, at), once)
    each = {i: x - penalty * counts[i] for i, x in row.items()}
    near(run(FrequencyPenalty(penalty), row, at), each)


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty", "repetition_penalty"])
def test_whether_the_prompt_counts(name: str) -> None:
    logits, chooser = np.array([5.0, 4.0], np.float32), Chooser(Sampling(**{name: 2.0}), 0, ())
    assert chooser.choose(logits, Context([0], 1)).token == (name == "repetition_penalty")
    assert chooser.choose(logits, Context([0, 0], 1)).token == 1


IDS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20)


@given(rows(), IDS, st.integers(0, 5))
def test_rules_about_ids(row: Row, ids: list[int], generated: int) -> None:
    at, banned = Context([1] * (3 + generated), 3), {i: -inf if i in ids else x for i, x in row.items()}
    assert run(AllowedIds(id_array(ids)), row) == {i: x for i, x in row.items() if i in ids}
    assert run(BannedIds(id_array(ids)), row) == banned
    assert run(NoEndBefore(id_array(ids), 3), row, at) == (banned if generated < 3 else row)


@given(rows(), st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100, width=32), min_size=1))
def test_logit_bias(row: Row, biases: dict[int, float]) -> None:
    near(run(LogitBias.of(tuple(biases.items())), row), {i: x + biases.get(i, 0.0) for i, x in row.items()})


PIECES = [b"a", b"b", b"\n", b"ab", b"b\n", b"", b":a"]


class Pieces:
    """Token i is the i-th of PIECES; others have no text."""

    def token_bytes(self, token: int, *, skip_special: bool = False) -> bytes:
        if token >= len(PIECES):
            raise ValueError("no such token")
        return PIECES[token]


def breaking(tokens: list[int], breakers: tuple[str, ...]) -> list[bool]:
    """Whether a breaker ends in each token."""
    text, found = b"", []
    for token in tokens:
        before = len(text)
        text += PIECES[token] if token < len(PIECES) else b""
        ends = range(before + 1, len(text) + 1)
        found.append(any(text[:end].endswith(breaker.encode()) for end in ends for breaker in breakers))
    return found


@settings(max_examples=300)
@given(
    contexts(8),
    st.sampled_from([(), ("\n",), ("\n", "ba"), ("b:", "b")]),
    st.sampled_from([-1, 0, 1, 2, 10]),
    st.integers(1, 4),
)
@example(Context([0, 6, 3, 1, 0, 6], 1), ("ba",), -1, 1)  # the same token breaks here, but not there
@example(Context([1, 0, 6, 3, 2, 0, 6], 1), ("ba",), -1, 1)
def test_dry(at: Context, breakers: tuple[str, ...], last_n: int, allowed: int) -> None:
    tokens = [*at.tokens, *at.path]
    start = 0 if last_n < 0 else max(0, len(tokens) - last_n)
    breaks = breaking(tokens, breakers)[start:]
    tokens = tokens[start:]
    expected = dict.fromkeys(range(8), 1.0)
    longest: Counter[int] = Counter()
    for i, token in enumerate(tokens):
        n = 0
        while n < i and tokens[i - n - 1] == tokens[-n - 1] and not breaks[i - n - 1] and not breaks[-n - 1]:
            n += 1
        if not breaks[i]:
            longest[token] = max(longest[token], n)
    for token, n in longest.items():
        if n >= allowed:
            expected[token] -= min(0.8 * 1.75 ** (n - allowed), 1e4)
    stage = Dry(0.8, 1.75, allowed, breakers, last_n, Pieces())
    near(run(stage, dict.fromkeys(range(8), 1.0), at), expected)
    some = dict.fromkeys((2, 3, 7), 1.0)
    near(run(stage, some, at), {i: expected[i] for i in some})


def test_dry_of_a_text_that_only_repeats() -> None:
    """The penalty grows with the repetition, up to a number beyond which it makes no difference."""
    row = dict.fromkeys(range(8), 0.0)
    for count, penalty in ((2, 0.0), (3, 1.0), (4, 2.0), (8, 32.0), (5000, 1e4)):
        assert run(Dry(1.0, 2.0, 2, ("\n",), -1, None), row, Context([0] * count, 1)) == row | {0: -penalty}
    assert run(Dry(1.0, 1.0, 2, (), -1, None), row, Context([0] * 5000, 1)) == row | {0: -1.0}
    assert run(Dry(5e-324, 2.0, 2, (), -1, None), row, Context([0] * 100, 1)) == row | {0: 0.0}
    assert run(Dry(1e-300, 2.0, 2, (), -1, None), row, Context([0] * 5000, 1)) == row | {0: -1e4}
    assert run(Dry(1.0, 2.0, 10**30, (), -1, None), row, Context([0] * 50, 1)) == row


# Contexts that grow, shrink and branch


class Recorder(Trail):
    def __init__(self, with_prompt: bool) -> None:
        super().__init__(with_prompt)
        self.tokens: list[int] = []

    def extend(self, token: int) -> None:
        self.tokens.append(token)

    def retract(self) -> None:
        self.tokens.pop()


def walk(seed: int, steps: int, vocab: int = 7) -> list[Context]:
    """A context as it changes: tokens come, are retracted, replaced, drafted."""
    random = np.random.default_rng(seed)
    prompt = random.integers(0, vocab, random.integers(0, 9)).tolist()
    tokens, seen = list(prompt), []
    for _ in range(steps):
        if random.random() < 0.3:
            del tokens[random.integers(len(prompt), len(tokens) + 1) :]
        tokens += random.integers(0, vocab, random.integers(0, 4)).tolist()
        path = random.integers(0, vocab, random.integers(0, 4) * (random.random() < 0.4)).tolist()
        seen.append(Context(list(tokens), len(prompt), tuple(path)))
    return seen


@given(st.integers(0, 10**6), st.booleans())
def test_a_trail_is_always_where_the_context_is(seed: int, with_prompt: bool) -> None:
    recorder, counts = Recorder(with_prompt), TokenCounts(with_prompt)
    for at in walk(seed, 30, vocab=200):
        recorder.follow(at)
        counts.follow(at)
        tokens = [*at.tokens[0 if with_prompt else at.prompt :], *at.path]
        assert recorder.tokens == tokens
        assert dict(zip(counts.ids.tolist(), counts.counts.tolist(), strict=True)) == Counter(tokens)


def test_only_new_tokens_are_followed() -> None:
    recorder, extended = Recorder(with_prompt=True), []
    recorder.extend = extended.append  # type: ignore[method-assign]
    at = Context([1, 2], 2)
    for token in range(5):
        recorder.follow(at)
        at.tokens.append(token)
    assert extended == [1, 2, 0, 1, 2, 3]


STATEFUL = {
    "repetition_penalty": lambda: RepetitionPenalty(1.3),
    "presence_penalty": lambda: PresencePenalty(0.5),
    "frequency_penalty": lambda: FrequencyPenalty(0.5),
    "dry": lambda: Dry(0.8, 1.75, 1, ("\n", "ba"), -1, Pieces()),
}


@pytest.mark.parametrize("make", STATEFUL.values(), ids=STATEFUL)
@pytest.mark.parametrize("seed", range(20))
def test_a_stage_that_went_back_says_what_a_new_one_says(make, seed: int) -> None:
    stage, row = make(), {i: i / 3 - 1 for i in range(8)}
    for at in walk(seed, 40):
        assert run(stage, row, at) == run(make(), row, at)


# Their order

EVERYTHING = {
    "repetition_penalty": 1.2,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "dry_multiplier": 0.8,
    "top_n_sigma": 2.0,
    "top_k": 50,
    "temperature": 0.7,
    "typical_p": 0.95,
    "top_p": 0.9,
    "min_p": 0.05,
    "xtc_probability": 0.5,
}


def names(**sampling) -> list[str]:
    return [stage.name for stage in Chooser(Sampling(**sampling), 0, ()).stages]


def test_stages_run_in_the_documented_order_or_the_one_asked_for() -> None:
    assert names(**EVERYTHING) == list(STAGES)
    backwards = STAGES[::-1]
    assert names(**EVERYTHING, stages=backwards) == list(backwards)
    assert names(temperature=1.0) == []
    rules = Chooser(
        Sampling(min_tokens=2, allowed_token_ids=(1,), banned_token_ids=(2,), logit_bias=((3, 1.0),)), 0, (4,)
    ).rules
    assert [rule.name for rule in rules] == ["allowed_token_ids", "banned_token_ids", "min_tokens", "logit_bias"]


def test_the_order_makes_a_difference() -> None:
    logits = np.log(np.array([0.5, 0.26, 0.24], np.float32))
    tight = {"temperature": 0.1, "top_p": 0.7, "seed": 1}

    def chosen(*stages: str) -> set[int]:
        sampling = Sampling(**tight, stages=stages)
        return {Chooser(sampling, i, ()).choose(logits, Context([1], 1)).token for i in range(3000)}

    assert chosen("temperature", "top_p") == {0}
    assert chosen("top_p", "temperature") == {0, 1}


def test_greedy_decoding_runs_only_what_can_change_it() -> None:
    assert names(**EVERYTHING | {"temperature": 0.0}) == list(STAGES[:4])
    assert names(**EVERYTHING | {"top_k": 1}) == list(STAGES[:4])
    late = ("top_k", "xtc", "top_p", "temperature", "repetition_penalty")
    assert names(
        temperature=0.0, top_k=5, xtc_probability=1.0, top_p=0.9, repetition_penalty=1.5, stages=late
    ) == ["top_k", "xtc"]  # fmt: skip


@given(rows(), st.permutations(STAGES), st.integers(0, 1000))
def test_greedy_decoding_is_what_all_stages_would_leave(row: Row, order: list[str], seed: int) -> None:
    """Stages are left out only where nothing changes: against running each of them, temperature 0 as the largest."""
    logits = np.full(VOCAB, -inf, np.float32)
    logits[list(row)] = list(row.values())
    sampling = Sampling(**EVERYTHING | {"temperature": 0.0, "seed": seed}, stages=tuple(order))
    at = Context([1, 2, 1, 2, 7, 1], 3)
    left = candidates({i: float(x) for i, x in enumerate(logits)})
    alone = Sampling(**EVERYTHING | {"temperature": 0.7, "seed": seed}, stages=tuple(order))
    for stage in Chooser(alone, 0, ()).stages:
        if stage.name == "temperature":
            left = left.keep(np.array([left.logits.argmax()]))
            break
        left = stage.apply(left, at)
    assert Chooser(sampling, 0, ()).choose(logits, at).token == left.ids[0]
