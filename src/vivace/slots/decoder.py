"""The generation loop as a generator of steps."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from vivace.core.batch import Batch, Sequence
    from vivace.core.emit import Emit
    from vivace.core.step import StepRequest, StepResult


class Decoder(Protocol):
    """Decides which rows run and what comes of them.

    `extra_rows` is the most rows, beyond the next token, that a sequence may hold in the store within a round
    (drafts, a block): the engine keeps room for them.

    `plain_rows`: the rows it commits for generated tokens are, bit for bit, those that the tokens would give as a
    prompt. Then others may start from them, and the engine may preempt a sequence and compute it again. Where they are
    not (a block whose rows saw later ones), a request is admitted only when there is room for all it can ever need.
    """

    extra_rows: int
    plain_rows: bool

    def round(self, batch: Batch, budget: int) -> Generator[list[StepRequest], list[StepResult], list[Emit]]:
        """Advance the sequences of `batch` once.

        Yields one or several independent requests, for any model of the pool, and is sent their results in the same
        order; as often as it likes. `budget` is how many rows the round should run in all. Returns what the sequences
        gained. When it returns, no sequence has pending rows: each was committed or rolled back, or ends with an error.
        """
        ...

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended, or starts again later: drop what is kept for it (a drafter's cache, an automaton)."""
        ...
