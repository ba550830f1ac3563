"""Mistral and Mistral Nemo: the Llama form with a window in every layer, or none. Their GGUF files say "llama"."""

from __future__ import annotations

from vivace.model.families.llama import llama_from_gguf, llama_spec
from vivace.model.family import (
    FOLDER_NAMES,
    GGUF_NAMES,
    Family,
    Tensors,
    folder_dimensions,
    folder_window,
    require_silu,
)
from vivace.model.keys import Keys
from vivace.model.rope import folder_rope
from vivace.model.spec import ModelSpec


def _from_gguf(keys: Keys, tensors: Tensors) -> ModelSpec:
    return llama_from_gguf("mistral", keys, tensors)


def _from_config(config: Keys, tensors: Tensors) -> ModelSpec:
    require_silu(config)
    if "layer_types" in config:
        config.fail("layer_types", "is not supported for model_type 'mistral', whose layers are all alike")
    dims = folder_dimensions(config)
    return llama_spec(
        "mistral",
        dims,
        folder_rope(config, dims.head_dim),
        window=folder_window(config),
        tied_head=config.flag("tie_word_embeddings", False),
    )


FAMILY = Family(
    name="mistral",
    architectures=frozenset(),
    model_types=frozenset({"mistral"}),
    from_gguf=_from_gguf,
    from_config=_from_config,
    gguf_names=GGUF_NAMES,
    folder_names=FOLDER_NAMES,
    gguf_interleaved=True,
)
