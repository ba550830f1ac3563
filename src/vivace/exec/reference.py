"""The definition of the model: float32 maths in torch, one plain function per part, over the store or over whole texts.

Every other executor is measured against this one. Nothing here is clever and nothing is done in place, so the same
functions run with gradients (`forward`) and over the cache (`run`).

Rows that skip a layer (`layer_mask` False) pass through it unchanged and write no key there; no row of this step sees
them in that layer. A commit leaves an appended row out of the lists of the layers it skipped; while it is pending,
later steps of its sequence have to skip them too, or are refused. A replaced row keeps the key that stood there, and
others go on seeing it. Its taps of that layer are zero, the log-sum-exp minus infinity.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from vivace.core.step import StepCost, StepRequest, StepResult, Write
from vivace.core.taps import Tap, Taps
from vivace.exec.rope import rope_table
from vivace.exec.rows import Rows, finish, layout
from vivace.exec.traffic import Traffic
from vivace.kv.spec import PAGE, KVSpec
from vivace.kv.store import KVStore
from vivace.model.spec import AttentionSpec, BlockSpec, ModelSpec, RopeSpec
from vivace.model.weights import Checkpoint

Weights = Mapping[str, Tensor]

_QUERY_ROWS = 256  # queries whose logits are held at a time


class ReferenceExecutor:
    """Runs steps in float32 and keeps its cache in float32 (`value_bytes` 4) or in half floats (2)."""

    name = "reference"
    isa = "torch"
    max_rows = sys.maxsize

    def __init__(self, checkpoint: Checkpoint, *, capacity_pages: int, value_bytes: int = 4) -> None:
        self.spec, self.fingerprint = checkpoint.spec, checkpoint.fingerprint
        self.store = KVStore(KVSpec.of(self.spec, value_bytes), capacity_pages)
        self.weights: Weights = DequantisedWeights(checkpoint)
        self._checkpoint = checkpoint
        self._traffic = Traffic(checkpoint, self.store)

    def run(self, request: StepRequest) -> StepResult:
        begin = time.perf_counter()
        rows = layout(request, self.store, self.spec)
        try:
            with torch.no_grad():
                step = _Step(self, request, rows)
                logits = step.run()
        except BaseException:
            finish(request, rows, self.store, failed=True)
            raise
        finish(request, rows, self.store)
        cost = StepCost(
            rows=rows.count,
            weight_bytes=self._traffic.weights(request, rows),
            kv_read_bytes=step.kv_read_bytes,
            kv_written_bytes=step.kv_written_bytes,
            seconds=time.perf_counter() - begin,
            tier="T3",
        )
        return StepResult(logits, rows.starts, Taps(step.taps), cost)

    def forward(self, tokens: Tensor, allowed: Tensor | None = None, *, weights: Weights | None = None) -> Tensor:
        """Logits [batch, n, vocab] of whole texts [batch, n], without the store and differentiable.

        `allowed` bool [n, n] or [batch, n, n]: which tokens each token sees (default: those before it, and itself);
        sliding windows apply on top. `weights`, by the names of the spec, stand in for the checkpoint's.
        """
        weights = self.weights if weights is None else weights
        n = tokens.shape[-1]
        mask = torch.ones(n, n, dtype=torch.bool).tril() if allowed is None else allowed
        positions = np.arange(n, dtype=np.int32)
        hidden = embed(tokens, weights, self.spec)
        for layer, block in enumerate(self.spec.blocks):
            parts = layer_weights(weights, layer)
            q, k, v = project(hidden, parts, block.attention, self.spec.norm_eps, positions)
            seen = mask & in_window(positions, positions, block.attention.window)
            attended = attend(q, k, v, seen, block.attention).out
            hidden = feed_forward(add_attention(hidden, attended, parts, block, self.spec), parts, block, self.spec)
        return head(hidden, weights, self.spec)

    def tier(self, request: StepRequest) -> tuple[str, str]:
        return "T3", "reference executor"

    @property
    def threads(self) -> int:
        return torch.get_num_threads()

    def set_threads(self, threads: int) -> None:
        torch.set_num_threads(threads)

    def close(self) -> None:
        self.weights = {}


class DequantisedWeights(Mapping[str, Tensor]):
    """A checkpoint's weights as float32 tensors, each made when first read and then kept."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._made: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._made:
            vector = self._checkpoint.vectors.get(name)
            values = self._checkpoint.matrices[name].dequantise() if vector is None else vector
            self._made[name] = torch.from_numpy(np.array(values, np.float32))
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._checkpoint.matrices
        yield from self._checkpoint.vectors

    def __len__(self) -> int:
        return len(self._checkpoint.matrices) + len(self._checkpoint.vectors)


# The parts of the model. Rows are [..., rows, hidden]; heads are [..., rows, heads, head_dim].


def layer_weights(weights: Weights, layer: int) -> Weights:
    """The weights of one block by their names within it."""
    prefix = f"blocks.{layer}."
    return {name.removeprefix(prefix): weights[name] for name in weights if name.startswith(prefix)}


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def embed(tokens: Tensor, weights: Weights, spec: ModelSpec) -> Tensor:
    return functional.embedding(tokens, weights["embed"]) * spec.embed_scale


def rotate(x: Tensor, rope: RopeSpec, positions: np.ndarray) -> Tensor:
    """The first `rope.dim` values of each head turned by the angles of its row; the rest passes."""
    cos, sin = (torch.from_numpy(table)[:, None] for table in rope_table(rope, positions))
    half = rope.dim // 2
    a, b, rest = x[..., :half], x[..., half : rope.dim], x[..., rope.dim :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def project(
    hidden: Tensor, weights: Weights, spec: AttentionSpec, eps: float, positions: np.ndarray
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated, scaled queries, rotated keys, and values of rows of the residual stream."""
    x = rms_norm(hidden, weights["attention_norm"], eps)

    def heads(name: str, count: int) -> Tensor:
        return functional.linear(x, weights[name], weights.get(f"{name}.bias")).unflatten(-1, (count, spec.head_dim))

    q, k, v = heads("q", spec.heads), heads("k", spec.kv_heads), heads("v", spec.kv_heads)
    if spec.qk_norm:
        q, k = rms_norm(q, weights["q_norm"], eps), rms_norm(k, weights["k_norm"], eps)
    if spec.rope is not None:
        q, k = rotate(q, spec.rope, positions), rotate(k, spec.rope, positions)
    return q * spec.scale, k, v


class Attended(NamedTuple):
    out: Tensor  # [..., rows, heads, head_dim]
    mass: Tensor  # [..., rows, heads, keys]
    log_sum_exp: Tensor  # [..., rows, heads]


def attend(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, spec: AttentionSpec, *, bias: Tensor | None = None
) -> Attended:
    """Softmax attention of scaled queries; k and v [..., keys, kv_heads, head_dim], seen bool [..., rows, keys].

    Query head h reads KV head h // (heads / kv_heads). `bias` [kv_heads, keys] is added to the logits.
    """
    group = q.shape[-2] // k.shape[-2]
    grouped = q.unflatten(-2, (k.shape[-2], group))
    logits = torch.einsum("...rhgd,...khd->...rhgk", grouped, k)
    if spec.softcap is not None:
        logits = spec.softcap * torch.tanh(logits / spec.softcap)
    if bias is not None:
        logits = logits + bias[:, None]
    logits = logits.masked_fill(~seen[..., None, None, :], -math.inf)
    mass = torch.softmax(logits, -1)
    out = torch.einsum("...rhgk,...khd->...rhgd", mass, v)
    return Attended(out.flatten(-3, -2), mass.flatten(-3, -2), torch.logsumexp(logits, -1).flatten(-2, -1))


def in_window(rows: np.ndarray, keys: np.ndarray, window: int | None) -> Tensor:
    """[rows, keys]: the key's position is above the row's less the window."""
    if window is None:
        return torch.ones(len(rows), len(keys), dtype=torch.bool)
    return torch.from_numpy(keys[None, :] > rows[:, None] - window)


def add_attention(hidden: Tensor, attended: Tensor, weights: Weights, block: BlockSpec, spec: ModelSpec) -> Tensor:
    branch = functional.linear(attended.flatten(-2, -1), weights["o"], weights.get("o.bias"))
    if block.post_norms:
        branch = rms_norm(branch, weights["post_attention_norm"], spec.norm_eps)
    return hidden + branch


def feed_forward(hidden: Tensor, weights: Weights, block: BlockSpec, spec: ModelSpec) -> Tensor:
    x = rms_norm(hidden, weights["feed_forward_norm"], spec.norm_eps)
    gate = functional.linear(x, weights["gate"])
    if block.feed_forward.activation == "silu":
        gate = functional.silu(gate)
    else:
        gate = functional.gelu(gate, approximate="tanh")
    branch = functional.linear(gate * functional.linear(x, weights["up"]), weights["down"])
    if block.post_norms:
        branch = rms_norm(branch, weights["post_feed_forward_norm"], spec.norm_eps)
    return hidden + branch


def head(hidden: Tensor, weights: Weights, spec: ModelSpec) -> Tensor:
    x = rms_norm(hidden, weights["final_norm"], spec.norm_eps)
    logits = functional.linear(x, weights["embed" if spec.tied_head else "head"])
    if spec.logit_softcap is not None:
        logits = spec.logit_softcap * torch.tanh(logits / spec.logit_softcap)
    return logits


class _Step:
    """One step over the store."""

    def __init__(self, executor: ReferenceExecutor, request: StepRequest, rows: Rows) -> None:
        self.executor, self.store, self.spec = executor, executor.store, executor.spec
        self.request, self.rows = request, rows
        self.taps: dict[Tap, np.ndarray] = {}
        self.kv_read_bytes = 0
        self.kv_written_bytes = 0

    def run(self) -> np.ndarray:
        hidden = self._inputs()
        first, last = self.rows.first_layer, self.rows.last_layer
        for layer in range(first, last):
            hidden = self._block(layer, self._shown(layer, hidden))
        hidden = self._shown(last, hidden)
        if not len(self.rows.wanted):
            return np.empty((0, self.spec.vocab), np.float32)
        return head(hidden[torch.from_numpy(self.rows.wanted)], self.executor.weights, self.spec).numpy()

    def _inputs(self) -> Tensor:
        rows, weights = self.rows, self.executor.weights
        if rows.vectors is None:
            return embed(torch.from_numpy(rows.tokens), weights, self.spec)
        vectors, is_token = torch.from_numpy(rows.vectors), torch.from_numpy(rows.tokens >= 0)
        if not is_token.any():
            return vectors.clone()
        embedded = embed(torch.from_numpy(rows.tokens).clamp(min=0), weights, self.spec)
        return torch.where(is_token[:, None], embedded, vectors)

    def _block(self, layer: int, hidden: Tensor) -> Tensor:
        """The stream after one block; rows that skip it pass unchanged."""
        block, weights = self.spec.blocks[layer], layer_weights(self.executor.weights, layer)
        mask = self.request.layer_mask
        active = np.arange(self.rows.count) if mask is None else np.flatnonzero(mask[:, layer])
        taps = _LayerTaps(layer, block.attention, self)
        if len(active):
            x = hidden[torch.from_numpy(active)]
            q, k, v = project(x, weights, block.attention, self.spec.norm_eps, self.rows.positions[active])
            q = self._edited_queries(layer, active, q)
            taps.query(active, q)
            attended = self._attend(layer, active, (q, k, v), taps)
            out = feed_forward(add_attention(x, attended, weights, block, self.spec), weights, block, self.spec)
            hidden = hidden.index_copy(0, torch.from_numpy(active), out)
        taps.close()
        return hidden

    def _attend(self, layer: int, active: np.ndarray, qkv: tuple[Tensor, Tensor, Tensor], taps: _LayerTaps) -> Tensor:
        """Writes the keys and values of the active rows, then attends over the stored form."""
        q, k, v = qkv
        outs = []
        for index, segment in enumerate(self.request.segments):
            begin, end = self.rows.bounds[index], self.rows.bounds[index + 1]
            picked = np.flatnonzero((active >= begin) & (active < end))
            if not len(picked):
                continue
            rows = active[picked]
            absent = np.setdiff1d(np.arange(begin, end), rows) if segment.write is not Write.REPLACE else rows[:0]
            by_lists = []
            for keys in self._lists(segment.seq, layer):
                self._write(keys, rows, k[picked][:, keys.heads], v[picked][:, keys.heads])
                by_lists.append(self._attend_list(keys, rows, absent, q[picked], taps))
            outs.append(torch.cat(by_lists, 1))
        return torch.cat(outs)

    def _lists(self, seq: int, layer: int) -> list[_KeyList]:
        """The key lists of a layer's heads: one for all of them, or one per head where any has its own."""
        heads, store = self.spec.blocks[layer].attention.kv_heads, self.store
        ragged = any(key[0] == layer for key in store.overrides(seq))
        if not ragged and all(store.biases(seq, layer, head) is None for head in range(heads)):
            return [_KeyList(seq, layer, slice(0, heads), 0)]
        length = store.length(seq)
        return [
            _KeyList(seq, layer, slice(head, head + 1), len(store.positions(seq, layer, head)) - length)
            for head in range(heads)
        ]

    def _write(self, keys: _KeyList, rows: np.ndarray, k: Tensor, v: Tensor) -> None:
        """k and v [rows, heads, dim] to the rows' ordinals, a run of consecutive ones at a time."""
        ordinals = self.rows.ordinals[rows] + keys.shift
        for run in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(ordinals) != 1) + 1):
            stored = [x[run].transpose(0, 1).numpy() for x in (k, v)]
            for head, key, value in zip(range(keys.heads.start, keys.heads.stop), *stored, strict=True):
                self.store.write(keys.seq, keys.layer, head, int(ordinals[run[0]]), key, value)
        self.kv_written_bytes += len(rows) * k.shape[1] * self._row_bytes(keys.layer)

    def _attend_list(self, keys: _KeyList, rows: np.ndarray, absent: np.ndarray, q: Tensor, taps: _LayerTaps) -> Tensor:
        """Attention of the query heads that read these lists, [rows, their heads, dim]."""
        attention, store = self.spec.blocks[keys.layer].attention, self.store
        positions = store.positions(keys.seq, keys.layer, keys.heads.start, pending=True)
        gathered = [
            store.gather(keys.seq, keys.layer, head, np.arange(len(positions)))
            for head in range(keys.heads.start, keys.heads.stop)
        ]
        k, v = (torch.from_numpy(np.stack(values, 1)) for values in zip(*gathered, strict=True))
        stored_bias = store.biases(keys.seq, keys.layer, keys.heads.start)
        bias = None
        if stored_bias is not None:
            bias = functional.pad(torch.from_numpy(stored_bias), (0, len(positions) - len(stored_bias)))[None]
        visible = self._visible(rows, keys.shift, len(positions))
        visible[:, self.rows.ordinals[absent] + keys.shift] = False
        seen = torch.from_numpy(visible) & in_window(self.rows.positions[rows], positions, attention.window)
        self.kv_read_bytes += int(seen.any(0).sum()) * k.shape[1] * self._row_bytes(keys.layer)
        group = attention.heads // attention.kv_heads
        heads = slice(keys.heads.start * group, keys.heads.stop * group)
        outs = []
        for first in range(0, len(rows), _QUERY_ROWS):
            part = slice(first, first + _QUERY_ROWS)
            result = attend(q[part, heads], k, v, seen[part], attention, bias=bias)
            taps.attended(rows[part], heads, result)
            outs.append(result.out)
        return torch.cat(outs)

    def _visible(self, rows: np.ndarray, shift: int, keys: int) -> np.ndarray:
        """bool [rows, keys]: what the rows see by mask, in the ordinals of a list."""
        visible = np.arange(keys) < (self.rows.span[rows] + shift)[:, None]
        for i, row in enumerate(rows):
            visible[i, self.rows.extra_of(row) + shift] = True
        return visible

    def _row_bytes(self, layer: int) -> int:
        """Stored bytes of one key and its value in one head."""
        return self.store.spec.cell_bytes(layer) // PAGE

    def _shown(self, layer: int, hidden: Tensor) -> Tensor:
        """The stream that enters a layer, after its edit if it has one."""
        tap = Tap("hidden", layer)
        hidden = self._edited(tap, hidden)
        if tap in self.request.taps:
            self.taps[tap] = hidden.numpy().copy()
        return hidden

    def _edited_queries(self, layer: int, active: np.ndarray, q: Tensor) -> Tensor:
        every_row = q.new_zeros(self.rows.count, *q.shape[1:])
        every_row[active] = q
        return self._edited(Tap("query", layer), every_row)[active]

    def _edited(self, tap: Tap, values: Tensor) -> Tensor:
        if self.request.edits is None or tap not in self.request.edits:
            return values
        edited = values.numpy().copy()
        self.request.edits[tap](edited)
        return torch.from_numpy(edited)


class _KeyList(NamedTuple):
    """KV heads of a layer that share one list; `shift` is its length less the sequence's."""

    seq: int
    layer: int
    heads: slice
    shift: int


class _LayerTaps:
    """Collects what the step's taps show of one layer's attention."""

    def __init__(self, layer: int, spec: AttentionSpec, step: _Step) -> None:
        self._taps = {tap.kind: tap for tap in step.request.taps if tap.layer == layer and tap.kind != "hidden"}
        self._into = step.taps
        rows, keys = step.rows.count, 0
        if "attention_mass" in self._taps:
            keys = int(max(step.rows.base.max(), step.rows.ordinals.max() + 1))
        shapes = {
            "query": (rows, spec.heads, spec.head_dim),
            "attention_mass": (rows, spec.heads, keys),
            "log_sum_exp": (rows, spec.heads),
        }
        empty = {"log_sum_exp": -np.inf}
        self._values = {kind: np.full(shapes[kind], empty.get(kind, 0), np.float32) for kind in self._taps}

    def query(self, rows: np.ndarray, q: Tensor) -> None:
        if "query" in self._values:
            self._values["query"][rows] = q.numpy()

    def attended(self, rows: np.ndarray, heads: slice, result: Attended) -> None:
        if "attention_mass" in self._values:
            self._values["attention_mass"][rows, heads, : result.mass.shape[-1]] = result.mass.numpy()
        if "log_sum_exp" in self._values:
            self._values["log_sum_exp"][rows, heads] = result.log_sum_exp.numpy()

    def close(self) -> None:
        for kind, values in self._values.items():
            self._into[self._taps[kind]] = values
