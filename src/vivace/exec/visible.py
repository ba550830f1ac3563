"""What the rows of a segment see: keys of their sequence that stay, earlier pending rows, and each other.

A visible list is ordinals 0..span-1 followed by `extra` ones, ascending.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vivace.core.step import Int32, Mask, Segment, Write

if TYPE_CHECKING:
    from vivace.kv.store import KVStore

Counts = NDArray[np.int64]
Bools = NDArray[np.bool_]

NONE_PENDING = np.empty((0, 0), np.bool_)


class Visible(NamedTuple):
    """The lists of a segment's rows; `pending` is what the store has to remember of rows that stay pending."""

    span: Int32  # [n]
    extra: Int32 | None = None  # of all rows, one after another; None: there are none
    extra_counts: Counts | None = None  # [n]
    pending: Bools | None = None  # [n, pending + n]: which pending rows each row sees; None: all before it, and itself


def visible(segment: Segment, n: int, length: int, ordinals: Int32, store: KVStore) -> Visible:
    """The lists of `n` rows that go to `ordinals` of a sequence with `length` committed keys."""
    pending = store.pending(segment.seq)
    if segment.write is Write.REPLACE:
        allowed = np.ones((n, length + pending), np.bool_)
        allowed[:, ordinals] = _pending_seen(segment, n, NONE_PENDING)
        return Visible(*_lists(allowed, 0))
    if segment.mask is Mask.CAUSAL or (n == 1 and not pending):
        return Visible(np.arange(n, dtype=np.int32) + np.int32(length + pending + 1))
    sees = _pending_seen(segment, n, store.visible(segment.seq))
    return Visible(*_lists(sees, length), sees)


def tree_positions(parents: Int32, root: int, pending: Int32) -> Int32:
    """One after the parent's, a pending row's or one of the tree's own; `root` without a parent."""
    positions: list[int] = pending.tolist()
    for parent in parents.tolist():
        positions.append(root if parent < 0 else positions[parent] + 1)
    return np.array(positions[len(pending) :], np.int32)


def _pending_seen(segment: Segment, n: int, earlier: Bools) -> Bools:
    """[n, earlier + n]: which rows each row sees of the earlier pending ones and the segment's own."""
    pending = len(earlier)
    sees = np.ones((n, pending + n), np.bool_)
    own = sees[:, pending:]
    if segment.mask is Mask.CAUSAL:
        own[:] = np.tri(n, dtype=np.bool_)
    elif segment.mask is Mask.GIVEN:
        assert segment.allowed is not None
        sees[:, -segment.allowed.shape[1] :] = segment.allowed
        own |= np.eye(n, dtype=np.bool_)
    elif segment.mask is Mask.TREE:
        assert segment.parents is not None
        sees[:] = np.eye(n, pending + n, pending, dtype=np.bool_)
        for row, parent in enumerate(segment.parents.tolist()):
            if parent >= pending:
                sees[row] |= sees[parent - pending]
            elif parent >= 0:
                sees[row, :pending] |= earlier[parent]
    return sees


def _lists(allowed: Bools, base: int) -> tuple[Int32, Int32 | None, Counts | None]:
    """(span, extra, extra counts) of rows that see everything below `base` and the columns `allowed` from there on."""
    columns = allowed.shape[1]
    hidden = ~allowed
    lead = np.where(hidden.any(1), hidden.argmax(1), columns)
    rest = allowed & (np.arange(columns) >= lead[:, None])
    span = (lead + base).astype(np.int32)
    if not rest.any():
        return span, None, None
    return span, (rest.nonzero()[1] + base).astype(np.int32), rest.sum(1)
