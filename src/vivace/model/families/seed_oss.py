"""Seed-OSS: the Llama form with heads of a size of their own and biases on queries, keys and values."""

from __future__ import annotations

from vivace.model.families.llama import llama_from_gguf, llama_spec
from vivace.model.family import (
    FOLDER_NAMES,
    GGUF_NAMES,
    Family,
    Tensors,
    folder_dimensions,
    require_silu,
)
from vivace.model.keys import Keys
from vivace.model.rope import folder_rope
from vivace.model.spec import ModelSpec

_HEAD_DIM = 128  # where config.json does not state it


def _from_gguf(keys: Keys, tensors: Tensors) -> ModelSpec:
    return llama_from_gguf("seed_oss", keys, tensors)


def _from_config(config: Keys, tensors: Tensors) -> ModelSpec:
    require_silu(config)
    if config.flag("mlp_bias", False):
        config.fail("mlp_bias", "is true; feed-forward biases are not supported")
    dims = folder_dimensions(config, head_dim=_HEAD_DIM)
    rope = folder_rope(config, dims.head_dim)
    if rope.dim != dims.head_dim:
        config.fail("partial_rotary_factor", "is not 1; only whole heads are supported for model_type 'seed_oss'")
    return llama_spec(
        "seed_oss",
        dims,
        rope,
        qkv_bias=config.flag("attention_bias", True),
        out_bias=config.flag("attention_out_bias", False),
        tied_head=config.flag("tie_word_embeddings", False),
    )


FAMILY = Family(
    name="seed_oss",
    architectures=frozenset({"seed_oss"}),
    model_types=frozenset({"seed_oss"}),
    from_gguf=_from_gguf,
    from_config=_from_config,
    gguf_names={**GGUF_NAMES, "blocks.{i}.feed_forward_norm": "blk.{i}.post_attention_norm"},
    folder_names=FOLDER_NAMES,
)
