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
