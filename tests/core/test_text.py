"""Streams of text: nothing lost, nothing doubled, stop strings where they are."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vivace.core.text import TextStream


class Bytes:
    """A tokenizer whose token i is the i-th of some byte strings; negative ids are control tokens named <c>."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def token_bytes(self, token: int, *, skip_special: bool = False) -> bytes:
        if token < 0:
            return b"" if skip_special else b"<c>"
        return self.pieces[token]


def by_definition(data: bytes, stops: list[str], include_stop: bool, early: int = 0) -> tuple[str, str | None]:
    """The whole text and the stop string that ended it, found the slow way; none ends in the first `early` letters."""
    text = data.decode(errors="replace")
    for end in range(early + 1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end if include_stop else end - len(longest)], longest
    return text, None


def stream(pieces: list[bytes], stops: list[str], include_stop: bool = False) -> tuple[list[str], str | None]:
    made = TextStream(Bytes(pieces), stops, include_stop)
    shown = [made.push(token) for token in range(len(pieces))]
    return [*shown, made.finish()], made.stopped


LETTERS = st.sampled_from(["a", "b", " ", "\n", "é", "日", "👩", "\u200d", "\ufffd"])
TEXTS = st.text(LETTERS, max_size=40)
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=5), max_size=4)
BROKEN = st.lists(
    st.sampled_from([b"a", b"\xe6", b"\x97", b"\xa5", b"\xf0", b"\x9f", b"\xff", b"\xc3", b"\xa9"]), max_size=20
)


def cut(data: bytes, borders: list[int]) -> list[bytes]:
    places = [0, *sorted(border % (len(data) + 1) for border in borders), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(places)]


@given(TEXTS.map(str.encode) | BROKEN.map(b"".join), STOPS, st.booleans(), st.lists(st.integers(0, 200), max_size=30))
@example(b"aab", ["aaab", "ab"], False, [1, 2])
@example(b"abab", ["ba", "abab"], False, [])
@example(b"a\xe6", ["\ufffd"], False, [])
def test_streamed_is_unstreamed_is_the_definition(
    data: bytes, stops: list[str], include_stop: bool, borders: list[int]
) -> None:
    pieces, stopped = stream(cut(data, borders), stops, include_stop)
    assert ("".join(pieces), stopped) == by_definition(data, stops, include_stop)
    whole, stopped_whole = stream([data], stops, include_stop)
    assert ("".join(whole), stopped_whole) == ("".join(pieces), stopped)


@given(TEXTS, STOPS, st.booleans(), st.lists(st.integers(0, 200), max_size=30), st.integers(0, 12))
@example("aaab", ["aa", "aab"], False, [1, 2, 3], 2)
@example("ab", ["ab"], False, [1], 1)
def test_no_stop_string_ends_within_the_first_tokens(
    text: str, stops: list[str], include_stop: bool, borders: list[int], min_tokens: int
) -> None:
    pieces = cut(text.encode(), borders)
    made = TextStream(Bytes(pieces), stops, include_stop, min_tokens=min_tokens)
    shown = "".join([*(made.push(token) for token in range(len(pieces))), made.finish()])
    early = len(b"".join(pieces[:min_tokens]).decode(errors="ignore"))  # a character comes with its last byte
    assert (shown, made.stopped) == by_definition(text.encode(), stops, include_stop, early)


@given(TEXTS, STOPS, st.lists(st.integers(0, 200), max_size=30))
def test_only_what_is_uncertain_is_held_back(text: str, stops: list[str], borders: list[int]) -> None:
    """After each token, the text withheld is the longest one that a stop string may begin with."""
    pieces = cut(text.encode(), borders)
    made, shown, seen = TextStream(Bytes(pieces), stops), "", b""
    for token, piece in enumerate(pieces):
        shown += made.push(token)
        seen += piece
        if made.stopped:
            return
        sure = seen.decode(errors="ignore")  # an unfinished character is no text yet
        waiting = max((n for stop in stops for n in range(len(stop)) if sure.endswith(stop[:n])), default=0)
        assert shown == sure[: len(sure) - waiting]


def test_a_character_comes_when_it_is_whole() -> None:
    assert stream([b"\xf0\x9f", b"\x91", b"\xa9!"], [])[0] == ["", "", "👩!", ""]


def test_bytes_that_cannot_become_a_character_show_at_once() -> None:
    assert stream([b"\xe6", b"a", b"\xe6"], [])[0] == ["", "\ufffda", "", "\ufffd"]


def test_text_that_might_stop_is_released_when_it_does_not() -> None:
    pieces, stopped = stream([b"x", b"EN", b"E"], ["END"])
    assert pieces == ["x", "", "EN", "E"]
    assert stopped is None


def test_a_stop_string_may_end_inside_a_token() -> None:
    assert stream([b"x#", b"##y", b"z"], ["###"]) == (["x", "", "", ""], "###")
    assert stream([b"x#", b"##y", b"z"], ["###"], include_stop=True) == (["x", "###", "", ""], "###")


def test_a_stop_string_that_came_too_early_is_not_held_back() -> None:
    made = TextStream(Bytes([b"x##", b"#", b"#!"]), ["###"], min_tokens=2)
    assert [made.push(0), made.push(1), made.push(2), made.finish()] == ["x", "#", "", ""]
    assert made.stopped == "###"
    made = TextStream(Bytes([b"END", b"."]), ["END"], min_tokens=1)
    assert [made.push(0), made.push(1), made.finish()] == ["END", ".", ""]


def test_the_earliest_end_wins_and_then_the_longest() -> None:
    assert stream([b"abcde"], ["abcde", "bcd", "cd"]) == (["a", ""], "bcd")


def test_control_tokens_show_only_when_asked_for() -> None:
    hidden, shown = TextStream(Bytes([b"a"])), TextStream(Bytes([b"a"]), skip_special=False)
    assert [hidden.push(-1), hidden.push(0), hidden.finish()] == ["", "a", ""]
    assert [shown.push(-1), shown.push(0), shown.finish()] == ["<c>", "a", ""]


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        TextStream(Bytes([]), ["a", ""])
