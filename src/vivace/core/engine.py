"""The serving loop: admit, schedule, run a round, hand out what it gave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vivace.core.batch import NO_SEQ, Batch, Sequence, Turn, pages_of
from vivace.core.clock import Clock, WallClock
from vivace.core.decoders.autoregressive import Autoregressive
from vivace.core.drive import drive
from vivace.core.emit import Emit
from vivace.core.request import FinishReason, Request
from vivace.core.scheduler import FirstCome, SchedulePolicy
from vivace.core.stats import EngineStats, close_timings
from vivace.kv.spec import PAGE
from vivace.sampling.chooser import Chooser
from vivace.slots.logits import Context

if TYPE_CHECKING:
    from vivace.core.step import Executor
    from vivace.model.tokenizer import Tokenizer
    from vivace.slots.decoder import Decoder


class RequestError(ValueError):
    """The request can never run here; the message says what is wrong, and by how much."""


class Engine:
    """Generates for many requests at once over one pool of models, of which "target" is the one they are for.

    A round runs at most `token_budget` rows (or what the models take in one step, if that is less), at most `chunk` of
    one prompt, for at most `max_sequences` sequences.
    A request is admitted when the pages it can ever need are free beside those that the running ones can still need,
    so no running sequence is ever stopped for want of memory. None of these numbers changes any token.
    """

    def __init__(
        self,
        models: Mapping[str, Executor],
        *,
        tokenizer: Tokenizer | None = None,
        decoder: Decoder | None = None,
        policy: SchedulePolicy | None = None,
        context: int | None = None,
        token_budget: int = 512,
        chunk: int = 512,
        max_sequences: int = 64,
        clock: Clock | None = None,
    ) -> None:
        self.models, self.tokenizer = models, tokenizer
        self.store, self.spec = models["target"].store, models["target"].spec
        self.decoder: Decoder = decoder or Autoregressive()
        self.policy: SchedulePolicy = policy or FirstCome()
        self.context = context or self.spec.max_context or self.store.capacity_pages * PAGE
        self.token_budget = min(token_budget, *(model.max_rows for model in models.values()))
        self.chunk, self.max_sequences = chunk, max_sequences
        self.clock: Clock = clock or WallClock()
        self.stats = EngineStats()
        self.eos_ids = tuple(dict.fromkeys((*self.spec.eos_ids, *(tokenizer.eos_ids if tokenizer else ()))))
        self.waiting: list[Sequence] = []
        self.running: dict[int, Sequence] = {}

    # Requests

    def add(self, request: Request, samples: int = 1) -> list[Sequence]:
        """Queue a request, `samples` times from its own sample number on; the copies share the prompt's pages.

        Returns their handles. Raises RequestError when it can never run.
        """
        self.validate(request, samples)
        leader, *followers = [self._sequence(request, request.sample + i) for i in range(samples)]
        if followers and len(leader.tokens) > 1:
            leader.followers, leader.cut = followers, len(leader.tokens) - 1
            self.waiting.append(leader)
        else:
            self.waiting += [leader, *followers]
        self.stats.requests += samples
        return [leader, *followers]

    def validate(self, request: Request, samples: int = 1) -> None:
        """Raises RequestError when the request can never run here."""
        prompt, wanted = len(request.prompt), request.sampling.max_tokens
        if not prompt:
            raise RequestError("the prompt is empty: give at least one token")
        if prompt + wanted > self.context:
            raise RequestError(
                f"a prompt of {prompt} tokens and max_tokens {wanted} need {prompt + wanted} positions, "
                f"{prompt + wanted - self.context} more than the context of {self.context}: "
                "shorten the prompt, lower max_tokens or load with a larger context"
            )
        need, capacity = pages_of(prompt + wanted + self.decoder.extra_rows), self.store.capacity_pages
        need += samples > 1  # the page in which a copy of the prompt is cut may be copied
        if need > capacity:
            raise RequestError(
                f"a prompt of {prompt} tokens and max_tokens {wanted} need {need} pages of cache, {need - capacity} "
                f"more than the {capacity} there are: shorten the prompt, lower max_tokens or enlarge the cache"
            )

    def cancel(self, sequence: Sequence) -> None:
        """End a request now; what it has generated stays in its handle. Nothing happens if it has ended already."""
        if not sequence.finished:
            self._end(sequence, "cancelled")

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    # One round

    def step(self) -> list[Emit]:
        """Advance every running sequence that fits the budget. Returns what each of them gained.

        An error that concerns a sequence ends that one; one that concerns the whole round ends those in it.
        """
        self._admit()
        turns = self.policy.turns(self.running.values(), self.token_budget, self.chunk, self.decoder.extra_rows)
        if not turns:
            return []
        self.stats.rounds += 1
        batch = Batch(turns, self.models)
        try:
            emits = drive(self.decoder.round(batch, self.token_budget), batch, self.stats)
        except BaseException as error:
            self._undo(turns)
            if not isinstance(error, Exception):
                raise
            emits = [Emit(turn.sequence, [], error) for turn in turns]
        now = self.clock.now()
        for emit in emits:
            self._absorb(emit, now)
        for turn in turns:
            if turn.sequence.followers and not turn.sequence.due:
                self._fork(turn.sequence)
        return emits

    def check(self) -> None:
        """Verify the books; raises AssertionError with the fact that does not hold."""
        for executor in self.models.values():
            executor.store.check()
        for seq, sequence in self.running.items():
            assert sequence.seq == seq, f"sequence {seq} is filed under another number"
            assert self.store.pending(seq) == 0, f"sequence {seq} was left with pending rows"
            assert self.store.length(seq) == sequence.length, f"sequence {seq} and the store disagree on its length"
            assert not sequence.finished, f"sequence {seq} has ended and still runs"
        if not self.running and not any(s.seq != NO_SEQ for s in self.waiting):
            assert self.store.free_pages == self.store.capacity_pages, "pages are held by nobody"

    # Admission

    def _sequence(self, request: Request, sample: int) -> Sequence:
        sampling, tokens = request.sampling, list(request.prompt)
        eos = () if sampling.ignore_eos else self.eos_ids
        end_ids = tuple(dict.fromkeys((*eos, *sampling.stop_token_ids)))
        sequence = Sequence(
            request, Chooser(sampling, sample, end_ids), frozenset(end_ids), tokens, Context(tokens, len(tokens))
        )
        sequence.arrived = self.clock.now()
        if sampling.logprobs is not None:
            sequence.logprobs = []
        if sampling.prompt_logprobs is not None:
            sequence.prompt_logprobs = [None]
        if self.tokenizer is not None:
            from vivace.core.text import TextStream

            sequence.stream = TextStream(
                self.tokenizer, sampling.stop, sampling.include_stop, sampling.skip_special_tokens
            )
        return sequence

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.max_sequences:
            holders = [sequence for sequence in self.waiting if sequence.seq != NO_SEQ]
            sequence = self.policy.next(holders or self.waiting)  # whoever holds pages must get on, to free them
            if self._pages_short(sequence) > 0:
                return
            self.waiting.remove(sequence)
            if sequence.seq == NO_SEQ:
                sequence.seq = self.store.new()
            sequence.started = self.clock.now()
            self.running[sequence.seq] = sequence

    def _pages_short(self, sequence: Sequence) -> int:
        extra = self.decoder.extra_rows
        need = sum(s.pages_to_come(extra) for s in (*self.running.values(), sequence))
        return need - self.store.free_pages

    def _fork(self, leader: Sequence) -> None:
        """The followers take over what ran of the prompt, and queue before later requests."""
        followers = [follower for follower in leader.followers if not follower.finished]
        for follower in followers:
            follower.seq, follower.length = self.store.fork(leader.seq), leader.length
            follower.cached_tokens = leader.length
            if leader.prompt_logprobs is not None:
                follower.prompt_logprobs = list(leader.prompt_logprobs)
        self.waiting[:0] = followers
        leader.followers = []

    def _bequeath(self, leader: Sequence) -> None:
        """A leader that ends before the fork leaves its followers to the first of them."""
        alive = [follower for follower in leader.followers if not follower.finished]
        leader.followers = []
        if alive:
            alive[0].followers, alive[0].cut = alive[1:], leader.cut
            self.waiting.insert(0, alive[0])

    # Results

    def _absorb(self, emit: Emit, now: float) -> None:
        sequence = emit.sequence
        if emit.error is not None:
            sequence.error = emit.error
            emit.finish_reason = "error"
        elif emit.choices:
            if not sequence.emitting_rounds:
                sequence.first_token = now
            sequence.emitting_rounds += 1
            try:
                self._extend(sequence, emit)
            except ValueError as error:  # a token that has no text
                sequence.error, emit.finish_reason = error, "error"
        elif not sequence.request.sampling.max_tokens and not sequence.followers and not sequence.due:
            emit.finish_reason = "length"
        if emit.finish_reason is not None:
            emit.text += self._end(sequence, emit.finish_reason)

    def _extend(self, sequence: Sequence, emit: Emit) -> None:
        """Take over the new tokens up to the one that ends the text, and drop the rest."""
        before = len(sequence.text)
        left = sequence.remaining
        for used, choice in enumerate(emit.choices, start=1):
            sequence.tokens.append(choice.token)
            if sequence.logprobs is not None:
                assert choice.logprobs is not None
                sequence.logprobs.append(choice.logprobs)
            emit.finish_reason = self._read(sequence, choice.token)
            if emit.finish_reason is None and used == left:
                emit.finish_reason = "length"
            if emit.finish_reason is not None:
                del emit.choices[used:]
                break
        emit.text = sequence.text[before:]

    def _read(self, sequence: Sequence, token: int) -> FinishReason | None:
        """Add the token's text; whether it ends the sequence."""
        stream, ends = sequence.stream, token in sequence.end_ids
        if stream is not None and (not ends or sequence.request.sampling.include_stop):
            sequence.text += stream.push(token)
            if stream.stopped:
                return "stop_sequence"
        return "stop" if ends else None

    def _end(self, sequence: Sequence, reason: FinishReason) -> str:
        """Close the sequence and free what it holds. Returns the text that was held back."""
        self._bequeath(sequence)
        sequence.finish_reason = reason
        rest = sequence.stream.finish() if sequence.stream is not None else ""
        sequence.text += rest
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        if sequence.seq != NO_SEQ:
            self.decoder.forget(sequence)
            self.store.drop(sequence.seq)
            self.running.pop(sequence.seq, None)
        close_timings(sequence, self.clock.now())
        self.stats.end(sequence)
        return rest

    def _undo(self, turns: list[Turn]) -> None:
        """Drop what a failed or interrupted round left pending."""
        for turn in turns:
            sequence = turn.sequence
            self.store.rollback(sequence.seq)
            sequence.length = self.store.length(sequence.seq)
