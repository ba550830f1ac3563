"""Rules about the text, whatever tokens make it. They read bytes, in which a text occurs just where it does in text."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from vivace.core.automaton import Node, automaton
from vivace.sampling.token_texts import TokenTexts
from vivace.sampling.trail import Trail
from vivace.slots.logits import Candidates, Context, Int32


class BannedStrings(Trail):
    """No token that would complete one of `strings` in the generated text. `silent` tokens add no text, being ends."""

    name, keeps_argmax = "banned_strings", False

    def __init__(self, strings: Iterable[str], texts: TokenTexts, silent: Int32) -> None:
        super().__init__(with_prompt=False)
        patterns = [string.encode() for string in strings]
        self._texts, self._silent = texts, silent
        self._within = [texts.containing(pattern) for pattern in patterns]
        self._states: list[Node[bytes]] = [automaton(patterns)]
        self._completing: dict[Node[bytes], Int32] = {}

    def extend(self, token: int) -> None:
        state = self._states[-1]
        for byte in self._texts[token]:
            state = state.after(byte)
        self._states.append(state)

    def retract(self) -> None:
        self._states.pop()

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        self.follow(context)
        state = self._states[-1]
        if state not in self._completing:
            self._completing[state] = self._found(state)
        places, _ = candidates.locate(self._completing[state])
        candidates.logits[places] = -np.inf
        return candidates

    def _found(self, state: Node[bytes]) -> Int32:
        """The tokens that complete a string begun at any byte of the text so far, or within themselves."""
        found = list(self._within)
        for suffix in state.suffixes():
            found += [self._texts.beginning_with(ending) for ending in suffix.endings() if ending]
        return np.setdiff1d(np.concatenate(found), self._silent)


class AllowedStrings(Trail):
    """The generated text becomes exactly one of `strings`, and then one of the tokens `ends` comes.

    `drops_space`: a space at the very beginning of the tokens' bytes is no part of the text.
    """

    name, keeps_argmax = "allowed_strings", False

    def __init__(self, strings: Iterable[str], texts: TokenTexts, ends: Int32, drops_space: bool = False) -> None:
        super().__init__(with_prompt=False)
        self._strings = [string.encode() for string in strings]
        if drops_space:
            as_they_are = [string for string in self._strings if not string.startswith(b" ")]
            self._strings = [*as_they_are, *(b" " + string for string in self._strings)]
        self._texts, self._ends = texts, ends
        self._said = [b""]  # after each token

    def extend(self, token: int) -> None:
        self._said.append(self._said[-1] + self._texts[token])

    def retract(self) -> None:
        self._said.pop()

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        self.follow(context)
        said = self._said[-1]
        endings = {string[len(said) :] for string in self._strings if string.startswith(said)}
        going_on = [self._texts.beginnings_of(ending) for ending in endings if ending]
        allowed = np.setdiff1d(np.concatenate([self._ends[:0], *going_on]), self._ends)
        if b"" in endings:
            allowed = np.union1d(allowed, self._ends)
        places, _ = candidates.locate(allowed)
        return candidates.keep(places)
