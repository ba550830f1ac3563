"""What each token id stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Literal

# Keys of GGUF files (after "tokenizer.ggml.") that name ends of a message or of the text; a model may have several.
GGUF_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Control tokens by these names end a turn even where the file names another one as EOS.
ENDS_A_TURN = frozenset(
    ("<|im_end|>", "<|endoftext|>", "<end_of_turn>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>", "<|end|>")
)

Spelling = Literal["byte_level", "sentencepiece"]


@dataclass(frozen=True)
class SpacePrefix:
    """A space that is put before texts, so that their first word is spelled like the others."""

    after_fixed: bool  # also before the text after a control or user-defined token
    doubles: bool  # even before a text that begins with a space


@dataclass(frozen=True)
class Swallows:
    """White space beside a token that belongs to it."""

    before: bool
    after: bool


class Kind(IntEnum):
    """The numbers are those of `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4  # matched in the text before anything else, and shown like any text
    UNUSED = 5
    BYTE = 6  # spelled <0x00> to <0xFF>


@cache
def byte_letters() -> tuple[str, ...]:
    """The letter that stands for each byte in byte-level vocabularies.

    Printable Latin-1 stands for itself; the other 68 bytes, in order, for the letters from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in printable else next(others)) for byte in range(256))


@cache
def _byte_of_letter() -> dict[str, int]:
    return {letter: byte for byte, letter in enumerate(byte_letters())}


class Vocabulary:
    """Tokens by id, as their file spells them: byte-level letters, or text with ▁ for a space."""

    def __init__(self, tokens: Sequence[str], kinds: Sequence[int], spelling: Spelling) -> None:
        self.tokens, self.kinds, self.spelling = tokens, kinds, spelling

    def __len__(self) -> int:
        return len(self.tokens)

    def ids(self, *kinds: Kind) -> list[int]:
        return [token for token, kind in enumerate(self.kinds) if kind in kinds]

    def content(self, token: int) -> bytes:
        """The bytes that a token adds to a text. Tokens that fill the vocabulary up add none."""
        text, kind = self.tokens[token], self.kinds[token]
        if kind == Kind.UNUSED:
            return b""
        if kind == Kind.BYTE:
            return bytes((int(text[3:5], 16),))
        if kind not in (Kind.NORMAL, Kind.UNKNOWN):
            return text.encode()
        if self.spelling == "sentencepiece":
            return text.replace("▁", " ").encode()
        table = _byte_of_letter()
        try:
            return bytes([table[letter] for letter in text])
        except KeyError:  # a token that was added to the vocabulary as it is
            return text.encode()
