"""Token ids to text while they come, and where a stop string ends it."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from vivace.core.automaton import Node, automaton


class TokenBytes(Protocol):
    """The part of a tokenizer that a stream needs."""

    def token_bytes(self, token: int, *, skip_special: bool = False) -> bytes: ...


class TextStream:
    """The text of one completion, piece by piece: the joined pieces are the whole text, exactly.

    Held back are bytes that may become a character (U+FFFD once they cannot, or at the end) and characters that may
    become a stop string. The text ends before the stop string whose end comes first, the longest of those that end
    there, or after it with `include_stop`. What follows is ignored. A stop string that ends within the first
    `min_tokens` tokens is text like any other.

    drop_space: a space at the very beginning was put there by the tokenizer and is no part of the text.
    stopped: the stop string that ended the text.
    """

    def __init__(
        self,
        tokenizer: TokenBytes,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special: bool = True,
        min_tokens: int = 0,
        drop_space: bool = False,
    ) -> None:
        if "" in stop:
            raise ValueError("a stop string must not be empty")
        self.stopped: str | None = None
        self._tokenizer, self._include_stop, self._skip_special = tokenizer, include_stop, skip_special
        self._drop_space = drop_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._root = self._state = automaton(stop)
        self._held = ""  # as long as the state is deep
        self._too_early = min_tokens  # tokens still to come in which no stop string may end

    def push(self, token: int) -> str:
        """The text that is certain now and was not before. Raises ValueError for an id outside the vocabulary."""
        data = self._tokenizer.token_bytes(token, skip_special=self._skip_special)
        if self._drop_space and data:
            data, self._drop_space = data.removeprefix(b" "), False
        text = self._read(self._decoder.decode(data))
        self._too_early -= 1
        return text

    def finish(self) -> str:
        """The rest, when no more tokens come for whatever reason."""
        rest = self._read(self._decoder.decode(b"", final=True)) + self._held
        self._held, self._state = "", self._root
        return rest

    def _read(self, text: str) -> str:
        if self.stopped is not None:
            return ""
        if not self._root.children:
            return text
        state = self._state
        for end, letter in enumerate(text, start=1):
            state = state.after(letter)
            match = state.match
            if match is None:
                continue
            if self._too_early > 0:
                state = _unfinished(state)
                continue
            self.stopped, seen = match, self._held + text[:end]
            self._held = ""
            return seen if self._include_stop else seen[: -len(match)]
        self._state = state
        seen = self._held + text
        certain = len(seen) - state.depth
        self._held = seen[certain:]
        return seen[:certain]


def _unfinished(state: Node[str]) -> Node[str]:
    """The longest suffix of it that may still become a stop string."""
    while state.fallback is not None and not state.children:
        state = state.fallback
    return state
