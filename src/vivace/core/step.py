"""The only way to run a model: any set of rows, ragged per sequence, in one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from vivace.core.taps import EMPTY_TAPS, NO_TAPS, Tap, Taps, TapSet

if TYPE_CHECKING:
    from vivace.kv.store import KVStore
    from vivace.model.spec import ModelSpec

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]
Edit = Callable[[Float32], None]  # changes what a tap shows, in place


class Mask(Enum):
    """Which rows a row sees: of those that earlier steps left pending, and of the new ones of its segment.

    Every committed key of its sequence is visible in each case. Pending rows are counted from the first pending one of
    the sequence, the new ones behind those of earlier steps.
    """

    CAUSAL = "causal"  # all pending ones, the new ones before it, and itself
    TREE = "tree"  # what its parent sees (a root: no pending row), and itself
    BLOCK = "block"  # all of them
    GIVEN = "given"  # those that `allowed` names; a row always sees itself


class Write(Enum):
    """What becomes of the segment's keys and values."""

    APPEND = "append"  # stay pending in the store until the caller commits or rolls back
    SCRATCH = "scratch"  # visible to this step's rows, rolled back by the executor when it ends
    REPLACE = "replace"  # overwrite the committed keys at `ordinals` until a roll-back, or for good by a commit


@dataclass(slots=True)
class Segment:
    """Consecutive new rows of one sequence."""

    seq: int
    tokens: Int32 | None  # [n] token ids, or None when `vectors` are given
    vectors: Float32 | None = None  # [n, hidden] inputs in place of token embeddings
    positions: Int32 | None = None  # [n]; None: go on after the last row (trees: after the parent)
    mask: Mask = Mask.CAUSAL
    parents: Int32 | None = None  # [n] TREE: the parent's index among pending rows (REPLACE: the segment's), -1: a root
    allowed: NDArray[np.bool_] | None = None  # GIVEN: [n, pending + n], or [n, n] when all pending ones are seen
    write: Write = Write.APPEND
    ordinals: Int32 | None = None  # [n] REPLACE: the committed ordinals to overwrite
    logits: Int32 | None = None  # indices of the rows whose logits are wanted, ascending; None: the last row only

    @property
    def rows(self) -> int:
        if self.tokens is not None:
            return len(self.tokens)
        assert self.vectors is not None
        return len(self.vectors)


NO_LOGITS = np.empty(0, np.int32)


def all_rows(n: int) -> Int32:
    return np.arange(n, dtype=np.int32)


@dataclass(slots=True)
class StepRequest:
    """Rows to run through layers first_layer..last_layer of one model of the pool.

    With first_layer > 0 every segment carries `vectors`: the residual stream entering that layer. With last_layer
    below the number of blocks there are no logits; `Tap("hidden", last_layer)` returns the stream that leaves it.

    An edit stops the step where its tap (hidden or query) shows something: it is called with that, changes it in place,
    and the step goes on from there. A tap of the same place shows what the edit left. Rows that skip a layer have
    zeros for queries there; edits of a layer that no row runs are not called, hidden ones always are.

    A row that skips a layer has no key there, neither in this step nor once committed. While such rows are pending, a
    step of their sequence that runs the layer is refused. Replaced rows keep the key that stood there.
    """

    segments: list[Segment]
    model: str = "target"
    taps: TapSet = NO_TAPS
    first_layer: int = 0
    last_layer: int | None = None
    layer_mask: NDArray[np.bool_] | None = None  # [rows, layers]: False skips the block for that row (no key there)
    edits: Mapping[Tap, Edit] | None = None
    top: int = 0  # how many of each row's largest logits are wanted as `RowStats.top`, where the executor finds them
    role: str = "target"  # counters are kept per role

    @property
    def rows(self) -> int:
        return sum(segment.rows for segment in self.segments)


@dataclass(slots=True)
class StepCost:
    """What a step cost, counted exactly except for the seconds."""

    rows: int = 0
    weight_bytes: int = 0
    kv_read_bytes: int = 0
    kv_written_bytes: int = 0
    native_calls: int = 0
    seconds: float = 0.0
    tier: str = ""


@dataclass(slots=True)
class RowStats:
    """What an executor may know about a row of logits beside the row itself; ties of the argmax go to the lowest id."""

    max: float
    argmax: int
    log_sum_exp: float
    top: Int32 | None = None  # ids of the largest logits, in order; of equal ones the lowest id first


@dataclass(slots=True)
class StepResult:
    """`logits` [wanted rows, vocab] in the order of the request; `starts[i]` is the first of segment i (length + 1).

    Logits, like taps, are valid until the executor's next step. `stats`, when an executor has them, is one per row of
    `logits`; `max` is not a number when one of the row's logits is not.
    """

    logits: Float32
    starts: Int32
    taps: Taps = field(default_factory=lambda: EMPTY_TAPS)
    cost: StepCost = field(default_factory=StepCost)
    stats: list[RowStats] | None = None

    def of(self, segment: int) -> Float32:
        """The logits of one segment, [its wanted rows, vocab]."""
        return self.logits[self.starts[segment] : self.starts[segment + 1]]


class Executor(Protocol):
    """Runs steps of one model. Reserves in `store`; committing, rolling back and forking is the caller's."""

    name: str
    isa: str  # the instruction set of its kernels
    fingerprint: str  # identifies the weights; cached rows are shared only while it stays the same
    spec: ModelSpec
    store: KVStore
    max_rows: int  # of one step; a longer one raises StepError

    @property
    def threads(self) -> int: ...

    def run(self, request: StepRequest) -> StepResult: ...

    def tier(self, request: StepRequest) -> tuple[str, str]:
        """How the step would run, and why not better.

        T0: in one native call. T1: cut at borders of layers. T2: cut inside layers. T3: by the reference.
        """
        ...

    def set_threads(self, threads: int) -> None: ...

    def close(self) -> None: ...


class StepError(ValueError):
    """The request cannot be run as stated; the message says what to change. Nothing was changed."""
