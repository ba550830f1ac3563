"""From logits to a token."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivace.core.request import Sampling
from vivace.core.step import RowStats
from vivace.sampling.chooser import BadLogits, Chooser, _look_up, draw, log_probabilities
from vivace.sampling.filters import TopP
from vivace.sampling.keyed import uniform
from vivace.sampling.select import descending, largest, log_sum_exp
from vivace.slots.logits import Candidates, Context

ALL = np.arange(32, dtype=np.int32)


def logits_of(seed: int, vocab: int = 32, scale: float = 2.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(vocab) * scale).astype(np.float32)


def context(tokens=(1, 2, 3), prompt=3, path=()) -> Context:
    return Context(list(tokens), prompt, tuple(path))


def choose(logits, sample=0, end_ids=(), at=None, **sampling) -> int:
    return Chooser(Sampling(**sampling), sample, end_ids).choose(logits, at or context()).token


def draws(logits, count=4000, **sampling) -> np.ndarray:
    """Shares of the tokens over many samples of one position."""
    tokens = [choose(logits, i, **{"temperature": 1.0, **sampling}) for i in range(count)]
    return np.bincount(tokens, minlength=len(logits)) / count


def softmax(logits) -> np.ndarray:
    weights = np.exp(logits - np.max(logits))
    return weights / weights.sum()


def agrees(shares, probabilities, count=4000) -> None:
    """Chi-square, at about six standard deviations."""
    expected = probabilities * count
    assert (shares[expected == 0] == 0).all()
    some = expected > 0
    chi = ((shares * count - expected)[some] ** 2 / expected[some]).sum()
    freedom = some.sum() - 1
    assert chi < freedom + 6 * np.sqrt(2 * freedom), f"chi-square {chi:.0f} of {freedom}"


def test_uniform_numbers_are_uniform_and_unrelated():
    numbers = np.array([[uniform(seed, sample, p) for p in range(50)] for seed in range(20) for sample in range(5)])
    assert numbers.min() >= 0 and numbers.max() < 1
    assert np.histogram(numbers, 10, (0, 1))[0].std() < 3 * np.sqrt(numbers.size / 10)
    for other in (numbers[:, 1:], numbers[5:, :], numbers[1:, :]):
        here = numbers[: len(other), : other.shape[1]]
        assert abs(np.corrcoef(here.ravel(), other.ravel())[0, 1]) < 0.06
    assert uniform(1, 2, 3) == uniform(1, 2, 3) != uniform(1, 2, 3, 1)
    assert uniform(-1, 0, 0) != uniform(1, 0, 0)


@given(st.integers(0, 10**6), st.integers(1, 2000), st.integers(1, 70), st.booleans())
def test_largest(seed, n, k, tied):
    values = np.random.default_rng(seed).standard_normal(n).astype(np.float32)
    if tied:
        values = np.round(values)
    expected = np.argsort(-values, kind="stable")[:k]
    found = largest(values, k)
    assert (np.diff(found) > 0).all()
    assert descending(values, found).tolist() == expected.tolist()


def test_largest_of_a_long_row_with_infinities():
    values = np.full(262144, -np.inf, np.float32)
    values[[5, 262143]] = 1.0
    assert largest(values, 2).tolist() == [5, 262143]
    assert largest(values, 3).tolist() == [0, 5, 262143]


def test_greedy_takes_the_lowest_of_equal_ids():
    logits = np.zeros(32, np.float32)
    logits[[7, 19]] = 4
    assert choose(logits) == 7
    assert choose(logits, temperature=1e-9) == 7
    assert choose(logits, temperature=2.0, top_k=1) == 7


def test_greedy_uses_what_the_executor_knows():
    logits = logits_of(1)
    stats = RowStats(9.0, 30, 9.5)
    choice = Chooser(Sampling(logprobs=0), 0, ()).choose(logits, context(), stats)
    assert choice.token == 30 and choice.logprobs == {30: pytest.approx(float(logits[30]) - 9.5)}


def test_the_row_is_left_as_it_is():
    logits = logits_of(2)
    before = logits.copy()
    choose(logits, temperature=0.7, top_k=9, top_p=0.9, min_p=0.01, repetition_penalty=1.3)
    choose(logits, repetition_penalty=1.3)
    assert np.array_equal(before, logits)


def test_draws_follow_the_distribution():
    logits = logits_of(3)
    agrees(draws(logits), softmax(logits))
    agrees(draws(logits, temperature=0.5), softmax(logits / 0.5))


def test_draws_follow_the_distribution_of_a_long_row():
    logits = logits_of(4, 1000, 0.5)
    counted = draws(logits).reshape(20, 50).sum(1)
    agrees(counted, softmax(logits.astype(np.float64)).reshape(20, 50).sum(1))


def test_top_k_and_top_p_and_min_p():
    logits = logits_of(5)
    p = softmax(logits.astype(np.float64))
    order = np.argsort(-p)
    for kept, sampling in (
        (order[:6], {"top_k": 6}),
        (order[: np.searchsorted(np.cumsum(p[order]), 0.8) + 1], {"top_p": 0.8}),
        (np.flatnonzero(p >= 0.2 * p.max()), {"min_p": 0.2}),
    ):
        left = np.zeros(32)
        left[kept] = p[kept]
        agrees(draws(logits, **sampling), left / left.sum())


@given(st.integers(0, 10**6), st.floats(0.01, 1.0), st.integers(2, 3000))
def test_top_p_keeps_the_fewest_that_reach_p(seed, p, vocab):
    logits = logits_of(seed, vocab)
    kept = TopP(p).apply(Candidates(np.arange(vocab, dtype=np.int32), logits.copy()), context()).ids
    probabilities = softmax(logits.astype(np.float64))
    order = np.argsort(-probabilities)
    assert set(kept) == set(order[: len(kept)])
    assert probabilities[kept].sum() >= p - 1e-5
    assert probabilities[order[: len(kept) - 1]].sum() <= p + 1e-5


@pytest.mark.parametrize(
    "sampling", [{"top_k": 5}, {"top_k": 9, "top_p": 0.8, "min_p": 0.05}, {"top_k": 40, "logprobs": 3}]
)
@pytest.mark.parametrize("found", [5, 9, 32])
def test_the_largest_logits_of_the_executor_change_nothing(sampling, found):
    for sample in range(50):
        logits = np.round(logits_of(sample), 1)  # many are equal
        chooser = Chooser(Sampling(temperature=0.7, **sampling), sample, ())
        peak, first = float(logits.max()), int(logits.argmax())
        top = descending(logits, largest(logits, found)).astype(np.int32)
        with_top = RowStats(peak, first, log_sum_exp(logits), top)
        assert chooser.choose(logits, context(), with_top) == chooser.choose(logits, context())


def test_only_what_is_looked_at_is_found():
    """With the largest given, the rest of the row is not read; stages by token id need it, so nothing is asked for."""
    logits = np.full(32, np.nan, np.float32)
    logits[[3, 7]] = 1, 2
    stats = RowStats(2.0, 7, 2.3, np.array([7, 3], np.int32))
    chooser = Chooser(Sampling(temperature=1.0, top_k=2, logprobs=2), 0, ())
    assert chooser.top == 2
    assert chooser.choose(logits, context(), stats).logprobs == {7: 2 - 2.3, 3: 1 - 2.3}
    for first in ({"repetition_penalty": 1.1}, {"banned_token_ids": (7,)}, {"stages": ("temperature", "top_k")}):
        assert Chooser(Sampling(temperature=0.9, top_k=2, **first), 0, ()).top == 0
    assert Chooser(Sampling(top_k=2), 0, ()).top == Chooser(Sampling(temperature=1.0, top_p=0.9), 0, ()).top == 0
    assert Chooser(Sampling(logprobs=4), 0, ()).top == 4


def test_greedy_skips_stages_that_keep_the_argmax():
    chooser = Chooser(Sampling(temperature=0.0, top_k=5, top_p=0.9, min_p=0.1), 0, ())
    assert chooser.stages == []


def test_min_tokens_bans_ends_only_so_long():
    logits = logits_of(6)
    end = int(logits.argmax())
    early, late = context([1, 2, 3, 4], 3), context([1, 2, 3, 4, 5], 3)
    assert choose(logits, end_ids=(end,), min_tokens=2, at=early) == np.argsort(-logits)[1]
    assert choose(logits, end_ids=(end,), min_tokens=2, at=late) == end
    drafted = context([1, 2, 3, 4], 3, (5,))
    assert choose(logits, end_ids=(end,), min_tokens=2, at=drafted) == end


def test_rows_that_hold_no_token():
    bad = logits_of(7)
    bad[11] = np.nan
    for sampling in ({}, {"temperature": 1.0}, {"top_k": 3}):
        with pytest.raises(BadLogits, match="position 3: 1 of 32 logits are not numbers"):
            choose(bad, **sampling)
    with pytest.raises(BadLogits, match="not finite"):
        choose(np.full(32, -np.inf, np.float32))
    with pytest.raises(BadLogits, match="position 3: min_tokens leaves none"):
        choose(logits_of(8), end_ids=tuple(range(32)), min_tokens=5)


def test_extreme_logits_do_not_overflow():
    logits = np.array([3e38, -3e38, 0.0, -np.inf], np.float32)
    assert {choose(logits, i, temperature=2e-5) for i in range(20)} == {0}
    assert {choose(logits, i, temperature=1.0) for i in range(20)} == {0}


def test_the_edges_of_a_draw():
    logits = np.log(
        np.array([0.0, 0.5, 0.0, 0.5, 0.0]) + 0.0, where=np.array([0, 1, 0, 1, 0], bool), out=np.full(5, -np.inf)
    )
    left = Candidates(np.arange(5, dtype=np.int32), logits.astype(np.float32))
    assert draw(left, 0.0) == 1
    assert draw(left, 0.5 - 1e-12) == 1
    assert draw(left, 0.5) == 3
    assert draw(left, 1 - 2.0**-53) == 3
    weights = np.array([0.0, 1.0, 2.0, 0.0], np.float32)
    assert _look_up(weights, np.cumsum(weights, dtype=np.float64), 3.0) == (2, 2.0)


def test_log_probabilities():
    logits = logits_of(9)
    expected = np.log(softmax(logits.astype(np.float64)))
    order = np.argsort(-logits)
    found = log_probabilities(logits, int(order[9]), 3)
    assert list(found) == [*order[:3], order[9]]
    assert all(found[i] == pytest.approx(expected[i], abs=1e-6) for i in found)
    assert list(log_probabilities(logits, int(order[1]), 3)) == order[:3].tolist()
    assert log_sum_exp(np.array([1e4, 1e4], np.float32)) == pytest.approx(1e4 + np.log(2))
