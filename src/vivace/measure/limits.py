"""What a test must at least cost: bytes to read and integer operations to do, against what the machine can do."""

from __future__ import annotations

from dataclasses import dataclass

from vivace.kv.spec import KVSpec
from vivace.measure.cases import SpeedTest
from vivace.measure.speed import CHUNK
from vivace.model.weights import Checkpoint


@dataclass(frozen=True)
class Limits:
    """What this machine does at best, measured: bytes/s read by all threads, int8 operations/s."""

    bytes_s: float
    int8_ops_s: float


@dataclass(frozen=True)
class Work:
    """Of one repetition of a test: weight and cache bytes that must be read, operations of the matrix products."""

    bytes: int
    ops: int

    def seconds(self, limits: Limits) -> float:
        """The shortest time in which the machine can do it: bandwidth or arithmetic, whichever binds."""
        return max(self.bytes / limits.bytes_s, self.ops / limits.int8_ops_s)


def work(checkpoint: Checkpoint, test: SpeedTest) -> Work:
    """The work of a test; attention's arithmetic, norms and look-ups of embedding rows are left out."""
    head_name = "embed" if checkpoint.spec.tied_head else "head"
    matrices = checkpoint.matrices
    inner = [matrix for name, matrix in matrices.items() if name not in ("embed", "head")]
    inner_bytes, inner_values = sum(m.nbytes for m in inner), sum(m.rows * m.cols for m in inner)
    head = matrices[head_name]
    if test.kind == "pp":
        steps = test.batch * -(-test.tokens // CHUNK)
        heads = test.batch  # the last row of each prompt
        head_reads = test.batch
    else:
        steps, heads, head_reads = test.tokens, test.total, test.tokens
    values = test.total * inner_values + heads * head.rows * head.cols
    return Work(steps * inner_bytes + head_reads * head.nbytes + cache_bytes(checkpoint, test), 2 * values)


def cache_bytes(checkpoint: Checkpoint, test: SpeedTest) -> int:
    """Bytes of keys and values that the steps of a test read, sliding windows counted; each is read once a step."""
    blocks = checkpoint.spec.blocks
    shape = KVSpec.of(checkpoint.spec)
    if test.kind == "tg":
        ends = list(range(1, test.tokens + 1))
    else:
        ends = [*range(CHUNK, test.tokens, CHUNK), test.tokens]
    total = 0
    for block, layer in zip(blocks, shape.layers, strict=True):
        window = block.attention.window if test.kind == "tg" else None
        keys = sum(min(test.depth + end, window or test.depth + end) for end in ends)
        total += keys * 2 * layer.kv_heads * layer.head_dim * shape.value_bytes
    return test.batch * total
