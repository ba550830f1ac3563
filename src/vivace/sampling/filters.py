"""Stages that keep the candidates most worth choosing, and the temperature. Of equal ones the lowest ids stay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vivace.sampling.keyed import XTC, uniform
from vivace.sampling.select import descending, largest
from vivace.slots.logits import Candidates, Context, Float32

_HOTTEST = 1e30  # at higher temperatures too, all distances are as good as 0
_NOTHING = np.float32(-1e3)  # a logit so far below the largest has a probability of 0


@dataclass(slots=True)
class Temperature:
    """Divides the distances from the largest logit."""

    name, keeps_argmax = "temperature", True
    temperature: float

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        logits = candidates.logits
        logits -= logits.max()
        logits /= np.float32(min(self.temperature, _HOTTEST))  # infinity would make -inf not a number
        return candidates


@dataclass(slots=True)
class TopK:
    """Keeps the k largest."""

    name, keeps_argmax = "top_k", True
    k: int

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        if self.k >= len(candidates.ids):
            return candidates
        return candidates.keep(largest(candidates.logits, self.k))


@dataclass(slots=True)
class TopP:
    """Keeps the most probable tokens until together they reach p; the one that crosses it stays."""

    name, keeps_argmax = "top_p", True
    p: float

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        logits = candidates.logits
        return _reach(candidates, self.p, logits, _weights(logits))


@dataclass(slots=True)
class TypicalP:
    """Keeps the tokens whose surprise is nearest to the expected one, until together they reach p.

    The most probable token may go.
    """

    name, keeps_argmax = "typical_p", False
    p: float

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        distance = candidates.logits - candidates.logits.max()  # log-probability, but for a constant
        np.maximum(distance, _NOTHING, out=distance)  # finite, so that 0 times it is 0
        weights = np.exp(distance)
        expected = (weights * distance).sum(dtype=np.float64) / weights.sum(dtype=np.float64)
        distance -= np.float32(expected)
        np.abs(distance, out=distance)
        return _reach(candidates, self.p, np.negative(distance, out=distance), weights)


@dataclass(slots=True)
class MinP:
    """Keeps tokens at least `p` times as probable as the most probable one."""

    name, keeps_argmax = "min_p", True
    p: float

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        logits = candidates.logits
        return candidates.keep(np.flatnonzero(logits >= logits.max() + np.float32(np.log(self.p))))


@dataclass(slots=True)
class TopNSigma:
    """Keeps logits at most n standard deviations (of the possible tokens' logits) below the largest."""

    name, keeps_argmax = "top_n_sigma", True
    n: float

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        logits = candidates.logits
        possible = logits[logits > -np.inf] if logits.min() == -np.inf else logits
        distances = possible - np.float32(possible.mean(dtype=np.float64))
        sigma = np.sqrt(np.square(distances).mean(dtype=np.float64))
        return candidates.keep(np.flatnonzero(logits >= logits.max() - np.float32(self.n * sigma)))


@dataclass(slots=True)
class Xtc:
    """Excludes top choices: with a probability, drops all tokens of at least `threshold` but the least probable one."""

    name, keeps_argmax = "xtc", False
    probability: float
    threshold: float
    seed: int
    sample: int

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        if uniform(self.seed, self.sample, context.position, XTC) >= self.probability:
            return candidates
        weights = _weights(candidates.logits)
        total = float(weights.sum(dtype=np.float64))
        top = np.flatnonzero(weights >= self.threshold * total)
        candidates.logits[descending(weights, top)[:-1]] = -np.inf
        return candidates


def _weights(logits: Float32) -> Float32:
    """Probabilities, but for a factor."""
    weights: Float32 = np.exp(logits - logits.max())
    return weights


def _reach(candidates: Candidates, p: float, rank: Float32, weights: Float32) -> Candidates:
    """Those of highest rank whose weights together first reach a share of p."""
    target = p * float(weights.sum(dtype=np.float64))
    for looked_at in (256, 8192, len(rank)):  # most often a few tokens hold the mass
        index = descending(rank, largest(rank, looked_at))
        mass = np.cumsum(weights[index], dtype=np.float64)
        if mass[-1] >= target:
            return candidates.keep(np.sort(index[: int(np.searchsorted(mass, target)) + 1]))
    return candidates  # p is 1 but for rounding
