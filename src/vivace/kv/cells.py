"""Page lists over memory: taking, sharing, copying and compacting the cells of sequences."""

from __future__ import annotations

import numpy as np

from vivace.kv.lists import ListKey, PageList, Sequence, pages_for
from vivace.kv.pages import CellPool
from vivace.kv.plain import Index, Part, Plain
from vivace.kv.spec import PAGE, KVSpec


class Cells:
    """The memory of a store, and what its sequences hold of it. Callers ask `pool.require` before they take."""

    def __init__(self, spec: KVSpec, capacity_pages: int) -> None:
        self.spec = spec
        self.plain = Plain(spec, capacity_pages)
        keys = [(i, head) for i, layer in enumerate(spec.layers) for head in range(layer.kv_heads)]
        self.lanes: dict[ListKey, int] = {key: lane for lane, key in enumerate(keys)}
        self.pool = CellPool(len(keys), capacity_pages)
        self._all_lanes = np.arange(len(keys))
        self._all_parts: list[Part] = [(i, np.arange(layer.kv_heads)) for i, layer in enumerate(spec.layers)]

    def common_list(self) -> PageList:
        """An empty list held by every lane."""
        return PageList(self._all_lanes, self._all_parts)

    def keys(self, layer: int, head: int | None) -> list[ListKey]:
        """The lists of a layer, or the one of a head. Raises IndexError when there is no such layer or head."""
        if not 0 <= layer < len(self.spec.layers):
            raise IndexError(f"there is no layer {layer}: the cache has {len(self.spec.layers)}")
        heads = range(self.spec.layers[layer].kv_heads)
        if head is not None and head not in heads:
            raise IndexError(f"there is no head {head} in layer {layer}: it has {len(heads)}")
        return [(layer, i) for i in (heads if head is None else (head,))]

    def part(self, layer: int, head: int | None) -> Part:
        return layer, np.array([i for _, i in self.keys(layer, head)])

    def take(self, s: Sequence, rows: PageList) -> int:
        """A page for the common list, or a cell for an override."""
        return self.pool.take_page(rows.lanes) if rows is s.main else self.pool.take_cell(int(rows.lanes[0]))

    def own(self, s: Sequence, rows: PageList, index: int) -> None:
        """Puts a private copy in the place of a shared page."""
        old = int(rows.page_ids[index])
        page = self.take(s, rows)
        self.plain.copy_page(rows.parts, old, page)
        self.pool.release(rows.lanes, rows.page_ids[index : index + 1].copy())
        rows.page_ids[index] = page

    def release_spare(self, s: Sequence) -> None:
        """Lets go of the pages behind the last row, pending ones included."""
        for rows in s.lists():
            need = pages_for(rows.length + s.pending)
            if rows.count > need:
                self.pool.release(rows.lanes, rows.page_ids[need : rows.count])
                rows.count = need
                rows.writable = min(rows.writable, need * PAGE)

    def copies(self, rows: PageList, lanes: Index, ordinals: Index) -> int:
        """Shared pages that compaction would write to."""
        first = _first_moved(ordinals)
        if first == len(ordinals):
            return 0
        pages = rows.pages[first // PAGE : pages_for(len(ordinals))]
        return int((self.pool.refs[lanes[:, None], pages] > 1).any(axis=0).sum())

    def compact(self, s: Sequence, rows: PageList, ordinals: Index) -> None:
        """Only these rows stay, moved together; cells behind them come free."""
        n, first = len(ordinals), _first_moved(ordinals)
        if first < n:
            data = self.plain.read(rows.parts, rows.pages, ordinals[first:])
            for page in range(first // PAGE, pages_for(n)):
                if self.pool.is_shared(rows.lanes, int(rows.page_ids[page])):
                    self.own(s, rows, page)
            self.plain.write(rows.parts, rows.pages, np.arange(first, n), data)
            rows.row_positions[first:n] = rows.row_positions[ordinals[first:]]
        rows.length = n
        rows.writable = 0
        self.release_spare(s)

    def detach(self, s: Sequence, key: ListKey) -> PageList:
        """The list's own page list; it takes over its lane of the common pages, those of pending rows included."""
        if key in s.overrides:
            return s.overrides[key]
        lane, (layer, head) = self.lanes[key], key
        main = s.main
        rows = main.copy(np.array([lane]), [(layer, np.array([head]))])
        rows.count = main.count
        main.lanes = main.lanes[main.lanes != lane]
        parts = [(i, heads[heads != head] if i == layer else heads) for i, heads in main.parts]
        main.parts = [(i, heads) for i, heads in parts if len(heads)]
        if not len(main.lanes):
            main.count = main.writable = 0
        s.overrides[key] = rows
        return rows

    def trim(self) -> int:
        """Gives the memory of free cells back to the system; returns the bytes that may have been resident."""
        given = 0
        for (layer, head), lane in self.lanes.items():
            free = self.pool.refs[lane, : self.pool.high] == 0
            edges = np.flatnonzero(np.diff(free, prepend=False, append=False))
            for first, last in edges.reshape(-1, 2).tolist():
                given += self.plain.discard(layer, head, first, last)
        return given


def _first_moved(ordinals: Index) -> int:
    """The first ordinal that compaction changes."""
    moved = np.flatnonzero(ordinals != np.arange(len(ordinals)))
    return int(moved[0]) if len(moved) else len(ordinals)
