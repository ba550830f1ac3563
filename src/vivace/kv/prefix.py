"""Finds sequences whose rows begin like a prompt: a tree of pages, compared token by token."""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from vivace.kv.spec import PAGE
from vivace.kv.store import KVStore

Int32 = NDArray[np.int32]

WORTH = 4  # tokens: a shorter part of a page takes about as long to copy as to compute


@dataclass(eq=False, slots=True)
class _Snapshot:
    """A sequence of the store that holds the pages of `nodes`, the last part of a path (and what leads there)."""

    seq: int
    nodes: list[_Node] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Node:
    """The tokens of one page behind those of its parents. A page that is not full has no children."""

    tokens: bytes
    end: int  # tokens up to here, its own included
    parent: _Node | None
    owner: _Snapshot | None = None
    children: dict[bytes, _Node] = field(default_factory=dict)
    used: int = 0
    pins: int = 0

    @property
    def evictable(self) -> bool:
        return not self.children and not self.pins and self.parent is not None


class PrefixCache:
    """Snapshots of sequences in `store`, shared page by page with the sequences they were taken from.

    `key` names everything else that shapes the rows: model, weights, plan, adapter, salt, rotary factors.
    """

    def __init__(self, store: KVStore) -> None:
        self.store = store
        self._roots: dict[Hashable, _Node] = {}
        self._snapshots: set[_Snapshot] = set()
        self._clock = 0

    def match(self, tokens: Seq[int], key: Hashable) -> tuple[int, int] | None:
        """(snapshot, length): the longest known run of tokens that `tokens` begin with; None when there is none.

        The run ends at a page border, or at least WORTH tokens behind one, where its snapshot can be cut. The snapshot
        may be longer than it, belongs to the cache and lives until the next insert or evict.
        """
        ids = np.asarray(tokens, np.int32)
        path = self._walk(ids, key)
        length, last = len(path) * PAGE, path[-1] if path else self._roots.get(key)
        if last is None:
            return None
        runs = [(node, node.end) for node in path]
        child, common = _most_alike(last, ids[length : length + PAGE])
        if child is not None and common >= WORTH:
            child.used = self._clock
            runs.append((child, length + common))
        for node, end in reversed(runs):
            if node.owner is not None and self.store.can_cut(node.owner.seq, end):
                return node.owner.seq, end
        return None

    def fork(self, tokens: Seq[int], key: Hashable) -> tuple[int, int] | None:
        """(a new sequence with the matched rows, its length), or None."""
        hit = self.match(tokens, key)
        if hit is None:
            return None
        seq = self.store.fork(hit[0])
        self.store.truncate(seq, hit[1])
        return seq, hit[1]

    def insert(self, seq: int, tokens: Seq[int], key: Hashable) -> int:
        """Remembers the rows of `tokens`, with which the sequence begins; returns how many of them were not known.

        A page that is not full is shared with the sequence, which will copy it to write on: give whole pages, or a
        sequence that has ended.
        """
        ids = np.asarray(tokens, np.int32)
        if not self.accepts(seq, len(ids)):
            raise ValueError(
                f"sequence {seq} cannot be a prefix of {len(ids)} rows: some were evicted, or it does not start at "
                "position 0, or state beside its rows cannot go back there"
            )
        path = self._walk(ids, key)
        known = len(path) * PAGE
        if known == len(ids):
            return 0
        parent = path[-1] if path else self._roots.setdefault(key, _Node(b"", 0, None))
        rest = ids[known : known + PAGE]
        child, common = _most_alike(parent, rest)
        if child is not None and common == len(rest):
            child.used = self._clock
            return 0
        snapshot = _Snapshot(self.store.fork(seq))
        self._snapshots.add(snapshot)
        self.store.truncate(snapshot.seq, len(ids))
        if child is not None and common == child.end - known and self.store.can_cut(snapshot.seq, child.end):
            self._forget(child)  # it ended where this one goes on
        old = path[-1].owner if path else None
        if old is not None and old.nodes[-1] is path[-1] and self.store.can_cut(snapshot.seq, known):
            self._take_over(old, snapshot)
        for first in range(known, len(ids), PAGE):
            block = ids[first : first + PAGE]
            node = _Node(_name(block), first + len(block), parent, snapshot, used=self._clock)
            parent.children[node.tokens] = node
            snapshot.nodes.append(node)
            parent = node
        return len(ids) - known

    def accepts(self, seq: int, length: int) -> bool:
        """Whether the sequence holds all rows 0..length-1 at their own positions and can be cut behind them."""
        store = self.store
        if (
            length > store.length(seq)
            or store.overrides(seq)
            or store.has_biases(seq)
            or not store.can_cut(seq, length)
        ):
            return False
        return bool(np.array_equal(store.positions(seq)[:length], np.arange(length)))

    def _take_over(self, old: _Snapshot, new: _Snapshot) -> None:
        """The longer snapshot holds all that the old one did."""
        for node in old.nodes:
            node.owner = new
        new.nodes = old.nodes
        self._drop(old)

    def pin(self, tokens: Seq[int], key: Hashable) -> int:
        """Keeps the matched whole pages from eviction until as many calls of `unpin`; returns the tokens pinned."""
        return self._add_pins(tokens, key, 1)

    def unpin(self, tokens: Seq[int], key: Hashable) -> None:
        self._add_pins(tokens, key, -1)

    def _add_pins(self, tokens: Seq[int], key: Hashable, count: int) -> int:
        path = self._walk(np.asarray(tokens, np.int32), key)
        for node in path:
            node.pins = max(0, node.pins + count)
        return len(path) * PAGE

    def evict(self, pages: int) -> int:
        """Forgets least recently used pages until so many came free in the store; returns how many did.

        Fewer when all that is left is pinned, or shared with living sequences: forgetting that would free nothing.
        """
        before = self.store.free_pages
        leaves = [(node.used, -node.end, id(node), node) for node in self._nodes() if node.evictable]
        heapify(leaves)
        while leaves and self.store.free_pages - before < pages:
            leaf = heappop(leaves)[-1]
            if self._shared(leaf):
                continue
            parent = leaf.parent
            self._forget(leaf)
            if parent is not None and parent.evictable:
                heappush(leaves, (parent.used, -parent.end, id(parent), parent))
        self._roots = {key: root for key, root in self._roots.items() if root.children}
        return self.store.free_pages - before

    def evictable(self) -> int:
        """Pages that would come free if everything not pinned were forgotten."""
        lists = [self.store.pages(snapshot.seq)[_pinned(snapshot) :] for snapshot in self._snapshots]
        if not lists:
            return 0
        pages, held = np.unique(np.concatenate(lists), return_counts=True)
        return int((self.store.holders(pages) == held).sum())

    def _shared(self, node: _Node) -> bool:
        assert node.owner is not None
        page = self.store.pages(node.owner.seq)[(node.end - 1) // PAGE]
        return int(self.store.holders(np.array([page]))[0]) > 1

    def _forget(self, leaf: _Node) -> None:
        owner, parent = leaf.owner, leaf.parent
        assert owner is not None and parent is not None and owner.nodes[-1] is leaf
        del parent.children[leaf.tokens]
        owner.nodes.pop()
        if not owner.nodes:
            self._drop(owner)
        elif self.store.can_cut(owner.seq, owner.nodes[-1].end):
            self.store.truncate(owner.seq, owner.nodes[-1].end)

    def _drop(self, snapshot: _Snapshot) -> None:
        self.store.drop(snapshot.seq)
        self._snapshots.remove(snapshot)

    def clear(self) -> None:
        """Forgets everything, pinned pages included."""
        for snapshot in list(self._snapshots):
            self._drop(snapshot)
        self._roots.clear()

    def __len__(self) -> int:
        """Pages known."""
        return len(self._nodes())

    def _nodes(self) -> list[_Node]:
        nodes: list[_Node] = []
        stack = list(self._roots.values())
        while stack:
            below = list(stack.pop().children.values())
            nodes += below
            stack += below
        return nodes

    def _walk(self, ids: Int32, key: Hashable) -> list[_Node]:
        """The nodes of the longest known run of whole pages, marked as used now."""
        self._clock += 1
        path: list[_Node] = []
        node = self._roots.get(key)
        for first in range(0, len(ids) - PAGE + 1, PAGE):
            node = node.children.get(_name(ids[first : first + PAGE])) if node else None
            if node is None:
                break
            node.used = self._clock
            path.append(node)
        return path


def _name(tokens: Int32) -> bytes:
    """By which a page is filed: the tokens themselves, so that nothing else is ever taken for them."""
    return tokens.tobytes()


def _most_alike(parent: _Node, ids: Int32) -> tuple[_Node | None, int]:
    """The child that begins with most of `ids`, and with how many of them; (None, 0) when none does."""
    best, most = None, 0
    for child in parent.children.values():
        tokens = np.frombuffer(child.tokens, np.int32)
        n = min(len(tokens), len(ids))
        differ = np.flatnonzero(tokens[:n] != ids[:n])
        common = int(differ[0]) if len(differ) else n
        if common > most:
            best, most = child, common
    return best, most


def _pinned(snapshot: _Snapshot) -> int:
    """Pages of a snapshot that eviction has to leave."""
    return max((node.end // PAGE for node in snapshot.nodes if node.pins), default=0)
