"""The pages of the target's cache: whose rows a sequence starts from, what is remembered, and whether there is room."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from vivace.core.batch import NO_SEQ, Sequence, Turn
from vivace.kv.prefix import PrefixCache
from vivace.kv.spec import PAGE
from vivace.kv.store import KVStore
from vivace.model.spec import ModelSpec, RopeSpec


class PrefixKey(NamedTuple):
    """All that shapes a token's keys and values besides the tokens up to it. Only equal keys share rows."""

    model: str
    weights: str
    rotary: tuple[RopeSpec | None, ...]
    plan: str = ""
    adapter: str = ""
    salt: str = ""

    @staticmethod
    def of(spec: ModelSpec, weights: str, plan: str) -> PrefixKey:
        rotary = tuple(dict.fromkeys(block.attention.rope for block in spec.blocks))
        return PrefixKey(spec.family, weights, rotary, plan)


class Room:
    """Gives sequences their place in the store, and takes it back.

    Rows of prompts that have run, and of sequences that have left, stay known until their pages are needed; a sequence
    that begins with the same tokens forks them. `plain_rows`: generated rows too (see `Decoder.plain_rows`).
    """

    def __init__(self, store: KVStore, key: PrefixKey, *, remembers: bool, plain_rows: bool) -> None:
        self.store, self.key = store, key
        self.remembers, self.plain_rows = remembers, plain_rows
        self.known = PrefixCache(store)

    def enter(self, sequence: Sequence) -> None:
        """A place for a sequence that has none, with the known rows it begins with; at least one row has to run."""
        hit = None
        if self.remembers and not sequence.reports_prompt:
            hit = self.known.fork(sequence.tokens[:-1], self._key(sequence))
        sequence.seq, sequence.length = hit or (self.store.new(), 0)

    def remember(self, sequence: Sequence, *, ended: bool) -> None:
        """Others may start from its rows: from whole pages, or from all of them if it writes no more."""
        length = sequence.length if self.plain_rows else min(sequence.length, sequence.prompt_length)
        if not ended:
            length -= length % PAGE
        if self.remembers and self.known.accepts(sequence.seq, length):
            self.known.insert(sequence.seq, sequence.tokens[:length], self._key(sequence))

    def leave(self, sequence: Sequence) -> None:
        """Its pages come free, unless others hold them."""
        self.store.drop(sequence.seq)
        sequence.seq, sequence.length = NO_SEQ, 0

    def holds(self, pages: int) -> bool:
        """Whether so many pages are free, or can be freed by forgetting."""
        free = self.store.free_pages
        return pages <= free or pages <= free + self.known.evictable()

    def fits(self, turns: Iterable[Turn], extra_rows: int) -> bool:
        """Whether the rows of a round can be reserved; forgets what is remembered where that makes the room."""
        rows = {turn.sequence.seq: turn.rows + extra_rows for turn in turns}
        while short := self.store.shortage(rows):
            if not self.known.evict(short):
                return False
        return True

    def check(self, idle: bool) -> None:
        """Verify the books; when idle, all pages are free or remembered."""
        self.store.check()
        if idle:
            held = self.store.capacity_pages - self.store.free_pages
            assert held == self.known.evictable(), f"{held - self.known.evictable()} pages are held by nobody"

    def _key(self, sequence: Sequence) -> PrefixKey:
        return self.key._replace(salt=sequence.request.salt)
