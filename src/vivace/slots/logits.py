"""Logit stages: what may change the distribution between the model and the draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]


@dataclass(slots=True)
class Context:
    """What precedes the token to choose: the sequence's own tokens (`prompt` of them given), then a drafted path."""

    tokens: list[int]
    prompt: int
    path: tuple[int, ...] = ()

    @property
    def position(self) -> int:
        """Of the token to choose."""
        return len(self.tokens) + len(self.path)

    @property
    def generated(self) -> int:
        return self.position - self.prompt


@dataclass(slots=True)
class Candidates:
    """Tokens that may still be chosen, ascending, and their logits; both [n]. `logits` is private and writable."""

    ids: Int32
    logits: Float32

    def keep(self, index: NDArray[np.bool_] | NDArray[np.int64]) -> Candidates:
        """Those at `index`: a mask, or ascending indices."""
        return Candidates(self.ids[index], self.logits[index])


class LogitStage(Protocol):
    """One step between logits and draw. Depends on this row and its context alone, or batches change results.

    `keeps_argmax`: the most probable token stays the most probable one, so greedy decoding skips the stage.
    Stages that edit logits by token id come first and see the whole vocabulary (`ids[i] == i`).
    """

    keeps_argmax: bool

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        """May edit `candidates.logits` in place; returns what is left."""
        ...
