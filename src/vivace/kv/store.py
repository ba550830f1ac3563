"""The cache as a transactional store: reserve rows, compute into them, then commit or roll back.

Every sequence has one common page list, held by all (layer, head) lists that nobody evicted from, and an override for
each list that was made ragged. Forks share pages; whoever writes first copies. Reserving allocates and copies at once,
so executors write without further checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vivace.kv.account import KVBytes, count_bytes, count_read_bytes
from vivace.kv.blob import KVBlob, adopt_rows, export_rows
from vivace.kv.cells import Cells
from vivace.kv.check import check_store
from vivace.kv.lists import Bools, Int32, ListKey, PageList, Sequence, padded, pages_for
from vivace.kv.pages import OutOfPages
from vivace.kv.plain import Float32, Index
from vivace.kv.spec import PAGE, KVSpec
from vivace.kv.state import StateParticipant

__all__ = ["KVBlob", "KVBytes", "KVStore", "OutOfPages", "TransactionError", "UnknownSequence"]


class TransactionError(ValueError):
    """The call does not fit the state of the sequence; nothing was changed."""


class UnknownSequence(KeyError):
    """No such sequence, or it was dropped."""


class _Sequences(dict[int, Sequence]):
    def __missing__(self, seq: int) -> Sequence:
        raise UnknownSequence(f"the store has no sequence {seq}: it was never made, or was dropped")


class KVStore:
    """Keys and values of many sequences of one model.

    `capacity_pages` pages are reserved as address space; memory becomes resident when it is touched. `planes[layer]` is
    [kv_heads, pages, 2, head_dim * 64]: for executors, which find the pages in `pages` and `overrides`.
    """

    def __init__(self, spec: KVSpec, capacity_pages: int) -> None:
        self.spec = spec
        self.capacity_pages = capacity_pages
        self.cells = Cells(spec, capacity_pages)
        self.pool, self.plain = self.cells.pool, self.cells.plain
        self.planes: list[NDArray[Any]] = self.plain.planes
        self._sequences = _Sequences()
        self._next_id = 0
        self._participants: list[StateParticipant] = []
        self._page_callbacks: list[Callable[[int, int], None]] = []

    # Sequences

    def new(self) -> int:
        """An empty sequence."""
        seq = self._next_id
        self._next_id += 1
        self._sequences[seq] = Sequence(self.cells.common_list())
        return seq

    def drop(self, seq: int) -> None:
        """Forgets a sequence, an open transaction included."""
        for rows in self._sequences[seq].lists():
            self.pool.release(rows.lanes, rows.pages)
        del self._sequences[seq]
        for participant in self._participants:
            participant.drop(seq)

    def fork(self, seq: int) -> int:
        """A new sequence with the committed rows of this one. Pages are shared until one side writes."""
        s = self._sequences[seq]
        if s.replaced:
            raise TransactionError(f"sequence {seq} has replaced rows: commit or roll back before forking it")
        child = self._next_id
        self._next_id += 1
        t = Sequence(s.main.copy(s.main.lanes, s.main.parts))
        t.overrides = {key: rows.copy(rows.lanes, rows.parts) for key, rows in s.overrides.items()}
        t.biases = {key: bias.copy() for key, bias in s.biases.items()}
        t.next_position, t.sealed, t.pruned = s.next_position, s.sealed, s.pruned
        for rows in t.lists():
            self.pool.share(rows.lanes, rows.pages)
        for rows in s.lists():
            rows.writable = 0
        self._sequences[child] = t
        for participant in self._participants:
            participant.fork(seq, child)
        return child

    # Transactions

    def reserve(self, seq: int, positions: Int32, sees: Bools | None = None, lacks: Bools | None = None) -> int:
        """Room for pending rows at these positions, behind those already pending; every list gets them.

        `sees` [new, pending + new]: which pending rows each new one sees; None: all before it, and itself. It is kept
        for those who continue from these rows (`visible`). `lacks` [new, layers]: where a row will have no key; a
        commit leaves it out of the lists of that layer.

        Returns the ordinal of the first new row in the common list. Raises OutOfPages, having changed nothing.
        """
        s = self._sequences[seq]
        main = s.main
        first = main.length + s.pending
        end = first + len(positions)
        if end > main.writable or s.overrides or self._participants:
            self._make_writable(seq, s, positions)
        main.row_positions[first:end] = positions
        for rows in s.overrides.values():
            at = rows.length + s.pending
            rows.row_positions[at : at + len(positions)] = positions
        if sees is not None or s.sees is not None:
            s.sees = _widened(self.visible(seq), len(positions), sees)
        if lacks is not None or s.lacks is not None:
            s.lacks = np.concatenate([self._no_keys(s.lacks, s.pending), self._no_keys(lacks, len(positions))])
        s.pending += len(positions)
        return first

    def _no_keys(self, lacks: Bools | None, n: int) -> Bools:
        return np.zeros((n, len(self.spec.layers)), np.bool_) if lacks is None else lacks

    def _make_writable(self, seq: int, s: Sequence, positions: Int32) -> None:
        pending, n = s.pending, len(positions)
        if not n:
            return
        short, pages, cells = self._demand(s, n)
        self.pool.require(pages, cells)
        self._ask(lambda p: p.reserve(seq, positions), lambda p: p.rollback(seq, pending))
        s.main.make_room(s.main.length + pending + n)
        for rows, shared, more in short:
            rows.make_room(rows.length + pending + n)
            if shared:
                self.cells.own(s, rows, rows.length // PAGE)
            for _ in range(more):
                rows.push(self.cells.take(s, rows))
            rows.writable = rows.count * PAGE

    def _ask(self, ask: Callable[[StateParticipant], None], undo: Callable[[StateParticipant], None]) -> None:
        """Asks every participant; when one raises, undoes what it and those before it were asked."""
        told: list[StateParticipant] = []
        try:
            for participant in self._participants:
                told.append(participant)
                ask(participant)
        except BaseException:
            for participant in told:
                undo(participant)
            raise

    def _demand(self, s: Sequence, n: int) -> tuple[list[tuple[PageList, bool, int]], int, dict[int, int]]:
        """What `n` more pending rows take: (list, whether its tail must be copied, new pages) of each list that has no

        room, the pages of the common list among them, and the cells by lane of the others.
        """
        pages, cells = 0, {}
        short: list[tuple[PageList, bool, int]] = []
        for rows in s.lists():
            end = rows.length + s.pending + n
            if end <= rows.writable:
                continue
            tail = rows.length // PAGE  # the only page with writable rows that a fork may hold too
            shared = rows.length % PAGE != 0 and self.pool.is_shared(rows.lanes, int(rows.page_ids[tail]))
            more = pages_for(end) - rows.count
            short.append((rows, shared, more))
            if rows is s.main:
                pages = shared + more
            else:
                cells[int(rows.lanes[0])] = shared + more
        return short, pages, cells

    def shortage(self, rows: Mapping[int, int]) -> int:
        """Pages that are missing to reserve so many more rows in each of these sequences at once; 0: they fit.

        It may be a few too many, never too few: sequences that share a page count a copy each.
        """
        pages, cells = 0, dict[int, int]()
        for seq, n in rows.items():
            s = self._sequences[seq]
            if s.main.length + s.pending + n > s.main.writable or s.overrides:
                _, common, own = self._demand(s, n)
                pages += common
                for lane, count in own.items():
                    cells[lane] = cells.get(lane, 0) + count
        return max(0, self.pool.missing(pages, cells, holes=0))

    def commit(self, seq: int, rows: int | Seq[int] | NDArray[Any] | None = None) -> None:
        """Keeps all pending rows, the first so many, or those at the given indices in that order; drops the others.

        Rows that lack a key in a layer are not in its lists, which are ragged from then on.

        Positions must ascend, from `next_position` on.
        """
        s = self._sequences[seq]
        main, pending = s.main, s.pending
        picked: Index | None = None
        if rows is None:
            n = pending
        elif isinstance(rows, int):
            n = rows
        else:
            picked = np.asarray(rows, np.int64)
            n = len(picked)
        if n > pending or n < 0 or (picked is not None and not _distinct(picked, pending)):
            raise TransactionError(f"cannot commit rows {rows} of sequence {seq}: it has {pending} pending")
        old = main.length
        if n:
            new = main.row_positions[old : old + pending]
            kept = new[:n] if picked is None else new[picked]
            if kept[0] < s.next_position or (n > 1 and (kept[1:] <= kept[:-1]).any()):
                raise TransactionError(f"positions must ascend from {s.next_position} on, not {kept.tolist()}")
            s.next_position = int(kept[-1]) + 1
        left_out: list[tuple[ListKey, Index]] = []
        if picked is not None or s.lacks is not None:
            left_out = self._gather_pending(s, np.arange(n) if picked is None else picked)
        else:
            main.length += n
            for override in s.overrides.values():
                override.length += n
        length = main.length
        s.pending, s.sees, s.lacks = 0, None, None
        if n != pending or left_out:
            self.cells.release_spare(s)
        if s.replaced:
            s.replaced.clear()
        if self._participants:
            indices = range(n) if picked is None else picked.tolist()
            for participant in self._participants:
                participant.commit(seq, indices)
                for (layer, head), ordinals in left_out:
                    participant.keep(seq, layer, head, ordinals)
        if self._page_callbacks and length // PAGE > old // PAGE:
            self._tell_pages(seq, old, length)

    def _gather_pending(self, s: Sequence, picked: Index) -> list[tuple[ListKey, Index]]:
        """Makes the picked pending rows the last committed ones of every list, but those that lack a key there.

        Returns the lists that rows were left out of, and of all rows the ordinals that such a list keeps.
        """
        left_out: list[tuple[ListKey, Index]] = []
        lacks = self._no_keys(s.lacks, s.pending)[picked]
        for layer in np.flatnonzero(lacks.any(0)).tolist():
            for key in self.cells.keys(layer, None):
                first = self.cells.detach(s, key).length
                left_out.append((key, np.append(np.arange(first), first + np.flatnonzero(~lacks[:, layer]))))
        self._take_pending(s.main, picked)
        for (layer, _), rows in s.overrides.items():
            self._take_pending(rows, picked[~lacks[:, layer]])
        return left_out

    def _take_pending(self, rows: PageList, picked: Index) -> None:
        moved = np.flatnonzero(picked != np.arange(len(picked)))
        if len(moved):
            source, target = rows.length + picked[moved[0] :], rows.length + np.arange(moved[0], len(picked))
            rows.row_positions[target] = rows.row_positions[source]
            if len(rows.lanes):
                self.plain.write(rows.parts, rows.pages, target, self.plain.read(rows.parts, rows.pages, source))
        rows.length += len(picked)

    def _tell_pages(self, seq: int, old: int, length: int) -> None:
        for page in range(old // PAGE, length // PAGE):
            for callback in self._page_callbacks:
                callback(seq, page)

    def rollback(self, seq: int, first: int | None = None) -> None:
        """Drops the pending rows from index `first` on; without `first`, everything pending, open replaces too."""
        s = self._sequences[seq]
        if first is None:
            self.restore(seq)
            first = 0
        if not 0 <= first <= s.pending:
            raise TransactionError(f"cannot roll back to {first} pending rows: sequence {seq} has {s.pending}")
        s.pending = first
        s.sees = s.sees[:first, :first] if s.sees is not None and first else None
        s.lacks = s.lacks[:first] if s.lacks is not None and first else None
        self.cells.release_spare(s)
        for participant in self._participants:
            participant.rollback(seq, first)

    def replace(self, seq: int, ordinals: ArrayLike) -> None:
        """Makes committed rows writable until commit, restore or rollback. Positions stay.

        Raises OutOfPages when shared pages cannot be copied.
        """
        s = self._sequences[seq]
        if s.overrides:
            raise TransactionError(f"sequence {seq} is ragged: rows of its lists cannot be replaced by ordinal")
        index = np.asarray(ordinals, np.int64)
        main = s.main
        if not _distinct(index, main.length) or (len(index) and index.min() < s.sealed):
            raise TransactionError(f"rows to replace must be distinct, in {s.sealed}..{main.length - 1}")
        shared = [page for page in np.unique(index // PAGE) if self.pool.is_shared(main.lanes, int(main.pages[page]))]
        self.pool.require(len(shared), {})
        self._ask(lambda p: p.replace(seq, index), lambda p: p.restore(seq, index))
        for page in shared:
            self.cells.own(s, main, int(page))
        s.replaced.append((index, self.plain.read(main.parts, main.pages, index)))

    def restore(self, seq: int, n: int | None = None) -> None:
        """Undoes the last `n` replaces that are open, or all: their rows get back what stood there."""
        s = self._sequences[seq]
        n = len(s.replaced) if n is None else n
        if not 0 <= n <= len(s.replaced):
            raise TransactionError(f"cannot undo {n} replaces: sequence {seq} has {len(s.replaced)} open")
        for _ in range(n):
            ordinals, rows = s.replaced.pop()
            self.plain.write(s.main.parts, s.main.pages, ordinals, rows)
            for participant in self._participants:
                participant.restore(seq, ordinals)

    # Taking back and evicting

    def retract(self, seq: int, n: int) -> None:
        """Takes back the last n committed rows.

        Refused for rows that were sealed, or committed before an eviction, and where a participant cannot go back.
        """
        s = self._settled(seq, "retract")
        if not 0 <= n <= s.main.length - s.sealed:
            free = s.main.length - s.sealed
            raise TransactionError(f"cannot retract {n} rows of sequence {seq}: {free} follow the last eviction")
        self._cut(seq, s, s.main.length - n)

    def truncate(self, seq: int, length: int) -> None:
        """Drops the committed rows from ordinal `length` of the common list on, and their positions in all lists.

        Refused where a participant cannot go back (`can_cut`).
        """
        s = self._settled(seq, "truncate")
        if not 0 <= length <= s.main.length:
            raise TransactionError(f"cannot truncate sequence {seq} to {length}: its length is {s.main.length}")
        self._cut(seq, s, length)

    def can_cut(self, seq: int, length: int) -> bool:
        """Whether all who take part can go back to `length` committed rows."""
        return self._sequences[seq].main.length == length or all(p.can_cut(seq, length) for p in self._participants)

    def _cut(self, seq: int, s: Sequence, length: int) -> None:
        if not self.can_cut(seq, length):
            raise TransactionError(f"sequence {seq} cannot go back to {length} rows: state beside its rows cannot")
        main = s.main
        if length < main.length:
            position = main.row_positions[length]
            for rows in s.overrides.values():
                rows.length = int(np.searchsorted(rows.positions, position))
                rows.writable = 0
            before = int(main.row_positions[length - 1]) + 1 if length else 0
            if length < s.pruned[0]:
                s.pruned = (length, before)
            s.next_position = s.pruned[1] if length == s.pruned[0] else before
            main.length = length
            main.writable = 0
            self.cells.release_spare(s)
            if length == 0:
                s.main, s.overrides = self.cells.common_list(), {}
            s.biases = {key: bias[: s.list_of(key).length] for key, bias in s.biases.items()}
            s.sealed = min(s.sealed, length)
        for participant in self._participants:
            participant.truncate(seq, length)

    def seal(self, seq: int, length: int) -> None:
        """Rows below `length` were folded into another form: they can no longer be retracted or replaced."""
        s = self._sequences[seq]
        if length > s.main.length:
            raise TransactionError(f"cannot seal {length} rows of sequence {seq}: its length is {s.main.length}")
        s.sealed = max(s.sealed, length)

    def keep(self, seq: int, layer: int | None, head: int | None, ordinals: ArrayLike) -> None:
        """Evicts all rows of a list but those at `ordinals` (ascending), compacts it, and frees its cells.

        Head None: each list of the layer. Layer None: the common list of a sequence that is not ragged. Rows keep their
        positions. Raises OutOfPages when shared pages cannot be copied.
        """
        s = self._settled(seq, "evict from")
        index = np.asarray(ordinals, np.int64)
        if layer is None:
            if s.overrides:
                raise TransactionError(f"sequence {seq} is ragged: name the layer to evict from")
            _check_kept(index, s.main.length)
            if len(index) == s.main.length:
                return
            self.pool.require(self.cells.copies(s.main, s.main.lanes, index), {})
            self.cells.compact(s, s.main, index)
            s.biases = {key: padded(bias, index) for key, bias in s.biases.items()}
            s.pruned = (s.main.length, s.next_position)
        else:
            keys = self.cells.keys(layer, head)
            for key in keys:
                _check_kept(index, s.list_of(key).length)
            keys = [key for key in keys if len(index) != s.list_of(key).length]
            copies = {}
            for key in keys:
                rows = s.list_of(key)
                lane = self.cells.lanes[key]
                copies[lane] = self.cells.copies(rows, np.array([lane]), index)
            self.pool.require(0, copies)
            for key in keys:
                self.cells.compact(s, self.cells.detach(s, key), index)
                if key in s.biases:
                    s.biases[key] = padded(s.biases[key], index)
            if not keys:
                return
        s.sealed = s.main.length
        for participant in self._participants:
            participant.keep(seq, layer, head, index)

    def _settled(self, seq: int, what: str) -> Sequence:
        s = self._sequences[seq]
        if s.pending or s.replaced:
            raise TransactionError(f"cannot {what} sequence {seq} inside a transaction: commit or roll back first")
        return s

    # Rows

    def _rows(self, s: Sequence, layer: int, head: int | None) -> PageList:
        keys = self.cells.keys(layer, head)
        rows = s.list_of(keys[0])
        if any(s.list_of(key) is not rows for key in keys):
            raise TransactionError(f"the heads of layer {layer} have lists of their own: name one")
        return rows

    def gather(self, seq: int, layer: int, head: int | None, ordinals: ArrayLike) -> tuple[Float32, Float32]:
        """Keys and values of visible rows (pending ones follow the committed), float32 [rows, dim].

        Head None: all heads of the layer, [heads, rows, dim]; their lists must not be ragged.
        """
        s = self._sequences[seq]
        rows = self._rows(s, layer, head)
        index = np.asarray(ordinals, np.int64)
        if len(index) and not 0 <= index.min() <= index.max() < rows.length + s.pending:
            raise TransactionError(f"rows to gather must be in 0..{rows.length + s.pending - 1}")
        k, v = self.plain.read([self.cells.part(layer, head)], rows.pages, index)[0]
        k, v = self.plain.decode(k), self.plain.decode(v)
        return (k, v) if head is None else (k[0], v[0])

    def write(self, seq: int, layer: int, head: int | None, first_ordinal: int, k: Float32, v: Float32) -> None:
        """Stores float32 keys and values [rows, dim] from `first_ordinal` on, which must be pending or replaced rows.

        Head None: [heads, rows, dim].
        """
        s = self._sequences[seq]
        rows = self._rows(s, layer, head)
        n = np.shape(k)[-2]
        index = np.arange(first_ordinal, first_ordinal + n)
        replaced = [i for i, _ in s.replaced]
        free = np.isin(index, np.concatenate(replaced)) if replaced else np.zeros(n, np.bool_)
        free |= (index >= rows.length) & (index < rows.length + s.pending)
        if not free.all():
            raise TransactionError(f"row {index[~free][0]} of sequence {seq} is neither pending nor replaced")
        data = (self.plain.encode(k), self.plain.encode(v))
        self.plain.write([self.cells.part(layer, head)], rows.pages, index, [data])

    def length(self, seq: int) -> int:
        """Committed rows of the common list (an override has its own length)."""
        return self._sequences[seq].main.length

    def pending(self, seq: int) -> int:
        return self._sequences[seq].pending

    def visible(self, seq: int) -> Bools:
        """[pending, pending]: which pending rows each pending row sees."""
        s = self._sequences[seq]
        return np.tri(s.pending, dtype=np.bool_) if s.sees is None else s.sees

    def lacks(self, seq: int) -> Bools | None:
        """[layers]: where some pending row has no key; None: nowhere."""
        lacks = self._sequences[seq].lacks
        return None if lacks is None else np.logical_or.reduce(lacks)

    def next_position(self, seq: int) -> int:
        """One past the last committed position, whether or not that row was evicted since."""
        return self._sequences[seq].next_position

    def pages(self, seq: int) -> Int32:
        """Page ids of the common list, pending rows included (none once all are overrides). Do not change them."""
        main = self._sequences[seq].main
        return main.page_ids[: main.count]

    def holders(self, pages: ArrayLike) -> Int32:
        """How many lists hold each of these pages, in the head where it is most."""
        held: Int32 = self.pool.refs[:, np.asarray(pages, np.int64)].max(axis=0)
        return held

    def overrides(self, seq: int) -> Mapping[ListKey, PageList]:
        """The lists that differ from the common one, by (layer, head). Do not change it."""
        return self._sequences[seq].overrides

    def positions(self, seq: int, layer: int = 0, head: int | None = None, pending: bool = False) -> Int32:
        """Of the committed rows of a list, and the pending ones if asked; the common list when no head is named."""
        s = self._sequences[seq]
        rows = s.main if head is None else s.list_of((layer, head))
        return rows.row_positions[: rows.length + s.pending if pending else rows.length]

    def biases(self, seq: int, layer: int, head: int) -> Float32 | None:
        """Added to the logits of the list's committed rows; None: nothing is."""
        s = self._sequences[seq]
        bias = s.biases.get((layer, head))
        return None if bias is None else padded(bias, np.arange(s.list_of((layer, head)).length))

    def has_biases(self, seq: int) -> bool:
        return bool(self._sequences[seq].biases)

    def set_biases(self, seq: int, layer: int, head: int, ordinals: ArrayLike, bias: ArrayLike) -> None:
        """Biases the logits of committed rows (a row that stands for several has the logarithm of their number)."""
        s = self._settled(seq, "bias rows of")
        self.cells.keys(layer, head)
        length, index = s.list_of((layer, head)).length, np.asarray(ordinals, np.int64)
        if not _distinct(index, length):
            raise TransactionError(f"rows to bias must be distinct, in 0..{length - 1}")
        values = padded(s.biases.get((layer, head), np.empty(0, np.float32)), np.arange(length))
        values[index] = bias
        s.biases[layer, head] = values

    # Others who take part

    def attach(self, participant: StateParticipant) -> None:
        """State that follows the same transactions from now on. Raises ValueError for a name that is taken."""
        if participant.name in (other.name for other in self._participants):
            raise ValueError(f"a participant named {participant.name!r} is attached already")
        self._participants.append(participant)

    def on_page(self, callback: Callable[[int, int], None]) -> None:
        """`callback(seq, page_index)` whenever a commit makes a page of the common list whole (again, if retracted)."""
        self._page_callbacks.append(callback)

    # The whole store

    @property
    def free_pages(self) -> int:
        """Pages that are free in every layer and head."""
        return len(self.pool.free)

    def bytes(self) -> KVBytes:
        """Exact counts of the cache's memory."""
        return count_bytes(self.cells, self._sequences.values())

    def read_bytes(self, seq: int, layer: int | None = None, window: int | None = None) -> int:
        """Bytes that attention over the sequence reads: each visible key and value once, or the last `window` of them.

        Layer None: all layers.
        """
        return count_read_bytes(self.cells, self._sequences[seq], layer, window)

    def trim(self) -> int:
        """Gives the memory of free cells back to the system; returns the bytes that may have been resident."""
        return self.cells.trim()

    def export(self, seq: int, layers: Seq[int] | None = None) -> KVBlob:
        """A copy of the committed rows and states of all layers, or of some (for a store that holds just these)."""
        s = self._settled(seq, "export")
        layers = range(len(self.spec.layers)) if layers is None else layers
        return export_rows(self.cells, s, layers, {p.name: p.export(seq, layers) for p in self._participants})

    def adopt(self, blob: KVBlob) -> int:
        """A new sequence with the rows and states of a blob.

        Raises OutOfPages, and ValueError for a blob of another shape or of other participants.
        """
        names = {participant.name for participant in self._participants}
        if blob.states.keys() != names:
            raise ValueError(f"the blob has states of {sorted(blob.states)}, those who take part are {sorted(names)}")
        s = adopt_rows(self.cells, blob)
        seq = self._next_id
        self._next_id += 1
        self._sequences[seq] = s
        try:
            for participant in self._participants:
                participant.adopt(seq, blob.states[participant.name])
        except BaseException:
            self.drop(seq)
            raise
        self._tell_pages(seq, 0, s.main.length)
        return seq

    def check(self) -> None:
        """Verifies every invariant; raises AssertionError with the fact that does not hold."""
        check_store(self.pool, self._sequences, self.cells.lanes)


def _distinct(index: Index, bound: int) -> bool:
    """Whether all are in 0..bound-1, none twice."""
    if not len(index):
        return True
    return bool(index.min() >= 0 and index.max() < bound and len(np.unique(index)) == len(index))


def _widened(sees: Bools, n: int, new: Bools | None) -> Bools:
    """What pending rows see, with `n` more behind them."""
    pending = len(sees)
    wide = np.tri(pending + n, dtype=np.bool_)
    wide[:pending, :pending] = sees
    if new is not None:
        wide[pending:] = new
    return wide


def _check_kept(ordinals: Index, length: int) -> None:
    if len(ordinals) and not (ordinals[0] >= 0 and ordinals[-1] < length and (np.diff(ordinals) > 0).all()):
        raise TransactionError(f"ordinals to keep must ascend within 0..{length - 1}")
