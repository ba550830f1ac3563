"""Qwen2 and Qwen2.5: the Llama form with biases on queries, keys and values, and optional sliding windows."""

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
    sliding_layers,
)
from vivace.model.keys import Keys
from vivace.model.spec import BlockSpec, FeedForwardSpec, ModelSpec, RopeSpec


def _from_gguf(keys: Keys, shapes: Shapes) -> ModelSpec:
    dims = gguf_dimensions(keys, shapes)
    rope = gguf_rope(keys, dims.head_dim)
    return _spec(dims, rope, (None,) * dims.layers, tied_head="output.weight" not in shapes)


def _from_config(config: Keys, shapes: Shapes) -> ModelSpec:
    require_silu(config)
    dims = folder_dimensions(config)
    windows: tuple[int | None, ...] = (None,) * dims.layers
    if config.flag("use_sliding_window", False) and "sliding_window" in config:
        first = config.integer("max_window_layers", 28, low=0)
        sliding = sliding_layers(config, dims.layers) or tuple(i >= first for i in range(dims.layers))
        window = config.integer("sliding_window", high=1 << 31)
        windows = tuple(window if slides else None for slides in sliding)
    rope = folder_rope(config, dims.head_dim)
    return _spec(dims, rope, windows, tied_head=config.flag("tie_word_embeddings", False))


def _spec(dims: Dimensions, rope: RopeSpec, windows: tuple[int | None, ...], *, tied_head: bool) -> ModelSpec:
    feed_forward = FeedForwardSpec(dims.feed_forward, "silu")
    attention = [dims.attention(rope, window=window, qkv_bias=True) for window in windows]
    return dims.model("qwen2", [BlockSpec(each, feed_forward) for each in attention], tied_head=tied_head)


FAMILY = Family(
    name="qwen2",
    architectures=frozenset({"qwen2"}),
    model_types=frozenset({"qwen2"}),
    from_gguf=_from_gguf,
    from_config=_from_config,
    gguf_names=GGUF_NAMES,
    folder_names=FOLDER_NAMES,
)
