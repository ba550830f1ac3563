"""Seeded random models in the shapes of real families, with caps and heads turned in part, made in memory."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from vivace.model.load.quantise import quantise
from vivace.model.spec import AttentionSpec, BlockSpec, FeedForwardSpec, ModelSpec, RopeSpec
from vivace.model.weights import Checkpoint, StoredMatrix

FAMILIES = ("llama", "qwen2", "gemma3")
VOCAB, HIDDEN, FEED_FORWARD = 512, 192, 256


def toy_spec(family: str) -> ModelSpec:
    gemma = family == "gemma3"

    def block(window: int | None) -> BlockSpec:
        attention = AttentionSpec(
            heads=3,
            kv_heads=1,
            head_dim=64,
            scale=0.125,
            rope=RopeSpec(1e4, 48 if family == "qwen2" else 64),
            window=window,
            qkv_bias=family == "qwen2",
            qk_norm=gemma,
            softcap=5.0 if gemma else None,
        )
        feed_forward = FeedForwardSpec(FEED_FORWARD, "gelu_tanh" if gemma else "silu")
        return BlockSpec(attention, feed_forward, post_norms=gemma)

    return ModelSpec(
        family,
        VOCAB,
        HIDDEN,
        (block(32 if gemma else None), block(None)),
        norm_eps=1e-6,
        tied_head=family != "llama",
        embed_scale=HIDDEN**0.5 if gemma else 1.0,
        logit_softcap=10.0 if gemma else None,
        max_context=2048,
    )


def toy_checkpoint(family: str, seed: int, weights: str = "Q8_0") -> Checkpoint:
    """A random model; `weights` is the type of its matrices, "F32" or "Q8_0". It has no tokenizer."""
    random, spec = np.random.default_rng(seed), toy_spec(family)

    def matrix(rows: int, cols: int) -> StoredMatrix:
        values = random.standard_normal((rows, cols), dtype=np.float32) * np.float32(1.5 / cols**0.5)
        data = quantise("Q8_0", values) if weights == "Q8_0" else values.view(np.uint8)
        return StoredMatrix(weights, rows, cols, data)

    def vector(name: str, length: int) -> np.ndarray:
        noise = random.standard_normal(length, dtype=np.float32) * np.float32(0.1)
        return noise if name.endswith(".bias") else noise + 1

    matrices = {name: matrix(rows, cols) for name, rows, cols in spec.matrices()}
    vectors = {name: vector(name, length) for name, length in spec.vectors()}
    size = sum(stored.nbytes for stored in matrices.values())
    return Checkpoint(f"toy-{family}", "", f"{family}-{seed}-{weights}", spec, matrices, vectors, cast(Any, None), size)
