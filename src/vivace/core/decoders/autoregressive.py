"""One token per sequence and round."""

from __future__ import annotations

from collections.abc import Generator

from vivace.core.batch import Batch, Sequence
from vivace.core.decoders.plain import absorb_plain, plain_request
from vivace.core.emit import Emit
from vivace.core.step import StepRequest, StepResult


class Autoregressive:
    """Runs what is due of every sequence in one step, prompts and single tokens mixed."""

    extra_rows = 0
    plain_rows = True

    def round(self, batch: Batch, budget: int) -> Generator[list[StepRequest], list[StepResult], list[Emit]]:
        (result,) = yield [plain_request(batch.turns)]
        store, starts, stats = batch.models["target"].store, result.starts.tolist(), result.stats
        emits = []
        for turn, first, last in zip(batch.turns, starts[:-1], starts[1:], strict=True):
            emits.append(absorb_plain(turn, store, result.logits[first:last], stats[first:last] if stats else None))
        return emits

    def forget(self, sequence: Sequence) -> None:
        pass
