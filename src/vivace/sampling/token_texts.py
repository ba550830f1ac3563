"""The bytes of all tokens of a vocabulary, searched at once."""

from __future__ import annotations

from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from vivace.slots.logits import Int32


class VocabularyBytes(Protocol):
    """The part of a tokenizer that is read."""

    @property
    def vocab_size(self) -> int: ...

    def token_bytes(self, token: int, *, skip_special: bool = False) -> bytes: ...


class TokenTexts:
    """What each token adds to a text. Ids found are ascending."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._bytes = np.frombuffer(b"".join(pieces), np.uint8)
        self._lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        self._starts = np.cumsum(self._lengths) - self._lengths

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
        """Tokens that begin with `text`."""
        ids = np.flatnonzero(self._lengths >= len(text))
        for i, byte in enumerate(text):
            ids = ids[self._bytes[self._starts[ids] + i] == byte]
        return ids.astype(np.int32)

    def beginnings_of(self, text: bytes) -> Int32:
        """Tokens, none of them empty, that `text` begins with."""
        ids = np.flatnonzero((self._lengths > 0) & (self._lengths <= len(text)))
        done = []
        for i, byte in enumerate(text):
            ids = ids[self._bytes[self._starts[ids] + i] == byte]
            whole = self._lengths[ids] == i + 1
            done.append(ids[whole])
            ids = ids[~whole]
            if not len(ids):
                break
        return np.sort(np.concatenate(done)).astype(np.int32)

    def containing(self, text: bytes) -> Int32:
        """Tokens that have `text` in them."""
        at: NDArray[np.int64] = np.arange(len(self._bytes) - len(text) + 1)
        for i, byte in enumerate(text):
            at = at[self._bytes[at + i] == byte]
        tokens = np.searchsorted(self._starts, at, side="right") - 1  # of empty ones with the same start, the last
        inside = at + len(text) <= self._starts[tokens] + self._lengths[tokens]
        return np.unique(tokens[inside]).astype(np.int32)


_KNOWN: WeakKeyDictionary[VocabularyBytes, dict[bool, TokenTexts]] = WeakKeyDictionary()
