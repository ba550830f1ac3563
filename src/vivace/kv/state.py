"""State beside the cache that lives and dies with its transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class StateParticipant(Protocol):
    """Per-sequence state (recurrent layers, drafters, samplers, page summaries) that the store keeps in step.

    Only `reserve`, `replace` and `adopt` may raise; then the others are told to take it back (by `rollback`, `restore`
    or `drop`) and the store has changed nothing. A sequence that a participant has not heard of is an empty one.
    """

    name: str  # its own among the participants of a store: by it, its state is found in a blob

    def reserve(self, seq: int, positions: NDArray[np.int32]) -> None:
        """More pending rows, behind those that are pending already."""

    def commit(self, seq: int, rows: Sequence[int]) -> None:
        """The pending rows at these indices stay, in this order; the others are gone. So do open replaces."""

    def rollback(self, seq: int, first: int) -> None:
        """Pending rows first.. are gone."""

    def replace(self, seq: int, ordinals: NDArray[np.int64]) -> None:
        """These committed rows are about to be overwritten, until a commit, or a `restore`."""

    def restore(self, seq: int, ordinals: NDArray[np.int64]) -> None:
        """The last replace that is open is undone: its rows have got back what stood there."""

    def fork(self, seq: int, child: int) -> None:
        """`child` starts with the committed state of `seq`."""

    def can_cut(self, seq: int, length: int) -> bool:
        """Whether the committed state can go back to `length` rows, fewer than it has (`truncate` follows)."""
        ...

    def truncate(self, seq: int, length: int) -> None:
        """Committed rows length.. are gone (ordinals of the common list)."""

    def keep(self, seq: int, layer: int | None, head: int | None, ordinals: NDArray[np.int64]) -> None:
        """Of the lists named, only these ordinals stay; None means every one."""

    def export(self, seq: int, layers: Sequence[int]) -> Any:
        """A copy of the committed state, as far as it belongs to these layers, for a blob."""
        ...

    def adopt(self, seq: int, state: Any) -> None:
        """A new sequence starts with a state that `export` made. Raises ValueError where it does not fit."""

    def drop(self, seq: int) -> None: ...
