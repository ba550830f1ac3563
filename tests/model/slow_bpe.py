"""Byte-pair encoding written down from its definition: slow, and independent of any library's tokenizers.

The splitting of texts is that of the models' own tokenizer.json files.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import regex

_GPT2 = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
_QWEN2 = regex.compile(
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|'ſ"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_LLAMA3 = regex.compile(
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|'ſ"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_O200K = regex.compile(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?:(?i:'s|'t|'re|'ve|'m|'ll|'d)|'ſ)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?:(?i:'s|'t|'re|'ve|'m|'ll|'d)|'ſ)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SEED_CODER = regex.compile(
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|'ſ"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = regex.compile(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

Words = Callable[[str], list[str]]


def smollm_words(text: str) -> list[str]:
    """Every numeric character alone, and GPT-2's words between them."""
    return [word for part in regex.split(r"(\p{N})", text) for word in _GPT2.findall(part)]


def qwen2_words(text: str) -> list[str]:
    return _QWEN2.findall(unicodedata.normalize("NFC", text))


gpt2_words: Words = _GPT2.findall
llama3_words: Words = _LLAMA3.findall
o200k_words: Words = _O200K.findall
seed_coder_words: Words = _SEED_CODER.findall
tekken_words: Words = _TEKKEN.findall


def join_pairs(pieces: list[str], ranks: Mapping[tuple[str, str], int]) -> list[str]:
    """Joins the neighbours of the lowest rank, the leftmost first, as long as there are any."""
    pieces = list(pieces)
    while True:
        ranked = [(ranks[pair], i) for i, pair in enumerate(pairwise(pieces)) if pair in ranks]
        if not ranked:
            return pieces
        _, i = min(ranked)
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


def split_at(text: str, fixed: Sequence[str]) -> list[tuple[bool, str]]:
    """(is one of `fixed`, part) in order; at each place the longest of `fixed`."""
    fixed = [word for word in fixed if word in text]
    parts: list[tuple[bool, str]] = []
    plain = ""
    while text:
        found = max((word for word in fixed if text.startswith(word)), key=len, default="")
        if found:
            parts += [(False, plain), (True, found)]
            plain = ""
        else:
            plain += text[0]
        text = text[len(found) or 1 :]
    return [part for part in [*parts, (False, plain)] if part[1]]


def _byte_letters() -> list[str]:
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) if byte in shown else chr(256 + hidden.index(byte)) for byte in range(256)]


class SlowByteLevel:
    """Bytes without a token are dropped: SmolLM2 lacks some control characters."""

    def __init__(self, tokens: Sequence[str], merges: Sequence[str], fixed: Sequence[str], words: Words) -> None:
        self.ids = {text: i for i, text in enumerate(tokens)}
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self.fixed, self.words, self.letters = fixed, words, _byte_letters()
        self.joined: dict[str, list[str]] = {}

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for whole, part in split_at(text, self.fixed):
            if whole:
                ids.append(self.ids[part])
                continue
            for word in self.words(part):
                if word not in self.joined:
                    self.joined[word] = join_pairs([self.letters[byte] for byte in word.encode()], self.ranks)
                ids += [self.ids[piece] for piece in self.joined[word] if piece in self.ids]
        return ids


class SlowSentencePiece:
    """Merges are all ways to cut a token into two tokens, in the order of the tokens; whole texts are one word."""

    def __init__(self, tokens: Sequence[str], fixed: Sequence[str]) -> None:
        self.ids = {text: i for i, text in enumerate(tokens)}
        pairs = [
            (text[:i], text[i:])
            for text in tokens
            for i in range(1, len(text))
            if text[:i] in self.ids and text[i:] in self.ids
        ]
        self.ranks = {pair: rank for rank, pair in enumerate(pairs)}
        self.fixed = fixed

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for whole, part in split_at(text, self.fixed):
            pieces = [part] if whole else join_pairs(list(part.replace(" ", "▁")), self.ranks)
            for piece in pieces:
                known = self.ids.get(piece)
                ids += [self.ids[f"<0x{byte:02X}>"] for byte in piece.encode()] if known is None else [known]
        return ids
