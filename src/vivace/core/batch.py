"""A sequence in flight, and the sequences of one round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from vivace.core.request import FinishReason, Memory, Request, Sampling, Steps, Timings
from vivace.core.step import Float32, Int32, RowStats
from vivace.kv.spec import PAGE
from vivace.sampling.chooser import Choice, Chooser
from vivace.slots.hook import NO_BORDER
from vivace.slots.logits import Context

if TYPE_CHECKING:
    from vivace.core.step import Executor
    from vivace.core.text import TextStream
    from vivace.core.wiring import StageMaker, Wiring
    from vivace.kv.store import KVStore
    from vivace.model.tokenizer import Tokenizer
    from vivace.slots.hook import Member

NO_SEQ = -1


def pages_of(tokens: int) -> int:
    return -(-tokens // PAGE)


def tokens_of(request: Request) -> int:
    """The most tokens of the prompt and its completion."""
    return len(request.prompt) + request.sampling.max_tokens


def end_ids_of(sampling: Sampling, eos_ids: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens that end the text of a model whose own end tokens are `eos_ids`."""
    return tuple(dict.fromkeys((*(() if sampling.ignore_eos else eos_ids), *sampling.stop_token_ids)))


@dataclass(slots=True, eq=False)
class Sequence:
    """A request on its way; also the handle that the engine gives out.

    `tokens` is the prompt and all that was generated. The first `length` of them have run and are committed in the
    target's store, where this sequence is `seq` (what was evicted since counts too); the rest still has to run.
    """

    request: Request
    chooser: Chooser
    end_ids: frozenset[int]
    tokens: list[int]
    context: Context
    number: int = 0  # in order of arrival
    seq: int = NO_SEQ
    length: int = 0
    cut: int = 0  # the prompt runs up to here first, so that `followers` can fork there
    followers: list[Sequence] = field(default_factory=list)
    stream: TextStream | None = None
    text: str = ""
    logprobs: list[dict[int, float]] | None = None
    prompt_logprobs: list[dict[int, float] | None] | None = None
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    cached_tokens: int = 0  # of the prompt, known when the sequence first started
    preemptions: int = 0
    arrived: float = 0.0
    started: float = 0.0
    first_token: float = 0.0
    emitting_rounds: int = 0
    steps: Steps = field(default_factory=Steps)
    timings: Timings = field(default_factory=Timings)
    memory: Memory = field(default_factory=Memory)

    @staticmethod
    def of(
        request: Request,
        sample: int,
        eos_ids: tuple[int, ...],
        tokenizer: Tokenizer | None,
        stages: Iterable[StageMaker] = (),
    ) -> Sequence:
        """A sequence that has not started. Without a tokenizer it has no text. `stages`: those of a plan."""
        sampling, tokens = request.sampling, list(request.prompt)
        end_ids = end_ids_of(sampling, eos_ids)
        drops_space = tokenizer is not None and tokenizer.drops_space_after(tokens)
        own = [stage for make in stages if (stage := make(request)) is not None]
        chooser = Chooser(sampling, sample, end_ids, tokenizer, drops_space, own)
        sequence = Sequence(request, chooser, frozenset(end_ids), tokens, Context(tokens, len(tokens)))
        if sampling.logprobs is not None:
            sequence.logprobs = []
        if sampling.prompt_logprobs is not None:
            sequence.prompt_logprobs = [None]
        if tokenizer is not None:
            from vivace.core.text import TextStream

            sequence.stream = TextStream(
                tokenizer,
                sampling.stop,
                sampling.include_stop,
                sampling.skip_special_tokens,
                sampling.min_tokens,
                drops_space,
            )
        return sequence

    @property
    def prompt_length(self) -> int:
        return self.context.prompt

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.context.prompt :]

    @property
    def remaining(self) -> int:
        """The most tokens that may still be generated; rows of drafts beyond them are wasted."""
        return self.context.prompt + self.request.sampling.max_tokens - len(self.tokens)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def due(self) -> int:
        """Tokens that have to run before the next one can be chosen, or the followers fork."""
        return (self.cut if self.followers else len(self.tokens)) - self.length

    @property
    def positions(self) -> int:
        """The most the store will hold of it, the last generated token never being run."""
        return self.context.prompt + max(self.request.sampling.max_tokens - 1, 0)

    @property
    def reports_prompt(self) -> bool:
        """Log-probabilities of the prompt are still to be recorded."""
        return self.prompt_logprobs is not None and len(self.prompt_logprobs) < self.prompt_length

    def pages_to_come(self, growth: int, extra_rows: int) -> int:
        """Pages it may still ask for to hold all its tokens and `growth` more; at most what it can ever need.

        The page it is in counts, as it may be shared and then copied. Followers that have forked and wait keep the page
        of the cut.
        """
        positions = min(self.positions, len(self.tokens) + growth)
        return pages_of(positions + extra_rows) - self.length // PAGE + bool(self.followers)

    def commit(self, store: KVStore, rows: Int32 | None, count: int) -> None:
        """Keep `count` pending rows: all, or the path `rows` of a tree."""
        store.commit(self.seq, rows)
        self.length += count

    def read(self, token: int) -> FinishReason | None:
        """Add the text of a new token; whether it ends the sequence. Raises ValueError when it has no text."""
        ends = token in self.end_ids
        if self.stream is not None and (not ends or self.request.sampling.include_stop):
            self.text += self.stream.push(token)
            if self.stream.stopped:
                return "stop_sequence"
        return "stop" if ends else None

    def choose(self, logits: Float32, stats: RowStats | None = None, path: tuple[int, ...] = ()) -> Choice:
        """The token after `tokens` and then `path`, from the row of logits that follows them. Raises BadLogits."""
        context = Context(self.tokens, self.context.prompt, path) if path else self.context
        return self.chooser.choose(logits, context, stats)


@dataclass(slots=True)
class Turn:
    """A sequence's part of a round: run its next `rows` due tokens. When that is all of them, a token is due.

    `room`: how many rows the round may commit at most, `rows` and drafts together.
    """

    sequence: Sequence
    rows: int
    room: int = NO_BORDER

    def stop_at(self, border: int) -> None:
        """Cut the turn so that the sequence is not committed past this length."""
        self.room = min(self.room, border - self.sequence.length)
        self.rows = min(self.rows, self.room)

    @property
    def last(self) -> bool:
        """All tokens of the sequence will have run."""
        sequence = self.sequence
        return sequence.length + self.rows == len(sequence.tokens)

    @property
    def chooses(self) -> bool:
        return self.last and self.sequence.request.sampling.max_tokens > 0

    def tokens(self) -> Int32:
        first = self.sequence.length
        return np.array(self.sequence.tokens[first : first + self.rows], np.int32)


@dataclass(slots=True)
class Batch:
    """The sequences of one round, and the models to run them on.

    `members`: by model, the sequences that hooks may ask about. Those of the target are there; a decoder that keeps
    sequences of other models adds them, and calls `settle` for them when they are committed.
    """

    turns: list[Turn]
    models: Mapping[str, Executor]
    wiring: Wiring
    members: dict[str, dict[int, Member]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.members["target"] = {turn.sequence.seq: turn.sequence for turn in self.turns}

    @property
    def rows(self) -> int:
        return sum(turn.rows for turn in self.turns)

    def room(self, model: str, member: Member) -> int:
        """How many rows may be committed before `settle` has to be called."""
        return self.wiring.border(model, member) - member.length

    def settle(self, model: str, member: Member) -> None:
        self.wiring.settle(model, member)
