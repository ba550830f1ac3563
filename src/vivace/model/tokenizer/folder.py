"""A tokenizer from the files of a Hugging Face folder."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivace.model.errors import ModelError
from vivace.model.keys import Keys
from vivace.model.tokenizer.byte_level import encoder, library_errors
from vivace.model.tokenizer.tokenizer import Tokenizer
from vivace.model.tokenizer.vocabulary import ENDS_A_TURN, Kind, SpacePrefix, Spelling, Swallows, Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

_LOOKS_LIKE_CONTROL = re.compile(r"<\|.*\|>")
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_MOST_TOKENS = 1 << 24
_SENTENCEPIECE_DECODER = ["Replace", "ByteFallback", "Fuse"]


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """Text is split and joined as tokenizer.json says; tokens that look like <|control|> are control tokens."""
    from tokenizers import Tokenizer as Backend

    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ModelError(f"{folder}: has no tokenizer.json")
    with library_errors(f"{file}: cannot be read"):
        whole = Backend.from_file(str(file))
    parts = json.loads(whole.to_str())
    spelling, drops_space = _spelling(file, parts["decoder"] or {})
    _check_templates(file, parts["post_processor"] or {})
    plain = Backend(whole.model)  # without the added tokens, which Tokenizer matches itself
    if whole.normalizer is not None:
        plain.normalizer = whole.normalizer
    if whole.pre_tokenizer is not None:
        plain.pre_tokenizer = whole.pre_tokenizer
    space_prefix = _take_space_prefix(plain, parts)
    if drops_space != (space_prefix is not None):
        raise ModelError(f"{file}: of its encoder and decoder only one knows of a space before texts; not supported")

    values = _read(folder / "tokenizer_config.json")
    config = Keys(str(folder / "tokenizer_config.json"), values)
    model = Keys(str(folder / "config.json"), _read(folder / "config.json"))
    all_ids, all_added = whole.get_vocab(with_added_tokens=True), whole.get_added_tokens_decoder()
    highest = max((token for token in all_ids.values() if token not in all_added), default=0)
    size = model.integer("vocab_size", min(highest + 1, _MOST_TOKENS))
    if highest >= size:
        raise ModelError(f"{file}: has a token {highest}, but the vocabulary of the model is {size}")
    # Text models may have the added tokens of a larger one, for images, but no embedding of them.
    ids = {text: token for text, token in all_ids.items() if token < size}
    tokens, kinds = [""] * size, [int(Kind.UNUSED)] * size
    swallows: dict[int, Swallows] = {}
    for text, token in ids.items():
        tokens[token] = text
        kinds[token] = Kind.BYTE if spelling == "sentencepiece" and _BYTE.fullmatch(text) else Kind.NORMAL
    for token, added in all_added.items():
        if token >= size:
            continue
        if added.single_word:
            raise ModelError(f"{file}: added token {added.content!r:.60} is matched as a word only; not supported")
        if added.lstrip or added.rstrip:
            swallows[token] = Swallows(before=added.lstrip, after=added.rstrip)
        control = added.special or _LOOKS_LIKE_CONTROL.fullmatch(added.content)
        kinds[token] = Kind.CONTROL if control else Kind.USER_DEFINED
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    named = {name: found for name in names if (found := _token(config, values, name)) is not None}
    for name, token_text in named.items():
        if token_text not in ids:
            config.fail(name, f"is {token_text!r:.60}, which is no token")
    bos, eos = named.get("bos_token"), named.get("eos_token")
    before, after = _added_around(whole, None if bos is None else ids[bos], None if eos is None else ids[eos])
    ends = [] if eos is None else [ids[eos]]
    generation = _read(folder / "generation_config.json").get("eos_token_id")
    ends += [end for end in (generation if isinstance(generation, list) else [generation]) if isinstance(end, int)]
    ends += [i for i, kind in enumerate(kinds) if kind == Kind.CONTROL and tokens[i] in ENDS_A_TURN]
    if any(not 0 <= end < size for end in ends):
        raise ModelError(f"{folder}: an end token is outside the vocabulary of {size}")
    return Tokenizer(
        Vocabulary(tokens, kinds, spelling),
        encoder(plain, str(file)),
        swallows=swallows,
        space_prefix=space_prefix,
        normalisation="NFC" if type(whole.normalizer).__name__ == "NFC" else None,
        bos_id=None if bos is None else ids[bos],
        eos_ids=tuple(dict.fromkeys(ends)),
        adds_bos=before,
        adds_eos=after,
        named_tokens=named,
        chat_template=_chat_template(folder, config),
    )


def _spelling(file: Path, decoder: Mapping[str, Any]) -> tuple[Spelling, bool]:
    """How the decoder reads tokens, and whether it drops a space at the beginning.

    Only the two forms whose texts are their tokens' bytes in a row are supported.
    """
    steps = decoder.get("decoders", [decoder])
    names = [step.get("type") for step in steps]
    if names == ["ByteLevel"]:
        return "byte_level", False
    drops = names[-1:] == ["Strip"] and (steps[-1]["content"], steps[-1]["start"], steps[-1]["stop"]) == (" ", 1, 0)
    if names[: len(names) - drops] == _SENTENCEPIECE_DECODER and _replaces(steps[0], "▁", " "):
        return "sentencepiece", drops
    raise ModelError(f"{file}: its decoder ({', '.join(map(str, names))}) is not supported")


def _take_space_prefix(plain: Backend, parts: Mapping[str, Any]) -> SpacePrefix | None:
    """The space that the tokenizer puts before texts; `plain` does not put it any more."""
    from tokenizers import normalizers, pre_tokenizers

    normalizer, pre_tokenizer = parts["normalizer"] or {}, parts["pre_tokenizer"] or {}
    steps = normalizer.get("normalizers", [])
    if len(steps) == 2 and steps[0] == {"type": "Prepend", "prepend": "▁"} and _replaces(steps[1], " ", "▁"):
        plain.normalizer = normalizers.Replace(" ", "▁")
        return SpacePrefix(after_fixed=True, doubles=True)
    if pre_tokenizer.get("type") == "Metaspace" and pre_tokenizer["prepend_scheme"] != "never":
        plain.pre_tokenizer = pre_tokenizers.Metaspace(
            pre_tokenizer["replacement"], prepend_scheme="never", split=pre_tokenizer["split"]
        )
        return SpacePrefix(after_fixed=pre_tokenizer["prepend_scheme"] == "always", doubles=False)
    return None


def _replaces(step: Mapping[str, Any], pattern: str, content: str) -> bool:
    return step["type"] == "Replace" and step["pattern"] == {"String": pattern} and step["content"] == content


def _check_templates(file: Path, processor: Mapping[str, Any]) -> None:
    """The library panics over templates with tokens that their own tables lack."""
    for part in processor.get("processors", ()):
        _check_templates(file, part)
    for piece in (*processor.get("single", ()), *processor.get("pair", ())):
        name = piece.get("SpecialToken", {}).get("id")
        if name is not None and name not in processor["special_tokens"]:
            raise ModelError(
                f"{file}: its post-processor puts {name!r:.60} around texts, but does not say what that is"
            )


def _added_around(whole: Backend, bos: int | None, eos: int | None) -> tuple[bool, bool]:
    """Whether the post-processor puts BOS before and EOS after a text."""
    with library_errors("the post-processor of the tokenizer fails"):
        ids = whole.encode("").ids
    return bos is not None and ids[:1] == [bos], eos is not None and ids[-1:] == [eos] and ids != [bos]


def _token(config: Keys, values: Mapping[str, object], name: str) -> str | None:
    """The text of a named token, which may be given with its properties."""
    if name not in config:
        return None
    return config.section(name).text("content") if isinstance(values[name], Mapping) else config.text(name)


def _chat_template(folder: Path, config: Keys) -> str | None:
    """From chat_template.jinja, or tokenizer_config.json; of several named ones, the default."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except ValueError:
            raise ModelError(f"{file}: is not UTF-8") from None
    if "chat_template" not in config:
        return None
    if config.is_list("chat_template"):
        named = [entry for entry in config.items("chat_template") if isinstance(entry, Mapping)]
        value = next((entry.get("template") for entry in named if entry.get("name") == "default"), None)
        if not isinstance(value, str):
            config.fail("chat_template", "has no template named 'default'")
        return value
    return config.text("chat_template")


def _read(file: Path) -> Mapping[str, object]:
    """The object in a JSON file; empty when there is no such file."""
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file}: is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{file}: is not a JSON object")
    return value
