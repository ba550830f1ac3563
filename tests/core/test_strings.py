"""Rules about the text, whatever tokens make it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scripted import CharTokenizer, ScriptedExecutor, forced_brain, random_brain, tiny_spec
from test_stages import walk
from toy_decoders import TreeSpeculative

from vivace.core.batch import Sequence
from vivace.core.engine import Engine, RequestError
from vivace.core.request import Request, Sampling
from vivace.core.wiring import Wiring
from vivace.model.load import load_checkpoint
from vivace.sampling.strings import AllowedStrings, BannedStrings
from vivace.sampling.token_texts import TokenTexts
from vivace.slots.logits import Candidates, Context

PIECES = [b"a", b"b", b"ab", b"ba", b"", b"aab", b"\xc3", b"\xa9", b"a\xc3", b"\xa9b", b"", b"<end>"]
END, VOCAB = 11, len(PIECES)


class PieceTokenizer:
    """Token i is the i-th of PIECES; 10 is a control token without text, 11 ends it."""

    vocab_size = VOCAB
    eos_ids = (END,)

    def drops_space_after(self, before: Sequence[int]) -> bool:
        return False

    def token_bytes(self, token: int, *, skip_special: bool = False) -> bytes:
        return b"" if skip_special and token == END else PIECES[token]


class SpacedTokenizer(PieceTokenizer):
    """Puts a space before texts: token 4 is a space, 5 one and "a"."""

    def drops_space_after(self, before: Sequence[int]) -> bool:
        return True

    def token_bytes(self, token: int, *, skip_special: bool = False) -> bytes:
        return {4: b" ", 5: b" a"}.get(token, super().token_bytes(token, skip_special=skip_special))


TEXTS = TokenTexts.of(PieceTokenizer(), True)
STRINGS = st.lists(st.text("abé", min_size=1, max_size=5), min_size=1, max_size=3)


def text_of(tokens: list[int]) -> bytes:
    return b"".join(b"" if token == END else PIECES[token] for token in tokens)


def left(stage, tokens: list[int], ids=range(VOCAB)) -> list[int]:
    """Of `ids`, those that may follow."""
    row = Candidates(np.array(ids, np.int32), np.ones(len(ids), np.float32))
    row = stage.apply(row, Context([3, 1, *tokens], 2))
    return row.ids[row.logits > 0].tolist()


@given((st.binary(max_size=6) | st.lists(st.sampled_from(PIECES), max_size=3).map(b"".join)).filter(bool))
def test_tokens_found_by_their_text(text: bytes) -> None:
    pieces = [b"" if i == END else piece for i, piece in enumerate(PIECES)]
    assert [TEXTS[i] for i in range(VOCAB + 1)] == [*pieces, b""]
    assert TEXTS.containing(text).tolist() == [i for i, piece in enumerate(pieces) if text in piece]
    assert TEXTS.beginning_with(text).tolist() == [i for i, piece in enumerate(pieces) if piece.startswith(text)]
    assert TEXTS.beginnings_of(text).tolist() == [i for i, p in enumerate(pieces) if p and text.startswith(p)]


def test_texts_are_kept_as_long_as_their_tokenizer() -> None:
    tokenizer = CharTokenizer()
    assert TokenTexts.of(tokenizer, True) is TokenTexts.of(tokenizer, True) is not TokenTexts.of(tokenizer, False)
    assert TokenTexts.of(tokenizer, False)[257] == b"<257>" and TokenTexts.of(tokenizer, True)[257] == b""


@given(STRINGS, st.lists(st.integers(0, VOCAB - 1), max_size=8))
@example(["aab", "ab"], [0, 0])
@example(["abab", "ba"], [2])
@example(["é"], [6])
def test_just_what_would_complete_a_banned_string_is_banned(strings: list[str], tokens: list[int]) -> None:
    def holds(text: bytes) -> bool:
        return any(string in text.decode(errors="replace") for string in strings)

    assume(not holds(text_of(tokens)))
    stage = BannedStrings(strings, TEXTS, np.array([END], np.int32))
    expected = [token for token in range(VOCAB) if token == END or not holds(text_of([*tokens, token]))]
    assert left(stage, tokens) == expected
    assert left(stage, tokens, [1, 3, 9]) == [i for i in expected if i in (1, 3, 9)]


@given(STRINGS, st.lists(st.integers(0, VOCAB - 1), max_size=4))
@example(["ab", "abé"], [2])
@example(["abé"], [2, 6])
def test_just_what_goes_on_with_an_allowed_string_is_allowed(strings: list[str], tokens: list[int]) -> None:
    said = text_of(tokens)
    expected = []
    for token in range(VOCAB):
        more = text_of([token])
        if token == END:
            goes_on = said in [string.encode() for string in strings]
        else:
            goes_on = bool(more) and any(string.encode().startswith(said + more) for string in strings)
        if goes_on:
            expected.append(token)
    stage = AllowedStrings(strings, TEXTS, np.array([END], np.int32))
    assert left(stage, tokens) == expected
    assert left(stage, tokens, [1, 3, 9]) == [i for i in expected if i in (1, 3, 9)]


@pytest.mark.parametrize("kind", [BannedStrings, AllowedStrings])
@pytest.mark.parametrize("seed", range(20))
def test_a_rule_that_went_back_says_what_a_new_one_says(kind, seed: int) -> None:
    def make():
        return kind(["aab", "bé", "babab"], TEXTS, np.array([END], np.int32))

    stage = make()
    for at in walk(seed, 40, VOCAB):
        row = Candidates(np.arange(VOCAB, dtype=np.int32), np.ones(VOCAB, np.float32))
        fresh = Candidates(row.ids, row.logits.copy())
        found, expected = stage.apply(row, at), make().apply(fresh, at)
        assert found.ids.tolist() == expected.ids.tolist() and found.logits.tolist() == expected.logits.tolist()


@pytest.mark.models
def test_rules_about_text_with_the_tokens_of_a_real_model(smollm2: Path) -> None:
    tokenizer = load_checkpoint(smollm2).tokenizer
    vocab, ends = tokenizer.vocab_size, np.array(sorted(tokenizer.eos_ids), np.int32)
    pieces = [tokenizer.token_bytes(token, skip_special=True) for token in range(vocab)]
    strings = [" the", "t a", "\n\n", "日本", " elaborate testament"]
    for text in ("I think of th", "an elaborate testa", "x \n", "日", "stop"):
        tokens = tokenizer.encode(text, False)
        said = b"".join(pieces[token] for token in tokens)
        found = {}
        for stage in (
            BannedStrings(strings, TokenTexts.of(tokenizer, True), ends),
            AllowedStrings([text, *(text + string for string in strings)], TokenTexts.of(tokenizer, True), ends),
        ):
            row = Candidates(np.arange(vocab, dtype=np.int32), np.ones(vocab, np.float32))
            row = stage.apply(row, Context([0, *tokens], 1))
            found[stage.name] = row.ids[row.logits > 0].tolist()
        wanted = [string.encode() for string in strings]
        holds = [any(string in said + piece for string in wanted) for piece in pieces]
        assert found["banned_strings"] == [i for i in range(vocab) if not holds[i] or i in ends]
        goes_on = [bool(piece) and any(string.startswith(piece) for string in wanted) for piece in pieces]
        assert found["allowed_strings"] == [i for i in range(vocab) if goes_on[i] or i in ends]
        assert any(holds)


# With an engine


def engine_of(brain=None, speculative: bool = False, tokenizer=True, **options) -> Engine:
    spec = tiny_spec(VOCAB, eos_ids=(END,))
    models = {name: ScriptedExecutor(brain or random_brain(1, VOCAB), spec, 200) for name in ("target", "draft")}
    if speculative:
        options["wiring"] = Wiring(TreeSpeculative(models["draft"].store))
    return Engine(models, tokenizer=PieceTokenizer() if tokenizer else None, **options)


def generate(engine: Engine, *requests: Request) -> list[Sequence]:
    handles = [handle for request in requests for handle in engine.add(request)]
    while engine.busy:
        engine.step()
        engine.check()
    return handles


def asking(seed: int, prompt=(3, 1), **sampling) -> Request:
    return Request(list(prompt), Sampling(**{"max_tokens": 40, "temperature": 1.5, "seed": seed, **sampling}))


@pytest.mark.parametrize("ends", [{"ignore_eos": True}, {"include_stop": True, "skip_special_tokens": False}, {}])
def test_a_text_holds_no_banned_string(ends: dict[str, bool]) -> None:
    occurred = 0
    for seed, banned in enumerate([("ab",), ("a",), ("bb", "aa"), ("é", "ba"), ("nd", "abab")] * 4):
        free, done = (generate(engine_of(), asking(seed, banned_strings=b, **ends))[0] for b in ((), banned))
        assert done.error is None and not [string for string in banned if string in done.text]
        occurred += any(string in free.text for string in banned)
    assert occurred > 12


def test_the_text_of_an_end_token_counts_only_where_it_shows() -> None:
    for include_stop, generated in ((False, [0, END]), (True, [0, 0])):
        options = {"max_tokens": 2, "include_stop": include_stop, "skip_special_tokens": False}
        request = asking(0, temperature=0.0, banned_strings=("nd",), **options)
        (done,) = generate(engine_of(forced_brain([0, END], 2, VOCAB)), request)
        assert done.generated == generated


def test_banned_strings_do_not_look_at_the_prompt() -> None:
    """The prompt ends with "b", the text begins with "b" and goes on with "a"."""
    engine = engine_of(forced_brain([1, 0, END], 2, VOCAB))
    (done,) = generate(engine, asking(0, prompt=(0, 1), temperature=0.0, banned_strings=("bb",)))
    assert done.text == "ba"


@pytest.mark.parametrize("seed", range(30))
def test_a_completion_is_one_of_the_allowed_strings(seed: int) -> None:
    allowed = ("ab", "abé", "bbbb", "é", "aabaabab")
    (done,) = generate(engine_of(), asking(seed, allowed_strings=allowed))
    assert done.text in allowed and done.finish_reason == "stop" and done.generated[-1] == END


def test_an_allowed_string_that_begins_another_may_end_or_go_on() -> None:
    found = {generate(engine_of(), asking(i, allowed_strings=("ab", "abé")))[0].text for i in range(30)}
    assert found == {"ab", "abé"}


def test_an_allowed_string_may_be_spelled_with_the_space_that_is_put_before() -> None:
    seen = set()
    for seed in range(60):
        engine = engine_of()
        engine.tokenizer = SpacedTokenizer()
        allowed = ("ab",) if seed % 2 else (" ab",)
        (done,) = generate(engine, asking(seed, allowed_strings=allowed, temperature=30.0))
        assert done.text == allowed[0] and done.finish_reason == "stop"
        seen.add((seed % 2, done.generated[0]))
    assert seen == {(1, 0), (1, 2), (1, 4), (1, 5), (0, 4)}


def test_a_rule_that_leaves_nothing_fails_its_request_alone() -> None:
    everything = tuple(range(VOCAB))
    stuck, fine, unsayable = generate(
        engine_of(),
        asking(1, allowed_token_ids=(0, 4), banned_strings=("aa",), banned_token_ids=(4,)),
        asking(2),
        asking(3, allowed_strings=("ac",)),
    )
    assert stuck.finish_reason == unsayable.finish_reason == "error" and stuck.text == unsayable.text == "a"
    names = "allowed_token_ids and banned_token_ids and banned_strings leave none"
    assert str(stuck.error) == f"no token may be chosen for position 3: {names}"
    assert str(unsayable.error) == "no token may be chosen for position 3: allowed_strings leaves none"
    assert fine.generated == generate(engine_of(), asking(2))[0].generated
    (none,) = generate(engine_of(), asking(4, banned_token_ids=everything))
    assert "banned_token_ids leaves none" in str(none.error)


def test_rules_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(RequestError, match="need a token that ends the text"):
        engine_of().add(asking(1, allowed_strings=("a",), ignore_eos=True))
    for name in ("allowed_strings", "banned_strings"):
        with pytest.raises(RequestError, match=f"{name} need a tokenizer"):
            engine_of(tokenizer=False).add(asking(1, **{name: ("a",)}))
    for name in ("allowed_token_ids", "banned_token_ids", "stop_token_ids"):
        with pytest.raises(RequestError, match="token id 12 is outside the vocabulary"):
            engine_of().add(asking(1, **{name: (12,)}))
    with pytest.raises(RequestError, match="token id 99 is outside"):
        engine_of().add(asking(1, logit_bias=((99, 1.0),)))


MIXED = [
    asking(1, repetition_penalty=1.3, top_k=5),
    asking(2, presence_penalty=0.8, frequency_penalty=0.4, min_tokens=9),
    asking(3, dry_multiplier=0.8, dry_allowed_length=1, dry_sequence_breakers=("b",)),
    asking(4, xtc_probability=0.5, xtc_threshold=0.05, top_n_sigma=1.5),
    asking(5, typical_p=0.7, logit_bias=((2, 3.0), (END, -9.0)), stop=("abb", "é")),
    asking(6, banned_strings=("ab", "éb"), temperature=0.0),
    asking(7, allowed_strings=("ab" * 9, "ba" * 9)),
    asking(8, allowed_token_ids=(0, 1, 2, END), banned_token_ids=(1,), stages=("temperature", "top_p"), top_p=0.8),
    asking(9, repetition_penalty=2.0, dry_multiplier=2.0, temperature=0.0),
    asking(10),
]


@pytest.mark.parametrize("options", [{}, {"speculative": True}, {"token_budget": 30}, {"max_sequences": 3}], ids=str)
def test_rows_of_a_batch_do_not_influence_each_other(options) -> None:
    alone = [generate(engine_of(), request)[0] for request in MIXED]
    together = generate(engine_of(**options), *MIXED)
    assert [(h.generated, h.text, h.error) for h in together] == [(h.generated, h.text, h.error) for h in alone]
    assert len({tuple(h.generated) for h in alone}) == len(MIXED)
