"""Qwen3: the Qwen2 form with norms of queries and keys in place of the biases, and heads of a size of their own."""

from __future__ import annotations

from vivace.model.families.qwen2 import qwen_from_config, qwen_from_gguf
from vivace.model.family import FOLDER_NAMES, GGUF_NAMES, Family, Tensors, folder_dimensions
from vivace.model.keys import Keys
from vivace.model.spec import ModelSpec

_HEAD_DIM = 128  # where config.json does not state it


def _from_gguf(keys: Keys, tensors: Tensors) -> ModelSpec:
    return qwen_from_gguf("qwen3", keys, tensors, qk_norm=True)


def _from_config(config: Keys, tensors: Tensors) -> ModelSpec:
    bias = config.flag("attention_bias", False)
    dims = folder_dimensions(config, head_dim=_HEAD_DIM)
    return qwen_from_config("qwen3", config, dims, tensors, qk_norm=True, qkv_bias=bias, out_bias=bias)


FAMILY = Family(
    name="qwen3",
    architectures=frozenset({"qwen3"}),
    model_types=frozenset({"qwen3"}),
    from_gguf=_from_gguf,
    from_config=_from_config,
    gguf_names=GGUF_NAMES,
    folder_names=FOLDER_NAMES,
)
