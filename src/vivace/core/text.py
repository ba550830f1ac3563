"""Token ids to text while they come, and where a stop string ends it."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence
from typing import Protocol


class TokenBytes(Protocol):
    """The part of a tokenizer that a stream needs."""

    def token_bytes(self, token: int, *, skip_special: bool = False) -> bytes: ...


class _Node:
    """A prefix of some stop strings. `stop` is the longest stop string that ends with this prefix."""

    __slots__ = ("children", "depth", "fallback", "stop")

    def __init__(self, depth: int) -> None:
        self.children: dict[str, _Node] = {}
        self.depth = depth
        self.fallback: _Node | None = None  # the longest proper suffix that is a prefix too; None for the root
        self.stop: str | None = None


def _automaton(stops: Sequence[str]) -> _Node:
    """The Aho-Corasick automaton of `stops`."""
    root = _Node(0)
    for stop in stops:
        node = root
        for letter in stop:
            node = node.children.setdefault(letter, _Node(node.depth + 1))
        node.stop = stop
    queue = deque([root])
    while queue:
        node = queue.popleft()
        for letter, child in node.children.items():
            child.fallback = root if node is root else _next(node.fallback, letter)
            if child.stop is None:
                child.stop = child.fallback.stop
            queue.append(child)
    return root


def _next(node: _Node | None, letter: str) -> _Node:
    """The state after `letter`."""
    while node is not None:
        child = node.children.get(letter)
        if child is not None:
            return child
        if node.fallback is None:
            return node
        node = node.fallback
    raise AssertionError("only the root has no fallback, and it is handled before")


class TextStream:
    """The text of one completion, piece by piece: the joined pieces are the whole text, exactly.

    Held back are bytes that may become a character (U+FFFD once they cannot, or at the end) and characters that may
    become a stop string. The text ends before the stop string whose end comes first, the longest of those that end
    there, or after it with `include_stop`. What follows is ignored.

    stopped: the stop string that ended the text.
    """

    def __init__(
        self, tokenizer: TokenBytes, stop: Sequence[str] = (), include_stop: bool = False, skip_special: bool = True
    ) -> None:
        if "" in stop:
            raise ValueError("a stop string must not be empty")
        self.stopped: str | None = None
        self._tokenizer, self._include_stop, self._skip_special = tokenizer, include_stop, skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._root = self._state = _automaton(stop)
        self._held = ""  # as long as the state is deep

    def push(self, token: int) -> str:
        """The text that is certain now and was not before. Raises ValueError for an id outside the vocabulary."""
        return self._read(self._decoder.decode(self._tokenizer.token_bytes(token, skip_special=self._skip_special)))

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
            state = _next(state, letter)
            if state.stop is not None:
                self.stopped = state.stop
                seen = self._held + text[:end]
                self._held = ""
                return seen if self._include_stop else seen[: -len(self.stopped)]
        self._state = state
        seen = self._held + text
        certain = len(seen) - state.depth
        self._held = seen[certain:]
        return seen[:certain]
