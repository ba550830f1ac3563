"""Gemma 3 text models: norms around both branches, norms of queries and keys, five local layers to one global."""

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
    sliding_layers,
)
from vivace.model.keys import Keys
from vivace.model.spec import BlockSpec, FeedForwardSpec, ModelSpec, RopeSpec

_LOCAL_THETA, _GLOBAL_THETA = 1e4, 1e6
_PATTERN = 6  # every sixth layer is global
_LAYERS_27B = 62  # the one size whose query scale is not that of its heads; GGUF files have no key for it


def _from_gguf(keys: Keys, shapes: Shapes) -> ModelSpec:
    reads = frozenset({"attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping"})
    dims = gguf_dimensions(keys, shapes, reads)
    local = RopeSpec(keys.number("rope.freq_base_swa", _LOCAL_THETA, high=1e12), dims.head_dim)
    width = dims.hidden // dims.heads if dims.layers == _LAYERS_27B else dims.head_dim
    return _spec(
        keys,
        dims,
        ropes=(local, gguf_rope(keys, dims.head_dim)),
        sliding=_gguf_sliding(keys, dims.layers),
        window=keys.integer("attention.sliding_window", high=1 << 31),
        scale=width**-0.5,
        tied_head="output.weight" not in shapes,
    )


def _from_config(config: Keys, shapes: Shapes) -> ModelSpec:
    activation = config.text("hidden_activation", config.text("hidden_act", "gelu_pytorch_tanh"))
    if activation != "gelu_pytorch_tanh":
        config.fail("hidden_activation", f"is '{activation:.40}'; supported: gelu_pytorch_tanh")
    if config.flag("use_bidirectional_attention", False):
        config.fail("use_bidirectional_attention", "is true; only causal models are supported")
    dims = folder_dimensions(config)
    pattern = config.integer("sliding_window_pattern", config.integer("_sliding_window_pattern", _PATTERN))
    local = folder_rope(
        config, dims.head_dim, "sliding_attention", theta_key="rope_local_base_freq", theta=_LOCAL_THETA
    )
    return _spec(
        config,
        dims,
        ropes=(local, folder_rope(config, dims.head_dim, "full_attention", theta=_GLOBAL_THETA)),
        sliding=sliding_layers(config, dims.layers) or _every(dims.layers, pattern),
        window=config.integer("sliding_window", high=1 << 31),
        scale=config.number("query_pre_attn_scalar", 256.0) ** -0.5,
        bias=config.flag("attention_bias", False),
        tied_head=config.flag("tie_word_embeddings", True),
    )


def _gguf_sliding(keys: Keys, layers: int) -> tuple[bool, ...]:
    key = "attention.sliding_window_pattern"
    if not keys.is_list(key):
        return _every(layers, keys.integer(key, _PATTERN))
    flags = keys.items(key)
    if len(flags) != layers or not all(isinstance(flag, bool) for flag in flags):
        keys.fail(key, f"is not a list of {layers} flags")
    return tuple(flag is True for flag in flags)


def _every(layers: int, pattern: int) -> tuple[bool, ...]:
    return tuple((i + 1) % pattern != 0 for i in range(layers))


def _spec(
    keys: Keys,
    dims: Dimensions,
    *,
    ropes: tuple[RopeSpec, RopeSpec],  # of local and of global layers
    sliding: tuple[bool, ...],
    window: int,
    scale: float,
    tied_head: bool,
    bias: bool = False,
) -> ModelSpec:
    feed_forward = FeedForwardSpec(dims.feed_forward, "gelu_tanh")

    def cap(key: str) -> float | None:
        return keys.number(key) if key in keys else None

    def block(slides: bool) -> BlockSpec:
        attention = dims.attention(
            ropes[0] if slides else ropes[1],
            scale=scale,
            window=window if slides else None,
            qkv_bias=bias,
            out_bias=bias,
            qk_norm=True,
            softcap=cap("attn_logit_softcapping"),
        )
        return BlockSpec(attention, feed_forward, post_norms=True)

    local, full = block(True), block(False)
    return dims.model(
        "gemma3",
        [local if slides else full for slides in sliding],
        tied_head=tied_head,
        embed_scale=dims.hidden**0.5,
        logit_softcap=cap("final_logit_softcapping"),
    )


FAMILY = Family(
    name="gemma3",
    architectures=frozenset({"gemma3"}),
    model_types=frozenset({"gemma3_text"}),
    from_gguf=_from_gguf,
    from_config=_from_config,
    gguf_names=GGUF_NAMES,
    folder_names={
        **FOLDER_NAMES,
        "blocks.{i}.post_attention_norm": "model.layers.{i}.post_attention_layernorm",
        "blocks.{i}.feed_forward_norm": "model.layers.{i}.pre_feedforward_layernorm",
        "blocks.{i}.post_feed_forward_norm": "model.layers.{i}.post_feedforward_layernorm",
    },
    folder_norm_offset=1.0,
)
