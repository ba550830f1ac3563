"""Tokenizers against two others: the `transformers` library's, and slow ones written from the definition."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from slow_bpe import (
    SlowByteLevel,
    SlowSentencePiece,
    gpt2_words,
    llama3_words,
    o200k_words,
    qwen2_words,
    seed_coder_words,
    smollm_words,
    tekken_words,
)
from varied_texts import varied_texts

from vivace.core.text import TextStream
from vivace.model.errors import ModelError
from vivace.model.load.gguf import GGUFFile
from vivace.model.tokenizer import Tokenizer
from vivace.model.tokenizer.byte_level import PRE_TOKENIZERS, byte_level_bpe

MODELS = Path(os.environ.get("VIVACE_MODELS") or Path.home() / ".cache" / "vivace" / "models")
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1"
QWEN2 = ("Qwen2.5-Coder-0.5B-Instruct.Q4_K_M", "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M")
GEMMA3 = "gemma-3-270m.Q4_K_M"
REAL = (SMOLLM2, QWEN2[0], GEMMA3)
CONTROL, USER_DEFINED = 3, 4


def respelled(token: str) -> str:
    """Runs of spaces in Gemma's GGUF files are runs of ▁ in its own."""
    return token if token.strip(" ") else "▁" * len(token)


@cache
def metadata(name: str):
    path = MODELS / f"{name}.gguf"
    if not path.exists():
        pytest.skip(f"{path.name} is not in {MODELS}")
    return GGUFFile(path).metadata


@cache
def tokenizer(name: str) -> Tokenizer:
    return Tokenizer.from_gguf(metadata(name))


@cache
def slow(name: str, kinds: tuple[int, ...]) -> SlowByteLevel | SlowSentencePiece:
    values = metadata(name)
    tokens = [respelled(token) for token in values["tokenizer.ggml.tokens"]]
    fixed = [token for token, kind in zip(tokens, values["tokenizer.ggml.token_type"], strict=True) if kind in kinds]
    if name == GEMMA3:
        return SlowSentencePiece(tokens, fixed)
    words = smollm_words if name == SMOLLM2 else qwen2_words
    return SlowByteLevel(tokens, values["tokenizer.ggml.merges"], fixed, words)


@cache
def reference(name: str):
    """The tokenizer that `transformers` makes of the file, set right where it differs from the model's own.

    Its conversion forgets SmolLM2's single digits, Qwen2's NFC, and Gemma's added tokens of several ▁.
    """
    metadata(name)
    from tokenizers import AddedToken, normalizers, pre_tokenizers
    from transformers import AutoTokenizer

    made = AutoTokenizer.from_pretrained(MODELS, gguf_file=f"{name}.gguf")
    backend = made.backend_tokenizer
    if name == SMOLLM2:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    elif name in QWEN2:
        backend.normalizer = normalizers.NFC()
    else:
        backend.add_tokens([AddedToken("▁" * n, normalized=False) for n in range(2, 32)])
    return made


def differing(ours, theirs) -> list[tuple[str, object, object]]:
    assert len(set(varied_texts())) >= 2000
    return [(text, ours(text), theirs(text)) for text in varied_texts() if list(ours(text)) != list(theirs(text))]


@pytest.mark.models
@pytest.mark.parametrize("name", REAL)
class TestRealFiles:
    def test_ids_equal_the_slow_ones_without_control_tokens(self, name: str) -> None:
        made = tokenizer(name)
        oracle = slow(name, (USER_DEFINED,))
        assert not differing(lambda text: made.encode(text, add_special=False), oracle.encode)[:3]

    def test_ids_equal_the_slow_ones_with_control_tokens(self, name: str) -> None:
        made = tokenizer(name)
        oracle = slow(name, (CONTROL, USER_DEFINED))
        assert not differing(lambda text: made.encode(text, add_special=False, parse_special=True), oracle.encode)[:3]

    def test_ids_equal_those_of_transformers(self, name: str) -> None:
        made, other = tokenizer(name), reference(name)
        assert not differing(lambda text: made.encode(text, parse_special=True), other.encode)[:3]

    def test_decoding_equals_that_of_transformers(self, name: str) -> None:
        made, other = tokenizer(name), reference(name)
        for text in varied_texts():
            ids = made.encode(text, parse_special=True)
            for skip in (True, False):
                theirs = other.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
                assert made.decode(ids, skip_special=skip) == theirs

    def test_texts_come_back(self, name: str) -> None:
        made = tokenizer(name)
        missing = {byte for byte in range(128) if bytes((byte,)) not in single_bytes(name)}
        for text in varied_texts():
            if missing.isdisjoint(text.encode()) and "▁" not in text:
                assert made.decode(made.encode(text)) == made.normalise(text)

    def test_streams_equal_whole_texts(self, name: str) -> None:
        made = tokenizer(name)
        for text in varied_texts()[::7]:
            ids = made.encode(text)
            stream = TextStream(made)
            assert "".join(map(stream.push, ids)) + stream.finish() == made.decode(ids)

    def test_plain_text_gives_no_control_token(self, name: str) -> None:
        made = tokenizer(name)
        for text, token in made.control_texts.items():
            ids = made.encode(text, add_special=False)
            assert not any(map(made.is_control, ids))
            assert made.decode(ids) == text
            assert made.encode(text, add_special=False, parse_special=True) == [token]


@pytest.mark.models
def test_the_two_qwen2_files_have_the_same_tokenizer() -> None:
    small, large = map(metadata, QWEN2)
    keys = [key for key in small if key.startswith("tokenizer.ggml.")]
    assert keys
    assert all(small[key] == large[key] for key in keys)


@cache
def single_bytes(name: str) -> set[bytes]:
    made = tokenizer(name)
    return {made.token_bytes(token) for token in range(made.vocab_size)} | (
        {bytes((byte,)) for byte in range(256)} if name == GEMMA3 else set()
    )


@pytest.mark.models
def test_special_ids_of_the_real_files() -> None:
    smollm2, qwen2, gemma3 = tokenizer(SMOLLM2), tokenizer(QWEN2[0]), tokenizer(GEMMA3)
    assert (smollm2.bos_id, smollm2.eos_ids[0], smollm2.vocab_size) == (1, 2, 49152)
    assert (qwen2.bos_id, qwen2.eos_ids, qwen2.vocab_size) == (151643, (151645, 151643), 151936)
    assert (gemma3.bos_id, gemma3.eos_ids, gemma3.vocab_size) == (2, (1, 106), 262144)
    assert [made.encode("hi")[0] == made.bos_id for made in (smollm2, qwen2, gemma3)] == [False, False, True]
    assert qwen2.token_bytes(151930) == b""  # fills the vocabulary up
    assert gemma3.token_bytes(238 + 0xE6) == b"\xe6"
    assert gemma3.token_bytes(139) == b"   "


TINY_TEXT = "the cat sat on the mat; that's 123 and 45.\n\tdéjà vu, 日本 日本 <b>don't</b>  the   cat\r\n" * 3


@cache
def tiny(pre: str = "qwen2", bos: bool = False) -> dict[str, object]:
    """Metadata of a byte-level tokenizer trained on one sentence."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers, trainers

    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator([TINY_TEXT], trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet))
    made = json.loads(backend.to_str())["model"]
    tokens = sorted(made["vocab"], key=made["vocab"].get)
    extra = ["<|im_start|>", "<|im_end|>", "<tool>", "[PAD1]"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*tokens, *extra],
        "tokenizer.ggml.token_type": [1] * len(tokens) + [3, 3, 4, 5],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in made["merges"]],
        "tokenizer.ggml.bos_token_id": len(tokens),
        "tokenizer.ggml.eos_token_id": len(tokens) + 1,
        "tokenizer.ggml.add_bos_token": bos,
    }


def tiny_sentencepiece() -> dict[str, object]:
    """Metadata in which joins compete: several ways to the same token, tokens across ▁, runs of spaces."""
    words = [
        "▁t",
        "th",
        "he",
        "▁th",
        "▁the",
        "the",
        "ab",
        "bc",
        "abc",
        "aa",
        "aaa",
        "aaaa",
        "▁a",
        "b▁",
        "b▁a",
        "b>",
        "  ",
        "   ",
        "\n\n",
    ]
    letters = list("▁abcdefhinortu\n.é日<>|")
    fixed = ["<pad>", "<eos>", "<bos>", "<b>", "<a", "<ab>"]
    tokens = [*fixed, *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *words]
    kinds = [3, 3, 3, 4, 1, 3] + [6] * 256 + [1] * len(letters)
    kinds += [4 if word.isspace() else 1 for word in words]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_space_prefix": False,
    }


def fixed(values: dict[str, object], *kinds: int) -> list[str]:
    pairs = zip(values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"], strict=True)
    return [respelled(token) for token, kind in pairs if kind in kinds]


WORDS = {
    "smollm": smollm_words,
    "qwen2": qwen2_words,
    "llama-bpe": llama3_words,
    "gpt-4o": o200k_words,
    "tekken": tekken_words,
    "seed-coder": seed_coder_words,
    "gpt-2": gpt2_words,
}


@pytest.mark.parametrize(("pre", "words"), WORDS.items(), ids=list(WORDS))
def test_byte_level_without_files(pre: str, words) -> None:
    values = tiny(pre)
    made, tokens, merges = Tokenizer.from_gguf(values), values["tokenizer.ggml.tokens"], values["tokenizer.ggml.merges"]
    plain = SlowByteLevel(tokens, merges, fixed(values, 4), words)
    special = SlowByteLevel(tokens, merges, fixed(values, 3, 4), words)
    assert not differing(made.encode, plain.encode)[:3]
    assert not differing(lambda text: made.encode(text, parse_special=True), special.encode)[:3]
    assert all(made.decode(made.encode(text)) == made.normalise(text) for text in varied_texts())


@pytest.mark.parametrize(("pre", "words"), WORDS.items(), ids=list(WORDS))
def test_words_where_no_pair_is_joined(pre: str, words) -> None:
    """Ends of words that no merge of a small vocabulary would cross."""
    backend = byte_level_bpe(["a"], [], PRE_TOKENIZERS[pre], "x")

    def cut(text: str) -> list[str]:
        text = backend.normalizer.normalize_str(text) if backend.normalizer else text
        return [text[begin:end] for _, (begin, end) in backend.pre_tokenizer.pre_tokenize_str(text)]

    assert not differing(cut, words)[:3]


def test_a_word_that_is_a_token_stays_whole_where_it_should() -> None:
    values = tiny()
    values["tokenizer.ggml.tokens"] = [*values["tokenizer.ggml.tokens"][:-1], "Ġqq"]
    values["tokenizer.ggml.token_type"] = [*values["tokenizer.ggml.token_type"][:-1], 1]

    def encoded(pre: str) -> list[int]:
        made = Tokenizer.from_gguf(values | {"tokenizer.ggml.pre": pre})
        return made.encode("a qq", add_special=False)

    for pre in ("llama-bpe", "tekken"):
        assert encoded(pre)[-1] == len(values["tokenizer.ggml.tokens"]) - 1
    for pre in ("dbrx", "gpt-4o", "qwen2"):
        assert len(encoded(pre)) == len(encoded("llama-bpe")) + 2


def test_where_the_file_does_not_say_whether_texts_begin_with_bos() -> None:
    for pre, begins in (("llama-bpe", True), ("tekken", True), ("qwen2", False), ("dbrx", False)):
        values = tiny(pre) | {"tokenizer.ggml.add_bos_token": None}
        made = Tokenizer.from_gguf(values)
        assert (made.encode("the")[0] == made.bos_id) is begins
        assert (made.encode("")[:1] == [made.bos_id]) is begins


def llama_style(tmp_path: Path, scheme: str) -> tuple[Tokenizer, Any]:
    """A tokenizer that puts spaces before texts, as ours and as that of transformers; `scheme` of the newer form."""
    from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
    from tokenizers import Tokenizer as Backend
    from transformers import PreTrainedTokenizerFast

    values = tiny_sentencepiece()
    tokens = [token for token in values["tokenizer.ggml.tokens"] if token.strip(" ")]
    merges = list(SlowSentencePiece(tokens, []).ranks)
    ids = {token: i for i, token in enumerate(tokens)}
    backend = Backend(models.BPE(ids, merges, unk_token="<pad>", fuse_unk=True, byte_fallback=True))
    if scheme == "prepend":
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=False)
    strip = [] if scheme == "never" else [decoders.Strip(" ", 1, 0)]
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    backend.decoder = decoders.Sequence(steps)
    backend.post_processor = processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", ids["<bos>"])])
    backend.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in ("<pad>", "<eos>", "<bos>")]
    )
    backend.add_special_tokens([AddedToken("<ab>", special=True, normalized=False, rstrip=True)])
    backend.add_special_tokens([AddedToken("<b>", special=True, normalized=False, lstrip=True)])
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<bos>", "eos_token": "<eos>"}))
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": len(tokens)}))
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    return Tokenizer.from_folder(tmp_path), theirs


@pytest.mark.parametrize("scheme", ["prepend", "first", "always", "never"])
def test_spaces_before_texts(scheme: str, tmp_path: Path) -> None:
    ours, theirs = llama_style(tmp_path, scheme)

    @settings(max_examples=300, deadline=None)
    @example("")
    @example(" the")
    @example("<bos> the")
    @example("the<ab> \n the <b>the")
    @given(st.lists(st.sampled_from([*"ab▁ cthe\n<>日\u3000", "<ab>", "<b>", "<eos>", "the", " "]), max_size=12))
    def check(parts: list[str] | str) -> None:
        text = "".join(parts)
        ids = ours.encode(text, parse_special=True)
        assert ids == theirs.encode(text)
        for skip in (True, False):
            decoded = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert ours.decode(ids, skip_special=skip) == decoded
        plain = text.replace("<", "(")
        if not plain.startswith((" ", "▁")) or scheme in ("prepend", "never"):
            assert ours.decode(ours.encode(plain)) == plain.replace("▁", " ")
        stream = TextStream(ours, drop_space=ours.drops_space_after([]))
        streamed = "".join(stream.push(token) for token in ids) + stream.finish()
        assert streamed == ours.decode(ids)

    check()


def test_a_reply_begins_without_the_space_of_the_tokenizer(tmp_path: Path) -> None:
    ours, _ = llama_style(tmp_path, "prepend")
    prompt, reply = ours.encode("the<ab>\n", parse_special=True), ours.encode("the", add_special=False)

    def text(before: list[int]) -> str:
        stream = TextStream(ours, drop_space=ours.drops_space_after(before))
        return "".join(map(stream.push, reply)) + stream.finish()

    assert text(prompt) == text([]) == text([ours.bos_id]) == "the"
    assert text(prompt + reply) == " the"  # goes on after a word


def test_phi3_files_swallow_white_space_and_put_spaces() -> None:
    values = tiny_sentencepiece() | {"tokenizer.ggml.add_space_prefix": None, "general.architecture": "phi3"}
    made = Tokenizer.from_gguf(values)
    tokens = values["tokenizer.ggml.tokens"]
    bos, mark, word = tokens.index("<bos>"), tokens.index("<ab>"), tokens.index("▁the")
    assert made.encode("the<ab>\n the<ab>", parse_special=True) == [bos, word, mark, word, mark]
    other = Tokenizer.from_gguf(values | {"general.architecture": "llama"})
    newline, bar = tokens.index("\n"), tokens.index("▁")
    assert other.encode("<ab>\nthe", parse_special=True) == [bos, mark, bar, newline, tokens.index("the")]
    assert made.encode("") == [bos]


def test_spans_where_tokens_have_more_or_less_than_the_text() -> None:
    template = "{% for m in messages %}<ab>\n{{ m.content }}<eos>  \n{% endfor %}"
    values = tiny_sentencepiece() | {"tokenizer.ggml.add_space_prefix": None, "general.architecture": "phi3"}
    made = Tokenizer.from_gguf(values | {"tokenizer.chat_template": template})
    texts = ["the a", "bc the", "é", "the"]
    prompt = made.chat_prompt([{"role": "user", "content": text} for text in texts])
    assert [made.decode(prompt.ids[span.first : span.last + 1]) for span in prompt.spans] == texts


@settings(max_examples=500, deadline=None)
@example("a<ab>b")
@given(st.text("ab▁ cthe\n<>日é💥", max_size=40) | st.text(max_size=20))
def test_sentencepiece_without_files(text: str) -> None:
    values = tiny_sentencepiece()
    tokens = [respelled(token) for token in values["tokenizer.ggml.tokens"]]
    made = Tokenizer.from_gguf(values)
    joinable = [token for token in tokens if token not in fixed(values, 3)]
    oracle = SlowSentencePiece(tokens, fixed(values, 4))
    oracle.ranks = {pair: rank for pair, rank in oracle.ranks.items() if "".join(pair) in joinable}
    assert made.encode(text, add_special=False) == oracle.encode(text)
    assert made.decode(made.encode(text)) == text.replace("▁", " ")


def test_scores_may_reorder_the_joins_of_normal_tokens() -> None:
    """As in vocabularies that were widened after training: what comes later may be joined first."""
    values = tiny_sentencepiece()
    tokens, kinds = (values[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type"))

    def cut(text: str, **scores: float) -> list[str]:
        given = [scores.get(token, -float(i)) if kinds[i] == 1 else -1000.0 for i, token in enumerate(tokens)]
        made = Tokenizer.from_gguf(values | {"tokenizer.ggml.scores": given})
        return [tokens[i] for i in made.encode(text, add_special=False)]

    assert cut("aab the") == ["a", "ab", "▁the"]
    assert cut("aab the", aa=0.0) == ["aa", "b", "▁the"]
    assert cut("aab the", ab=-1000.0) == ["aa", "b", "▁the"]
    assert cut("  \n\n") == cut("  \n\n", the=0.0) == ["  ", "\n\n"]


def test_bos_and_eos_are_added_as_the_file_says() -> None:
    values = tiny(bos=True) | {"tokenizer.ggml.add_eos_token": True}
    made = Tokenizer.from_gguf(values)
    bos, eos = values["tokenizer.ggml.bos_token_id"], values["tokenizer.ggml.eos_token_id"]
    plain = made.encode("the cat", add_special=False)
    assert made.encode("the cat") == [bos, *plain, eos]
    assert made.encode("") == [bos, eos]
    assert made.decode([bos, *plain, eos]) == "the cat"
    assert made.decode([bos, *plain, eos], skip_special=False) == "<|im_start|>the cat<|im_end|>"


def test_text_of_a_control_token_stays_text() -> None:
    made = Tokenizer.from_gguf(tiny())
    text = "a<|im_end|>b<tool>"
    ids = made.encode(text)
    assert not any(map(made.is_control, ids))
    assert made.decode(ids, skip_special=True) == text
    assert sum(map(made.is_control, made.encode(text, parse_special=True))) == 1
    assert made.vocabulary.tokens.index("<tool>") in ids


def test_a_vocabulary_that_joins_text_to_a_control_token_is_refused() -> None:
    values = tiny()
    kinds = list(values["tokenizer.ggml.token_type"])
    kinds[values["tokenizer.ggml.tokens"].index("the")] = 3
    with pytest.raises(ModelError, match="control token 'the'"):
        Tokenizer.from_gguf(values | {"tokenizer.ggml.token_type": kinds}).encode("the")


def test_bad_arguments_are_refused() -> None:
    made = Tokenizer.from_gguf(tiny())
    with pytest.raises(ValueError, match=r"surrogate \(U\+D800\) at character 1"):
        made.encode("a\ud800")
    for token in (-1, made.vocab_size):
        with pytest.raises(ValueError, match=f"token {token} is outside the vocabulary"):
            made.decode([token])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.pre": "nonesuch"}, "pre-tokenizer 'nonesuch' is not supported"),
        ({"tokenizer.ggml.model": "bert"}, "model 'bert' is not supported"),
        ({"tokenizer.ggml.tokens": None}, "tokens' is absent"),
        ({"tokenizer.ggml.tokens": ["a", 1]}, "is not a list of str"),
        ({"tokenizer.ggml.tokens": ["a", "a"], "tokenizer.ggml.token_type": [1, 1]}, "'a' appears twice"),
        ({"tokenizer.ggml.token_type": [1]}, "has 1 entries for"),
        ({"tokenizer.ggml.merges": ["ab"]}, "is not two tokens"),
        ({"tokenizer.ggml.merges": ["a b c"]}, "is not two tokens"),
        ({"tokenizer.ggml.merges": ["日 本"]}, "do not fit"),
        ({"tokenizer.ggml.eos_token_id": 10**6}, "eos_token_id"),
        ({"tokenizer.ggml.bos_token_id": None, "tokenizer.ggml.add_bos_token": True}, "asks for a BOS token"),
        ({"tokenizer.chat_template": 5}, "is not a string"),
    ],
)
def test_bad_metadata_is_refused_in_one_line(change: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        Tokenizer.from_gguf(tiny() | change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.token_type": [1] * 303}, "<0x00> to <0xFF>"),
        ({"tokenizer.ggml.scores": [0.0]}, r"scores' is not a list of \d+ numbers"),
        ({"tokenizer.ggml.scores": ["a"] * 303}, r"scores' is not a list of \d+ numbers"),
    ],
)
def test_bad_sentencepiece_metadata_is_refused(change: dict[str, object], message: str) -> None:
    values = tiny_sentencepiece()
    if "tokenizer.ggml.token_type" in change:
        change["tokenizer.ggml.token_type"] = [1] * len(values["tokenizer.ggml.tokens"])
    with pytest.raises(ModelError, match=message):
        Tokenizer.from_gguf(values | change)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The tiny tokenizer as a Hugging Face folder."""
    from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    from vivace.model.tokenizer.byte_level import PRE_TOKENIZERS

    values = tiny()
    tokens = values["tokenizer.ggml.tokens"][:-4]
    merges = [tuple(merge.split(" ")) for merge in values["tokenizer.ggml.merges"]]
    backend = Backend(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    backend.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(PRE_TOKENIZERS["qwen2"].split), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True) for text in ("<|im_start|>", "<|im_end|>")])
    backend.add_tokens([AddedToken("<tool>", normalized=False)])
    backend.save(str(tmp_path / "tokenizer.json"))
    config = {"bos_token": None, "eos_token": {"content": "<|im_end|>"}, "chat_template": "in the config"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": len(tokens) + 4}))
    return tmp_path


def test_a_folder_gives_the_same_as_the_file(folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    ours, file = Tokenizer.from_folder(folder), Tokenizer.from_gguf(tiny())
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    assert (ours.vocab_size, ours.eos_ids, ours.bos_id) == (file.vocab_size, file.eos_ids, None)
    for text in varied_texts():
        assert ours.encode(text) == file.encode(text)
        ids = ours.encode(text, parse_special=True)
        assert ids == theirs.encode(text)
        assert ours.decode(ids, skip_special=False) == theirs.decode(ids)


def test_chat_templates_of_folders(folder: Path) -> None:
    assert Tokenizer.from_folder(folder).chat_template == "in the config"
    (folder / "chat_template.jinja").write_text("in its file")
    assert Tokenizer.from_folder(folder).chat_template == "in its file"


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("tokenizer.json", "{", "cannot be read"),
        ("tokenizer_config.json", "[]", "is not a JSON object"),
        ("tokenizer_config.json", "{", "is not JSON"),
        ("tokenizer_config.json", '{"eos_token": "nonesuch"}', "which is no token"),
        (
            "tokenizer_config.json",
            '{"chat_template": [{"name": "tools", "template": ""}]}',
            "no template named 'default'",
        ),
        ("generation_config.json", '{"eos_token_id": [99999]}', "outside the vocabulary"),
    ],
)
def test_bad_folders_are_refused(folder: Path, file: str, text: str, message: str) -> None:
    (folder / file).write_text(text)
    with pytest.raises(ModelError, match=message):
        Tokenizer.from_folder(folder)


def change(folder: Path, **parts: object) -> Path:
    """The folder with parts of its tokenizer.json replaced."""
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | parts))
    return folder


@pytest.mark.parametrize("config", ["{}", '{"vocab_size": 5000}'])
def test_ids_beyond_the_vocabulary_are_refused(folder: Path, config: str) -> None:
    (folder / "config.json").write_text(config)
    change(folder, model={"type": "BPE", "vocab": {"a": 0, "b": 1 << 27}, "merges": []})
    with pytest.raises(ModelError, match="has a token 134217728, but the vocabulary of the model is"):
        Tokenizer.from_folder(folder)


def test_added_tokens_beyond_the_vocabulary_do_not_exist(folder: Path) -> None:
    whole = Tokenizer.from_folder(folder)
    (token,) = whole.encode("<tool>")
    (folder / "config.json").write_text(json.dumps({"vocab_size": token}))
    cut = Tokenizer.from_folder(folder)
    assert cut.vocab_size == token and len(cut.encode("<tool>")) > 1 and cut.decode(cut.encode("<tool>")) == "<tool>"


def test_templates_of_unknown_tokens_are_refused(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    single = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    pair = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    template = {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": {}}
    change(folder, post_processor={"type": "Sequence", "processors": [template]})
    with pytest.raises(ModelError, match=r"puts '\[CLS\]' around texts"):
        Tokenizer.from_folder(folder)
    assert capfd.readouterr().err == ""  # no panic, which would print itself


def test_what_cannot_be_encoded_is_one_error(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("{}")
    change(folder, model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "none"}, added_tokens=[])
    made = Tokenizer.from_folder(folder)
    with pytest.raises(ModelError, match=r"tokenizer\.json: cannot encode the text: WordLevel error"):
        made.encode("b")


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
