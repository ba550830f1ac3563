"""Writes GGUF files for tests: right ones, and the places of their fields so that a test can make them lie."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

TYPES = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q5_0": 6,
    "Q5_1": 7,
    "Q8_0": 8,
    "Q2_K": 10,
    "Q3_K": 11,
    "Q4_K": 12,
    "Q5_K": 13,
    "Q6_K": 14,
    "IQ2_XXS": 16,
    "IQ4_NL": 20,
    "IQ4_XS": 23,
    "BF16": 30,
}
BLOCKS = {"F32": (1, 4), "F16": (1, 2), "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q8_0": (32, 34)}
BLOCKS |= {"Q4_K": (256, 144), "Q6_K": (256, 210), "IQ2_XXS": (256, 66), "BF16": (1, 2), "Q5_1": (32, 24)}
BLOCKS |= {"Q2_K": (256, 84), "Q3_K": (256, 110), "Q5_K": (256, 176), "IQ4_NL": (32, 18), "IQ4_XS": (256, 136)}
# Where the half floats of a block lie, if not at its start alone.
HALVES = {
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
}


@dataclass
class Raw:
    """A tensor of stored blocks: `data` is what lies in the file, `shape` in values, outermost first."""

    type: str
    shape: tuple[int, ...]
    data: bytes


@dataclass
class Written:
    """The bytes of a file, and where each field starts: "tensors", "entries", "KEY", "KEY.type", "KEY.count" (arrays),
    "TENSOR.name", "TENSOR.dims", "TENSOR.shape", "TENSOR.type", "TENSOR.offset", "data"."""

    data: bytearray = field(default_factory=bytearray)
    at: dict[str, int] = field(default_factory=dict)

    def put(self, layout: str, *values: object, name: str = "") -> None:
        if name:
            self.at[name] = len(self.data)
        self.data += struct.pack("<" + layout, *values)

    def text(self, value: str, name: str = "") -> None:
        encoded = value.encode()
        self.put("Q", len(encoded), name=name)
        self.data += encoded

    def with_field(self, name: str, layout: str, *values: object) -> bytes:
        """The file with one field overwritten."""
        data = bytearray(self.data)
        struct.pack_into("<" + layout, data, self.at[name], *values)
        return bytes(data)


def random_tensor(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> Raw:
    """Finite random contents: half floats within the blocks are small."""
    values, size = BLOCKS[kind]
    if kind in ("F32", "F16", "BF16"):
        floats = rng.standard_normal(shape).astype(np.float32)
        if kind == "BF16":
            return Raw(kind, shape, (floats.view(np.uint32) >> 16).astype("<u2").tobytes())
        return Raw(kind, shape, floats.astype("<f4" if kind == "F32" else "<f2").tobytes())
    blocks = rng.integers(0, 256, (int(np.prod(shape)) // values, size), dtype=np.uint8)
    for at in HALVES.get(kind, (0,)):
        blocks[:, at : at + 2] = rng.uniform(-1, 1, len(blocks)).astype("<f2")[:, None].view(np.uint8)
    return Raw(kind, shape, blocks.tobytes())


def write_gguf(
    metadata: Mapping[str, object], tensors: Mapping[str, Raw], *, alignment: int = 32, version: int = 3
) -> Written:
    """A file. Values: bool, int (uint32), float (float32), str, or a list of one of them."""
    out = Written()
    out.put("4sI", b"GGUF", version)
    out.put("Q", len(tensors), name="tensors")
    out.put("Q", len(metadata), name="entries")
    for key, value in metadata.items():
        out.text(key)
        out.at[f"{key}.type"] = len(out.data)
        if isinstance(value, list):
            out.put("I", 9)
            out.put("I", _type(value[0]))
            out.put("Q", len(value), name=f"{key}.count")
            out.at[key] = len(out.data)
            for item in value:
                _put(out, item)
        else:
            out.put("I", _type(value))
            out.at[key] = len(out.data)
            _put(out, value)
    offset = 0
    for name, raw in tensors.items():
        out.text(name, f"{name}.name")
        out.put("I", len(raw.shape), name=f"{name}.dims")
        out.put(f"{len(raw.shape)}Q", *raw.shape[::-1], name=f"{name}.shape")
        out.put("I", TYPES[raw.type], name=f"{name}.type")
        out.put("Q", offset, name=f"{name}.offset")
        offset += -(-len(raw.data) // alignment) * alignment
    out.data += bytes(-len(out.data) % alignment)
    out.at["data"] = len(out.data)
    for raw in tensors.values():
        out.data += bytes(-len(out.data) % alignment) + raw.data
    return out


def write_split(
    metadata: Mapping[str, object], tensors: Mapping[str, Raw], counts: Sequence[int], stem: str = "toy"
) -> dict[str, Written]:
    """The parts of a split model by file name: each with that many of the tensors, the metadata in the first."""
    left, parts = iter(tensors.items()), {}
    for number, count in enumerate(counts):
        own = {"split.no": number, "split.count": len(counts), "split.tensors.count": len(tensors)}
        name = f"{stem}-{number + 1:05}-of-{len(counts):05}.gguf"
        parts[name] = write_gguf(own if number else {**metadata, **own}, dict(islice(left, count)))
    return parts


def toy_llama(
    *,
    layers: int = 1,
    hidden: int = 32,
    heads: int = 2,
    kv_heads: int = 1,
    vocab: int = 8,
    feed_forward: int = 64,
    seed: int = 0,
) -> tuple[dict[str, object], dict[str, Raw]]:
    """Metadata and tensors of a random Llama with byte-like tokens; matrices in turn Q8_0, Q4_1, Q5_0 and F16."""
    rng = np.random.default_rng(seed)
    kv_width = kv_heads * hidden // heads
    metadata: dict[str, object] = {
        "general.architecture": "llama",
        "llama.block_count": layers,
        "llama.context_length": 128,
        "llama.embedding_length": hidden,
        "llama.feed_forward_length": feed_forward,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 5000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": [chr(97 + i) for i in range(vocab - 1)] + ["ab"],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.token_type": [1] * vocab,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.eot_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (vocab, hidden)}
    for i in range(layers):
        shapes |= {
            f"blk.{i}.attn_norm": (hidden,),
            f"blk.{i}.attn_q": (hidden, hidden),
            f"blk.{i}.attn_k": (kv_width, hidden),
            f"blk.{i}.attn_v": (kv_width, hidden),
            f"blk.{i}.attn_output": (hidden, hidden),
            f"blk.{i}.ffn_norm": (hidden,),
            f"blk.{i}.ffn_gate": (feed_forward, hidden),
            f"blk.{i}.ffn_up": (feed_forward, hidden),
            f"blk.{i}.ffn_down": (hidden, feed_forward),
        }
    shapes["output_norm"] = (hidden,)
    kinds = ("Q8_0", "Q4_1", "Q5_0", "F16")
    tensors = {
        f"{name}.weight": random_tensor("F32" if len(shape) == 1 else kinds[i % 4], shape, rng)
        for i, (name, shape) in enumerate(shapes.items())
    }
    return metadata, tensors


def save(path: Path, data: bytes | bytearray) -> Path:
    path.write_bytes(data)
    return path


def _type(value: object) -> int:
    return {bool: 7, int: 4, float: 6, str: 8}[type(value)]


def _put(out: Written, value: object) -> None:
    if isinstance(value, str):
        out.text(value)
    else:
        out.put({bool: "?", int: "I", float: "f"}[type(value)], value)
