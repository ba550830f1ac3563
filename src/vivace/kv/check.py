"""The invariants of a store, recounted from its sequences."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vivace.kv.lists import ListKey, PageList, Sequence, pages_for
from vivace.kv.pages import CellPool
from vivace.kv.spec import PAGE


def check_store(pool: CellPool, sequences: Mapping[int, Sequence], lanes: Mapping[ListKey, int]) -> None:
    """Raises AssertionError with the first fact that does not hold."""
    refs = np.zeros_like(pool.refs)
    for seq, s in sequences.items():
        held = [*s.main.lanes.tolist(), *(lanes[key] for key in s.overrides)]
        _require(sorted(held) == list(range(len(lanes))), f"sequence {seq}: not each lane is held once: {held}")
        for key, rows in s.overrides.items():
            _require(rows.lanes.tolist() == [lanes[key]], f"sequence {seq}: override {key} holds lanes {rows.lanes}")
        for rows in (s.main, *s.overrides.values()):
            _check_list(pool, f"sequence {seq}, lanes {rows.lanes.tolist()}", s, rows)
            np.add.at(refs, (rows.lanes[:, None], rows.pages), 1)
        for key, bias in s.biases.items():
            _require(len(bias) <= s.list_of(key).length, f"sequence {seq}: list {key} has more biases than rows")
        shape = (s.pending, s.pending)
        _require(s.sees is None or s.sees.shape == shape, f"sequence {seq}: what pending rows see is not {shape}")
        _require(s.lacks is None or len(s.lacks) == s.pending, f"sequence {seq}: {s.pending} rows, not those that lack")
        _require(0 <= s.sealed <= s.main.length, f"sequence {seq}: {s.sealed} rows sealed of {s.main.length}")
    wrong = np.argwhere(refs != pool.refs)
    if len(wrong):
        lane, page = wrong[0]
        _require(False, f"cell {page} of lane {lane} has {pool.refs[lane, page]} holders, not {refs[lane, page]}")
    used = np.count_nonzero(refs, axis=0)
    _require(np.array_equal(used, pool.used), "the counts of lanes in use per page are wrong")
    _require(np.array_equal(np.count_nonzero(refs, axis=1), pool.lane_used), "the counts of cells per lane are wrong")
    free = np.flatnonzero(used == 0).tolist()
    _require(sorted(pool.free) == free, "the free list is not the list of pages free in every lane")
    _require(not used[pool.high :].any(), f"a page from {pool.high} on is in use, but was never taken")


def _check_list(pool: CellPool, name: str, s: Sequence, rows: PageList) -> None:
    total = rows.length + s.pending
    count = pages_for(total) if len(rows.lanes) else 0
    _require(rows.count == count, f"{name}: {rows.count} pages for {total} rows")
    _require(len(rows.row_positions) >= max(total, rows.writable), f"{name}: too little room for positions")
    _require(len(set(rows.pages.tolist())) == rows.count, f"{name}: a page stands twice in the list")
    positions = rows.positions
    _require(bool((np.diff(positions) > 0).all()), f"{name}: positions do not ascend")
    _require(not len(positions) or positions[-1] < s.next_position, f"{name}: positions reach {s.next_position}")
    _require(rows.writable <= rows.count * PAGE, f"{name}: writable up to {rows.writable} in {rows.count} pages")
    if rows.writable > rows.length:
        own = rows.pages[rows.length // PAGE : pages_for(rows.writable)]
        _require(bool((pool.refs[rows.lanes[:, None], own] == 1).all()), f"{name}: writes to a shared page")


def _require(holds: bool, fact: str) -> None:
    if not holds:
        raise AssertionError(f"store: {fact}")
