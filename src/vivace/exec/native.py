"""Runs steps on the native core: weights packed at load, one call a step, float32 residual stream, half-float cache."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivace import _native
from vivace.core.step import Mask, RowStats, StepCost, StepError, StepRequest, StepResult
from vivace.core.taps import Tap, Taps
from vivace.exec.packed import PARTS, PackedWeights, RopeTable, address
from vivace.exec.rows import Rows, finish, layout
from vivace.kv.spec import PAGE, KVSpec
from vivace.kv.store import KVStore
from vivace.model.spec import BlockSpec, ModelSpec, RopeSpec
from vivace.model.weights import Checkpoint

MAX_ROWS = 512  # of one native call; longer steps run in pieces where their rows allow it


class NativeExecutor:
    """Whole steps in one native call. `isa` "" takes the best instruction set, or what $VIVACE_ISA names."""

    name = "native"

    def __init__(
        self, checkpoint: Checkpoint, *, capacity_pages: int, threads: int = 1, isa: str = "", max_rows: int = MAX_ROWS
    ) -> None:
        self.spec = checkpoint.spec
        self.isa: str = _native.isa(isa)
        self.max_rows = max_rows
        self.store = KVStore(KVSpec.of(self.spec), capacity_pages)
        self._checkpoint = checkpoint
        self._pool = _native.Pool(threads)
        self._weights = PackedWeights(checkpoint, self._pool)
        self._vectors = {name: np.ascontiguousarray(v, np.float32) for name, v in checkpoint.vectors.items()}
        self._ropes: dict[RopeSpec, RopeTable] = {}
        self._logits = np.empty((1, self.spec.vocab), np.float32)
        self._lists = np.cumsum([0, *(block.attention.kv_heads for block in self.spec.blocks)])
        self._windows = _bytes_by_window(self.store.spec, self.spec)
        self._model = self._describe()
        self._build()

    def _build(self) -> None:
        self._program = _native.Program(self._pool, self.isa, self._model, self.max_rows)

    def _describe(self) -> Any:
        spec, embed = self.spec, self._checkpoint.matrices["embed"]
        if embed.row_order is not None:
            raise ValueError("an embedding matrix with reordered rows cannot be looked up")
        model = _native.Model()
        model.hidden, model.vocab, model.eps = spec.hidden, spec.vocab, spec.norm_eps
        model.embed_scale, model.logit_softcap = spec.embed_scale, spec.logit_softcap or 0.0
        model.embed_type, model.embed, model.embed_row_bytes = embed.type, address(embed.data), embed.data.strides[0]
        model.final_norm = address(self._vectors["final_norm"])
        model.head = self._weights.head
        for index, block in enumerate(spec.blocks):
            model.add_layer(self._layer(index, block))
        return model

    def _layer(self, index: int, block: BlockSpec) -> Any:
        attention, plane = block.attention, self.store.planes[index]
        layer = _native.Layer()
        layer.heads, layer.kv_heads, layer.head_dim = attention.heads, attention.kv_heads, attention.head_dim
        layer.feed_forward, layer.gelu = block.feed_forward.size, block.feed_forward.activation == "gelu_tanh"
        layer.window, layer.scale, layer.softcap = attention.window or 0, attention.scale, attention.softcap or 0.0
        layer.kv, layer.head_stride, layer.cell_bytes = address(plane), plane.strides[0], plane.strides[1]
        for name in _NORMS:
            vector = self._vectors.get(f"blocks.{index}.{name}")
            setattr(layer, name, 0 if vector is None else address(vector))
        for name in PARTS:
            setattr(layer, name, self._weights.linear(f"blocks.{index}.{name}"))
        if attention.rope is not None:
            table = self._ropes.get(attention.rope)
            if table is None:
                table = self._ropes[attention.rope] = RopeTable(attention.rope, self.spec.max_context or 1 << 17)
            layer.rope_dim, layer.rope_cos, layer.rope_sin = attention.rope.dim, address(table.cos), address(table.sin)
        return layer

    def run(self, request: StepRequest) -> StepResult:
        begin = time.perf_counter()
        if request.rows > self.max_rows:
            raise StepError(f"a step of {request.rows} rows is over the {self.max_rows} of this executor: cut it")
        ragged = any(self.store.overrides(segment.seq) for segment in request.segments)
        trees = any(segment.mask in (Mask.TREE, Mask.GIVEN) for segment in request.segments)
        if ragged and trees and any(tap.kind == "attention_mass" for tap in request.taps):
            raise StepError("the native step cannot give the masses of a tree over ragged keys yet: use the reference")
        if request.layer_mask is not None and not request.layer_mask.all():
            raise StepError("the native step cannot skip layers row by row yet: use the reference executor")
        if any(self.store.has_biases(segment.seq) for segment in request.segments):
            raise StepError("the native step does not read biases of keys yet: use the reference executor")
        rows = layout(request, self.store, self.spec)
        try:
            logits, taps = self._run_rows(request, rows)
        except BaseException:
            finish(request, rows, self.store, failed=True)
            raise
        kv_read, kv_written = self._kv_bytes(request, rows)
        finish(request, rows, self.store)
        stats = [RowStats(*row) for row in self._program.stats()] if len(rows.wanted) else None
        cost = StepCost(
            rows=rows.count,
            weight_bytes=self._weight_bytes(rows),
            kv_read_bytes=kv_read,
            kv_written_bytes=kv_written,
            native_calls=1,
            seconds=time.perf_counter() - begin,
            tier="T0",
        )
        return StepResult(logits, rows.starts, Taps(taps), cost, stats)

    def _run_rows(self, request: StepRequest, rows: Rows) -> tuple[NDArray[np.float32], dict[Tap, Any]]:
        program, blocks = self._program, len(self.spec.blocks)
        top = int(rows.positions.max())
        for table in self._ropes.values():
            table.cover(top)
        if len(rows.wanted) > len(self._logits):
            self._logits = np.empty((len(rows.wanted), self.spec.vocab), np.float32)
        logits = self._logits[: len(rows.wanted)]
        if rows.first_layer and rows.vectors is None:
            raise StepError("a step that starts inside the model needs vectors")
        sequences, index = _numbered(rows)
        tables = np.array([self._table(seq) for seq in sequences], np.int64)
        lists, kept = self._ragged(sequences, tables, rows)
        values = self._open_taps(request, rows)
        program.begin(
            rows.tokens, rows.vectors, rows.positions, index, rows.ordinals, rows.span, rows.extra, rows.extra_starts,
            tables, lists, rows.wanted, logits,
        )  # fmt: skip
        first = program.layer_begin(rows.first_layer) if rows.first_layer else 0
        if rows.first_layer and rows.vectors is not None:
            program.write_hidden(address(np.ascontiguousarray(rows.vectors)))
        whole = rows.last_layer == blocks
        program.run(first, program.op_count if whole and len(rows.wanted) else program.layer_begin(rows.last_layer))
        last = Tap("hidden", rows.last_layer)
        if last in values and not (whole and len(rows.wanted)):
            program.read_hidden(address(values[last]))
        del kept
        if rows.extra_starts is not None:
            _mass_by_ordinal(values, rows)
        return logits, values

    def _kv_bytes(self, request: StepRequest, rows: Rows) -> tuple[int, int]:
        """Bytes of keys and values read, each once for the rows of a segment that see it, and written."""
        read = 0
        layers = range(rows.first_layer, rows.last_layer)
        token = sum(self._windows[layer][1] for layer in layers)
        whole = all(self._windows[layer][0] is None for layer in layers)
        for index, segment in enumerate(request.segments):
            begin, end = rows.bounds[index], rows.bounds[index + 1]
            if whole and not self.store.overrides(segment.seq):
                read += token * (self.store.length(segment.seq) + self.store.pending(segment.seq))
                continue
            oldest = int(rows.positions[begin:end].min())
            for layer in layers:
                window, row_bytes = self._windows[layer]
                row_bytes //= self.store.spec.layers[layer].kv_heads
                for positions in self._key_positions(segment.seq, layer):
                    hidden = 0 if window is None else int(np.searchsorted(positions, oldest - window, "right"))
                    read += row_bytes * (len(positions) - hidden)
        return read, token * rows.count

    def _key_positions(self, seq: int, layer: int) -> list[NDArray[np.int32]]:
        """Of every head of a layer, pending keys included."""
        pending = self.store.pending(seq)
        overrides = self.store.overrides(seq)
        shared = self.store.positions(seq, pending=True)
        lists = [overrides.get((layer, head)) for head in range(self.store.spec.layers[layer].kv_heads)]
        return [shared if own is None else own.row_positions[: own.length + pending] for own in lists]

    def _table(self, seq: int) -> tuple[int, int]:
        return address(self.store.pages(seq)), address(self.store.positions(seq, pending=True))

    def _ragged(
        self, sequences: list[int], tables: NDArray[np.int64], rows: Rows
    ) -> tuple[NDArray[np.int64] | None, list[NDArray[np.int64]]]:
        """Addresses of the lists of each sequence that has heads with lists of their own."""
        if not any(self.store.overrides(seq) for seq in sequences):
            return None, []
        kept, found = [], np.zeros(len(sequences), np.int64)
        for i, seq in enumerate(sequences):
            overrides = self.store.overrides(seq)
            if not overrides:
                continue
            lists = np.zeros((int(self._lists[-1]), 3), np.int64)
            for (layer, head), own in overrides.items():
                shift = own.length - self.store.length(seq)
                lists[self._lists[layer] + head] = address(own.pages), address(own.row_positions), shift
            kept.append(lists)
            found[i] = address(lists)
        return found, kept

    def _open_taps(self, request: StepRequest, rows: Rows) -> dict[Tap, NDArray[np.float32]]:
        self._program.clear_taps()
        values: dict[Tap, NDArray[np.float32]] = {}
        if not request.taps:
            return values
        keys = int(rows.span.max() if rows.extra_starts is None else (rows.span + np.diff(rows.extra_starts)).max())
        keys = max(keys, int(rows.ordinals.max()) + 1)
        self._program.mass_stride = keys
        for tap in request.taps:
            attention = self.spec.blocks[min(tap.layer, len(self.spec.blocks) - 1)].attention
            shape: tuple[int, ...] = {
                "hidden": (rows.count, self.spec.hidden),
                "query": (rows.count, attention.heads, attention.head_dim),
                "attention_mass": (rows.count, attention.heads, keys),
                "log_sum_exp": (rows.count, attention.heads),
            }[tap.kind]
            values[tap] = np.zeros(shape, np.float32)
            if not (tap.kind == "hidden" and tap.layer == rows.last_layer and rows.last_layer < len(self.spec.blocks)):
                self._program.tap(tap.kind, tap.layer, address(values[tap]))
        return values

    def tier(self, request: StepRequest) -> tuple[str, str]:
        if request.layer_mask is not None:
            return "T3", "rows that skip layers run on the reference executor"
        return "T0", "the whole step is one native call"

    def set_threads(self, threads: int) -> None:
        """Takes effect with the next step."""
        if threads != self._pool.threads:
            self._pool.set_threads(threads)
            self._build()

    def op_times(self, on: bool) -> list[tuple[str, int, int]]:
        """(operation, layer, nanoseconds since timing was switched on); switches timing and clears the sums."""
        times = list(zip(self._program.ops(), self._program.op_ns, strict=True))
        self._program.timing = on
        self._program.op_ns = [0] * len(times)
        return [(name, layer, ns) for (name, layer), ns in times]

    def _weight_bytes(self, rows: Rows) -> int:
        matrices = self._checkpoint.matrices
        prefixes = tuple(f"blocks.{layer}." for layer in range(rows.first_layer, rows.last_layer))
        total = sum(matrix.nbytes for name, matrix in matrices.items() if name.startswith(prefixes))
        if len(rows.wanted):
            total += matrices["embed" if self.spec.tied_head else "head"].nbytes
        return total

    def close(self) -> None:
        """Frees the weights; the executor cannot run after it."""
        del self._program, self._model, self._weights


_NORMS = (
    "attention_norm", "feed_forward_norm", "q_norm", "k_norm", "post_attention_norm", "post_feed_forward_norm",
)  # fmt: skip


def _bytes_by_window(cache: KVSpec, model: ModelSpec) -> list[tuple[int | None, int]]:
    """Of each layer: its window, and the bytes of one token's keys and values."""
    return [
        (block.attention.window, cache.cell_bytes(i) * cache.layers[i].kv_heads // PAGE)
        for i, block in enumerate(model.blocks)
    ]


def _mass_by_ordinal(values: dict[Tap, NDArray[np.float32]], rows: Rows) -> None:
    """Puts the masses of a row's extra keys at their ordinals; the core gives them in the order of its visible list."""
    for tap, mass in values.items():
        if tap.kind != "attention_mass":
            continue
        for row in range(rows.count):
            extra, span = rows.extra_of(row), int(rows.span[row])
            listed = mass[row, :, span : span + len(extra)].copy()
            mass[row, :, span:] = 0
            mass[row][:, extra] = listed


def _numbered(rows: Rows) -> tuple[list[int], NDArray[np.int32]]:
    """The sequences of a step, and for each row the index of its own."""
    if len(rows.bounds) == 2:
        return [int(rows.sequence[0])], np.zeros(rows.count, np.int32)
    starts = rows.bounds[:-1]
    sequences: Iterable[int] = rows.sequence[starts].tolist()
    return list(sequences), np.repeat(np.arange(len(starts), dtype=np.int32), np.diff(rows.bounds))
