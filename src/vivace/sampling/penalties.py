"""Penalties for tokens that have come already."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from vivace.sampling.trail import TokenCounts
from vivace.slots.logits import Candidates, Context


@dataclass(slots=True)
class RepetitionPenalty:
    """Divides the positive and multiplies the negative logits of all tokens so far, the prompt's included."""

    penalty: float
    name: str = "repetition_penalty"
    keeps_argmax: bool = False
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

    penalty: float
    generated: TokenCounts
    name: str = "presence_penalty"
    keeps_argmax: bool = False

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        self.generated.follow(context)
        places, _ = candidates.locate(self.generated.ids)
        candidates.logits[places] -= np.float32(self.penalty)
        return candidates


@dataclass(slots=True)
class FrequencyPenalty:
    """Takes `penalty` from the logits of tokens for each time they were generated."""

    penalty: float
    generated: TokenCounts
    name: str = "frequency_penalty"
    keeps_argmax: bool = False

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        self.generated.follow(context)
        places, which = candidates.locate(self.generated.ids)
        candidates.logits[places] -= np.float32(self.penalty) * self.generated.counts[which]
        return candidates
