"""What stands between a decoder's request and the executor: looks at steps, touches them, and evicts after rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from vivace.core.request import Request
    from vivace.core.step import StepRequest, StepResult

NO_BORDER = 1 << 60


class Member(Protocol):
    """A sequence of one model as a hook sees it. `length`: its tokens that are committed, evicted ones included."""

    seq: int
    length: int
    tokens: list[int]
    request: Request

    @property
    def prompt_length(self) -> int: ...


Members = Mapping[int, Member]  # by `seq`


class StepHook:
    """Does nothing; a hook overrides what it needs.

    What it keeps for a sequence lives in the store as a `StateParticipant`, so that it follows commits, roll-backs,
    forks and ends. All it decides depends on the tokens of the sequence and its committed length alone, never on how
    steps were cut: where that would matter, it names a `border`.
    """

    shares_prefixes = True  # requests that begin alike have the same rows, so that they may start from each other's
    recomputes = True  # a sequence that is run again from its tokens has the same rows

    def border(self, member: Member) -> int:
        """The next committed length, above the present one, at which `settle` must be called: no step crosses it."""
        return NO_BORDER

    def most_rows(self, tokens: int, prompt: int) -> int:
        """The most rows that a list of a sequence of `tokens` tokens, `prompt` of them given, ever holds."""
        return tokens

    def prepare(self, request: StepRequest, members: Members) -> None:
        """Before a step of its model: may add taps, edits, selections or a layer mask to `request`."""

    def observe(self, request: StepRequest, result: StepResult, members: Members) -> None:
        """After that step; its rows are pending still."""

    def settle(self, member: Member) -> None:
        """After each round: the sequence has no pending rows, and may be evicted from."""
