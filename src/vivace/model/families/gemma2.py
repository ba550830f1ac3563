"""Gemma 2: norms around both branches, capped logits in attention and head, every other layer local."""

from __future__ import annotations

from collections.abc import Sequence

from vivace.model.family import (
    FOLDER_NAMES,
    GGUF_NAMES,
    Dimensions,
    Family,
    Tensors,
    all_but_every,
    folder_dimensions,
    gguf_dimensions,
    sliding_layers,
)
from vivace.model.keys import MAX_POSITIONS, Keys
from vivace.model.rope import folder_rope, gguf_rope
from vivace.model.spec import BlockSpec, FeedForwardSpec, ModelSpec, RopeSpec

GGUF_READS = frozenset({"attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping"})
GEMMA_FOLDER_NAMES = {
    **FOLDER_NAMES,
    "blocks.{i}.post_attention_norm": "model.layers.{i}.post_attention_layernorm",
    "blocks.{i}.feed_forward_norm": "model.layers.{i}.pre_feedforward_layernorm",
    "blocks.{i}.post_feed_forward_norm": "model.layers.{i}.post_feedforward_layernorm",
}
_LAYERS_27B = 46  # the one size whose query scale is not that of its heads; GGUF files have no key for it
_HEAD_DIM = 256  # where config.json does not state it
_WINDOW, _CAPS = 4096, (50.0, 30.0)  # of attention and of the head, where files do not state them


def _from_gguf(keys: Keys, tensors: Tensors) -> ModelSpec:
    dims = gguf_dimensions(keys, tensors, GGUF_READS)
    rope = gguf_rope(keys, tensors, dims.head_dim)
    width = dims.hidden // dims.heads if dims.layers == _LAYERS_27B else dims.head_dim
    return gemma_spec(
        "gemma2",
        dims,
        ropes=(rope, rope),
        sliding=all_but_every(dims.layers, 2),
        window=keys.integer("attention.sliding_window", _WINDOW, high=MAX_POSITIONS),
        scale=width**-0.5,
        softcaps=(
            keys.number("attn_logit_softcapping", _CAPS[0]),
            keys.number("final_logit_softcapping", _CAPS[1]),
        ),
        tied_head="output.weight" not in tensors,
    )


def _from_config(config: Keys, tensors: Tensors) -> ModelSpec:
    require_gelu_and_causal(config)
    dims = folder_dimensions(config, head_dim=_HEAD_DIM)
    rope = folder_rope(config, dims.head_dim)

    def cap(key: str, default: float) -> float | None:
        return None if config.is_null(key) else config.number(key, default)

    return gemma_spec(
        "gemma2",
        dims,
        ropes=(rope, rope),
        sliding=sliding_layers(config, dims.layers) or all_but_every(dims.layers, 2),
        window=config.integer("sliding_window", _WINDOW, high=MAX_POSITIONS),
        scale=config.number("query_pre_attn_scalar", 256.0) ** -0.5,
        softcaps=(cap("attn_logit_softcapping", _CAPS[0]), cap("final_logit_softcapping", _CAPS[1])),
        bias=config.flag("attention_bias", False),
        tied_head=config.flag("tie_word_embeddings", True),
    )


def require_gelu_and_causal(config: Keys) -> None:
    activation = config.text("hidden_activation", config.text("hidden_act", "gelu_pytorch_tanh"))
    if activation != "gelu_pytorch_tanh":
        config.fail("hidden_activation", f"is '{activation:.40}'; supported: gelu_pytorch_tanh")
    if config.flag("use_bidirectional_attention", False):
        config.fail("use_bidirectional_attention", "is true; only causal models are supported")


def gemma_spec(
    family: str,
    dims: Dimensions,
    *,
    ropes: tuple[RopeSpec, RopeSpec],  # of local and of global layers
    sliding: Sequence[bool],
    window: int,
    scale: float,
    softcaps: tuple[float | None, float | None],  # of attention and of the head
    tied_head: bool,
    bias: bool = False,
    qk_norm: bool = False,
) -> ModelSpec:
    feed_forward = FeedForwardSpec(dims.feed_forward, "gelu_tanh")

    def block(slides: bool) -> BlockSpec:
        attention = dims.attention(
            ropes[0] if slides else ropes[1],
            scale=scale,
            window=window if slides else None,
            qkv_bias=bias,
            out_bias=bias,
            qk_norm=qk_norm,
            softcap=softcaps[0],
        )
        return BlockSpec(attention, feed_forward, post_norms=True)

    local, full = block(True), block(False)
    return dims.model(
        family,
        [local if slides else full for slides in sliding],
        tied_head=tied_head,
        embed_scale=dims.hidden**0.5,
        logit_softcap=softcaps[1],
    )


FAMILY = Family(
    name="gemma2",
    architectures=frozenset({"gemma2"}),
    model_types=frozenset({"gemma2"}),
    from_gguf=_from_gguf,
    from_config=_from_config,
    gguf_names=GGUF_NAMES,
    folder_names=GEMMA_FOLDER_NAMES,
    folder_norm_offset=1.0,
)
