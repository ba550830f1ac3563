"""State beside the rows: two toys that follow every transaction, one of which can go back to some lengths only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from vivace.kv.prefix import PrefixCache
from vivace.kv.spec import PAGE, KVSpec, LayerShape
from vivace.kv.store import KVStore, TransactionError

SPEC = KVSpec((LayerShape(1, 16),))


class Toy:
    """Hears of everything and does nothing."""

    name = "toy"

    def can_cut(self, seq: int, length: int) -> bool:
        return True

    def __getattr__(self, call: str):
        return lambda *_: None


class PageSums(Toy):
    """The sum of the first key values of each page, brought up to date when rows change."""

    name = "page sums"

    def __init__(self, store: KVStore) -> None:
        self.store = store
        self.sums: dict[int, dict[int, float]] = {}
        self.changed: dict[int, set[int]] = {}

    def reserve(self, seq: int, positions: np.ndarray) -> None:
        first = self.store.length(seq) + self.store.pending(seq)
        self._mark(seq, range(first, first + len(positions)))

    def replace(self, seq: int, ordinals: np.ndarray) -> None:
        self._mark(seq, ordinals)

    def restore(self, seq: int, ordinals: np.ndarray) -> None:
        self._refresh(seq, {int(i) // PAGE for i in ordinals})

    def commit(self, seq: int, rows) -> None:
        self._refresh(seq, self.changed.pop(seq, set()))

    def fork(self, seq: int, child: int) -> None:
        self.sums[child] = dict(self.sums.get(seq, {}))

    def truncate(self, seq: int, length: int) -> None:
        self._refresh(seq, {length // PAGE})

    def export(self, seq: int, layers) -> Any:
        return dict(self.sums.get(seq, {}))

    def adopt(self, seq: int, state: Any) -> None:
        self.sums[seq] = dict(state)

    def drop(self, seq: int) -> None:
        self.sums.pop(seq, None)

    def _mark(self, seq: int, ordinals) -> None:
        self.changed.setdefault(seq, set()).update(int(i) // PAGE for i in ordinals)

    def _refresh(self, seq: int, pages: set[int]) -> None:
        keys = cells(self.store, seq)
        sums = self.sums.setdefault(seq, {})
        for page in pages:
            sums[page] = sum(keys[page * PAGE : (page + 1) * PAGE])
        self.sums[seq] = {page: total for page, total in sums.items() if page * PAGE < len(keys)}

    def right(self, seq: int) -> bool:
        keys = cells(self.store, seq)
        wanted = {page: sum(keys[page * PAGE : (page + 1) * PAGE]) for page in range(-(-len(keys) // PAGE))}
        return self.sums.get(seq, {}) == wanted


@dataclass
class Running(Toy):
    """A recurrence over positions: it can go back to where it stood at the end of a commit, and replaces nothing."""

    name = "running"
    states: dict[int, dict[int, int]] = field(default_factory=dict)  # by sequence: the state at each committed length
    pending: dict[int, list[int]] = field(default_factory=dict)

    def state(self, seq: int) -> tuple[int, int]:
        return max(self.states.get(seq, {}).items(), default=(0, 1))

    def reserve(self, seq: int, positions: np.ndarray) -> None:
        self.pending.setdefault(seq, []).extend(positions.tolist())

    def rollback(self, seq: int, first: int) -> None:
        del self.pending.setdefault(seq, [])[first:]

    def commit(self, seq: int, rows) -> None:
        length, value = self.state(seq)
        pending = self.pending.pop(seq, [])
        for row in rows:
            value = (31 * value + pending[row]) % 9973
        self.states.setdefault(seq, {})[length + len(rows)] = value

    def replace(self, seq: int, ordinals: np.ndarray) -> None:
        raise TransactionError("a recurrence cannot replace rows")

    def fork(self, seq: int, child: int) -> None:
        self.states[child] = dict(self.states.get(seq, {}))

    def can_cut(self, seq: int, length: int) -> bool:
        return length == 0 or length in self.states.get(seq, {})

    def truncate(self, seq: int, length: int) -> None:
        self.states[seq] = {at: value for at, value in self.states.get(seq, {}).items() if at <= length}

    def export(self, seq: int, layers) -> Any:
        return self.state(seq)

    def adopt(self, seq: int, state: Any) -> None:
        if not isinstance(state, tuple):
            raise ValueError("not a state of a recurrence")
        self.states[seq] = {state[0]: state[1]}


def cells(store: KVStore, seq: int) -> list[float]:
    return store.gather(seq, 0, 0, np.arange(store.length(seq)))[0][:, 0].tolist()


def write(store: KVStore, seq: int, first: int, n: int, value: float) -> None:
    rows = np.full((n, 16), value, np.float32)
    store.write(seq, 0, 0, first, rows, rows)


def grow(store: KVStore, seq: int, n: int, value: float = 1) -> None:
    first, position = store.length(seq), store.next_position(seq)
    store.reserve(seq, np.arange(position, position + n, dtype=np.int32))
    write(store, seq, first, n, value)
    store.commit(seq)


def store_with(*toys) -> KVStore:
    store = KVStore(SPEC, 32)
    for toy in toys:
        store.attach(toy)
    return store


def test_page_summaries_follow_replaced_rows():
    store = store_with()
    sums = PageSums(store)
    store.attach(sums)
    seq = store.new()
    grow(store, seq, 150)
    child = store.fork(seq)
    store.replace(seq, [3, 70])
    write(store, seq, 70, 1, 9)
    store.commit(seq)
    assert sums.right(seq) and sums.right(child) and sums.sums[seq][1] == PAGE + 8
    store.replace(seq, [140])
    write(store, seq, 140, 1, 7)
    store.reserve(seq, np.array([150], np.int32))
    store.rollback(seq)
    assert sums.right(seq)


def test_a_replace_that_one_refuses_is_taken_back_from_the_others():
    store = store_with()
    seq, told = store.new(), []
    sums = PageSums(store)
    sums.restore = lambda seq, ordinals: told.append((seq, ordinals.tolist()))
    store.attach(sums)
    store.attach(Running())
    grow(store, seq, 4)
    with pytest.raises(TransactionError, match="cannot replace rows"):
        store.replace(seq, [1])
    assert told == [(seq, [1])] and store.bytes().undo == 0
    store.truncate(seq, 0)  # nothing is open


def test_a_moved_sequence_takes_its_states_along():
    here, there = Running(), Running()
    source, target = store_with(here), store_with(there)
    sums = PageSums(target)
    first_sums = PageSums(source)
    source.attach(first_sums)
    target.attach(sums)
    seq = source.new()
    grow(source, seq, 70)
    blob = source.export(seq)
    moved = target.adopt(blob)
    assert there.state(moved) == here.state(seq) and sums.right(moved)
    grow(source, seq, 3)
    grow(target, moved, 3)
    assert there.state(moved) == here.state(seq) and sums.right(moved)


def test_a_blob_of_other_participants_or_with_a_wrong_state_is_refused():
    source, target = store_with(Running()), store_with(Running())
    seq = source.new()
    grow(source, seq, 70)
    blob = source.export(seq)
    with pytest.raises(ValueError, match=r"states of \['running'\], those who take part are \[\]"):
        store_with().adopt(blob)
    blob.states["running"] = "nonsense"
    with pytest.raises(ValueError, match="not a state"):
        target.adopt(blob)
    assert target.free_pages == 32
    target.check()


def test_names_of_participants_are_their_own():
    with pytest.raises(ValueError, match="'running' is attached already"):
        store_with(Running(), Running())


def test_sequences_are_cut_where_every_participant_can_go_back():
    state = Running()
    store = store_with(state, Toy())
    seq = store.new()
    for n in (5, 5):
        grow(store, seq, n)
    assert [store.can_cut(seq, n) for n in (0, 4, 5, 10)] == [True, False, True, True]
    for cut in (lambda: store.truncate(seq, 4), lambda: store.retract(seq, 6)):
        with pytest.raises(TransactionError, match="cannot go back to 4 rows"):
            cut()
    assert (store.length(seq), state.state(seq)[0]) == (10, 10)
    store.retract(seq, 5)
    assert (store.length(seq), state.state(seq)[0]) == (5, 5)


def test_prefixes_end_where_their_snapshot_can_be_cut():
    state = Running()
    store = store_with(state)
    cache, tokens, seq = PrefixCache(store), list(range(4 * PAGE)), store.new()
    grow(store, seq, 2 * PAGE)
    cache.insert(seq, tokens[: 2 * PAGE], "m")
    grow(store, seq, PAGE + 9)
    assert [cache.accepts(seq, n) for n in (PAGE, 2 * PAGE, 3 * PAGE, 3 * PAGE + 9)] == [False, True, False, True]
    with pytest.raises(ValueError, match="cannot go back"):
        cache.insert(seq, tokens[: 3 * PAGE], "m")
    cache.insert(seq, tokens[: 3 * PAGE + 9], "m")
    for wanted, length in ((3 * PAGE + 9, 3 * PAGE + 9), (3 * PAGE + 5, 2 * PAGE), (2 * PAGE + 7, 2 * PAGE)):
        child, found = cache.fork(tokens[:wanted], "m")
        assert (found, store.length(child), state.state(child)[0]) == (length, length, length)
        store.drop(child)
    assert cache.fork(tokens[: PAGE + 9], "m") is None
    store.drop(seq)
    cache.evict(1)
    store.check()
    assert cache.match(tokens, "m")[1] == 2 * PAGE
    cache.clear()
    assert store.free_pages == 32


@pytest.mark.parametrize("first", [(PAGE,), (PAGE, 9)])
def test_a_prefix_stays_when_a_longer_one_cannot_be_cut_to_it(first):
    state = Running()
    store = store_with(state)
    cache, tokens = PrefixCache(store), list(range(4 * PAGE))
    for pieces in (first, (2 * PAGE,)):
        seq = store.new()
        for piece in pieces:
            grow(store, seq, piece)
            cache.insert(seq, tokens[: store.length(seq)], "m")
        store.drop(seq)
    for length in (*np.cumsum(first).tolist(), 2 * PAGE):
        child, found = cache.fork(tokens[:length], "m")
        assert found == state.state(child)[0] == length
    store.check()
