"""Random histories of all operations against the naive cache, with every invariant checked after every step."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from naive_cache import NaiveSequence, Row, empty

from vivace.kv.spec import PAGE, KVSpec, LayerShape
from vivace.kv.store import KVStore, OutOfPages, TransactionError

SHAPES = (LayerShape(2, 8), LayerShape(1, 16))
CAPACITY = 14


class Fuzz(RuleBasedStateMachine):
    """Values are small integers, which both stored forms hold exactly, so all comparisons are for equality."""

    @initialize(value_bytes=st.sampled_from([2, 4]))
    def start(self, value_bytes: int) -> None:
        self.spec = KVSpec(SHAPES, value_bytes)
        self.store = KVStore(self.spec, CAPACITY)
        self.naive: dict[int, NaiveSequence] = {}
        self.counter = 0
        self.pages: list[tuple[int, int]] = []
        self.expected_pages: list[tuple[int, int]] = []
        self.store.on_page(lambda seq, page: self.pages.append((seq, page)))
        self.new()

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.naive)))

    def settled(self, data: st.DataObject) -> int | None:
        free = [seq for seq, s in self.naive.items() if not s.pending and s.undo is None]
        return data.draw(st.sampled_from(sorted(free))) if free else None

    def values(self, n: int, dim: int) -> np.ndarray:
        self.counter += 1
        return np.random.default_rng(self.counter).integers(-2000, 2000, (n, dim)).astype(np.float32)

    def attempt(self, call, *arguments):
        """The result, or None when the store is full; then nothing may have changed."""
        before = (copy.deepcopy(self.store.pool.refs), self.store.free_pages, self.store.bytes())
        try:
            return call(*arguments)
        except OutOfPages as error:
            assert error.short > 0
            np.testing.assert_array_equal(before[0], self.store.pool.refs)
            assert before[1:] == (self.store.free_pages, self.store.bytes())
            return None

    @precondition(lambda self: len(self.naive) < 5)
    @rule()
    def new(self) -> None:
        self.naive[self.store.new()] = empty(self.spec)

    @precondition(lambda self: len(self.naive) > 1)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        seq = self.pick(data)
        self.store.drop(seq)
        del self.naive[seq]

    @precondition(lambda self: len(self.naive) < 6)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        seq = self.pick(data)
        if self.naive[seq].undo is not None:
            with pytest.raises(TransactionError):
                self.store.fork(seq)
            return
        child = copy.deepcopy(self.naive[seq])
        child.pending = []
        self.naive[self.store.fork(seq)] = child

    @rule(
        data=st.data(),
        n=st.sampled_from([0, 1, 1, 2, 5, 31, 63, 64, 65, 130]),
        gap=st.integers(0, 2),
        skipped=st.sampled_from([None, None, None, 0, 1]),
    )
    def reserve(self, data: st.DataObject, n: int, gap: int, skipped: int | None) -> None:
        self.reserve_in(self.pick(data), n, gap, skipped)

    def reserve_in(self, seq: int, n: int, gap: int, skipped: int | None = None) -> None:
        """Every other row lacks a key in the layer that is skipped."""
        s = self.naive[seq]
        start = (s.pending[-1][0] + 1 if s.pending else s.next_position) + gap
        positions = np.arange(start, start + n, dtype=np.int32)
        lacks = None
        if skipped is not None:
            lacks = np.zeros((n, len(SHAPES)), np.bool_)
            lacks[::2, skipped] = True
        first = self.attempt(self.store.reserve, seq, positions, None, lacks)
        if first is None:
            return
        assert first == len(s.common) + len(s.pending)
        rows: list[dict[tuple[int, int], Row]] = [{} for _ in range(n)]
        for key in s.lists:
            dim = self.spec.layers[key[0]].head_dim
            k, v = self.values(n, dim), self.values(n, dim)
            self.store.write(seq, *key, len(s.lists[key]) + len(s.pending), k, v)
            for i in range(n):
                if lacks is None or not lacks[i, key[0]]:
                    rows[i][key] = Row(start + i, k[i], v[i])
        s.pending += [(start + i, row) for i, row in enumerate(rows)]

    @rule(data=st.data(), how=st.sampled_from(["all", "first", "path"]))
    def commit(self, data: st.DataObject, how: str) -> None:
        seq = self.pick(data)
        pending = len(self.naive[seq].pending)
        if how == "path":
            rows = sorted(data.draw(st.sets(st.integers(0, max(0, pending - 1)), max_size=min(6, pending))))
            argument: int | list[int] | None = rows
        else:
            n = pending if how == "all" else data.draw(st.integers(0, pending))
            rows, argument = list(range(n)), None if how == "all" else n
        self.commit_in(seq, rows, argument)

    def commit_in(self, seq: int, rows: list[int], argument: int | list[int] | None) -> None:
        s = self.naive[seq]
        old = len(s.common)
        self.store.commit(seq, argument)
        s.commit(rows)
        self.expected_pages += [(seq, page) for page in range(old // PAGE, len(s.common) // PAGE)]

    @rule(data=st.data(), n=st.sampled_from([1, 3, 40, 64, 100]))
    def grow(self, data: st.DataObject, n: int) -> None:
        seq = self.pick(data)
        self.reserve_in(seq, n, 0)
        self.commit_in(seq, list(range(len(self.naive[seq].pending))), None)

    @rule(data=st.data(), everything=st.booleans())
    def rollback(self, data: st.DataObject, everything: bool) -> None:
        seq = self.pick(data)
        first = None if everything else data.draw(st.integers(0, len(self.naive[seq].pending)))
        self.store.rollback(seq, first)
        self.naive[seq].rollback(first)

    @rule(data=st.data())
    def replace(self, data: st.DataObject) -> None:
        seq = self.pick(data)
        s = self.naive[seq]
        ordinals = np.arange(s.sealed, len(s.common))[-data.draw(st.integers(1, 90)) :: data.draw(st.integers(1, 3))]
        if not len(ordinals):
            return
        if self.store.overrides(seq):
            with pytest.raises(TransactionError):
                self.store.replace(seq, ordinals)
            return
        if self.attempt(lambda: self.store.replace(seq, ordinals) or True) is None:
            return
        s.replace()
        for key, rows in s.lists.items():
            dim = self.spec.layers[key[0]].head_dim
            for i in ordinals[:3]:
                k, v = self.values(1, dim), self.values(1, dim)
                self.store.write(seq, *key, int(i), k, v)
                rows[i] = Row(rows[i].position, k[0], v[0], rows[i].bias)

    @rule(data=st.data())
    def retract(self, data: st.DataObject) -> None:
        seq = self.settled(data)
        if seq is None:
            return
        s = self.naive[seq]
        n = data.draw(st.integers(0, min(70, len(s.common))))
        if n > len(s.common) - s.sealed:
            with pytest.raises(TransactionError):
                self.store.retract(seq, n)
            return
        self.store.retract(seq, n)
        s.truncate(len(s.common) - n)

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        seq = self.settled(data)
        if seq is not None:
            length = data.draw(st.integers(0, len(self.naive[seq].common)))
            self.store.truncate(seq, length)
            self.naive[seq].truncate(length)

    @rule(data=st.data(), layer=st.sampled_from([None, 0, 0, 1, 1]), share=st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]))
    def keep(self, data: st.DataObject, layer: int | None, share: float) -> None:
        seq = self.settled(data)
        if seq is None:
            return
        s = self.naive[seq]
        if layer is None and self.store.overrides(seq):
            with pytest.raises(TransactionError):
                self.store.keep(seq, None, None, [])
            return
        head = data.draw(st.sampled_from([None, *range(SHAPES[layer].kv_heads)])) if layer is not None else None
        chosen = [k for k in s.lists if layer in (None, k[0]) and head in (None, k[1])]
        length = min(len(s.lists[key]) for key in chosen)
        lucky = np.random.default_rng(data.draw(st.integers(0, 99))).random(length) < share
        if data.draw(st.booleans()):
            lucky[: length // 2] = True  # a prefix that stays in place
        ordinals = np.flatnonzero(lucky)
        before = copy.deepcopy(self.store.pool.refs)
        try:
            self.store.keep(seq, layer, head, ordinals)
        except OutOfPages:
            np.testing.assert_array_equal(before, self.store.pool.refs)
            return
        s.keep(layer, head, ordinals.tolist())

    @rule(data=st.data())
    def set_biases(self, data: st.DataObject) -> None:
        seq = self.settled(data)
        if seq is None:
            return
        key = data.draw(st.sampled_from(sorted(self.naive[seq].lists)))
        rows = self.naive[seq].lists[key]
        ordinals = list(range(0, len(rows), 7))
        self.store.set_biases(seq, *key, ordinals, [0.5] * len(ordinals))
        for i in ordinals:
            rows[i].bias = 0.5

    @precondition(lambda self: len(self.naive) < 6)
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        """Export and adopt."""
        seq = self.settled(data)
        if seq is None:
            return
        child = self.attempt(self.store.adopt, self.store.export(seq))
        if child is None:
            return
        s = self.naive[child] = copy.deepcopy(self.naive[seq])
        ragged = any([row.position for row in rows] != s.common for rows in s.lists.values())
        s.marks, s.sealed = [(len(s.common), s.next_position)], len(s.common) if ragged else 0
        self.expected_pages += [(child, page) for page in range(len(s.common) // PAGE)]

    @rule()
    def trim(self) -> None:
        self.store.trim()

    @invariant()
    def store_holds(self) -> None:
        if hasattr(self, "store"):
            self.store.check()

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "store"):
            return
        assert self.pages == self.expected_pages
        for seq, s in self.naive.items():
            store, pending = self.store, s.pending
            assert (store.length(seq), store.pending(seq)) == (len(s.common), len(pending))
            assert store.next_position(seq) == s.next_position
            assert store.positions(seq).tolist() == s.common
            for key, committed in s.lists.items():
                found = store.positions(seq, *key, pending=True).tolist()
                assert found == [row.position for row in committed] + [position for position, _ in pending]
                present = [i for i, (_, new) in enumerate(pending) if key in new]
                rows = committed + [pending[i][1][key] for i in present]
                k, v = store.gather(seq, *key, [*range(len(committed)), *(len(committed) + i for i in present)])
                if rows:
                    np.testing.assert_array_equal(k, [row.k for row in rows])
                    np.testing.assert_array_equal(v, [row.v for row in rows])
                bias = store.biases(seq, *key)
                expected = [row.bias for row in committed]
                assert (np.zeros(len(committed)) if bias is None else bias).tolist() == expected
                override = store.overrides(seq).get(key)
                if override is None:
                    assert len(committed) == len(s.common)
                else:
                    assert override.positions.tolist() == [row.position for row in committed]
            row_bytes = 2 * self.spec.value_bytes
            assert store.read_bytes(seq) == sum(
                (len(rows) + len(pending)) * row_bytes * SHAPES[key[0]].head_dim for key, rows in s.lists.items()
            )


Fuzz.TestCase.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestFuzz = Fuzz.TestCase
