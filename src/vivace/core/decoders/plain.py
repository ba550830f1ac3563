"""What every decoder does with tokens that are known already: run them, and choose after the last."""

from __future__ import annotations

from vivace.core.batch import Turn
from vivace.core.emit import Emit
from vivace.core.step import NO_LOGITS, Float32, Int32, RowStats, Segment, all_rows
from vivace.kv.store import KVStore
from vivace.sampling.chooser import BadLogits, log_probabilities


def plain_segment(turn: Turn) -> Segment:
    """The turn's tokens as causal rows. Logits: the last row's when a token is due, all when the prompt is reported."""
    return Segment(turn.sequence.seq, turn.tokens(), logits=_wanted(turn))


def _wanted(turn: Turn) -> Int32 | None:
    if _reports_prompt(turn):
        return all_rows(turn.rows)
    return None if turn.chooses else NO_LOGITS


def _reports_prompt(turn: Turn) -> bool:
    sequence = turn.sequence
    return sequence.prompt_logprobs is not None and sequence.length < sequence.prompt_length


def absorb_plain(turn: Turn, store: KVStore, logits: Float32, stats: list[RowStats] | None) -> Emit:
    """Commit the rows of `plain_segment`, record the prompt's log-probabilities, choose the next token if it is due."""
    sequence = turn.sequence
    try:
        if _reports_prompt(turn):
            _record_prompt(turn, logits, stats)
        choices = [sequence.choose(logits[-1], stats[-1] if stats else None)] if turn.chooses else []
    except BadLogits as error:
        return Emit(sequence, [], error)
    sequence.commit(store, None, turn.rows)
    return Emit(sequence, choices)


def _record_prompt(turn: Turn, logits: Float32, stats: list[RowStats] | None) -> None:
    sequence = turn.sequence
    reported, count = sequence.prompt_logprobs, sequence.request.sampling.prompt_logprobs
    assert reported is not None and count is not None
    first = sequence.length + 1  # the row of token i says how probable token i + 1 was
    for row, token in enumerate(sequence.tokens[first : min(first + turn.rows, sequence.prompt_length)]):
        reported.append(log_probabilities(logits[row], token, count, stats[row] if stats else None))
