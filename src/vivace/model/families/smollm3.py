"""SmolLM3: the Llama form in which every fourth layer turns no heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vivace.model.families.llama import llama_spec
from vivace.model.family import (
    FOLDER_NAMES,
    GGUF_NAMES,
    Family,
    Tensors,
    all_but_every,
    folder_dimensions,
    gguf_dimensions,
    require_silu,
)
from vivace.model.keys import Keys
from vivace.model.rope import folder_rope, gguf_rope
from vivace.model.spec import ModelSpec

_INTERVAL = 4  # GGUF files have no key for it


def _from_gguf(keys: Keys, tensors: Tensors) -> ModelSpec:
    dims = gguf_dimensions(keys, tensors)
    rope = gguf_rope(keys, tensors, dims.head_dim)
    spec = llama_spec("smollm3", dims, rope, tied_head="output.weight" not in tensors)
    return _without_some_ropes(spec, all_but_every(dims.layers, _INTERVAL))


def _from_config(config: Keys, tensors: Tensors) -> ModelSpec:
    require_silu(config)
    for key in ("mlp_bias", "attention_bias", "use_sliding_window"):
        if config.flag(key, False):
            config.fail(key, "is true, which is not supported for model_type 'smollm3'")
    dims = folder_dimensions(config)
    turned = config.integers("no_rope_layers", low=0, high=1)  # 1 where heads are turned, for all its name
    if turned and len(turned) != dims.layers:
        config.fail("no_rope_layers", f"has {len(turned)} entries for {dims.layers} layers")
    interval = config.integer("no_rope_layer_interval", _INTERVAL)
    tied_head = config.flag("tie_word_embeddings", True)
    spec = llama_spec("smollm3", dims, folder_rope(config, dims.head_dim, theta=2e6), tied_head=tied_head)
    return _without_some_ropes(spec, turned or all_but_every(dims.layers, interval))


def _without_some_ropes(spec: ModelSpec, turned: Sequence[int | bool]) -> ModelSpec:
    blocks = (
        block if turns else replace(block, attention=replace(block.attention, rope=None))
        for block, turns in zip(spec.blocks, turned, strict=True)
    )
    return replace(spec, blocks=tuple(blocks))


FAMILY = Family(
    name="smollm3",
    architectures=frozenset({"smollm3"}),
    model_types=frozenset({"smollm3"}),
    from_gguf=_from_gguf,
    from_config=_from_config,
    gguf_names=GGUF_NAMES,
    folder_names=FOLDER_NAMES,
    gguf_interleaved=True,
)
