"""ERNIE 4.5, the dense models: the Llama form whose folders, too, order heads for pairs (x[2i], x[2i + 1])."""

from __future__ import annotations

from vivace.model.families.llama import llama_spec
from vivace.model.family import (
    FOLDER_NAMES,
    GGUF_NAMES,
    Family,
    Tensors,
    folder_dimensions,
    gguf_dimensions,
    require_silu,
)
from vivace.model.keys import Keys
from vivace.model.rope import folder_rope, gguf_rope
from vivace.model.spec import ModelSpec

_HEAD_DIM = 128  # where config.json does not state it
_THETA = 5e5


def _from_gguf(keys: Keys, tensors: Tensors) -> ModelSpec:
    dims = gguf_dimensions(keys, tensors)
    rope = gguf_rope(keys, tensors, dims.head_dim)
    return llama_spec("ernie4_5", dims, rope, tied_head="output.weight" not in tensors)


def _from_config(config: Keys, tensors: Tensors) -> ModelSpec:
    require_silu(config)
    if config.flag("use_bias", False):
        config.fail("use_bias", "is true; feed-forward biases are not supported")
    dims = folder_dimensions(config, head_dim=_HEAD_DIM)
    rope = folder_rope(config, dims.head_dim, theta=_THETA)
    return llama_spec("ernie4_5", dims, rope, tied_head=config.flag("tie_word_embeddings", True))


FAMILY = Family(
    name="ernie4_5",
    architectures=frozenset({"ernie4_5"}),
    model_types=frozenset({"ernie4_5"}),
    from_gguf=_from_gguf,
    from_config=_from_config,
    gguf_names=GGUF_NAMES,
    folder_names=FOLDER_NAMES,
    gguf_interleaved=True,
    folder_interleaved=True,
)
