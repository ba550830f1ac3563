"""Phi-3, Phi-3.5 and Phi-4: the Llama form with fused matrices, longrope, and in Phi-4-mini heads turned in part."""

from __future__ import annotations

from vivace.model.families.llama import llama_spec
from vivace.model.family import (
    FOLDER_NAMES,
    GGUF_NAMES,
    Family,
    Tensors,
    folder_dimensions,
    folder_window,
    gguf_dimensions,
    gguf_window,
    require_silu,
)
from vivace.model.keys import Keys
from vivace.model.rope import folder_rope, gguf_rope
from vivace.model.spec import ModelSpec


def _from_gguf(keys: Keys, tensors: Tensors) -> ModelSpec:
    dims = gguf_dimensions(keys, tensors, frozenset({"attention.sliding_window"}))
    return llama_spec(
        "phi3",
        dims,
        gguf_rope(keys, tensors, dims.head_dim),
        window=gguf_window(keys),
        tied_head="output.weight" not in tensors,
    )


def _from_config(config: Keys, tensors: Tensors) -> ModelSpec:
    require_silu(config)
    dims = folder_dimensions(config)
    return llama_spec(
        "phi3",
        dims,
        folder_rope(config, dims.head_dim),
        window=folder_window(config),
        tied_head=config.flag("tie_word_embeddings", False),
    )


FAMILY = Family(
    name="phi3",
    architectures=frozenset({"phi3"}),
    model_types=frozenset({"phi3"}),
    from_gguf=_from_gguf,
    from_config=_from_config,
    gguf_names={
        **GGUF_NAMES,
        **dict.fromkeys(("blocks.{i}.q", "blocks.{i}.k", "blocks.{i}.v"), "blk.{i}.attn_qkv"),
        **dict.fromkeys(("blocks.{i}.gate", "blocks.{i}.up"), "blk.{i}.ffn_up"),
    },
    folder_names={
        **FOLDER_NAMES,
        **dict.fromkeys(("blocks.{i}.q", "blocks.{i}.k", "blocks.{i}.v"), "model.layers.{i}.self_attn.qkv_proj"),
        **dict.fromkeys(("blocks.{i}.gate", "blocks.{i}.up"), "model.layers.{i}.mlp.gate_up_proj"),
    },
)
