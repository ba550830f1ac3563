"""Several patterns sought at once in a text that comes symbol by symbol (Aho and Corasick, 1975)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar, cast

P = TypeVar("P", str, bytes)


class Node(Generic[P]):
    """A state: the longest prefix of a pattern that the text ends with, `depth` symbols long.

    `match` is the longest pattern that the text ends with. The root has depth 0 and no fallback.
    """

    __slots__ = ("children", "depth", "fallback", "match")

    def __init__(self, depth: int) -> None:
        self.children: dict[str | int, Node[P]] = {}
        self.depth = depth
        self.fallback: Node[P] | None = None  # the longest proper suffix that is a prefix too
        self.match: P | None = None

    def after(self, symbol: str | int) -> Node[P]:
        """The state once `symbol` has come."""
        node = self
        while True:
            child = node.children.get(symbol)
            if child is not None:
                return child
            if node.fallback is None:
                return node
            node = node.fallback

    def suffixes(self) -> Iterable[Node[P]]:
        """The state and its fallbacks, the longest first, without the root."""
        node: Node[P] = self
        while node.fallback is not None:
            yield node
            node = node.fallback

    def endings(self) -> Iterable[P]:
        """What is missing of the patterns that begin with this prefix."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            waiting += node.children.values()
            if node.match is not None and len(node.match) == node.depth:
                yield node.match[self.depth :]


def automaton(patterns: Iterable[P]) -> Node[P]:
    """The root of the automaton that finds `patterns`, none of them empty."""
    root: Node[P] = Node(0)
    for pattern in patterns:
        node, symbols = root, cast("Iterable[str | int]", pattern)
        for symbol in symbols:
            node = node.children.setdefault(symbol, Node(node.depth + 1))
        node.match = pattern
    queue = deque([root])
    while queue:
        node = queue.popleft()
        for symbol, child in node.children.items():
            child.fallback = node.fallback.after(symbol) if node.fallback is not None else root
            if child.match is None:
                child.match = child.fallback.match
            queue.append(child)
    return root
