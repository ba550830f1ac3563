"""From the segments of a request to flat arrays over rows, and the only place where a request is checked.

A row's visible list is the ordinals 0..span-1 of its sequence followed by its `extra` ordinals, ascending. The index
of a key in that list, never its slot, decides the order in which attention adds it up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vivace.core.step import Float32, Int32, Mask, Segment, StepError, StepRequest, Write
from vivace.exec.visible import Bools, Visible, tree_positions, visible

if TYPE_CHECKING:
    from vivace.kv.store import KVStore
    from vivace.model.spec import ModelSpec

_COUNT = np.arange(1024, dtype=np.int32)
_NO_TOKEN = -1
_POSITION_LIMIT = 2**31 - 1


@dataclass(slots=True)
class Rows:
    """The rows of a step, segment after segment.

    Ordinals count the sequence's shared table. A head with its own list of keys (an override) has fewer before `base`;
    its ordinals from `base` on are shifted down by the difference.
    """

    tokens: Int32  # [rows] ids, -1 for a row given as a vector
    vectors: Float32 | None  # [rows, hidden], read where the token is -1; None: every row is a token
    positions: Int32  # [rows]
    sequence: Int32  # [rows]
    ordinals: Int32  # [rows] where the row's key and value go
    base: Int32  # [rows] keys of its sequence before this step, committed or pending
    span: Int32  # [rows] it sees ordinals 0..span-1,
    extra: Int32 | None  # then these, ascending; None: no row has any
    extra_starts: Int32 | None  # [rows + 1] row r has extra[extra_starts[r]:extra_starts[r + 1]]
    wanted: Int32  # [wanted] rows whose logits are wanted
    starts: Int32  # [segments + 1] segment i has the logits starts[i]..starts[i + 1]
    bounds: list[int]  # [segments + 1] segment i has the rows bounds[i]..bounds[i + 1]
    first_layer: int
    last_layer: int

    @property
    def count(self) -> int:
        return len(self.positions)

    def extra_of(self, row: int) -> Int32:
        if self.extra is None or self.extra_starts is None:
            return _COUNT[:0]
        return self.extra[self.extra_starts[row] : self.extra_starts[row + 1]]


@dataclass(slots=True)
class _Part:
    """One checked segment; index arrays are relative to the segment, ordinals absolute in its sequence."""

    rows: int
    positions: Int32
    ordinals: Int32
    base: int
    seen: Visible


def layout(request: StepRequest, store: KVStore, spec: ModelSpec) -> Rows:
    """Checks `request` completely, then reserves its rows in `store` and returns them flat.

    Raises StepError, with nothing reserved, for anything that cannot be run as stated.
    """
    segments = request.segments
    first, last = _check_depth(request, spec)
    parts = [_check_segment(segments[i], i, request, store, spec) for i in range(len(segments))]
    if len(parts) > 1 and len({segment.seq for segment in segments}) < len(parts):
        raise StepError("two segments of a step name the same sequence: give its rows in one segment")
    rows = _join(request, parts, spec, first, last)
    _check_per_row(request, rows.count, spec, first, last)
    lacks = _lacking(request, rows, store)
    _reserve(segments, parts, lacks, store)
    return rows


def finish(request: StepRequest, rows: Rows, store: KVStore, *, failed: bool = False) -> None:
    """Ends what `layout` opened: drops scratch rows, and undoes all of a step that failed midway."""
    for index, segment in enumerate(request.segments):
        if failed or segment.write is Write.SCRATCH:
            _undo(segment, int(rows.base[rows.bounds[index]]), store)


def _check_depth(request: StepRequest, spec: ModelSpec) -> tuple[int, int]:
    if not request.segments:
        raise StepError("a step needs at least one segment")
    blocks = len(spec.blocks)
    first, last = request.first_layer, blocks if request.last_layer is None else request.last_layer
    if not 0 <= first <= last <= blocks:
        raise StepError(f"layers {first}..{last} are not a range of this model's 0..{blocks}")
    return first, last


def _check_segment(segment: Segment, index: int, request: StepRequest, store: KVStore, spec: ModelSpec) -> _Part:
    name = f"segment {index}"
    n = _check_inputs(segment, name, request, spec)
    try:
        length, pending = store.length(segment.seq), store.pending(segment.seq)
    except KeyError:
        raise StepError(f"{name}: the store has no sequence {segment.seq}") from None
    _check_fields(segment, name, n, 0 if segment.write is Write.REPLACE else pending)
    base = length + pending
    if segment.write is Write.REPLACE:
        ordinals = _check_replace(segment, name, length, store)
    else:
        ordinals = _count(n) + np.int32(base)
    positions = _positions(segment, name, store, spec)
    return _Part(n, positions, ordinals, base, visible(segment, n, length, ordinals, store))


def _check_inputs(segment: Segment, name: str, request: StepRequest, spec: ModelSpec) -> int:
    """Tokens or vectors; returns the number of rows."""
    tokens, vectors = segment.tokens, segment.vectors
    if (tokens is None) == (vectors is None):
        raise StepError(f"{name}: give either tokens or vectors")
    if vectors is not None:
        if vectors.dtype != np.float32 or vectors.ndim != 2 or vectors.shape[1] != spec.hidden or not len(vectors):
            raise StepError(
                f"{name}: vectors must be float32 [rows, {spec.hidden}], not {vectors.dtype} {list(vectors.shape)}"
            )
        return len(vectors)
    assert tokens is not None
    if request.first_layer:
        raise StepError(f"{name}: a step that starts at layer {request.first_layer} needs vectors, not tokens")
    n = len(tokens) if tokens.ndim == 1 else 0
    if tokens.dtype != np.int32 or not n:
        raise StepError(f"{name}: tokens must be int32 [rows], at least one, not {tokens.dtype} {list(tokens.shape)}")
    if int(tokens.view(np.uint32).max()) >= spec.vocab:
        bad = int(tokens[(tokens < 0) | (tokens >= spec.vocab)][0])
        raise StepError(f"{name}: token {bad} is outside the vocabulary 0..{spec.vocab - 1}")
    return n


def _check_fields(segment: Segment, name: str, n: int, pending: int) -> None:
    """Each optional field has its shape and stands with the mask or write that reads it.

    `pending` rows come before those of the segment, as its parents and `allowed` count them.
    """
    if segment.parents is not None or segment.mask is Mask.TREE:
        _check_parents(segment, name, n, pending)
    if segment.allowed is not None or segment.mask is Mask.GIVEN:
        allowed = segment.allowed
        if segment.mask is not Mask.GIVEN:
            raise StepError(f"{name}: allowed is read with Mask.GIVEN only, not with {segment.mask}")
        if allowed is None or allowed.dtype != np.bool_ or allowed.shape not in ((n, n), (n, pending + n)):
            with_pending = f" or [{n}, {pending + n}]" if pending else ""
            raise StepError(f"{name}: Mask.GIVEN needs allowed as bool [{n}, {n}]{with_pending}")
    if segment.ordinals is not None and segment.write is not Write.REPLACE:
        raise StepError(f"{name}: ordinals are read with Write.REPLACE only, not with {segment.write}")
    wanted = segment.logits
    if wanted is not None and len(wanted):
        if wanted.dtype != np.int32 or wanted.ndim != 1:
            raise StepError(f"{name}: logits must be int32 row indices, not {wanted.dtype} {list(wanted.shape)}")
        if int(wanted[0]) < 0 or int(wanted[-1]) >= n or (len(wanted) > 1 and (np.diff(wanted) <= 0).any()):
            raise StepError(f"{name}: logits must be ascending row indices in 0..{n - 1}")


def _check_parents(segment: Segment, name: str, n: int, pending: int) -> None:
    parents = segment.parents
    if segment.mask is not Mask.TREE:
        raise StepError(f"{name}: parents are read with Mask.TREE only, not with {segment.mask}")
    if parents is None or parents.dtype != np.int32 or parents.shape != (n,):
        raise StepError(f"{name}: Mask.TREE needs parents as int32 [{n}]")
    wrong = (parents < -1) | (parents >= _count(n) + pending)
    if wrong.any():
        row = int(wrong.argmax())
        after = f", counted behind {pending} pending ones" if pending else ""
        parent = int(parents[row])
        raise StepError(f"{name}: the parent of row {row} is {parent}: it must be -1 or an earlier row{after}")


def _check_replace(segment: Segment, name: str, length: int, store: KVStore) -> Int32:
    ordinals, n = segment.ordinals, segment.rows
    if ordinals is None or ordinals.dtype != np.int32 or ordinals.shape != (n,):
        raise StepError(f"{name}: Write.REPLACE needs ordinals as int32 [{n}]")
    if int(ordinals[0]) < 0 or int(ordinals[-1]) >= length or (n > 1 and (np.diff(ordinals) <= 0).any()):
        raise StepError(f"{name}: ordinals must be ascending within the {length} committed keys of its sequence")
    if store.overrides(segment.seq):
        raise StepError(f"{name}: heads of sequence {segment.seq} keep their own keys: its keys cannot be replaced")
    return ordinals


def _positions(segment: Segment, name: str, store: KVStore, spec: ModelSpec) -> Int32:
    n, given = segment.rows, segment.positions
    if given is not None and (given.dtype != np.int32 or given.shape != (n,)):
        raise StepError(f"{name}: positions must be int32 [{n}], not {given.dtype} {list(given.shape)}")
    if segment.ordinals is not None:
        stored = store.positions(segment.seq)[segment.ordinals]
        if given is not None and (given != stored).any():
            raise StepError(f"{name}: replaced keys keep their positions: leave positions out")
        return stored
    if given is None:
        if segment.parents is not None:
            pending = store.positions(segment.seq, pending=True)[store.length(segment.seq) :]
            given = tree_positions(segment.parents, store.next_position(segment.seq), pending)
        else:
            given = _count(n) + np.int32(_next_position(segment.seq, store))
    top = int(given.view(np.uint32).max())
    if top > _POSITION_LIMIT:
        raise StepError(f"{name}: position {int(given.min())} is negative")
    if spec.max_context and top >= spec.max_context:
        over = top + 1 - spec.max_context
        raise StepError(
            f"{name}: position {top} is past the model's context of {spec.max_context} tokens "
            f"by {over}: shorten the text"
        )
    return given


def _next_position(seq: int, store: KVStore) -> int:
    """After the last pending row, or else after the last committed position."""
    if store.pending(seq):
        return int(store.positions(seq, pending=True)[-1]) + 1
    return store.next_position(seq)


def _join(request: StepRequest, parts: list[_Part], spec: ModelSpec, first: int, last: int) -> Rows:
    segments = request.segments
    bounds = [0]
    for part in parts:
        bounds.append(bounds[-1] + part.rows)
    wanted, starts = _wanted(segments, bounds, last == len(spec.blocks))
    extra, extra_starts = _extras(parts)
    if len(parts) == 1:
        part, segment, n = parts[0], segments[0], parts[0].rows
        tokens = np.full(n, _NO_TOKEN, np.int32) if segment.tokens is None else np.ascontiguousarray(segment.tokens)
        vectors = None if segment.vectors is None else np.ascontiguousarray(segment.vectors)
        positions, ordinals = np.ascontiguousarray(part.positions), np.ascontiguousarray(part.ordinals)
        sequence, base = np.full(n, segment.seq, np.int32), np.full(n, part.base, np.int32)
        return Rows(
            tokens, vectors, positions, sequence, ordinals, base, part.seen.span, extra, extra_starts,
            wanted, starts, bounds, first, last,
        )  # fmt: skip
    counts = np.diff(np.array(bounds))
    total = bounds[-1]
    tokens = np.full(total, _NO_TOKEN, np.int32)
    vectors = None
    if any(segment.vectors is not None for segment in segments):
        vectors = np.zeros((total, spec.hidden), np.float32)
    for segment, begin, end in zip(segments, bounds, bounds[1:], strict=False):
        if segment.tokens is not None:
            tokens[begin:end] = segment.tokens
        elif vectors is not None:
            vectors[begin:end] = segment.vectors
    return Rows(
        tokens,
        vectors,
        np.concatenate([part.positions for part in parts]),
        np.repeat(np.array([segment.seq for segment in segments], np.int32), counts),
        np.concatenate([part.ordinals for part in parts]),
        np.repeat(np.array([part.base for part in parts], np.int32), counts),
        np.concatenate([part.seen.span for part in parts]),
        extra,
        extra_starts,
        wanted,
        starts,
        bounds,
        first,
        last,
    )


def _wanted(segments: list[Segment], bounds: list[int], has_logits: bool) -> tuple[Int32, Int32]:
    starts, rows = [0], []
    for index, segment in enumerate(segments):
        if segment.logits is None:
            if has_logits:
                rows.append(bounds[index + 1] - 1)
        elif len(segment.logits):
            if not has_logits:
                raise StepError(f"segment {index}: a step that ends before the last layer has no logits")
            rows.extend((segment.logits + bounds[index]).tolist())
        starts.append(len(rows))
    return np.array(rows, np.int32), np.array(starts, np.int32)


def _extras(parts: list[_Part]) -> tuple[Int32 | None, Int32 | None]:
    seen = [part.seen for part in parts]
    found = [each.extra for each in seen if each.extra is not None]
    if not found:
        return None, None
    counts = [np.zeros(len(each.span), np.int64) if each.extra_counts is None else each.extra_counts for each in seen]
    starts = np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int32)
    return np.concatenate(found), starts


def _check_per_row(request: StepRequest, count: int, spec: ModelSpec, first: int, last: int) -> None:
    mask = request.layer_mask
    if mask is not None and (mask.dtype != np.bool_ or mask.shape != (count, len(spec.blocks))):
        raise StepError(
            f"layer_mask must be bool [{count}, {len(spec.blocks)}] (rows, layers), not {mask.dtype} {list(mask.shape)}"
        )
    for tap in request.edits or ():
        if tap.kind not in ("hidden", "query"):
            raise StepError(f"{tap.kind}[{tap.layer}] cannot be edited: only hidden and query can")
    for tap in (*request.taps, *(request.edits or ())):
        end = last if tap.kind == "hidden" else last - 1
        if not first <= tap.layer <= end:
            raise StepError(f"tap {tap.kind}[{tap.layer}]: this step has {tap.kind} of layers {first}..{end} only")


def _lacking(request: StepRequest, rows: Rows, store: KVStore) -> list[Bools | None]:
    """[rows, layers] of each segment: which rows get no key where. Refuses rows that would read a missing key."""
    found: list[Bools | None] = []
    for index, segment in enumerate(request.segments):
        lacks = None
        if request.layer_mask is not None:
            lacks = ~request.layer_mask[rows.bounds[index] : rows.bounds[index + 1]]
            lacks[:, : rows.first_layer] = lacks[:, rows.last_layer :] = False
        missing = store.lacks(segment.seq)
        if missing is not None:
            wrong = missing if lacks is None else missing & ~lacks.all(0)
            layers = np.flatnonzero(wrong[rows.first_layer : rows.last_layer])
            if len(layers):
                raise StepError(
                    f"segment {index}: pending rows of sequence {segment.seq} skipped layer "
                    f"{rows.first_layer + int(layers[0])}, which rows behind them run: commit or roll back first"
                )
        found.append(lacks if lacks is not None and lacks.any() else None)
    return found


def _reserve(segments: list[Segment], parts: list[_Part], lacks: list[Bools | None], store: KVStore) -> None:
    """Opens every segment's rows, or none when the store lacks pages (OutOfPages) or refuses."""
    opened = 0
    try:
        for segment, part, lacking in zip(segments, parts, lacks, strict=True):
            if segment.write is Write.REPLACE:
                store.replace(segment.seq, part.ordinals)
            else:
                store.reserve(segment.seq, part.positions, part.seen.pending, lacking)
            opened += 1
    except BaseException as error:
        for segment, part in zip(segments[:opened], parts, strict=False):
            _undo(segment, part.base, store)
        if isinstance(error, ValueError):
            raise StepError(str(error)) from None
        raise


def _undo(segment: Segment, base: int, store: KVStore) -> None:
    """Takes back what a step opened for one segment, and nothing that was open before it."""
    if segment.write is Write.REPLACE:
        store.restore(segment.seq, 1)
    else:
        store.rollback(segment.seq, base - store.length(segment.seq))


def _count(n: int) -> Int32:
    return _COUNT[:n] if n <= len(_COUNT) else np.arange(n, dtype=np.int32)
