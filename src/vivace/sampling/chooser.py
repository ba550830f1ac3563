"""One request's way from logits to a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vivace.core.request import Sampling
from vivace.core.step import RowStats
from vivace.sampling.keyed import uniform
from vivace.sampling.select import descending, largest, log_sum_exp
from vivace.sampling.stages import one_is_left_by, rules_of, stages_of
from vivace.slots.logits import Candidates, Context, Float32, Int32, LogitStage

if TYPE_CHECKING:
    from vivace.sampling.token_texts import VocabularyBytes

LogProbs = dict[int, float]
_GROUP = 256


class BadLogits(ValueError):
    """The model's logits hold no token that could be chosen. The request fails; others do not."""


@dataclass(slots=True)
class Choice:
    token: int
    logprobs: LogProbs | None


class Chooser:
    """Chooses tokens as `sampling` says. The result depends on the row, its context and (seed, sample) alone.

    Greedy decoding takes the largest logit, of equal ones the lowest id, after those stages only that can change which
    it is. Otherwise the rules and the stages run in order and the keyed uniform number is looked up in the cumulative
    probabilities of what is left, in order of ids. `own`: stages of a plan, between the rules and the request's stages.
    """

    def __init__(
        self,
        sampling: Sampling,
        sample: int,
        end_ids: tuple[int, ...],
        tokenizer: VocabularyBytes | None = None,
        drops_space: bool = False,
        own: Sequence[LogitStage] = (),
    ):
        self.sampling, self.sample = sampling, sample
        self.greedy = one_is_left_by(sampling) is not None
        self.rules = rules_of(sampling, end_ids, tokenizer, drops_space)
        self.stages = [*own, *stages_of(sampling, sample, tokenizer)]
        first = self.stages[0].name if self.stages and not self.rules else None
        self._first_k = sampling.top_k if first == "top_k" else 0

    @property
    def top(self) -> int:
        """How many of the largest logits are worth finding in the step: 0 when all are looked at anyway."""
        return max(self._first_k, self.sampling.logprobs or 0)

    def choose(self, logits: Float32, context: Context, stats: RowStats | None = None) -> Choice:
        """The token that follows `context`. `logits` [vocab] is left as it is.

        Raises BadLogits when a logit is not a number, or none is finite.
        """
        peak, first = (stats.max, stats.argmax) if stats else _peak(logits)
        if not isfinite(peak):
            raise BadLogits(_complaint(logits, context.position))
        if self.greedy and not self.rules and not self.stages:
            token = first
        else:
            token = self._of(self.distribution(logits, context, stats), context)
        wanted = self.sampling.logprobs
        if wanted is None:
            return Choice(token, None)
        return Choice(token, log_probabilities(logits, token, wanted, stats))

    def distribution(self, logits: Float32, context: Context, stats: RowStats | None = None) -> Candidates:
        """What rules and stages leave of the tokens after `context`; their probabilities are the softmax of its logits.

        A greedy choice is its largest logit, and stages that would not change that one are left out.
        Raises BadLogits when the rules leave nothing.
        """
        left, stages = self._candidates(logits, stats)
        with np.errstate(over="ignore"):  # as in `draw`
            if self.rules:
                for rule in self.rules:
                    left = rule.apply(left, context)
                self._check(left, context)
            for stage in stages:
                left = stage.apply(left, context)
        return left

    def _of(self, left: Candidates, context: Context) -> int:
        """The token that is chosen of what is left."""
        peak, index = _peak(left.logits)
        if not isfinite(peak):
            raise BadLogits(f"the logits of position {context.position} overflow in the stages")
        if self.greedy:
            return int(left.ids[index])
        return draw(left, uniform(self.sampling.seed, self.sample, context.position))

    def _check(self, left: Candidates, context: Context) -> None:
        if not len(left.ids) or left.logits.max() == -np.inf:
            names = " and ".join(rule.name for rule in self.rules)
            leave = "leave" if len(self.rules) > 1 else "leaves"
            raise BadLogits(f"no token may be chosen for position {context.position}: {names} {leave} none")

    def _candidates(self, logits: Float32, stats: RowStats | None) -> tuple[Candidates, list[LogitStage]]:
        """What the choice begins with, and the stages still to run on it."""
        top, k = stats.top if stats else None, self._first_k
        if k and top is not None and len(top) >= k:
            ids = np.sort(top[:k])
            return Candidates(ids, logits[ids]), self.stages[1:]
        return Candidates(_all_ids(len(logits)), logits.copy()), self.stages


def draw(candidates: Candidates, u: float) -> int:
    """The candidate whose share of the cumulative probability holds `u` in [0, 1)."""
    with np.errstate(over="ignore"):  # distances beyond float32 are as good as infinite
        weights = np.exp(candidates.logits - candidates.logits.max())
    whole = len(weights) // _GROUP * _GROUP
    groups = np.append(weights[:whole].reshape(-1, _GROUP).sum(axis=1), weights[whole:].sum())
    upto = np.cumsum(groups, dtype=np.float64)
    target = u * upto[-1]
    group, rest = _look_up(groups, upto, target)
    within = weights[group * _GROUP : (group + 1) * _GROUP]
    index, _ = _look_up(within, np.cumsum(within, dtype=np.float64), rest)
    return int(candidates.ids[group * _GROUP + index])


def _look_up(weights: Float32, cumulative: NDArray[np.float64], target: float) -> tuple[int, float]:
    """The entry whose part of the cumulative sum holds `target`, and how far into it; never one of weight 0."""
    index = int(np.searchsorted(cumulative, target, side="right"))
    if index == len(weights):  # the target was rounded up to the sum
        index = int(np.flatnonzero(weights)[-1])
    return index, target - float(cumulative[index - 1]) if index else target


def log_probabilities(logits: Float32, token: int, count: int, stats: RowStats | None = None) -> LogProbs:
    """The `count` most probable tokens, most probable first, and `token`, under the model's own distribution."""
    total = stats.log_sum_exp if stats else log_sum_exp(logits)
    ids: list[int] = []
    if stats and stats.top is not None and len(stats.top) >= count:
        ids = stats.top[:count].tolist()
    elif count:
        ids = descending(logits, largest(logits, count)).tolist()
    return {i: float(logits[i]) - total for i in (ids if token in ids else [*ids, token])}


def _peak(logits: Float32) -> tuple[float, int]:
    """The largest logit (not a number, if one is) and its lowest index."""
    index = int(logits.argmax())
    return float(logits[index]), index


def _complaint(logits: Float32, position: int) -> str:
    bad = int(np.isnan(logits).sum())
    what = f"{bad} of {len(logits)} logits are not numbers" if bad else "its largest logit is not finite"
    return f"the model gave no usable distribution for position {position}: {what}"


@cache
def _all_ids(vocab: int) -> Int32:
    ids = np.arange(vocab, dtype=np.int32)
    ids.setflags(write=False)
    return ids
