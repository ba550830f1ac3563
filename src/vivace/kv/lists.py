"""Page lists: the visible rows of some heads, in order."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from vivace.kv.plain import Float32, Index, Part, Rows
from vivace.kv.spec import PAGE

Int32 = NDArray[np.int32]
Bools = NDArray[np.bool_]
ListKey = tuple[int, int]  # layer, head


def pages_for(rows: int) -> int:
    return -(-rows // PAGE)


def padded(bias: Float32, ordinals: Index) -> Float32:
    """The biases of these ordinals; those past the end are zero."""
    known = ordinals < len(bias)
    values = np.zeros(len(ordinals), np.float32)
    values[known] = bias[ordinals[known]]
    return values


class PageList:
    """Rows shared by `lanes`: the common list of a sequence, or the list of one (layer, head) made ragged.

    Rows 0..length-1 are committed; the sequence's pending rows follow. `row_positions` and `page_ids` are buffers with
    room to spare. Rows from the first pending one up to `writable` lie in pages that only this list holds.
    """

    __slots__ = ("count", "lanes", "length", "page_ids", "parts", "row_positions", "writable")

    def __init__(self, lanes: Index, parts: Seq[Part]) -> None:
        self.lanes = lanes
        self.parts = list(parts)
        self.count = 0
        self.length = 0
        self.writable = 0
        self.page_ids: Int32 = np.empty(4, np.int32)
        self.row_positions: Int32 = np.empty(4 * PAGE, np.int32)

    @property
    def pages(self) -> Int32:
        return self.page_ids[: self.count]

    @property
    def positions(self) -> Int32:
        """Of the committed rows."""
        return self.row_positions[: self.length]

    def make_room(self, rows: int) -> None:
        pages = pages_for(rows)
        if pages > len(self.page_ids):
            size = max(pages, 2 * len(self.page_ids))
            self.page_ids = np.concatenate([self.pages, np.empty(size - self.count, np.int32)])
            old = self.row_positions
            self.row_positions = np.concatenate([old, np.empty(size * PAGE - len(old), np.int32)])

    def push(self, page: int) -> None:
        self.page_ids[self.count] = page
        self.count += 1

    def copy(self, lanes: Index, parts: Seq[Part]) -> PageList:
        """The committed rows and their pages, for some or all of its lanes."""
        other = PageList(lanes, parts)
        other.length = self.length
        other.count = min(self.count, pages_for(self.length))
        other.page_ids = self.page_ids.copy()
        other.row_positions = self.row_positions.copy()
        return other


class Sequence:
    """The common list, the lists that left it, and an open transaction."""

    __slots__ = (
        "biases", "lacks", "main", "next_position", "overrides", "pending", "pruned", "replaced", "sealed", "sees",
    )  # fmt: skip

    def __init__(self, main: PageList) -> None:
        self.main = main
        self.overrides: dict[ListKey, PageList] = {}
        self.biases: dict[ListKey, Float32] = {}  # may be shorter than the list: zeros follow
        self.pending = 0
        self.sees: Bools | None = None  # [pending, pending]: pending rows that each sees; None: causal
        self.lacks: Bools | None = None  # [pending, layers]: where pending rows have no key; None: nowhere
        self.next_position = 0
        self.replaced: list[tuple[Index, Rows]] = []  # undo log: what stood there
        self.sealed = 0  # rows below cannot be retracted or replaced
        self.pruned = (0, 0)  # length and next position when rows were last evicted from the common list

    def lists(self) -> list[PageList]:
        """Those that have cells."""
        return [self.main, *self.overrides.values()] if len(self.main.lanes) else list(self.overrides.values())

    def list_of(self, key: ListKey) -> PageList:
        return self.overrides.get(key, self.main)
