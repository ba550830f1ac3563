"""Gemma 3 text models: the Gemma 2 form with norms of queries and keys, five local layers to one global, no caps."""

from __future__ import annotations

from vivace.model.families.gemma2 import (
    GEMMA_FOLDER_NAMES,
    GGUF_READS,
    gemma_spec,
    require_gelu_and_causal,
)
from vivace.model.family import (
    GGUF_NAMES,
    Family,
    Tensors,
    all_but_every,
    folder_dimensions,
    gguf_dimensions,
    sliding_layers,
)
from vivace.model.keys import MAX_POSITIONS, Keys
from vivace.model.rope import folder_rope, gguf_rope
from vivace.model.spec import ModelSpec, RopeSpec

_LOCAL_THETA, _GLOBAL_THETA = 1e4, 1e6
_PATTERN = 6  # every sixth layer is global
_LAYERS_27B = 62  # the one size whose query scale is not that of its heads; GGUF files have no key for it


def _from_gguf(keys: Keys, tensors: Tensors) -> ModelSpec:
    dims = gguf_dimensions(keys, tensors, GGUF_READS)
    local = RopeSpec(keys.number("rope.freq_base_swa", _LOCAL_THETA, high=1e12), dims.head_dim)
    width = dims.hidden // dims.heads if dims.layers == _LAYERS_27B else dims.head_dim
    return gemma_spec(
        "gemma3",
        dims,
        ropes=(local, gguf_rope(keys, tensors, dims.head_dim, frozenset({"freq_base_swa"}))),
        sliding=_gguf_sliding(keys, dims.layers),
        window=keys.integer("attention.sliding_window", high=MAX_POSITIONS),
        scale=width**-0.5,
        softcaps=_softcaps(keys),
        qk_norm=True,
        tied_head="output.weight" not in tensors,
    )


def _from_config(config: Keys, tensors: Tensors) -> ModelSpec:
    require_gelu_and_causal(config)
    dims = folder_dimensions(config)
    pattern = config.integer("sliding_window_pattern", config.integer("_sliding_window_pattern", _PATTERN))
    local = folder_rope(
        config, dims.head_dim, "sliding_attention", theta_key="rope_local_base_freq", theta=_LOCAL_THETA
    )
    return gemma_spec(
        "gemma3",
        dims,
        ropes=(local, folder_rope(config, dims.head_dim, "full_attention", theta=_GLOBAL_THETA)),
        sliding=sliding_layers(config, dims.layers) or all_but_every(dims.layers, pattern),
        window=config.integer("sliding_window", high=MAX_POSITIONS),
        scale=config.number("query_pre_attn_scalar", 256.0) ** -0.5,
        softcaps=_softcaps(config),
        bias=config.flag("attention_bias", False),
        qk_norm=True,
        tied_head=config.flag("tie_word_embeddings", True),
    )


def _gguf_sliding(keys: Keys, layers: int) -> tuple[bool, ...]:
    key = "attention.sliding_window_pattern"
    if not keys.is_list(key):
        return all_but_every(layers, keys.integer(key, _PATTERN))
    flags = keys.items(key)
    if len(flags) != layers or not all(isinstance(flag, bool) for flag in flags):
        keys.fail(key, f"is not a list of {layers} flags")
    return tuple(flag is True for flag in flags)


def _softcaps(keys: Keys) -> tuple[float | None, float | None]:
    attention, head = (
        keys.number(key) if key in keys else None for key in ("attn_logit_softcapping", "final_logit_softcapping")
    )
    return attention, head


FAMILY = Family(
    name="gemma3",
    architectures=frozenset({"gemma3"}),
    model_types=frozenset({"gemma3_text"}),
    from_gguf=_from_gguf,
    from_config=_from_config,
    gguf_names=GGUF_NAMES,
    folder_names=GEMMA_FOLDER_NAMES,
    folder_norm_offset=1.0,
)
