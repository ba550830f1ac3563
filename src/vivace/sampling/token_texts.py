"""The bytes of all tokens of a vocabulary, searched at once."""

from __future__ import annotations

from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np

from vivace.core.text import TokenBytes
from vivace.slots.logits import Int32


class VocabularyBytes(TokenBytes, Protocol):
    """The part of a tokenizer that is read."""

    @property
    def vocab_size(self) -> int: ...


class TokenTexts:
    """What each token adds to a text. Ids found are ascending."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._bytes = np.frombuffer(b"".join(pieces), np.uint8)
        self._lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        self._starts = np.cumsum(self._lengths) - self._lengths
        some = np.flatnonzero(self._lengths)
        first = self._bytes[self._starts[some]]
        order = np.argsort(first, kind="stable")
        self._by_first_byte = np.split(some[order], np.searchsorted(first[order], np.arange(1, 256)))

    @staticmethod
    def of(tokenizer: VocabularyBytes, skip_special: bool) -> TokenTexts:
        """The same object for the same arguments. The first time takes about a microsecond a token."""
        known = _KNOWN.setdefault(tokenizer, {})
        if skip_special not in known:
            ids = range(tokenizer.vocab_size)
            known[skip_special] = TokenTexts([tokenizer.token_bytes(i, skip_special=skip_special) for i in ids])
        return known[skip_special]

    def __getitem__(self, token: int) -> bytes:
        """Nothing for an id outside the vocabulary."""
        if token >= len(self._starts):
            return b""
        start = int(self._starts[token])
        return self._bytes[start : start + int(self._lengths[token])].tobytes()

    def beginning_with(self, text: bytes) -> Int32:
        """Tokens that begin with `text`, which is not empty."""
        ids = self._by_first_byte[text[0]]
        ids = ids[self._lengths[ids] >= len(text)]
        for i, byte in enumerate(text):
            ids = ids[self._bytes[self._starts[ids] + i] == byte]
        return ids.astype(np.int32)

    def beginnings_of(self, text: bytes) -> Int32:
        """Tokens that `text`, which is not empty, begins with; no empty ones."""
        ids, whole = self._by_first_byte[text[0]], []
        for i, byte in enumerate(text):
            ids = ids[self._bytes[self._starts[ids] + i] == byte]
            ends_here = self._lengths[ids] == i + 1
            whole.append(ids[ends_here])
            ids = ids[~ends_here]
            if not len(ids):
                break
        return np.sort(np.concatenate(whole)).astype(np.int32)

    def containing(self, text: bytes) -> Int32:
        """Tokens that have `text`, which is not empty, in them."""
        at = np.flatnonzero(self._bytes[: max(len(self._bytes) - len(text) + 1, 0)] == text[0])
        for i, byte in enumerate(text[1:], start=1):
            at = at[self._bytes[at + i] == byte]
        tokens = np.searchsorted(self._starts, at, side="right") - 1  # of empty ones with the same start, the last
        inside = at + len(text) <= self._starts[tokens] + self._lengths[tokens]
        return np.unique(tokens[inside]).astype(np.int32)


_KNOWN: WeakKeyDictionary[VocabularyBytes, dict[bool, TokenTexts]] = WeakKeyDictionary()
