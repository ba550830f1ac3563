"""Penalties for tokens that have come already."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from vivace.sampling.trail import TokenCounts
from vivace.slots.logits import Candidates, Context


@dataclass(slots=True)
class RepetitionPenalty:
    """Divides the positive and multiplies the negative logits of all tokens so far, the prompt's included."""

    name, keeps_argmax = "repetition_penalty", False
    penalty: float
    _seen: TokenCounts = field(default_factory=lambda: TokenCounts(with_prompt=True))

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        self._seen.follow(context)
        places, _ = candidates.locate(self._seen.ids)
        logits, penalty = candidates.logits[places], np.float32(self.penalty)
        candidates.logits[places] = np.where(logits > 0, logits / penalty, logits * penalty)
        return candidates


@dataclass(slots=True)
class PresencePenalty:
    """Takes `penalty` from the logits of all tokens generated so far."""

    name, keeps_argmax = "presence_penalty", False
    penalty: float
    _generated: TokenCounts = field(default_factory=lambda: TokenCounts(with_prompt=False))

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        self._generated.follow(context)
        places, _ = candidates.locate(self._generated.ids)
        candidates.logits[places] -= np.float32(self.penalty)
        return candidates


@dataclass(slots=True)
class FrequencyPenalty:
    """Takes `penalty` from the logits of tokens for each time they were generated."""

    name, keeps_argmax = "frequency_penalty", False
    penalty: float
    _generated: TokenCounts = field(default_factory=lambda: TokenCounts(with_prompt=False))

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        self._generated.follow(context)
        places, which = candidates.locate(self._generated.ids)
        candidates.logits[places] -= np.float32(self.penalty) * self._generated.counts[which]
        return candidates
