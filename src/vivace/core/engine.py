"""The serving loop: admit, schedule, run a round, hand out what it gave."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vivace.core.batch import NO_SEQ, Batch, Sequence, Turn, end_ids_of, tokens_of
from vivace.core.clock import Clock, WallClock
from vivace.core.cost import CostTable, cost_table
from vivace.core.drive import drive
from vivace.core.emit import Emit
from vivace.core.interrupts import uninterrupted
from vivace.core.request import FinishReason, Request
from vivace.core.room import PrefixKey, Room
from vivace.core.scheduler import FirstCome, SchedulePolicy
from vivace.core.stats import EngineStats, close_timings
from vivace.core.validate import RequestError, check_request, check_text_rules
from vivace.core.wiring import Wiring
from vivace.kv.spec import PAGE

if TYPE_CHECKING:
    from vivace.core.step import Executor
    from vivace.model.tokenizer import Tokenizer

__all__ = ["Engine", "RequestError"]


class Engine:
    """Generates for many requests at once over one pool of models, of which "target" is the one they are for.

    A round runs at most `token_budget` rows (or what the models take in one step, if that is less), at most `chunk` of
    one prompt, for at most `max_sequences` sequences.
    A request is admitted when the cache has room for its tokens, and for a page more of it and of each running one.
    When the cache is full, the rows remembered of earlier requests go first, then the youngest sequence is preempted:
    it waits, and what it lost is computed again. None of this changes any token.
    """

    def __init__(
        self,
        models: Mapping[str, Executor],
        *,
        tokenizer: Tokenizer | None = None,
        wiring: Wiring | None = None,
        policy: SchedulePolicy | None = None,
        context: int | None = None,
        token_budget: int = 512,
        chunk: int = 512,
        max_sequences: int = 64,
        prefix_cache: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.models, self.tokenizer = models, tokenizer
        self.store, self.spec = models["target"].store, models["target"].spec
        self.wiring = wiring or Wiring()
        self.decoder = self.wiring.decoder
        self.policy: SchedulePolicy = policy or FirstCome()
        self.context = context or self.spec.max_context or self.store.capacity_pages * PAGE
        self.token_budget = min(token_budget, *(model.max_rows for model in models.values()))
        self.chunk, self.max_sequences = chunk, max_sequences
        self.clock: Clock = clock or WallClock()
        self.stats = EngineStats()
        self.eos_ids = tuple(dict.fromkeys((*self.spec.eos_ids, *(tokenizer.eos_ids if tokenizer else ()))))
        key = PrefixKey.of(self.spec, models["target"].fingerprint, self.wiring.key)
        remembers = prefix_cache and self.wiring.shares_prefixes
        self.room = Room(self.store, key, remembers=remembers, plain_rows=self.wiring.plain_rows)
        self.waiting: list[Sequence] = []
        self.running: dict[int, Sequence] = {}
        self._arrivals = 0
        self._full = False  # nobody could be admitted, and nothing has changed since

    # Requests

    @uninterrupted
    def add(self, request: Request, samples: int = 1) -> list[Sequence]:
        """Queue a request, `samples` times from its own sample number on; the copies share the prompt's pages.

        Returns their handles. Raises RequestError when it can never run.
        """
        request = self.wiring.rewrite(request, self)
        self.validate(request, samples)
        leader, *followers = [self._sequence(request, request.sample + i) for i in range(samples)]
        if followers and len(leader.tokens) > 1:
            leader.followers, leader.cut = followers, len(leader.tokens) - 1
            self.waiting.append(leader)
        else:
            self.waiting += [leader, *followers]
        self._full = False
        self.stats.requests += samples
        return [leader, *followers]

    def validate(self, request: Request, samples: int = 1) -> None:
        """Raises RequestError when the request can never run here."""
        rows = self.wiring.most_rows(tokens_of(request), len(request.prompt)) + self.decoder.extra_rows
        check_request(request, samples, self.spec, self.context, self.store.capacity_pages, rows)
        check_text_rules(request.sampling, end_ids_of(request.sampling, self.eos_ids), self.tokenizer is not None)

    @uninterrupted
    def cancel(self, sequence: Sequence) -> None:
        """End a request now; what it has generated stays in its handle. Nothing happens if it has ended already."""
        if not sequence.finished:
            self._end(sequence, "cancelled")

    def cost(self, model: str = "target") -> CostTable:
        """What steps take, for schedulers and draft shapes; measured, for seconds, when this machine has no table."""
        return cost_table(self.models[model], self.room.key.plan)

    @uninterrupted
    def reset_cache(self) -> None:
        """Forget the rows of earlier requests."""
        self.room.known.clear()

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    # One round

    @uninterrupted
    def step(self) -> list[Emit]:
        """Advance every running sequence that fits the budget. Returns what each of them gained.

        An error that concerns a sequence ends that one; one that concerns the whole round ends those in it.
        """
        self._admit()
        turns = self._turns()
        if not turns:
            return []
        self.stats.rounds += 1
        batch = Batch(turns, self.models, self.wiring)
        try:
            emits = drive(self.decoder.round(batch, self.token_budget), batch, self.stats)
        except BaseException as error:
            for turn in turns:  # what the round left pending
                self.store.rollback(turn.sequence.seq)
            if not isinstance(error, Exception):
                raise
            emits = [Emit(turn.sequence, [], error) for turn in turns]
        now = self.clock.now()
        for emit in emits:
            self._absorb(emit, now)
        for turn in turns:
            sequence = turn.sequence
            if not sequence.finished:
                self.wiring.settle("target", sequence)
            if sequence.followers and not sequence.due:
                self._fork(sequence)
            if turn.rows > 1 and not sequence.finished:
                self.room.remember(sequence, ended=False)
        return emits

    def check(self) -> None:
        """Verify the books; raises AssertionError with the fact that does not hold."""
        for executor in self.models.values():
            executor.store.check()
        for seq, sequence in self.running.items():
            assert sequence.seq == seq, f"sequence {seq} is filed under another number"
            assert self.store.pending(seq) == 0, f"sequence {seq} was left with pending rows"
            ran = self.store.next_position(seq)
            assert ran == sequence.length, f"sequence {seq} has run {ran} tokens, and not {sequence.length}"
            assert not sequence.finished, f"sequence {seq} has ended and still runs"
        self.room.check(idle=not self._holders())

    # Admission

    def _sequence(self, request: Request, sample: int) -> Sequence:
        sequence = Sequence.of(request, sample, self.eos_ids, self.tokenizer, self.wiring.stages)
        self._arrivals += 1
        sequence.number, sequence.arrived = self._arrivals, self.clock.now()
        return sequence

    def _admit(self) -> None:
        while self._may_admit():
            holders = [sequence for sequence in self.waiting if sequence.seq != NO_SEQ]
            sequence = self.policy.next(holders or self.waiting)  # whoever holds pages must get on, to free them
            fresh = sequence.seq == NO_SEQ
            if fresh:
                self.room.enter(sequence)
            if self._has_room(sequence):
                self._start(sequence)
                continue
            others = [holder for holder in self._holders() if holder is not sequence]
            if not others:
                self._start(sequence)  # nobody is left to wait for
                continue
            if fresh:
                self.room.leave(sequence)
            if self.running:
                self._full = True
            else:
                self._preempt(self.policy.victim(others))

    def _may_admit(self) -> bool:
        """A sequence starts when rows of it can run at once; until then it may find more of its prompt known."""
        if not self.waiting or self._full or len(self.running) >= self.max_sequences:
            return False
        return sum(min(sequence.due, self.chunk) for sequence in self.running.values()) < self.token_budget

    def _has_room(self, sequence: Sequence) -> bool:
        growth, extra = PAGE if self.wiring.plain_rows else self.context, self.decoder.extra_rows
        return self.room.holds(sum(s.pages_to_come(growth, extra) for s in (*self.running.values(), sequence)))

    def _start(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        if not sequence.started:
            sequence.started, sequence.cached_tokens = self.clock.now(), sequence.length
            self.stats.start(sequence)
        self.running[sequence.seq] = sequence
        if sequence.followers and not sequence.due:
            self._fork(sequence)

    def _holders(self) -> list[Sequence]:
        """All that hold pages."""
        return [*self.running.values(), *(sequence for sequence in self.waiting if sequence.seq != NO_SEQ)]

    def _turns(self) -> list[Turn]:
        """The next round, after preempting as many as the cache has no room for."""
        while True:
            extra = self.decoder.extra_rows
            turns = self.policy.turns(self.running.values(), self.token_budget, self.chunk, extra)
            self.wiring.cut(turns)
            if not turns or self.room.fits(turns, extra):
                return turns
            holders = self._holders()
            if len(holders) == 1:
                self.reset_cache()  # so that it need not copy a page that is remembered too
                return turns
            self._preempt(self.policy.victim(holders))

    def _preempt(self, sequence: Sequence) -> None:
        """Its tokens stay, its rows are remembered only until their pages are needed; it starts again later."""
        self.running.pop(sequence.seq, None)
        self.decoder.forget(sequence)
        self.room.remember(sequence, ended=True)
        self.room.leave(sequence)
        if sequence not in self.waiting:
            insort(self.waiting, sequence, key=lambda waiting: waiting.number)
        sequence.preemptions += 1
        self.stats.preemptions += 1
        self._full = False

    def _fork(self, leader: Sequence) -> None:
        """The followers take over what ran of the prompt, and queue before later requests."""
        followers = [follower for follower in leader.followers if not follower.finished]
        for follower in followers:
            follower.seq, follower.length = self.store.fork(leader.seq), leader.length
            if leader.prompt_logprobs is not None:
                follower.prompt_logprobs = list(leader.prompt_logprobs)
        self.waiting[:0] = followers
        leader.followers = []
        self._full = False

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
                emit.absorb()
            except ValueError as error:  # a token that has no text
                sequence.error, emit.finish_reason = error, "error"
        elif not sequence.request.sampling.max_tokens and not sequence.followers and not sequence.due:
            emit.finish_reason = "length"
        if emit.finish_reason is not None:
            emit.text += self._end(sequence, emit.finish_reason)

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
            sequence.memory.kv_resident_bytes = self.store.read_bytes(sequence.seq)
            if reason != "error":
                self.room.remember(sequence, ended=True)
            self.store.drop(sequence.seq)
            self.running.pop(sequence.seq, None)
        self._full = False
        close_timings(sequence, self.clock.now())
        self.stats.end(sequence)
        return rest
