"""Byte-pair encoding by vocabulary order, as SentencePiece does it: no list of merges, so nothing to build."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import pairwise

_CACHED_WORDS = 1 << 16
_CACHED_LETTERS = 64  # longer words are rarely seen twice


class SentencePieceBPE:
    """Joins the two neighbours whose join has the lowest rank, the leftmost first, until no join is a token.

    tokens: text (▁ for a space) -> id; the rank of a join is `ranks[text]`, absent for a token that is never made by
    joining. byte_ids: the 256 tokens for the UTF-8 bytes of characters that are no token.
    """

    def __init__(self, tokens: Mapping[str, int], ranks: Mapping[str, int], byte_ids: list[int]) -> None:
        self._tokens, self._ranks, self._byte_ids = tokens, ranks, byte_ids
        # A text may be cut before ▁ wherever no token goes on from the character before it.
        inside = [text for text in ranks if "▁" in text.lstrip("▁")]
        before = {left for text in inside for left, right in pairwise(text) if right == "▁"}
        kept = "".join(re.escape(letter) for letter in sorted(before | {"▁"}))
        self._words = re.compile(f"(?<=[^{kept}])(?=▁)")
        self._encode_short = lru_cache(_CACHED_WORDS)(self._encode_word)

    def __call__(self, text: str) -> list[int]:
        ids: list[int] = []
        for word in self._words.split(text.replace(" ", "▁")):
            ids += self._encode_short(word) if len(word) <= _CACHED_LETTERS else self._encode_word(word)
        return ids

    def _encode_word(self, word: str) -> tuple[int, ...]:
        tokens, ranks = self._tokens, self._ranks
        pieces = list(word)
        known = [piece in tokens for piece in pieces]
        after = list(range(1, len(word) + 1))  # the next piece, len(word) at the end
        before = list(range(-1, len(word) - 1))
        joins: list[tuple[int, int, str]] = []  # (rank, position of the left piece, joined text)
        for i in range(len(word) - 1):
            if known[i] and known[i + 1]:
                joined = word[i : i + 2]
                rank = ranks.get(joined)
                if rank is not None:
                    joins.append((rank, i, joined))
        heapify(joins)
        while joins:
            _, left, joined = heappop(joins)
            right = after[left]
            if right == len(word) or not pieces[left] or pieces[left] + pieces[right] != joined:
                continue  # one of the two has been joined with another neighbour since
            pieces[left], pieces[right] = joined, ""
            after[left] = right = after[right]
            if right < len(word):
                before[right] = left
                if known[right]:
                    wider = joined + pieces[right]
                    rank = ranks.get(wider)
                    if rank is not None:
                        heappush(joins, (rank, left, wider))
            previous = before[left]
            if previous >= 0 and known[previous]:
                wider = pieces[previous] + joined
                rank = ranks.get(wider)
                if rank is not None:
                    heappush(joins, (rank, previous, wider))
        ids: list[int] = []
        for piece in pieces:
            if not piece:
                continue
            token = tokens.get(piece)
            if token is not None:
                ids.append(token)
            else:
                ids += [self._byte_ids[byte] for byte in piece.encode()]
        return tuple(ids)
