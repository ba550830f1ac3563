"""What may be said at all: these run before every other stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vivace.slots.logits import Candidates, Context, Float32, Int32


def id_array(ids: Sequence[int]) -> Int32:
    """Ascending, each once."""
    return np.array(sorted(set(ids)), np.int32)


@dataclass(slots=True)
class AllowedIds:
    """No other tokens."""

    name, keeps_argmax = "allowed_token_ids", False
    ids: Int32

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        places, _ = candidates.locate(self.ids)
        return candidates.keep(places)


@dataclass(slots=True)
class BannedIds:
    """None of these tokens."""

    name, keeps_argmax = "banned_token_ids", False
    ids: Int32

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        places, _ = candidates.locate(self.ids)
        candidates.logits[places] = -np.inf
        return candidates


@dataclass(slots=True)
class NoEndBefore:
    """None of these tokens, which end the text, before `count` were generated."""

    name, keeps_argmax = "min_tokens", False
    ids: Int32
    count: int

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        if context.generated < self.count:
            places, _ = candidates.locate(self.ids)
            candidates.logits[places] = -np.inf
        return candidates


@dataclass(slots=True)
class LogitBias:
    """Adds to the logits of some tokens."""

    name, keeps_argmax = "logit_bias", False
    ids: Int32
    bias: Float32

    @staticmethod
    def of(biases: Sequence[tuple[int, float]]) -> LogitBias:
        """From (token, bias) pairs, each token once."""
        ids, numbers = zip(*sorted(biases), strict=True)
        return LogitBias(np.array(ids, np.int32), np.array(numbers, np.float32))

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        places, which = candidates.locate(self.ids)
        candidates.logits[places] += self.bias[which]
        return candidates
