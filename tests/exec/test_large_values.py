"""Values beyond the range of half floats pass through both executors without infinities or NaN, and to the same end."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hf_zoo import random_tokens
from test_transformers import chunked

from toys import toy_checkpoint
from vivace.exec.reference import ReferenceExecutor
from vivace.measure.kl import mean_kl
from vivace.model.spec import BlockSpec
from vivace.model.weights import Checkpoint

native = pytest.importorskip("vivace.exec.native", reason="the native executor is not built")
BEYOND_HALF = 1e5


def with_large(checkpoint: Checkpoint, **factors: float) -> Checkpoint:
    """The same model with some of its vectors multiplied; `q_bias` stands for blocks.0.q.bias."""
    names = {f"blocks.0.{key.replace('_bias', '.bias')}": factor for key, factor in factors.items()}
    assert names.keys() <= checkpoint.vectors.keys()
    vectors = {key: vector * np.float32(names.get(key, 1)) for key, vector in checkpoint.vectors.items()}
    return dataclasses.replace(checkpoint, vectors=vectors)


def rotated_whole(checkpoint: Checkpoint) -> Checkpoint:
    """The same model with heads that are rotated in full.

    Dimensions that are not would add the same large number to all scores of a query, in which float32 loses the rest.
    """

    def rotated(block: BlockSpec) -> BlockSpec:
        attention = block.attention
        rope = dataclasses.replace(attention.rope, dim=attention.head_dim)
        return dataclasses.replace(block, attention=dataclasses.replace(attention, rope=rope))

    spec = dataclasses.replace(checkpoint.spec, blocks=tuple(map(rotated, checkpoint.spec.blocks)))
    return dataclasses.replace(checkpoint, spec=spec)


CASES = {
    # Scores must not saturate alike for all keys, or any error in them would go unseen: the queries get smaller.
    "keys": {"k_bias": 100 * BEYOND_HALF, "q_bias": 0.0},
    "values": {"v_bias": 100 * BEYOND_HALF},
    "stream": {"feed_forward_norm": 100 * BEYOND_HALF},
    "queries": {"q_bias": BEYOND_HALF},
}


@pytest.mark.parametrize("case", CASES)
def test_large_values(case):
    checkpoint = with_large(rotated_whole(toy_checkpoint("qwen2", 4)), **CASES[case])
    tokens = random_tokens(70)
    found = chunked(native.NativeExecutor(checkpoint, capacity_pages=4), tokens, [20, 7, 1])
    wanted = chunked(ReferenceExecutor(checkpoint, capacity_pages=4, value_bytes=2), tokens, [20, 7, 1])
    assert np.isfinite(found).all()
    assert np.isfinite(wanted).all()
    assert mean_kl(wanted, found) < 1e-3
