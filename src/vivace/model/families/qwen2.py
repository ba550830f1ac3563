"""Qwen2 and Qwen2.5: the Llama form with biases on queries, keys and values, and optional sliding windows."""

from __future__ import annotations

from typing import Any

from vivace.model.family import (
    FOLDER_NAMES,
    GGUF_NAMES,
    Dimensions,
    Family,
    Tensors,
    folder_dimensions,
    gguf_dimensions,
    require_silu,
    sliding_layers,
)
from vivace.model.keys import MAX_POSITIONS, Keys
from vivace.model.rope import folder_rope, gguf_rope
from vivace.model.spec import BlockSpec, FeedForwardSpec, ModelSpec


def _from_gguf(keys: Keys, tensors: Tensors) -> ModelSpec:
    return qwen_from_gguf("qwen2", keys, tensors, qkv_bias=True)


def _from_config(config: Keys, tensors: Tensors) -> ModelSpec:
    return qwen_from_config("qwen2", config, folder_dimensions(config), tensors, qkv_bias=True)


def qwen_from_gguf(family: str, keys: Keys, tensors: Tensors, **attention: Any) -> ModelSpec:
    """`attention`: what the layers have beyond the Llama form."""
    dims = gguf_dimensions(keys, tensors)
    attended = dims.attention(gguf_rope(keys, tensors, dims.head_dim), **attention)
    block = BlockSpec(attended, FeedForwardSpec(dims.feed_forward, "silu"))
    return dims.model(family, [block] * dims.layers, tied_head="output.weight" not in tensors)


def qwen_from_config(family: str, config: Keys, dims: Dimensions, tensors: Tensors, **attention: Any) -> ModelSpec:
    require_silu(config)
    windows: tuple[int | None, ...] = (None,) * dims.layers
    if config.flag("use_sliding_window", False) and "sliding_window" in config:
        first = config.integer("max_window_layers", 28, low=0)
        sliding = sliding_layers(config, dims.layers) or tuple(i >= first for i in range(dims.layers))
        window = config.integer("sliding_window", high=MAX_POSITIONS)
        windows = tuple(window if slides else None for slides in sliding)
    rope, feed_forward = folder_rope(config, dims.head_dim), FeedForwardSpec(dims.feed_forward, "silu")
    blocks = [BlockSpec(dims.attention(rope, window=window, **attention), feed_forward) for window in windows]
    return dims.model(family, blocks, tied_head=config.flag("tie_word_embeddings", False))


FAMILY = Family(
    name="qwen2",
    architectures=frozenset({"qwen2"}),
    model_types=frozenset({"qwen2"}),
    from_gguf=_from_gguf,
    from_config=_from_config,
    gguf_names=GGUF_NAMES,
    folder_names=FOLDER_NAMES,
)
