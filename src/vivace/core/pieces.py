"""Generation as a stream: what each completion gained in each round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from vivace.core.request import Piece

if TYPE_CHECKING:
    from vivace.core import batch
    from vivace.core.engine import Engine


def pieces(engine: Engine, handles: Sequence[batch.Sequence]) -> Iterator[list[Piece]]:
    """Runs the engine until all `handles` have ended, and yields after each of its rounds what they gained.

    That may be nothing, as while a long prompt runs. A handle may be cancelled between two rounds.
    """
    told = {i: (0, handle.prompt_length) for i, handle in enumerate(handles)}
    while told:
        engine.step()
        gained = []
        for i, (chars, tokens) in list(told.items()):
            handle = handles[i]
            piece = Piece(handle.text[chars:], handle.tokens[tokens:], handle.finish_reason, i)
            if piece.text or piece.token_ids or handle.finished:
                gained.append(piece)
                told[i] = len(handle.text), len(handle.tokens)
            if handle.finished:
                del told[i]
        yield gained
