"""Runs steps on the native core: weights packed at load, one call a step, float32 residual stream, half-float cache."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivace import _native
from vivace.core.step import Edit, RowStats, StepCost, StepError, StepRequest, StepResult
from vivace.core.taps import Tap, Taps
from vivace.exec.packed import PARTS, PackedWeights, RopeTable, address
from vivace.exec.rows import Rows, finish, layout
from vivace.exec.traffic import Traffic, layers_run
from vivace.kv.spec import KVSpec
from vivace.kv.store import KVStore
from vivace.model.errors import naming
from vivace.model.spec import BlockSpec, RopeSpec
from vivace.model.weights import Checkpoint

MAX_TOP = 256  # more than that are not found in the step
MAX_ROWS = 512  # of one step: the core keeps buffers for as many


class NativeExecutor:
    """Whole steps in one native call, or in several where something is edited.

    `isa` "" takes the best instruction set, or what $VIVACE_ISA names.
    """

    name = "native"

    def __init__(
        self, checkpoint: Checkpoint, *, capacity_pages: int, threads: int = 1, isa: str = "", max_rows: int = MAX_ROWS
    ) -> None:
        self.spec, self.fingerprint = checkpoint.spec, checkpoint.fingerprint
        self.isa = _native.isa(isa)
        self.max_rows = max_rows
        self.store = KVStore(KVSpec.of(self.spec), capacity_pages)
        self._checkpoint = checkpoint
        self._pool = _native.Pool(threads)
        self._vectors = {name: np.ascontiguousarray(v, np.float32) for name, v in checkpoint.vectors.items()}
        self._ropes: dict[RopeSpec, RopeTable] = {}
        self._logits = np.empty((1, self.spec.vocab), np.float32)
        self._lists = np.cumsum([0, *(block.attention.kv_heads for block in self.spec.blocks)])
        self._traffic = Traffic(checkpoint, self.store)
        with naming(checkpoint.path, ValueError):  # what the core does not support
            self._weights = PackedWeights(checkpoint, self._pool)
            self._model = self._describe()
            self._build()

    def _build(self) -> None:
        self._program = _native.Program(self._pool, self.isa, self._model, self.max_rows)
        self._most_threads = self._pool.threads
        self._attend = [i for i, (name, _) in enumerate(self._program.ops()) if name == "attend"]

    def _describe(self) -> _native.Model:
        spec, embed = self.spec, self._checkpoint.matrices["embed"]
        self._embed = embed.data
        if embed.row_order is not None:
            raise ValueError("an embedding matrix with reordered rows cannot be looked up")
        model = _native.Model()
        model.hidden, model.vocab, model.eps = spec.hidden, spec.vocab, spec.norm_eps
        model.embed_scale, model.logit_softcap = spec.embed_scale, spec.logit_softcap or 0.0
        model.embed_type, model.embed, model.embed_row_bytes = embed.type, address(self._embed), self._embed.strides[0]
        model.final_norm = address(self._vectors["final_norm"])
        model.head = self._weights.head
        for index, block in enumerate(spec.blocks):
            model.add_layer(self._layer(index, block))
        return model

    def _layer(self, index: int, block: BlockSpec) -> _native.Layer:
        attention, plane = block.attention, self.store.planes[index]
        layer = _native.Layer()
        layer.heads, layer.kv_heads, layer.head_dim = attention.heads, attention.kv_heads, attention.head_dim
        layer.feed_forward, layer.gelu = block.feed_forward.size, block.feed_forward.activation == "gelu_tanh"
        layer.window, layer.scale = min(attention.window or 0, 2**31 - 1), attention.scale
        layer.softcap = attention.softcap or 0.0
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
        rows = layout(request, self.store, self.spec)
        try:
            logits, taps, calls = self._run_rows(request, rows)
        except BaseException:
            finish(request, rows, self.store, failed=True)
            raise
        kv_read, kv_written = self._traffic.cache(request, rows)
        finish(request, rows, self.store)
        stats = self._stats(request) if len(rows.wanted) else None
        cost = StepCost(
            rows=rows.count,
            weight_bytes=self._traffic.weights(request, rows),
            kv_read_bytes=kv_read,
            kv_written_bytes=kv_written,
            native_calls=calls,
            seconds=time.perf_counter() - begin,
            tier=self.tier(request)[0],
        )
        return StepResult(logits, rows.starts, Taps(taps), cost, stats)

    def _run_rows(
        self, request: StepRequest, rows: Rows
    ) -> tuple[NDArray[np.float32], dict[Tap, NDArray[np.float32]], int]:
        program = self._program
        top = int(rows.positions.max())
        for table in self._ropes.values():
            table.cover(top)
        if len(rows.wanted) > len(self._logits):
            self._logits = np.empty((len(rows.wanted), self.spec.vocab), np.float32)
        logits = self._logits[: len(rows.wanted)]
        sequences, index = _numbered(rows)
        tables = np.array([self._table(seq) for seq in sequences], np.int64)
        tables[:, 2] = rows.base[rows.bounds[:-1]]
        lists, kept = self._own_lists(sequences, tables)
        mask = None if request.layer_mask is None else np.ascontiguousarray(request.layer_mask)
        values = self._open_taps(request, rows)
        program.begin(
            rows.tokens, rows.vectors, rows.positions, index, rows.ordinals, rows.span, rows.extra, rows.extra_starts,
            tables, lists, mask, rows.wanted, logits, min(request.top, MAX_TOP),
        )  # fmt: skip
        calls = self._run_ranges(request, rows, values)
        last = Tap("hidden", rows.last_layer)
        if last in values and not len(rows.wanted):
            program.read_hidden(address(values[last]))
        del kept
        return logits, values, calls

    def _stats(self, request: StepRequest) -> list[RowStats]:
        rows = self._program.stats()
        if not request.top:
            return [RowStats(*row) for row in rows]
        found = zip(rows, self._program.top(), strict=True)
        return [RowStats(peak, first, total, top[top >= 0]) for (peak, first, total), top in found]

    def _run_ranges(self, request: StepRequest, rows: Rows, values: dict[Tap, NDArray[np.float32]]) -> int:
        """Runs the operations of the step, cut where something is edited; returns in how many calls."""
        program, at = self._program, 0
        if rows.first_layer and rows.vectors is not None:
            at = program.layer_begin(rows.first_layer)
            program.write_hidden(address(rows.vectors))
        cuts = self._cuts(request, rows)
        for stop, tap, edit in cuts:
            program.run(at, stop)
            shown = values[tap] if tap in values else np.zeros(self._shape(tap, rows), np.float32)
            read, write = (
                (program.read_hidden, program.write_hidden)
                if tap.kind == "hidden"
                else (program.read_query, program.write_query)
            )
            read(address(shown))
            edit(shown)
            write(address(shown))
            at = stop
        program.run(at, program.op_count if len(rows.wanted) else program.layer_begin(rows.last_layer))
        return len(cuts) + 1

    def _cuts(self, request: StepRequest, rows: Rows) -> list[tuple[int, Tap, Edit]]:
        """(operation to stop before, what is edited there, by whom), in order."""
        if not request.edits:
            return []
        run = layers_run(request, rows)
        cuts = [
            (self._program.layer_begin(tap.layer) if tap.kind == "hidden" else self._attend[tap.layer], tap, edit)
            for tap, edit in request.edits.items()
            if tap.kind == "hidden" or tap.layer in run
        ]
        return sorted(cuts, key=lambda cut: cut[0])

    def _table(self, seq: int) -> tuple[int, int, int]:
        return address(self.store.pages(seq)), address(self.store.positions(seq, pending=True)), 0

    def _own_lists(
        self, sequences: list[int], tables: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64] | None, list[NDArray[Any]]]:
        """Addresses of the lists of each sequence whose heads differ in keys or biases, and what must be kept."""
        store = self.store
        if not any(store.overrides(seq) or store.has_biases(seq) for seq in sequences):
            return None, []
        kept: list[NDArray[Any]] = []
        found = np.zeros(len(sequences), np.int64)
        for i, seq in enumerate(sequences):
            lists = np.zeros((int(self._lists[-1]), 5), np.int64)
            lists[:, :2] = tables[i, :2]
            for (layer, head), own in store.overrides(seq).items():
                shift = own.length - store.length(seq)
                lists[self._lists[layer] + head, :3] = address(own.pages), address(own.row_positions), shift
            for layer, shape in enumerate(store.spec.layers if store.has_biases(seq) else ()):
                for head in range(shape.kv_heads):
                    if (bias := store.biases(seq, layer, head)) is not None:
                        lists[self._lists[layer] + head, 3:] = address(bias), len(bias)
                        kept.append(bias)
            kept.append(lists)
            found[i] = address(lists)
        return found, kept

    def _open_taps(self, request: StepRequest, rows: Rows) -> dict[Tap, NDArray[np.float32]]:
        self._program.clear_taps()
        values: dict[Tap, NDArray[np.float32]] = {}
        if not request.taps:
            return values
        self._program.mass_stride = _mass_keys(rows)
        for tap in request.taps:
            values[tap] = np.full(self._shape(tap, rows), _EMPTY.get(tap.kind, 0), np.float32)
            if not (tap.kind == "hidden" and tap.layer == rows.last_layer and rows.last_layer < len(self.spec.blocks)):
                self._program.tap(tap.kind, tap.layer, address(values[tap]))
        return values

    def _shape(self, tap: Tap, rows: Rows) -> tuple[int, ...]:
        if tap.kind == "hidden":
            return rows.count, self.spec.hidden
        attention = self.spec.blocks[tap.layer].attention
        last = {"query": (attention.head_dim,), "attention_mass": (_mass_keys(rows),), "log_sum_exp": ()}[tap.kind]
        return rows.count, attention.heads, *last

    def tier(self, request: StepRequest) -> tuple[str, str]:
        kinds = {tap.kind for tap in request.edits or ()}
        if "query" in kinds:
            return "T2", "the step stops inside layers for edits of queries"
        if kinds:
            return "T1", "the step stops between layers for edits of the stream"
        return "T0", "the whole step is one native call"

    @property
    def threads(self) -> int:
        return self._pool.threads

    def set_threads(self, threads: int) -> None:
        """Takes effect with the next step. Quick, unless there were never so many."""
        self._pool.set_threads(threads)
        if threads > self._most_threads:
            self._build()

    def op_times(self, on: bool) -> list[tuple[str, int, int]]:
        """(operation, layer, nanoseconds since timing was switched on); switches timing and clears the sums."""
        times = list(zip(self._program.ops(), self._program.op_ns, strict=True))
        self._program.timing = on
        self._program.op_ns = [0] * len(times)
        return [(name, layer, ns) for (name, layer), ns in times]

    def close(self) -> None:
        """Frees the weights; the executor cannot run after it."""
        for part in ("_program", "_model", "_weights"):
            self.__dict__.pop(part, None)


_NORMS = (
    "attention_norm", "feed_forward_norm", "q_norm", "k_norm", "post_attention_norm", "post_feed_forward_norm",
)  # fmt: skip


_EMPTY = {"log_sum_exp": -np.inf}  # what taps show of rows that skip their layer, where it is not 0


def _mass_keys(rows: Rows) -> int:
    return max(int(rows.base.max()), int(rows.ordinals.max()) + 1)


def _numbered(rows: Rows) -> tuple[list[int], NDArray[np.int32]]:
    """The sequences of a step, and for each row the index of its own."""
    if len(rows.bounds) == 2:
        return [int(rows.sequence[0])], np.zeros(rows.count, np.int32)
    starts = rows.bounds[:-1]
    sequences: Iterable[int] = rows.sequence[starts].tolist()
    return list(sequences), np.repeat(np.arange(len(starts), dtype=np.int32), np.diff(rows.bounds))
