"""A cache that is obviously right: Python lists of (position, key, value, bias) per sequence, layer and head."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import numpy as np

from vivace.kv.spec import KVSpec


@dataclass
class Row:
    position: int
    k: np.ndarray
    v: np.ndarray
    bias: float = 0.0


@dataclass
class NaiveSequence:
    lists: dict[tuple[int, int], list[Row]]
    common: list[int] = field(default_factory=list)  # positions of the rows that nobody evicted in common
    pending: list[tuple[int, dict[tuple[int, int], Row]]] = field(default_factory=list)
    next_position: int = 0
    marks: list[tuple[int, int]] = field(default_factory=list)  # (common length, next position) before each row
    sealed: int = 0
    undo: dict[tuple[int, int], list[Row]] | None = None

    def commit(self, rows: list[int]) -> None:
        for index in rows:
            position, new = self.pending[index]
            self.marks.append((len(self.common), self.next_position))
            self.common.append(position)
            for key, row in new.items():
                self.lists[key].append(row)
            self.next_position = position + 1
        self.pending, self.undo = [], None

    def rollback(self, first: int | None) -> None:
        del self.pending[first or 0 :]
        if first is None and self.undo is not None:
            self.lists, self.undo = self.undo, None

    def truncate(self, length: int) -> None:
        if length == len(self.common):
            return
        cut = self.common[length]
        before = [mark for mark in self.marks if mark[0] == length]
        self.marks = [mark for mark in self.marks if mark[0] < length]
        self.next_position = before[-1][1] if before else (self.common[length - 1] + 1 if length else 0)
        del self.common[length:]
        for rows in self.lists.values():
            rows[:] = [row for row in rows if row.position < cut]
        self.sealed = min(self.sealed, length)

    def keep(self, layer: int | None, head: int | None, ordinals: list[int]) -> None:
        if layer is None:
            if len(ordinals) == len(self.common):
                return
            self.common = [self.common[i] for i in ordinals]
            self.marks = []
            chosen = list(self.lists)
        else:
            chosen = [key for key in self.lists if key[0] == layer and head in (None, key[1])]
            if all(len(self.lists[key]) == len(ordinals) for key in chosen):
                return
        for key in chosen:
            self.lists[key] = [self.lists[key][i] for i in ordinals]
        self.sealed = len(self.common)

    def replace(self) -> None:
        if self.undo is None:
            self.undo = copy.deepcopy(self.lists)


def empty(spec: KVSpec) -> NaiveSequence:
    keys = [(i, head) for i, layer in enumerate(spec.layers) for head in range(layer.kv_heads)]
    return NaiveSequence({key: [] for key in keys})
