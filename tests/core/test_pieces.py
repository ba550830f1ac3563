"""What streams show is what their completions hold, however they end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import CharTokenizer, ScriptedExecutor, tiny_spec

from vivace.core.engine import Engine
from vivace.core.pieces import pieces
from vivace.core.request import Request, Sampling

END = 257


def engine_of(*scripts: list[int], **options) -> Engine:
    """A prompt [i] of a token is answered by script i, and then by zeros."""

    def brain(tokens: list[int]) -> np.ndarray:
        script, at = scripts[tokens[0]], len(tokens) - 1
        logits = np.zeros(258, np.float32)
        logits[script[at] if at < len(script) else 0] = 10
        return logits

    return Engine({"target": ScriptedExecutor(brain, tiny_spec(258))}, tokenizer=CharTokenizer(), **options)


TEXTS = st.lists(st.sampled_from([*"aé日", "ab", "abc", "\n"]), max_size=8).map("".join)
STOPS = st.lists(st.text("abcé日", min_size=1, max_size=4), max_size=3).map(tuple)


@given(
    st.lists(st.tuples(TEXTS, STOPS, st.integers(1, 30), st.integers(1, 3), st.integers(0, 40)), min_size=1, max_size=4)
)
def test_streamed_equals_unstreamed(asked: list[tuple[str, tuple[str, ...], int, int, int]]) -> None:
    """Several requests at once, each with samples, ended by EOS, length, a stop string or from outside."""
    scripts = [[*text.encode(), END] for text, *_ in asked]
    engine = engine_of(*scripts)
    handles, cancelled_at = [], []
    for i, (_, stop, most, samples, cancel) in enumerate(asked):
        handles += engine.add(Request([i], Sampling(max_tokens=most, stop=stop)), samples)
        cancelled_at += [cancel + sample for sample in range(samples)]
    told = [[] for _ in handles]
    for number, gained in enumerate(pieces(engine, handles)):
        for piece in gained:
            told[piece.index].append(piece)
        for handle, when in zip(handles, cancelled_at, strict=True):
            if when == number:
                engine.cancel(handle)
    assert not engine.busy
    for handle, mine in zip(handles, told, strict=True):
        assert "".join(piece.text for piece in mine) == handle.text
        assert [token for piece in mine for token in piece.token_ids] == handle.generated
        assert [piece.finish_reason for piece in mine] == [None] * (len(mine) - 1) + [handle.finish_reason]
        script, stop = scripts[handle.request.prompt[0]], handle.request.sampling.stop
        if handle.finish_reason != "stop_sequence":  # nothing is lost
            said = bytes(token for token in handle.generated if token < 256)
            assert handle.text == said.decode(errors="replace")
            assert not [one for one in stop if one in handle.text]
        assert handle.generated == [*script, *[0] * 30][: len(handle.generated)]


@pytest.mark.parametrize("end", ["stop", "length", "cancelled"])
def test_text_held_back_comes_with_the_end(end: str) -> None:
    engine = engine_of([*b"one. tw", *([END] if end == "stop" else b"ist")])
    handles = engine.add(Request([0], Sampling(max_tokens=7 if end == "length" else 20, stop=("two",))), 2)
    seen = ["", ""]
    for number, gained in enumerate(pieces(engine, handles)):
        for piece in gained:
            seen[piece.index] += piece.text
        if number == 6 and end == "cancelled":
            assert seen == ["one. ", "one. "]
            for handle in handles:
                engine.cancel(handle)
    assert seen == ["one. tw", "one. tw"]
    assert [handle.finish_reason for handle in handles] == [end, end]


def test_rounds_without_news_are_told_of() -> None:
    """So that whoever waits for a long prompt can stop it."""
    engine = engine_of([65, END], chunk=10)
    (handle,) = engine.add(Request([0] * 35, Sampling(max_tokens=2)))
    gained = [len(some) for some in pieces(engine, [handle])]
    assert gained[:3] == [0, 0, 0] and gained[3:] == [1, 1]
