"""Small valid models of random sizes to break: GGUF files whole and split, and folders with one shard or several."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gguf_writer import BLOCKS, Raw, random_tensor, toy_llama, write_gguf, write_split

from vivace.model.load.tensors import BLOCKS as SUPPORTED

GGUF_TYPES = tuple(kind for kind in BLOCKS if kind in SUPPORTED)
Tensors = dict[str, Raw]
Metadata = dict[str, Any]


@dataclass
class Model:
    """Before it is written: `metadata` of a GGUF file, or the JSON files of a folder by name; and its tensors."""

    kind: str  # "gguf", "split", "folder" or "shards"
    metadata: Metadata
    tensors: Tensors


@dataclass
class Files:
    """As it is written: contents by name, which of them is opened ("" for the folder), and where GGUF fields start."""

    data: dict[str, bytes]
    opened: str
    fields: dict[str, list[int]] = field(default_factory=dict)


def sample(draw: random.Random) -> Model:
    kind = draw.choice(("gguf", "gguf", "split", "folder", "folder", "shards"))
    sizes = _sizes(draw)
    return _gguf(kind, sizes, draw) if kind in ("gguf", "split") else _folder(kind, sizes, draw)


def write(model: Model, draw: random.Random) -> Files:
    if model.kind == "gguf":
        alignment = model.metadata.get("general.alignment", 32)
        alignment = alignment if type(alignment) is int and 0 < alignment <= 4096 else 32
        written = write_gguf(model.metadata, model.tensors, alignment=alignment, version=draw.choice((2, 3, 3)))
        return Files({"m.gguf": bytes(written.data)}, "m.gguf", {"m.gguf": sorted(written.at.values())})
    if model.kind == "split":
        cut = draw.randint(0, len(model.tensors))
        parts = write_split(model.metadata, model.tensors, (cut, len(model.tensors) - cut), "m")
        data = {name: bytes(written.data) for name, written in parts.items()}
        return Files(data, draw.choice(list(data)), {name: sorted(w.at.values()) for name, w in parts.items()})
    data = {name: json.dumps(value).encode() for name, value in model.metadata.items()}
    data["chat_template.jinja"] = b"{{ messages[0].content }}"
    if model.kind == "folder":
        return Files(data | {"model.safetensors": safetensors(model.tensors)}, "")
    names = list(model.tensors)
    cut = draw.randint(1, len(names) - 1) if len(names) > 1 else 0
    shards = {"a.safetensors": names[:cut], "b.safetensors": names[cut:]}
    places = {name: shard for shard, held in shards.items() for name in held}
    data["model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": places}).encode()
    return Files(data | {s: safetensors({n: model.tensors[n] for n in held}) for s, held in shards.items()}, "")


def safetensors(tensors: Mapping[str, Raw]) -> bytes:
    header, end = {}, 0
    for name, raw in tensors.items():
        header[name] = {"dtype": raw.type, "shape": list(raw.shape), "data_offsets": [end, end + len(raw.data)]}
        end += len(raw.data)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(raw.data for raw in tensors.values())


def _sizes(draw: random.Random) -> dict[str, int]:
    """Mostly those of real models in small; now and then ones that no model has."""
    odd = draw.random() < 0.3
    kv_heads = draw.choice((1, 1, 2, 3))
    heads = kv_heads * draw.choice((1, 2, 3, 7))
    head_dim = draw.choice((2, 4, 6, 8, 20, 24, 33, 40, 48, 80, 96)) if odd else draw.choice((16, 32, 64))
    hidden = draw.choice((1, 2, 31, 33, 100)) if odd else draw.choice((32, 64, 96, 256))
    return {
        "layers": draw.choice((1, 1, 2)),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "feed_forward": draw.choice((1, 2, 31, 150)) if odd else draw.choice((32, 64, 256)),
        "vocab": draw.choice((1, 2, 17, 256)) if odd else draw.choice((8, 32)),
    }


def _gguf(kind: str, sizes: dict[str, int], draw: random.Random) -> Model:
    metadata, _ = toy_llama(vocab=sizes["vocab"])
    arch = draw.choice(("llama", "llama", "qwen2", "gemma3"))
    metadata = {key.replace("llama.", f"{arch}.", 1): value for key, value in metadata.items()}
    metadata |= {
        "general.architecture": arch,
        f"{arch}.block_count": sizes["layers"],
        f"{arch}.embedding_length": sizes["hidden"],
        f"{arch}.feed_forward_length": sizes["feed_forward"],
        f"{arch}.attention.head_count": sizes["heads"],
        f"{arch}.attention.head_count_kv": sizes["kv_heads"],
        f"{arch}.attention.key_length": sizes["head_dim"],
        f"{arch}.attention.value_length": sizes["head_dim"],
        "tokenizer.chat_template": "{{ messages[0].content }}",
    }
    if arch == "gemma3":
        metadata["gemma3.attention.sliding_window"] = draw.choice((1, 4, 512))
    for token in ("bos", "eos", "eot"):
        metadata[f"tokenizer.ggml.{token}_token_id"] = draw.randrange(sizes["vocab"])
    names = {
        "embed": "token_embd", "head": "output", "final": "output_norm", "q": "attn_q", "k": "attn_k", "v": "attn_v",
        "o": "attn_output", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down", "norm1": "attn_norm",
        "norm2": "ffn_norm", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm", "post1": "post_attention_norm",
        "post2": "post_ffw_norm", "block": "blk.{}.",
    }  # fmt: skip
    return Model(kind, metadata, _tensors(names, sizes, arch, draw, GGUF_TYPES))


def _folder(kind: str, sizes: dict[str, int], draw: random.Random) -> Model:
    arch = draw.choice(("llama", "llama", "qwen2", "gemma3_text"))
    gemma = arch == "gemma3_text"
    names = {
        "embed": "model.embed_tokens", "head": "lm_head", "final": "model.norm", "q": "self_attn.q_proj",
        "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj", "gate": "mlp.gate_proj",
        "up": "mlp.up_proj", "down": "mlp.down_proj", "norm1": "input_layernorm",
        "norm2": "pre_feedforward_layernorm" if gemma else "post_attention_layernorm", "q_norm": "self_attn.q_norm",
        "k_norm": "self_attn.k_norm", "post1": "post_attention_layernorm", "post2": "post_feedforward_layernorm",
        "block": "model.layers.{}.",
    }  # fmt: skip
    tensors = _tensors(names, sizes, arch.removesuffix("_text"), draw, ("F32", "F16", "BF16"))
    config = {
        "model_type": arch,
        "vocab_size": sizes["vocab"],
        "hidden_size": sizes["hidden"],
        "num_hidden_layers": sizes["layers"],
        "num_attention_heads": sizes["heads"],
        "num_key_value_heads": sizes["kv_heads"],
        "head_dim": sizes["head_dim"],
        "intermediate_size": sizes["feed_forward"],
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 128,
        "rope_theta": 1e4,
        "sliding_window": 4,
        "use_sliding_window": False,
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "eos_token_id": draw.randrange(sizes["vocab"]),
    }
    if draw.random() < 0.3:
        kinds = ("sliding_attention", "full_attention")
        config["layer_types"] = [kinds[i % 2] if gemma else kinds[1] for i in range(sizes["layers"])]
    files: Metadata = {
        "config.json": config,
        "generation_config.json": {"eos_token_id": [draw.randrange(sizes["vocab"])], "bos_token_id": 0},
        "tokenizer_config.json": {
            "eos_token": "<s>",
            "bos_token": {"content": "<s>"},
            "chat_template": "{{ messages }}",
        },
        "tokenizer.json": _tokenizer(sizes["vocab"], draw),
    }
    return Model(kind, files, tensors)


def _tensors(
    names: Mapping[str, str], sizes: dict[str, int], arch: str, draw: random.Random, types: tuple[str, ...]
) -> Tensors:
    hidden, dim, ff = sizes["hidden"], sizes["head_dim"], sizes["feed_forward"]
    width, kv_width = sizes["heads"] * dim, sizes["kv_heads"] * dim
    shapes: dict[str, tuple[int, ...]] = {f"{names['embed']}.weight": (sizes["vocab"], hidden)}
    for i in range(sizes["layers"]):
        block = {
            "q": (width, hidden), "k": (kv_width, hidden), "v": (kv_width, hidden), "o": (hidden, width),
            "gate": (ff, hidden), "up": (ff, hidden), "down": (hidden, ff), "norm1": (hidden,), "norm2": (hidden,),
        }  # fmt: skip
        if arch == "gemma3":
            block |= {"q_norm": (dim,), "k_norm": (dim,), "post1": (hidden,), "post2": (hidden,)}
        shapes |= {f"{names['block'].format(i)}{names[part]}.weight": shape for part, shape in block.items()}
        if arch == "qwen2":
            biases = {"q": width, "k": kv_width, "v": kv_width}
            shapes |= {f"{names['block'].format(i)}{names[part]}.bias": (n,) for part, n in biases.items()}
    shapes[f"{names['final']}.weight"] = (hidden,)
    if draw.random() < 0.3:
        shapes[f"{names['head']}.weight"] = (sizes["vocab"], hidden)
    rng = np.random.default_rng(draw.getrandbits(32))

    def kind(shape: tuple[int, ...]) -> str:
        fitting = [t for t in types if shape[-1] % BLOCKS[t][0] == 0]
        return draw.choice(fitting) if len(shape) > 1 else "F32"

    return {name: random_tensor(kind(shape), shape, rng) for name, shape in shapes.items()}


def _tokenizer(vocab: int, draw: random.Random) -> Metadata:
    tokens = ["<s>", *(chr(97 + i) for i in range(min(vocab, 26) - 1))]
    merges = []
    if vocab > 3:
        tokens[-1] = "ab"
        merges = [["a", "b"]]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 0, "content": "<s>"} | added] if draw.random() < 0.5 else [],
        "normalizer": draw.choice((None, {"type": "NFC"})),
        "pre_tokenizer": byte_level,
        "post_processor": draw.choice((None, byte_level)),
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges,
        },
    }  # fmt: skip
