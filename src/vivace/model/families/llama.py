"""Llama 1 to 3 and what shares their form, SmolLM2 among them: pre-norm blocks, grouped queries, SiLU-gated."""

from __future__ import annotations

from vivace.model.family import (
    FOLDER_NAMES,
    GGUF_NAMES,
    Dimensions,
    Family,
    Tensors,
    folder_dimensions,
    gguf_dimensions,
    gguf_window,
    require_silu,
)
from vivace.model.keys import Keys
from vivace.model.rope import folder_rope, gguf_rope
from vivace.model.spec import BlockSpec, FeedForwardSpec, ModelSpec, RopeSpec


def _from_gguf(keys: Keys, tensors: Tensors) -> ModelSpec:
    return llama_from_gguf("llama", keys, tensors)


def llama_from_gguf(family: str, keys: Keys, tensors: Tensors) -> ModelSpec:
    dims = gguf_dimensions(keys, tensors, frozenset({"attention.sliding_window"}))
    return llama_spec(
        family,
        dims,
        gguf_rope(keys, tensors, dims.head_dim),
        window=gguf_window(keys),
        qkv_bias="blk.0.attn_q.bias" in tensors,
        out_bias="blk.0.attn_output.bias" in tensors,
        tied_head="output.weight" not in tensors,
    )


def _from_config(config: Keys, tensors: Tensors) -> ModelSpec:
    require_silu(config)
    if config.flag("mlp_bias", False):
        config.fail("mlp_bias", "is true; feed-forward biases are not supported")
    dims = folder_dimensions(config)
    bias = config.flag("attention_bias", False)
    return llama_spec(
        "llama",
        dims,
        folder_rope(config, dims.head_dim),
        qkv_bias=bias,
        out_bias=bias,
        tied_head=config.flag("tie_word_embeddings", False),
    )


def llama_spec(
    family: str,
    dims: Dimensions,
    rope: RopeSpec,
    *,
    tied_head: bool,
    window: int | None = None,
    qkv_bias: bool = False,
    out_bias: bool = False,
) -> ModelSpec:
    """Layers that are all alike; `window` is that of each."""
    attention = dims.attention(rope, window=window, qkv_bias=qkv_bias, out_bias=out_bias)
    block = BlockSpec(attention, FeedForwardSpec(dims.feed_forward, "silu"))
    return dims.model(family, [block] * dims.layers, tied_head=tied_head)


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
