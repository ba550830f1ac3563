"""Declared visibility into a step: what a caller may look at, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

TapKind = Literal[
    "hidden",  # residual stream after `layer` blocks, [rows, hidden]; layer = number of blocks: before the final norm
    "query",  # rotated, scaled queries of `layer`, [rows, heads, head_dim]
    "attention_mass",  # probability of every visible key ordinal under each row, [rows, heads, keys]
    "log_sum_exp",  # of the attention logits, [rows, heads]
]


@dataclass(frozen=True)
class Tap:
    """One thing to see in one layer. Arrays are float32, C-contiguous, valid until the executor's next step."""

    kind: TapKind
    layer: int


TapSet = frozenset[Tap]
NO_TAPS: TapSet = frozenset()


class UndeclaredTap(KeyError):
    """A caller asked for something it did not declare."""


class Taps:
    """The values of the taps that a request declared."""

    def __init__(self, values: dict[Tap, NDArray[np.float32]] | None = None) -> None:
        self._values = values or {}

    def __getitem__(self, tap: Tap) -> NDArray[np.float32]:
        try:
            return self._values[tap]
        except KeyError:
            raise UndeclaredTap(f"tap {tap.kind}[{tap.layer}] was not declared by this request") from None

    def __iter__(self) -> Iterator[Tap]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


EMPTY_TAPS = Taps()
