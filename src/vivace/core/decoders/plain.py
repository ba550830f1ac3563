"""What every decoder does with tokens that are known already: run them, and choose after the last."""

from __future__ import annotations

from vivace.core.batch import Turn
from vivace.core.emit import Emit
from vivace.core.step import NO_LOGITS, Float32, Int32, RowStats, Segment, StepRequest, all_rows
from vivace.kv.store import KVStore
from vivace.sampling.chooser import BadLogits, log_probabilities


def plain_request(turns: list[Turn]) -> StepRequest:
    """The plain rows of all turns in one step."""
    return StepRequest([plain_segment(turn) for turn in turns], top=max(map(_top, turns)))


def _top(turn: Turn) -> int:
    sequence = turn.sequence
    reported = sequence.request.sampling.prompt_logprobs if sequence.reports_prompt else None
    return max(sequence.chooser.top if turn.chooses else 0, reported or 0)


def plain_segment(turn: Turn) -> Segment:
    """The turn's tokens as causal rows. Logits: the last row's when a token is due, all when the prompt is reported."""
    return Segment(turn.sequence.seq, turn.tokens(), logits=_wanted(turn))


def _wanted(turn: Turn) -> Int32 | None:
    if turn.sequence.reports_prompt:
        return all_rows(turn.rows)
    return None if turn.chooses else NO_LOGITS


def absorb_plain(turn: Turn, store: KVStore, logits: Float32, stats: list[RowStats] | None) -> Emit:
    """Commit the rows of `plain_segment`, record the prompt's log-probabilities, choose the next token if it is due."""
    sequence = turn.sequence
    try:
        if sequence.reports_prompt:
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
    begin, end = sequence.length, min(sequence.length + turn.rows, sequence.prompt_length - 1)
    for at in range(max(begin, len(reported) - 1), end):  # a row says how probable the next token was
        row = at - begin
        stat = stats[row] if stats else None
        reported.append(log_probabilities(logits[row], sequence.tokens[at + 1], count, stat))
