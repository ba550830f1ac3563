"""What the native core reads in place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from toys import toy_spec
from vivace.core.step import Executor, Segment, StepRequest, all_rows
from vivace.exec.reference import ReferenceExecutor
from vivace.exec.rope import rope_table
from vivace.model.load.dequantise import dequantise
from vivace.model.load.tensors import BLOCKS, FLOAT_TYPES, row_bytes
from vivace.model.spec import AttentionSpec, BlockSpec, FeedForwardSpec, RopeSpec
from vivace.model.weights import Checkpoint, StoredMatrix
from vivace.ops.matmul.blocks import random_rows

packed = pytest.importorskip("vivace.exec.packed", reason="the native core is not built")


def test_rotation_tables_take_memory_for_the_positions_in_use_only() -> None:
    table = packed.RopeTable(RopeSpec(theta=1e4, dim=128), 2**31 - 1)  # what a file may claim: a terabyte
    assert table.cos.shape == table.sin.shape == (2**31 - 1, 64)
    table.cover(1500)
    cos, sin = rope_table(table.rope, np.arange(1501))
    assert np.array_equal(table.cos[:1501], cos) and np.array_equal(table.sin[:1501], sin)


@pytest.mark.parametrize("kind", BLOCKS)
def test_native_values_are_those_of_numpy(kind: str) -> None:
    """Bit for bit, over every code and any scale."""
    cols = 5 * BLOCKS[kind][0]
    rows = np.random.default_rng(1).integers(0, 256, (400, row_bytes(kind, cols)), np.uint8)
    with np.errstate(all="ignore"):  # infinities and NaNs are among the random floats
        wanted, found = dequantise(kind, rows, cols), packed._native.dequantise(kind, rows, cols)
    same = wanted.view(np.uint32) == found.view(np.uint32)
    assert (same | (np.isnan(wanted) & np.isnan(found))).all()
    with pytest.raises(ValueError, match="wrong length"):
        packed._native.dequantise(kind, rows[:, 1:].copy(), cols)


def checkpoint_of(kind: str) -> Checkpoint:
    """A random model of one type of weights, whose rows have 256 and 512 values."""
    block = BlockSpec(AttentionSpec(4, 2, 64, 0.125, RopeSpec(1e4, 64)), FeedForwardSpec(512, "silu"))
    spec = replace(toy_spec("llama"), hidden=256, vocab=300, blocks=(block, block), tied_head=True)
    random = np.random.default_rng(2)
    matrices = {
        name: StoredMatrix(kind, rows, cols, random_rows(kind, rows, cols, random, 1.5 / cols**0.5))
        for name, rows, cols in spec.matrices()
    }
    vectors = {name: 1 + 0.1 * random.standard_normal(n, dtype=np.float32) for name, n in spec.vectors()}
    return Checkpoint(kind, "", kind, spec, matrices, vectors, cast(Any, None), 0)


def logits(executor: Executor) -> np.ndarray:
    tokens = np.random.default_rng(3).integers(0, 300, 40).astype(np.int32)
    return executor.run(StepRequest([Segment(executor.store.new(), tokens, logits=all_rows(40))])).logits


@pytest.mark.parametrize("kind", sorted(set(BLOCKS) - FLOAT_TYPES))
def test_a_model_of_each_type(kind: str) -> None:
    """Embedding, packed products and head together; what is left is the rounding of the activations to 8 bits."""
    native = pytest.importorskip("vivace.exec.native", reason="the native core is not built")
    checkpoint = checkpoint_of(kind)
    wanted = logits(ReferenceExecutor(checkpoint, capacity_pages=2))
    found = logits(native.NativeExecutor(checkpoint, capacity_pages=2))
    error = np.sqrt(((found - wanted) ** 2).mean() / (wanted**2).mean())
    assert error <= 0.03
