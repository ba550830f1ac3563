"""DRY ("don't repeat yourself"): a penalty for the token that would lengthen a repetition."""

from __future__ import annotations

from math import ceil, log

import numpy as np

from vivace.core.automaton import Node, automaton
from vivace.core.text import TokenBytes
from vivace.sampling.trail import Trail
from vivace.slots.logits import Candidates, Context, Int32, Int64

_MOST = 1e4  # a larger penalty bans no better: exp(-1e4) is 0
_LONGER_THAN_ALL = 2**31  # tokens; no context has as many


class Dry(Trail):
    """Takes multiplier * base ** (n - allowed_length) from the logit of a token that would repeat the n before it.

    n is the length of the longest text that the context ends with and that stood before this token earlier in its last
    `last_n` tokens (-1: all of them), the prompt's included; below `allowed_length` nothing happens. Tokens in which a
    breaker ends, as they stand in the text, belong to no repetition.
    """

    name, keeps_argmax = "dry", False

    def __init__(
        self,
        multiplier: float,
        base: float,
        allowed_length: int,
        breakers: tuple[str, ...],
        last_n: int,
        tokenizer: TokenBytes | None,
    ) -> None:
        super().__init__(with_prompt=True)
        self._multiplier, self._base, self._last_n = multiplier, base, last_n
        self._allowed = min(allowed_length, _LONGER_THAN_ALL)
        self._longest = self._allowed  # what is longer is penalised no more
        if base > 1 and multiplier < _MOST:
            self._longest += ceil((log(_MOST) - log(multiplier)) / log(base))
        self._tokenizer = tokenizer
        self._states: list[Node[bytes]] = [automaton(breaker.encode() for breaker in breakers)]
        self._tokens, self._breaks = np.zeros(256, np.int32), np.zeros(256, np.bool_)

    def extend(self, token: int) -> None:
        place = len(self._states) - 1
        if place == len(self._tokens):
            self._tokens, self._breaks = np.resize(self._tokens, 2 * place), np.resize(self._breaks, 2 * place)
        state, breaks = self._states[-1], False
        for byte in self._bytes(token):
            state = state.after(byte)
            breaks |= state.match is not None
        self._states.append(state)
        self._tokens[place], self._breaks[place] = token, breaks

    def retract(self) -> None:
        self._states.pop()

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        self.follow(context)
        ids, lengths = self._repetitions()
        places, which = candidates.locate(ids)
        penalties = self._multiplier * self._base ** (lengths[which] - self._allowed).astype(np.float64)
        candidates.logits[places] -= np.minimum(penalties, _MOST).astype(np.float32)
        return candidates

    def _bytes(self, token: int) -> bytes:
        if self._tokenizer is None:
            return b""
        try:
            return self._tokenizer.token_bytes(token)
        except ValueError:  # it fails its request once it is part of a text
            return b""

    def _repetitions(self) -> tuple[Int32, Int64]:
        """Tokens that would lengthen a repetition, ascending, and how long it is, at least the allowed length."""
        end = len(self._states) - 1
        start = 0 if self._last_n < 0 else max(0, end - self._last_n)
        tokens, breaks = self._tokens[start:end], self._breaks[start:end]
        last = len(tokens) - 1
        if last < 1 or breaks[last]:
            return tokens[:0], np.zeros(0, np.int64)
        ends = np.flatnonzero(tokens[:-1] == tokens[last])  # where the last token stood before
        ends = ends[~breaks[ends] & ~breaks[ends + 1]]
        lengths, alive = np.ones(len(ends), np.int64), np.arange(len(ends))
        for length in range(1, min(self._longest, last)):
            if breaks[last - length]:
                break
            alive = alive[ends[alive] >= length]
            before = ends[alive] - length
            alive = alive[(tokens[before] == tokens[last - length]) & ~breaks[before]]
            if not len(alive):
                break
            lengths[alive] = length + 1
        long_enough = lengths >= self._allowed
        ids, which = np.unique(tokens[ends[long_enough] + 1], return_inverse=True)
        longest = np.zeros(len(ids), np.int64)
        np.maximum.at(longest, which, lengths[long_enough])
        return ids, longest
