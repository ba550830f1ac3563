"""Byte-level BPE on the `tokenizers` library: how the models of each GGUF pre-tokenizer name split their texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vivace.model.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

_ENDS = r"'s|'t|'re|'ve|'m|'ll|'d"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_REST_ON_ITS_LINE = _REST.replace(r"+[\r\n]*", "+")
_REST_WITH_SLASH = _REST.replace(r"[\r\n]*", r"[\r\n/]*")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _words(digits: str, rest: str = _REST) -> str:
    """Words with the sign before them, English endings, and numbers in groups of `digits`."""
    return rf"(?i:{_ENDS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|{rest}"


def _cased_words(ending: str, digits: str) -> str:
    """Words that also begin where a capital follows a small letter."""
    begin = r"[^\r\n\p{L}\p{N}]?"
    return rf"{begin}{_UPPER}*{_LOWER}+{ending}|{begin}{_UPPER}+{_LOWER}*{ending}|{digits}|{_REST_WITH_SLASH}"


@dataclass(frozen=True)
class PreTokenizer:
    """How a text is cut into words before byte pairs are joined within each."""

    split: str | None = None  # regular expression of the words; None: the one of GPT-2
    single_digits: bool = False  # every numeric character is first cut off
    normalisation: Literal["NFC"] | None = None
    whole_words: bool = False  # a word that is a token stays whole, whatever its merges would make
    adds_bos: bool = False  # where the file does not say


_LLAMA3 = PreTokenizer(split=_words(r"\p{N}{1,3}"), whole_words=True, adds_bos=True)
PRE_TOKENIZERS = {
    "smollm": PreTokenizer(single_digits=True),
    "qwen2": PreTokenizer(split=_words(r"\p{N}"), normalisation="NFC"),
    "deepseek-r1-qwen": PreTokenizer(split=_words(r"\p{N}")),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), _LLAMA3),
    "dbrx": PreTokenizer(split=_LLAMA3.split),  # Phi-4
    "gpt-4o": PreTokenizer(split=_cased_words(f"(?i:{_ENDS})?", r"\p{N}{1,3}")),  # Phi-4-mini
    "tekken": PreTokenizer(split=_cased_words("", r"\p{N}"), whole_words=True, adds_bos=True),  # Mistral Nemo
    "seed-coder": PreTokenizer(split=_words(r"\p{N}", _REST_ON_ITS_LINE)),  # Seed-OSS
    "gpt-2": PreTokenizer(),
}


@contextmanager
def library_errors(fact: str) -> Iterator[None]:
    """Makes what the library raises a ModelError: plain Exceptions, and its panics, which are not even that."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise ModelError(f"{fact}: {error!s:.200}") from None


def byte_level_bpe(tokens: Sequence[str], merges: Sequence[str], pre: PreTokenizer, source: str) -> Backend:
    """`merges`: two tokens with one space between them, the first to be joined first.

    Bytes that are no token are dropped, as the models' own tokenizers do; SmolLM2 lacks some control characters.
    """
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    pairs: list[tuple[str, str]] = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        if not left or not right or " " in right:
            raise ModelError(f"{source}: merge {merge!r:.60} is not two tokens with a space between them")
        pairs.append((left, right))
    if len(max(merges, key=len, default="")) - 1 > len(max(tokens, key=len, default="")):
        # The library would panic, with lines of its own on standard error.
        raise ModelError(f"{source}: its merges do not fit its tokens: one makes a token longer than any")
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    with library_errors(f"{source}: its merges do not fit its tokens"):
        backend = Tokenizer(models.BPE(ids, pairs, ignore_merges=pre.whole_words))
    if pre.normalisation == "NFC":
        backend.normalizer = normalizers.NFC()
    steps: list[pre_tokenizers.PreTokenizer] = []
    if pre.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if pre.split is not None:
        steps.append(pre_tokenizers.Split(Regex(pre.split), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre.split is None))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return backend


def encoder(backend: Backend, source: str) -> Callable[[str], list[int]]:
    """`backend` as a function from text to ids, without special tokens."""

    def encode(text: str) -> list[int]:
        with library_errors(f"{source}: cannot encode the text"):
            ids: list[int] = backend.encode(text, add_special_tokens=False).ids
        return ids

    return encode
