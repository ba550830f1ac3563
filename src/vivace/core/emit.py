"""What a round, and then the engine, says about a sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vivace.core.batch import Sequence
    from vivace.core.request import FinishReason
    from vivace.sampling.chooser import Choice


@dataclass(slots=True)
class Emit:
    """New tokens of one sequence. The decoder fills the first three; the engine cuts `choices` at the end of the text

    and fills the rest. `error` ends this sequence alone.
    """

    sequence: Sequence
    choices: list[Choice]
    error: Exception | None = None
    text: str = ""
    finish_reason: FinishReason | None = None

    @property
    def token_ids(self) -> list[int]:
        return [choice.token for choice in self.choices]

    def absorb(self) -> None:
        """The sequence takes over the new tokens up to the one that ends the text; the rest is dropped.

        Raises ValueError for a token that has no text.
        """
        sequence = self.sequence
        before, left = len(sequence.text), sequence.remaining
        for used, choice in enumerate(self.choices, start=1):
            sequence.tokens.append(choice.token)
            if sequence.logprobs is not None:
                assert choice.logprobs is not None
                sequence.logprobs.append(choice.logprobs)
            self.finish_reason = sequence.read(choice.token)
            if self.finish_reason is None and used == left:
                self.finish_reason = "length"
            if self.finish_reason is not None:
                del self.choices[used:]
                break
        self.text = sequence.text[before:]
