"""The built-in logit stages, in the order in which they run.

Bans, repetition penalty, top-k, temperature, top-p, min-p. Each works on what the one before it left; top-p and min-p
read probabilities renormalised over that. Temperature keeps the order of
logits, so it may stand behind top-k, where it works on little.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from vivace.core.request import Sampling
from vivace.sampling.select import largest
from vivace.slots.logits import Candidates, Context, LogitStage

GREEDY_BELOW = 1e-5  # a lower temperature puts all weight on the largest logit


@dataclass(slots=True)
class BanUntil:
    """Tokens that end the text may not come before `count` tokens were generated."""

    ids: tuple[int, ...]
    count: int
    keeps_argmax: bool = False

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        if context.generated < self.count:
            candidates.logits[list(self.ids)] = -np.inf
        return candidates


@dataclass(slots=True)
class RepetitionPenalty:
    """Divides the positive and multiplies the negative logits of all tokens seen so far, the prompt's included."""

    penalty: float
    keeps_argmax: bool = False
    _seen: set[int] = field(default_factory=set)
    _read: int = 0

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        self._seen.update(context.tokens[self._read :])
        self._read = len(context.tokens)
        ids = np.fromiter(self._seen.union(context.path), np.int64)
        logits, penalty = candidates.logits[ids], np.float32(self.penalty)
        candidates.logits[ids] = np.where(logits > 0, logits / penalty, logits * penalty)
        return candidates


@dataclass(slots=True)
class Temperature:
    """Divides the distances from the largest logit."""

    temperature: float
    keeps_argmax: bool = True

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        logits = candidates.logits
        logits -= logits.max()
        logits /= np.float32(self.temperature)
        return candidates


@dataclass(slots=True)
class TopK:
    """Keeps the k largest; of equal ones the lowest ids."""

    k: int
    keeps_argmax: bool = True

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        if self.k >= len(candidates.ids):
            return candidates
        return candidates.keep(largest(candidates.logits, self.k))


@dataclass(slots=True)
class TopP:
    """Keeps the most probable tokens until together they reach p; the one that crosses it stays."""

    p: float
    keeps_argmax: bool = True

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        logits = candidates.logits
        target = self.p * float(np.exp(logits - logits.max()).sum(dtype=np.float64))
        for looked_at in (256, 8192, len(logits)):  # most often a few tokens hold the mass
            best = np.sort(logits[largest(logits, looked_at)])[::-1]
            mass = np.cumsum(np.exp(best - best[0]), dtype=np.float64)
            if mass[-1] >= target:
                return candidates.keep(largest(logits, int(np.searchsorted(mass, target)) + 1))
        return candidates  # p is 1 but for rounding


@dataclass(slots=True)
class MinP:
    """Keeps tokens at least `p` times as probable as the most probable one."""

    p: float
    keeps_argmax: bool = True

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        logits = candidates.logits
        return candidates.keep(logits >= logits.max() + np.float32(np.log(self.p)))


def stages_of(sampling: Sampling, end_ids: tuple[int, ...]) -> list[LogitStage]:
    """The stages a request asks for. `end_ids`: the tokens that would end it."""
    stages: list[LogitStage] = []
    if sampling.min_tokens > 0 and end_ids:
        stages.append(BanUntil(end_ids, sampling.min_tokens))
    if sampling.repetition_penalty != 1.0:
        stages.append(RepetitionPenalty(sampling.repetition_penalty))
    if sampling.top_k > 0:
        stages.append(TopK(sampling.top_k))
    if sampling.temperature != 1.0:
        stages.append(Temperature(max(sampling.temperature, GREEDY_BELOW)))
    if sampling.top_p < 1.0:
        stages.append(TopP(sampling.top_p))
    if sampling.min_p > 0.0:
        stages.append(MinP(sampling.min_p))
    return stages
