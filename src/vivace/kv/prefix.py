"""Finds sequences whose rows begin like a prompt: a tree of whole pages, compared token by token."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from vivace.kv.spec import PAGE
from vivace.kv.store import KVStore


@dataclass(eq=False, slots=True)
class _Snapshot:
    """A sequence of the store that holds the pages of `nodes`, the last part of a path (and what leads there)."""

    seq: int
    nodes: list[_Node] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Node:
    """One page of tokens behind those of its parents."""

    tokens: bytes
    depth: int  # pages up to here, its own included
    parent: _Node | None
    owner: _Snapshot | None = None
    children: dict[bytes, _Node] = field(default_factory=dict)
    used: int = 0
    pins: int = 0


class PrefixCache:
    """Snapshots of sequences in `store`, shared page by page with the sequences they were taken from.

    `key` names everything else that shapes the rows: model, weights, plan, adapter, salt, rotary factors.
    """

    def __init__(self, store: KVStore) -> None:
        self.store = store
        self.queries = self.hits = self.hit_tokens = 0
        self._roots: dict[str, _Node] = {}
        self._clock = 0

    def match(self, tokens: Seq[int], key: str) -> tuple[int, int] | None:
        """(snapshot, length): the longest known run of whole pages that `tokens` begin with; None when there is none.

        The snapshot may be longer than `length`, belongs to the cache and lives until the next insert or evict.
        """
        self.queries += 1
        path = self._walk(_blocks(tokens), key)
        if not path:
            return None
        owner, length = path[-1].owner, path[-1].depth * PAGE
        assert owner is not None
        self.hits += 1
        self.hit_tokens += length
        return owner.seq, length

    def fork(self, tokens: Seq[int], key: str) -> tuple[int, int] | None:
        """(a new sequence with the matched rows, its length), or None."""
        hit = self.match(tokens, key)
        if hit is None:
            return None
        seq = self.store.fork(hit[0])
        self.store.truncate(seq, hit[1])
        return seq, hit[1]

    def insert(self, seq: int, tokens: Seq[int], key: str) -> int:
        """Remembers the whole pages of a sequence that holds exactly the rows of `tokens`; returns the pages added."""
        store, pages = self.store, min(len(tokens), self.store.length(seq)) // PAGE
        if store.overrides(seq) or not np.array_equal(store.positions(seq)[: pages * PAGE], np.arange(pages * PAGE)):
            raise ValueError(f"sequence {seq} cannot be a prefix: rows were evicted, or do not start at position 0")
        blocks = _blocks(tokens)[:pages]
        path = self._walk(blocks, key)
        added = blocks[len(path) :]
        if not added:
            return 0
        snapshot = _Snapshot(store.fork(seq))
        store.truncate(snapshot.seq, pages * PAGE)
        parent = path[-1] if path else self._roots.setdefault(key, _Node(b"", 0, None))
        if path and path[-1].owner is not None and path[-1].owner.nodes[-1] is path[-1]:
            self._take_over(path[-1].owner, snapshot)
        for block in added:
            node = _Node(block, parent.depth + 1, parent, snapshot, used=self._clock)
            parent.children[block] = node
            snapshot.nodes.append(node)
            parent = node
        return len(added)

    def _take_over(self, old: _Snapshot, new: _Snapshot) -> None:
        """The longer snapshot holds all that the old one did."""
        for node in old.nodes:
            node.owner = new
        new.nodes = old.nodes
        self.store.drop(old.seq)

    def pin(self, tokens: Seq[int], key: str) -> int:
        """Keeps the matched pages from eviction until as many calls of `unpin`; returns the tokens pinned."""
        return self._add_pins(tokens, key, 1)

    def unpin(self, tokens: Seq[int], key: str) -> None:
        self._add_pins(tokens, key, -1)

    def _add_pins(self, tokens: Seq[int], key: str, count: int) -> int:
        path = self._walk(_blocks(tokens), key)
        for node in path:
            node.pins = max(0, node.pins + count)
        return len(path) * PAGE

    def evict(self, pages: int) -> int:
        """Forgets least recently used pages until so many came free in the store; returns how many did.

        Fewer when all that is left is pinned, or shared with living sequences.
        """
        before = self.store.free_pages
        while self.store.free_pages - before < pages:
            leaves = [node for node in self._nodes() if not node.children and not node.pins]
            if not leaves:
                break
            self._forget(min(leaves, key=lambda node: (node.used, -node.depth)))
        return self.store.free_pages - before

    def _forget(self, leaf: _Node) -> None:
        owner, parent = leaf.owner, leaf.parent
        assert owner is not None and parent is not None and owner.nodes[-1] is leaf
        del parent.children[leaf.tokens]
        owner.nodes.pop()
        if owner.nodes:
            self.store.truncate(owner.seq, owner.nodes[-1].depth * PAGE)
        else:
            self.store.drop(owner.seq)

    def clear(self) -> None:
        """Forgets everything, pinned pages included."""
        for snapshot in {id(node.owner): node.owner for node in self._nodes()}.values():
            assert snapshot is not None
            self.store.drop(snapshot.seq)
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

    def _walk(self, blocks: list[bytes], key: str) -> list[_Node]:
        """The nodes of the longest known run of blocks, marked as used now."""
        self._clock += 1
        path: list[_Node] = []
        node = self._roots.get(key)
        for block in blocks:
            node = node.children.get(block) if node else None
            if node is None:
                break
            node.used = self._clock
            path.append(node)
        return path


def _blocks(tokens: ArrayLike) -> list[bytes]:
    """The bytes of each whole page of tokens."""
    ids = np.asarray(tokens, np.int32)
    return [ids[i : i + PAGE].tobytes() for i in range(0, len(ids) - PAGE + 1, PAGE)]
