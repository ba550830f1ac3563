"""A tokenizer from the metadata of a GGUF file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import cast

import numpy as np

from vivace.model.errors import ModelError
from vivace.model.keys import Keys
from vivace.model.tokenizer.byte_level import PRE_TOKENIZERS, byte_level_bpe, encoder
from vivace.model.tokenizer.sentencepiece import SentencePieceBPE
from vivace.model.tokenizer.tokenizer import EncodePlain, Tokenizer
from vivace.model.tokenizer.vocabulary import (
    ENDS_A_TURN,
    GGUF_END_KEYS,
    Kind,
    SpacePrefix,
    Spelling,
    Swallows,
    Vocabulary,
)

_SOURCE = "GGUF metadata"
_NAMED = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def tokenizer_from_gguf(metadata: Mapping[str, object]) -> Tokenizer:
    keys = Keys(_SOURCE, metadata, "tokenizer.ggml.")
    tokens = cast(list[str], _list(keys, "tokens", str))
    kinds = cast(list[int], _list(keys, "token_type", int, [int(Kind.NORMAL)] * len(tokens)))
    if len(kinds) != len(tokens):
        keys.fail("token_type", f"has {len(kinds)} entries for {len(tokens)} tokens")
    aliases: dict[str, int] = {}
    swallows: dict[int, Swallows] = {}
    space_prefix = None
    model, normalisation = keys.text("model"), None
    encode_plain: EncodePlain
    spelling: Spelling
    if model == "gpt2":
        name = keys.text("pre", "default")
        if name not in PRE_TOKENIZERS:
            supported = ", ".join(sorted(PRE_TOKENIZERS))
            raise ModelError(f"{_SOURCE}: pre-tokenizer '{name:.60}' is not supported; supported: {supported}")
        pre = PRE_TOKENIZERS[name]
        spelling = "byte_level"
        _check_unique(tokens)
        encode_plain = encoder(
            byte_level_bpe(tokens, cast(list[str], _list(keys, "merges", str)), pre, _SOURCE), _SOURCE
        )
        normalisation, adds_bos = pre.normalisation, pre.adds_bos
    elif model == "llama":
        spelling, adds_bos = "sentencepiece", True
        if keys.flag("add_space_prefix", True):
            space_prefix = SpacePrefix(after_fixed=True, doubles=True)
        if metadata.get("general.architecture") == "phi3":
            swallows = _phi3_swallows(tokens, kinds)
        encode_plain, aliases = _sentencepiece(keys, tokens, kinds)
    else:
        raise ModelError(f"{_SOURCE}: tokenizer model '{model:.60}' is not supported; supported: gpt2, llama")

    def token(key: str) -> int | None:
        return keys.integer(key, low=0, high=len(tokens) - 1) if key in keys else None

    named = {name: tokens[found] for name, key in _NAMED.items() if (found := token(key)) is not None}
    ends = [found for key in GGUF_END_KEYS if (found := token(key)) is not None]
    ends += [i for i, kind in enumerate(kinds) if kind == Kind.CONTROL and tokens[i] in ENDS_A_TURN]
    adds_bos = keys.flag("add_bos_token", adds_bos)
    if adds_bos and token("bos_token_id") is None:
        keys.fail("add_bos_token", "asks for a BOS token, but 'bos_token_id' is absent")
    template = metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise ModelError(f"{_SOURCE}: 'tokenizer.chat_template' is not a string")
    return Tokenizer(
        Vocabulary(tokens, kinds, spelling),
        encode_plain,
        aliases=aliases,
        swallows=swallows,
        space_prefix=space_prefix,
        normalisation=normalisation,
        bos_id=token("bos_token_id"),
        eos_ids=tuple(dict.fromkeys(ends)),
        adds_bos=adds_bos,
        adds_eos=keys.flag("add_eos_token", False),
        named_tokens=named,
        chat_template=template,
    )


def _sentencepiece(keys: Keys, tokens: list[str], kinds: list[int]) -> tuple[EncodePlain, dict[str, int]]:
    """The encoder, and other spellings of user-defined tokens.

    The order of the tokens is the order of the joins, unless `scores` give another one. Gemma's user-defined runs of ▁
    stand in GGUF files as runs of spaces. The model's own tokenizer matches them in a text as ▁; runs of spaces become
    these tokens by joining.
    """
    aliases: dict[str, int] = {}
    by_score = _ranks_by_score(keys, kinds)
    for token, kind in enumerate(kinds):
        text = tokens[token]
        if kind == Kind.USER_DEFINED and text.strip(" ") == "" and text:
            aliases["▁" * len(text)] = token
            kinds[token] = Kind.NORMAL
            tokens[token] = "▁" * len(text)
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    _check_unique(tokens, len(ids))
    byte_ids = [ids.get(f"<0x{byte:02X}>", -1) for byte in range(256)]
    if -1 in byte_ids or any(kinds[token] != Kind.BYTE for token in byte_ids):
        raise ModelError(f"{_SOURCE}: the tokens <0x00> to <0xFF> for single bytes are not all there")
    ranks = ids | {tokens[token]: rank for token, rank in by_score.items()}
    for token, kind in enumerate(kinds):
        if kind in (Kind.CONTROL, Kind.UNUSED, Kind.UNKNOWN):
            del ranks[tokens[token]]
    return SentencePieceBPE(ids, ranks, byte_ids), aliases


def _ranks_by_score(keys: Keys, kinds: list[int]) -> dict[int, int]:
    """The places that normal tokens have among each other, where a higher score after a lower one changes their order.

    Vocabularies that were widened after training are so. Scores of other kinds of tokens are made up by exporters.
    """
    if "scores" not in keys:
        return {}
    scores = np.array(keys.items("scores"))
    if scores.shape != (len(kinds),) or scores.dtype != np.float64:
        keys.fail("scores", f"is not a list of {len(kinds)} numbers, one for each token")
    normal = np.flatnonzero(np.array(kinds) == Kind.NORMAL)
    ordered = normal[np.argsort(-scores[normal], kind="stable")]
    return {} if (ordered == normal).all() else dict(zip(ordered.tolist(), normal.tolist(), strict=True))


def _phi3_swallows(tokens: list[str], kinds: list[int]) -> dict[int, Swallows]:
    """Phi-3's own tokenizer lets these take the white space after them; GGUF files have no place to say so."""
    keeps = {"<unk>", "<s>", "<|endoftext|>"}
    fixed = (Kind.CONTROL, Kind.USER_DEFINED)
    after = Swallows(before=False, after=True)
    return {i: after for i, kind in enumerate(kinds) if kind in fixed and tokens[i] not in keeps}


def _list(keys: Keys, key: str, kind: type, default: list[object] | None = None) -> list[object]:
    if key not in keys:
        if default is None:
            raise ModelError(f"{_SOURCE}: 'tokenizer.ggml.{key}' is absent")
        return default
    values = keys.items(key)
    if not values or not all(type(value) is kind for value in values):
        keys.fail(key, f"is not a list of {kind.__name__}")
    return list(values)


def _check_unique(tokens: list[str], unique: int | None = None) -> None:
    if (len(set(tokens)) if unique is None else unique) != len(tokens):
        (twice, _), *_ = Counter(tokens).most_common(1)
        raise ModelError(f"{_SOURCE}: token {twice!r:.60} appears twice")
