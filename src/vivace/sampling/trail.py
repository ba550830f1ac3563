"""What stages know of the tokens before the choice, kept in step with a context that grows, shrinks and branches."""

from __future__ import annotations

from itertools import compress
from operator import ne

import numpy as np

from vivace.slots.logits import Context, Float32, Int32


class Trail:
    """Follows the tokens of one context, a drafted path included, one by one and back again.

    `extend` is called for each token that came, `retract` for each that is gone, the last first. The prompt, which
    never changes, is followed only `with_prompt`. A look at n generated tokens of which m are new compares n and
    calls `extend` m times.
    """

    def __init__(self, with_prompt: bool) -> None:
        self._prompt_is_due = with_prompt
        self._generated: list[int] = []

    def extend(self, token: int) -> None:
        raise NotImplementedError

    def retract(self) -> None:
        raise NotImplementedError

    def follow(self, context: Context) -> None:
        """Come to where `context` is."""
        if self._prompt_is_due:
            for token in context.tokens[: context.prompt]:
                self.extend(token)
            self._prompt_is_due = False
        tokens = [*context.tokens[context.prompt :], *context.path]
        shared = _shared(self._generated, tokens)
        for _ in range(len(self._generated) - shared):
            self.retract()
        for token in tokens[shared:]:
            self.extend(token)
        self._generated = tokens


def _shared(a: list[int], b: list[int]) -> int:
    """How many tokens both begin with."""
    shorter = min(len(a), len(b))
    if a[:shorter] == b[:shorter]:
        return shorter
    return next(compress(range(shorter), map(ne, a, b)))


class TokenCounts(Trail):
    """How often each token has come."""

    def __init__(self, with_prompt: bool) -> None:
        super().__init__(with_prompt)
        self._places: dict[int, int] = {}
        self._ids, self._counts = np.zeros(64, np.int32), np.zeros(64, np.float32)
        self._followed: list[int] = []

    def extend(self, token: int) -> None:
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._ids):
            self._ids, self._counts = np.resize(self._ids, 2 * place), np.resize(self._counts, 2 * place)
            self._counts[place:] = 0
        self._ids[place] = token
        self._counts[place] += 1
        self._followed.append(token)

    def retract(self) -> None:
        place = self._places[token := self._followed.pop()]
        self._counts[place] -= 1
        if not self._counts[place]:  # it came last of all that are left
            del self._places[token]

    @property
    def ids(self) -> Int32:
        """The tokens that have come, each once [n]."""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> Float32:
        """How often each of `ids` has come [n]."""
        return self._counts[: len(self._places)]
