"""Which cells are in use, and by how many page lists.

A lane is one (layer, head): a column of cells, numbered by page id. A page id may be taken in many lanes at once (a
shared page: it must be free in all lanes) or in a single one (a cell of a list made ragged by eviction).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]
Int32 = NDArray[np.int32]


class OutOfPages(RuntimeError):
    """The store has too few free pages; nothing was changed. `short`: how many whole pages are missing."""

    def __init__(self, short: int, capacity: int) -> None:
        super().__init__(f"the cache is {short} page(s) short of {capacity}: drop or evict sequences, or enlarge it")
        self.short = short


class CellPool:
    def __init__(self, lanes: int, capacity: int) -> None:
        self.capacity = capacity
        self.refs = np.zeros((lanes, capacity), np.int32)  # page lists that hold the cell
        self.used = np.zeros(capacity, np.int32)  # lanes in which the page id is held
        self.lane_used = np.zeros(lanes, np.int64)  # cells held in the lane
        self.free = list(range(capacity - 1, -1, -1))  # page ids free in every lane, used as a stack
        self.high = 0  # page ids from here on were never taken

    def require(self, pages: int, cells: Mapping[int, int]) -> None:
        """Raises OutOfPages unless `pages` whole pages, and then `cells[lane]` single cells, can be taken.

        Lanes in `cells` must be lanes that the whole pages do not take, so that the pages leave holes in them.
        """
        short = self.missing(pages, cells, holes=pages)
        if short > 0:
            raise OutOfPages(short, self.capacity)

    def missing(self, pages: int, cells: Mapping[int, int], holes: int) -> int:
        """Whole pages that are missing to take `pages` and `cells`; `holes` of the pages leave those lanes free."""
        open_pages = self.capacity - len(self.free) + holes
        extra = 0
        for lane, count in cells.items():
            extra = max(extra, count - (open_pages - int(self.lane_used[lane])))
        return pages + extra - len(self.free)

    def take_page(self, lanes: Index) -> int:
        """A page id that is free in every lane, taken in `lanes`."""
        page = self._open()
        self.refs[lanes, page] = 1
        self.used[page] = len(lanes)
        self.lane_used[lanes] += 1
        return page

    def take_cell(self, lane: int) -> int:
        """A cell of one lane, of an opened page where possible."""
        holes = self.capacity - len(self.free) - int(self.lane_used[lane])
        if holes:
            page = int(np.argmax((self.refs[lane, : self.high] == 0) & (self.used[: self.high] > 0)))
        else:
            page = self._open()
        self.refs[lane, page] = 1
        self.used[page] += 1
        self.lane_used[lane] += 1
        return page

    def _open(self) -> int:
        page = self.free.pop()
        self.high = max(self.high, page + 1)
        return page

    def share(self, lanes: Index, pages: Int32) -> None:
        self.refs[lanes[:, None], pages] += 1

    def is_shared(self, lanes: Index, page: int) -> bool:
        return bool((self.refs[lanes, page] > 1).any())

    def release(self, lanes: Index, pages: Int32) -> None:
        """One holder fewer for each cell; `pages` are distinct."""
        if not len(pages) or not len(lanes):
            return
        left = self.refs[lanes[:, None], pages] - 1
        self.refs[lanes[:, None], pages] = left
        freed = left == 0
        self.lane_used[lanes] -= freed.sum(axis=1)
        self.used[pages] -= freed.sum(axis=0, dtype=np.int32)
        self.free.extend(pages[self.used[pages] == 0][::-1].tolist())
