"""Tiny models of every family, made by `transformers` with all tensors random: the outside opinion of the tests.

Biases and norms are random too, so a forgotten one shows; head layouts differ; windows are shorter than the texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from vivace.model.families import of_model_type
from vivace.model.keys import Keys
from vivace.model.load.assemble import assemble
from vivace.model.load.quantise import ConvertedMatrix
from vivace.model.load.tensors import Tensor
from vivace.model.weights import Checkpoint

VOCAB = 320
COMMON = {"vocab_size": VOCAB, "attn_implementation": "eager", "dtype": torch.float32}


def _llama(**sizes: object) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**(COMMON | {"max_position_embeddings": 512, "rms_norm_eps": 1e-5} | sizes)))


def _qwen2(**sizes: object) -> PreTrainedModel:
    return Qwen2ForCausalLM(Qwen2Config(**(COMMON | {"max_position_embeddings": 512} | sizes)))


def _gemma3(**sizes: object) -> PreTrainedModel:
    ropes = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "default", "rope_theta": 5e4},
    }
    given = {"max_position_embeddings": 512, "rope_parameters": ropes, "sliding_window": 12}
    return Gemma3ForCausalLM(Gemma3TextConfig(**(COMMON | given | sizes)))


def _sizes(hidden: int, layers: int, heads: int, kv_heads: int, feed_forward: int) -> dict[str, object]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": feed_forward,
    }


ZOO = {
    "llama-3to1-tied": lambda: _llama(**_sizes(96, 3, 6, 2, 160), tie_word_embeddings=True),
    "llama-4to1-biased-wide-heads": lambda: _llama(**_sizes(64, 2, 8, 2, 96), head_dim=32, attention_bias=True),
    "llama-1to1-linear-rope": lambda: _llama(
        **_sizes(64, 2, 4, 4, 96), rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}
    ),
    "qwen2-7to1": lambda: _qwen2(**_sizes(224, 2, 7, 1, 288), tie_word_embeddings=True),
    "qwen2-1to1-window": lambda: _qwen2(
        **_sizes(64, 3, 4, 4, 96), use_sliding_window=True, sliding_window=9, max_window_layers=1
    ),
    "gemma3-4to1": lambda: _gemma3(**_sizes(96, 7, 4, 1, 160), head_dim=64, query_pre_attn_scalar=40),
    "gemma3-3to1-softcap": lambda: _gemma3(
        **_sizes(96, 3, 6, 2, 96),
        head_dim=32,
        final_logit_softcapping=6.0,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
}


def zoo_model(name: str, seed: int = 0) -> PreTrainedModel:
    """A model of the zoo, every tensor drawn anew."""
    model = ZOO[name]().eval()
    draw = torch.Generator().manual_seed(seed)
    one_plus = isinstance(model, Gemma3ForCausalLM)
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            noise = torch.randn(tensor.shape, generator=draw)
            if tensor.ndim == 2:
                tensor.copy_(noise * 1.5 / tensor.shape[1] ** 0.5)
            elif key.endswith("norm.weight"):
                tensor.copy_(noise * 0.3 + (0 if one_plus else 1))
            else:
                tensor.copy_(noise * 0.5)
    return model


def save_folder(model: PreTrainedModel, folder: Path) -> Path:
    """config.json and model.safetensors as `transformers` writes them."""
    model.save_pretrained(folder)
    return folder


@dataclass(frozen=True)
class _StateDict:
    path: Path
    tensors: dict[str, Tensor]


def checkpoint_of(model: PreTrainedModel, weight_type: str = "F32") -> Checkpoint:
    """The model's weights as a checkpoint, straight from memory; `weight_type` "Q8_0" quantises the matrices."""
    config = model.config.to_dict()
    family = of_model_type(config["model_type"], "zoo")
    spec = family.from_config(Keys("zoo", config), {})
    tensors = {}
    for key, values in model.state_dict().items():
        array = values.numpy().astype(np.float32)
        tensors[key] = Tensor(key, "F32", array.shape, array.reshape(-1).view(np.uint8))
    matrices, vectors = assemble(
        _StateDict(Path("zoo"), tensors),
        spec,
        family.folder_names,
        interleaved=False,
        norm_offset=family.folder_norm_offset,
    )
    if weight_type == "Q8_0":
        matrices = {name: ConvertedMatrix("Q8_0", matrix, name) for name, matrix in matrices.items()}

    def no_tokenizer() -> None:
        raise NotImplementedError("models of the zoo have no tokenizer")

    return Checkpoint("zoo", "zoo", "zoo", spec, matrices, vectors, no_tokenizer, 0)


def random_tokens(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCAB, n).astype(np.int32)
