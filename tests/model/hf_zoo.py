"""Tiny models of every family, made by `transformers` with all tensors random: the outside opinion of the tests.

Biases and norms are random too, so a forgotten one shows; head layouts differ; windows are shorter than the texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import (
    Ernie4_5Config,
    Ernie4_5ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SeedOssConfig,
    SeedOssForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from vivace.model.families import of_model_type
from vivace.model.keys import Keys
from vivace.model.load.assemble import assemble
from vivace.model.load.convert import ConvertedMatrix
from vivace.model.load.tensors import Tensor
from vivace.model.weights import Checkpoint

VOCAB = 320
LENGTH = 48  # of the texts; longer than the windows
COMMON = {"vocab_size": VOCAB, "attn_implementation": "eager", "dtype": torch.float32}


def _llama(**sizes: object) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**(COMMON | {"max_position_embeddings": 512, "rms_norm_eps": 1e-5} | sizes)))


def _ernie(**sizes: object) -> PreTrainedModel:
    return Ernie4_5ForCausalLM(Ernie4_5Config(**(COMMON | {"max_position_embeddings": 512} | sizes)))


def _mistral(**sizes: object) -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**(COMMON | {"max_position_embeddings": 512} | sizes)))


def _phi3(**sizes: object) -> PreTrainedModel:
    given = {"max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return Phi3ForCausalLM(Phi3Config(**(COMMON | given | sizes)))


def _qwen2(**sizes: object) -> PreTrainedModel:
    return Qwen2ForCausalLM(Qwen2Config(**(COMMON | {"max_position_embeddings": 512} | sizes)))


def _qwen3(**sizes: object) -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**(COMMON | {"max_position_embeddings": 512} | sizes)))


def _seed_oss(**sizes: object) -> PreTrainedModel:
    given = {"max_position_embeddings": 512, "rms_norm_eps": 1e-3}
    return SeedOssForCausalLM(SeedOssConfig(**(COMMON | given | sizes)))


def _smollm3(**sizes: object) -> PreTrainedModel:
    given = {"max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return SmolLM3ForCausalLM(SmolLM3Config(**(COMMON | given | sizes)))


def _gemma2(**sizes: object) -> PreTrainedModel:
    return Gemma2ForCausalLM(Gemma2Config(**(COMMON | {"max_position_embeddings": 512, "sliding_window": 12} | sizes)))


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


def longrope(original: int, dim: int, **more: float) -> dict[str, object]:
    """Two sets of factors; contexts up to `original` take the short ones."""
    drawn = np.random.default_rng(5).uniform(1, 1.5, dim // 2)
    return {
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 300.0,
            "short_factor": drawn.tolist(),
            "long_factor": (drawn * np.linspace(1.1, 20, dim // 2)).tolist(),
            **more,
        },
        "original_max_position_embeddings": original,
    }


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 128}

ZOO = {
    "llama-3to1-tied": lambda: _llama(**_sizes(96, 3, 6, 2, 160), tie_word_embeddings=True),
    "llama-4to1-biased-wide-heads": lambda: _llama(**_sizes(64, 2, 8, 2, 96), head_dim=32, attention_bias=True),
    "llama-1to1-linear-rope": lambda: _llama(
        **_sizes(64, 2, 4, 4, 96), rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}
    ),
    "llama-3to1-llama3-rope": lambda: _llama(**_sizes(96, 2, 6, 2, 96), head_dim=80, rope_parameters=LLAMA3_ROPE),
    "ernie-4to1-tied-wide-heads": lambda: _ernie(**_sizes(64, 2, 4, 1, 96), head_dim=48),
    "ernie-1to1": lambda: _ernie(
        **_sizes(64, 2, 2, 2, 96),
        head_dim=32,
        rope_parameters={"rope_type": "default", "rope_theta": 300.0},
        tie_word_embeddings=False,
    ),
    "mistral-5to1-window-wide-heads": lambda: _mistral(**_sizes(96, 2, 5, 1, 96), head_dim=128, sliding_window=10),
    "mistral-2to1-tied": lambda: _mistral(
        **_sizes(64, 2, 4, 2, 96), head_dim=32, sliding_window=None, tie_word_embeddings=True
    ),
    "phi3-1to1-window": lambda: _phi3(**_sizes(192, 2, 2, 2, 96), sliding_window=11),
    "phi3-3to1-partial-short-rope": lambda: _phi3(
        **_sizes(192, 2, 3, 1, 96),
        partial_rotary_factor=0.75,
        tie_word_embeddings=True,
        max_position_embeddings=128,
        **longrope(64, 48),
    ),
    "phi3-3to1-partial-long-rope": lambda: _phi3(
        **_sizes(192, 2, 3, 1, 96),
        partial_rotary_factor=0.75,
        max_position_embeddings=64,
        **longrope(16, 48, attention_factor=1.05),
    ),
    "qwen2-7to1": lambda: _qwen2(**_sizes(224, 2, 7, 1, 288), tie_word_embeddings=True),
    "qwen2-1to1-window": lambda: _qwen2(
        **_sizes(64, 3, 4, 4, 96), use_sliding_window=True, sliding_window=9, max_window_layers=1
    ),
    "qwen2-5to1-yarn-rope": lambda: _qwen2(**_sizes(160, 2, 5, 1, 96), rope_parameters=YARN_ROPE),
    "qwen3-5to1": lambda: _qwen3(**_sizes(96, 2, 5, 1, 96), head_dim=96, tie_word_embeddings=True),
    "qwen3-2to1-biased-window": lambda: _qwen3(
        **_sizes(64, 2, 4, 2, 96),
        head_dim=48,
        attention_bias=True,
        use_sliding_window=True,
        sliding_window=9,
        max_window_layers=1,
    ),
    "smollm3-2to1": lambda: _smollm3(
        **_sizes(64, 4, 4, 2, 96), rope_parameters={"rope_type": "default", "rope_theta": 900.0}
    ),
    "seed-oss-5to1-wide-heads": lambda: _seed_oss(
        **_sizes(64, 2, 5, 1, 96),
        head_dim=64,
        rope_parameters={"rope_type": "default", "rope_theta": 700.0},
        tie_word_embeddings=True,
    ),
    "seed-oss-2to1-out-bias-alone": lambda: _seed_oss(
        **_sizes(96, 3, 4, 2, 160), head_dim=32, attention_bias=False, attention_out_bias=True
    ),
    "gemma2-2to1": lambda: _gemma2(
        **_sizes(96, 3, 4, 2, 96),
        head_dim=256,
        query_pre_attn_scalar=100,
        attn_logit_softcapping=3.0,
        final_logit_softcapping=6.0,
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
    one_plus = isinstance(model, Gemma2ForCausalLM | Gemma3ForCausalLM)
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


def checkpoint_of(model: PreTrainedModel, weight_type: str = "F32", context: int = LENGTH) -> Checkpoint:
    """The model's weights as a checkpoint, straight from memory; `weight_type` "Q8_0" quantises the matrices."""
    config = model.config.to_dict()
    family = of_model_type(config["model_type"], "zoo")
    tensors = {}
    for key, values in model.state_dict().items():
        if key == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        array = values.numpy().astype(np.float32)
        tensors[key] = Tensor(key, "F32", array.shape, array.reshape(-1).view(np.uint8))
    spec = family.from_config(Keys("zoo", config), tensors).for_context(context)
    matrices, vectors = assemble(
        _StateDict(Path("zoo"), tensors),
        spec,
        family.folder_names,
        interleaved=family.folder_interleaved,
        norm_offset=family.folder_norm_offset,
    )
    if weight_type == "Q8_0":
        matrices = {name: ConvertedMatrix("Q8_0", matrix, name) for name, matrix in matrices.items()}

    def no_tokenizer() -> None:
        raise NotImplementedError("models of the zoo have no tokenizer")

    return Checkpoint("zoo", "zoo", "zoo", spec, matrices, vectors, no_tokenizer, 0)


def random_tokens(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCAB, n).astype(np.int32)
