"""Logit stages: what may change the distribution between the model and the draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]


@dataclass(slots=True)
class Context:
    """What precedes the token to choose: the sequence's own tokens (`prompt` of them given), then a drafted path.

    The prompt stays as it is; what follows may grow, and shrink again when it is retracted.
    """

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

    def keep(self, index: NDArray[np.bool_] | Int64) -> Candidates:
        """Those at `index`: a mask, or ascending indices."""
        return Candidates(self.ids[index], self.logits[index])

    def locate(self, ids: Int32) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The places of those of `ids` [m] that are left, and a mask [m] of which of `ids` these are."""
        size = len(self.ids)
        if not size:
            return ids[:0], np.zeros(len(ids), np.bool_)
        if self.ids[-1] == size - 1:  # the first tokens of the vocabulary, most often all of it
            found = ids < size
            return ids[found], found
        places = np.minimum(np.searchsorted(self.ids, ids), size - 1)
        found = self.ids[places] == ids
        return places[found], found


class LogitStage(Protocol):
    """One step between logits and draw. Depends on this row and its context alone, or batches change results.

    `name`: what messages call it. `keeps_argmax`: the most probable token stays the most probable one, so greedy
    decoding may skip the stage. Tokens of no probability (-inf) stay so.
    """

    name: str
    keeps_argmax: bool

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        """May edit `candidates.logits` in place; returns what is left."""
        ...
