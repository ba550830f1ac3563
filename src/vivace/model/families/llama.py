"""Llama and what shares its form, SmolLM2 among them: pre-norm blocks, grouped queries, SiLU-gated feed-forward."""

from __future__ import annotations

from vivace.model.family import (
    FOLDER_NAMES,
    GGUF_NAMES,
    Dimensions,
    Family,
    Shapes,
    folder_dimensions,
    folder_rope,
    gguf_dimensions,
    gguf_rope,
    require_silu,
)
from vivace.model.keys import Keys
from vivace.model.spec import BlockSpec, FeedForwardSpec, ModelSpec, RopeSpec


def _from_gguf(keys: Keys, shapes: Shapes) -> ModelSpec:
    dims = gguf_dimensions(keys, shapes)
    rope = gguf_rope(keys, dims.head_dim)
    if rope.dim != dims.head_dim:
        keys.fail("rope.dimension_count", f"is {rope.dim}; only the whole head of {dims.head_dim} is supported")
    return _spec(
        dims,
        rope,
        qkv_bias="blk.0.attn_q.bias" in shapes,
        out_bias="blk.0.attn_output.bias" in shapes,
        tied_head="output.weight" not in shapes,
    )


def _from_config(config: Keys, shapes: Shapes) -> ModelSpec:
    require_silu(config)
    if config.flag("mlp_bias", False):
        config.fail("mlp_bias", "is true; feed-forward biases are not supported")
    dims = folder_dimensions(config)
    bias = config.flag("attention_bias", False)
    return _spec(
        dims,
        folder_rope(config, dims.head_dim),
        qkv_bias=bias,
        out_bias=bias,
        tied_head=config.flag("tie_word_embeddings", False),
    )


def _spec(dims: Dimensions, rope: RopeSpec, *, qkv_bias: bool, out_bias: bool, tied_head: bool) -> ModelSpec:
    attention = dims.attention(rope, qkv_bias=qkv_bias, out_bias=out_bias)
    block = BlockSpec(attention, FeedForwardSpec(dims.feed_forward, "silu"))
    return dims.model("llama", [block] * dims.layers, tied_head=tied_head)


FAMILY = Family(
    name="llama",
    architectures=frozenset({"llama"}),
    model_types=frozenset({"llama"}),
    from_gguf=_from_gguf,
    from_config=_from_config,
    gguf_names=GGUF_NAMES,
    folder_names=FOLDER_NAMES,
    gguf_interleaved=True,
)
