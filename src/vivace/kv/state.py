"""State beside the cache that lives and dies with its transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class StateParticipant(Protocol):
    """Per-sequence state (recurrent layers, drafters, samplers, page summaries) that the store keeps in step.

    Only `reserve` may raise; then no participant keeps the rows and the store has changed nothing. A sequence that a
    participant has not heard of is an empty one.
    """

    def reserve(self, seq: int, positions: NDArray[np.int32]) -> None:
        """More pending rows, behind those that are pending already."""

    def commit(self, seq: int, rows: Sequence[int]) -> None:
        """The pending rows at these indices stay, in this order; the others are gone."""

    def rollback(self, seq: int, first: int) -> None:
        """Pending rows first.. are gone."""

    def fork(self, seq: int, child: int) -> None:
        """`child` starts with the committed state of `seq`."""

    def truncate(self, seq: int, length: int) -> None:
        """Committed rows length.. are gone (ordinals of the common list)."""

    def keep(self, seq: int, layer: int | None, head: int | None, ordinals: NDArray[np.int64]) -> None:
        """Of the lists named, only these ordinals stay; None means every one."""

    def drop(self, seq: int) -> None: ...
