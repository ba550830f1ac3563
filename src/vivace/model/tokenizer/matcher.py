"""Finding the tokens that are matched as whole strings: control tokens and user-defined ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

Accept = Callable[[int, int, int], bool]  # (token, start, end) -> whether it may be matched there


class Matcher:
    """Splits texts at the strings of `tokens`: at each place the longest one, from left to right."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self._tokens = {text: token for text, token in tokens.items() if text}
        self._lengths: dict[str, list[int]] = {}  # by first character, the longest first
        for text in self._tokens:
            self._lengths.setdefault(text[0], []).append(len(text))
        for first, lengths in self._lengths.items():
            self._lengths[first] = sorted(set(lengths), reverse=True)
        firsts = "".join(re.escape(first) for first in self._lengths)
        self._first = re.compile(f"[{firsts}]") if firsts else None

    def find(self, text: str, accept: Accept | None = None) -> Iterator[tuple[int, int, int]]:
        """(token, start, end) of each match in order; `accept` may refuse one, and a shorter one is tried."""
        if self._first is None:
            return
        found = self._first.search(text)
        while found:
            start = end = found.start()
            for length in self._lengths[text[start]]:
                token = self._tokens.get(text[start : start + length])
                if token is not None and (accept is None or accept(token, start, start + length)):
                    end = start + length
                    yield token, start, end
                    break
            found = self._first.search(text, max(end, start + 1))
