"""GGUF files: what is read out of right ones, and that no wrong one gets further than one clear error."""

from __future__ import annotations

import math
import os
import random
import struct
import tracemalloc
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from gguf_writer import Raw, Written, random_tensor, save, toy_llama, write_gguf

import vivace
from vivace.model.errors import ModelError
from vivace.model.load import load_checkpoint
from vivace.model.load.gguf import GGUFFile
from vivace.model.weights import Checkpoint

MODELS = Path(os.environ.get("VIVACE_MODELS") or Path.home() / ".cache" / "vivace" / "models")
HUGE = 1 << 62
RNG = np.random.default_rng(0)


def toy(**changes: object) -> Written:
    """The file of a toy with metadata replaced, or dropped where the value is None."""
    metadata, tensors = toy_llama()
    metadata = {key: value for key, value in (metadata | changes).items() if value is not None}
    return write_gguf(metadata, tensors)


def toy_with(changes: Mapping[str, Raw | None]) -> Written:
    """The file of a toy with tensors replaced, added, or dropped where the value is None."""
    metadata, tensors = toy_llama()
    return write_gguf(metadata, {name: raw for name, raw in (tensors | changes).items() if raw is not None})


def use_all(checkpoint: Checkpoint, metadata: GGUFFile | None = None) -> None:
    """Reads every value of every weight and every list."""
    for matrix in checkpoint.matrices.values():
        matrix.dequantise()
    if metadata is not None:
        for key in metadata.metadata:
            assert metadata.metadata[key] is not None


def test_a_toy(tmp_path: Path) -> None:
    metadata, tensors = toy_llama(layers=2)
    path = save(tmp_path / "toy.gguf", write_gguf(metadata, tensors).data)
    file, checkpoint = GGUFFile(path), load_checkpoint(path)
    assert {key: file.metadata[key] for key in file.metadata} == metadata | {
        key: pytest.approx(value) for key, value in metadata.items() if isinstance(value, float)
    }
    spec = checkpoint.spec
    assert (spec.vocab, spec.hidden, len(spec.blocks), spec.max_context) == (8, 32, 2, 128)
    assert (spec.bos_id, spec.eos_ids, spec.tied_head) == (0, (1, 2), True)
    attention = spec.blocks[1].attention
    assert (attention.heads, attention.kv_heads, attention.head_dim, attention.scale) == (2, 1, 16, 0.25)
    assert attention.rope is not None and attention.rope.theta == 5000
    assert checkpoint.name == "toy" and checkpoint.file_bytes == path.stat().st_size
    for name, raw in tensors.items():
        assert file.tensors[name].data.tobytes() == raw.data and file.tensors[name].shape == raw.shape
    assert not checkpoint.matrices["embed"].data.flags.owndata  # a view of the mapped file
    use_all(checkpoint, file)


def test_rows_of_queries_and_keys_come_back_half_split(tmp_path: Path) -> None:
    metadata, tensors = toy_llama(heads=2, kv_heads=2)
    half_split = RNG.standard_normal((32, 32)).astype(np.float32)
    bias = RNG.standard_normal(32).astype(np.float32)
    for part in "qkv":
        # As exporters do it: [heads, 2, D / 2] becomes [heads, D / 2, 2].
        interleaved = [x.reshape(2, 2, 8, -1).swapaxes(1, 2).reshape(x.shape) for x in (half_split, bias)]
        weight, shift = (half_split, bias) if part == "v" else interleaved
        tensors[f"blk.0.attn_{part}.weight"] = Raw("F32", (32, 32), weight.tobytes())
        tensors[f"blk.0.attn_{part}.bias"] = Raw("F32", (32,), shift.tobytes())
    checkpoint = load_checkpoint(save(tmp_path / "toy.gguf", write_gguf(metadata, tensors).data))
    for part in "qkv":
        np.testing.assert_array_equal(checkpoint.matrices[f"blocks.0.{part}"].dequantise(), half_split)
        np.testing.assert_array_equal(checkpoint.matrices[f"blocks.0.{part}"].dequantise(3, 21), half_split[3:21])
        np.testing.assert_array_equal(checkpoint.vectors[f"blocks.0.{part}.bias"], bias)


def test_every_end_of_a_turn_counts(tmp_path: Path) -> None:
    """Those of the file's three keys, and tokens that end a turn by their name."""
    tokens = ["<s>", "</s>", "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "a", "b", "ab"]
    ends = {f"tokenizer.ggml.{key}_token_id": i + 1 for i, key in enumerate(("eos", "eot", "eom"))}
    changes = ends | {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [3] * 5 + [1] * 3}
    path = save(tmp_path / "toy.gguf", toy(**changes).data)
    assert load_checkpoint(path).spec.eos_ids == (1, 2, 3)
    with vivace.load(str(path)) as llm:
        assert llm.engine.eos_ids == (1, 2, 3, 4)


def test_alignment_and_scaling_and_head(tmp_path: Path) -> None:
    metadata, tensors = toy_llama()
    metadata |= {"general.alignment": 64, "llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    tensors["output.weight"] = random_tensor("Q8_0", (8, 32), RNG)
    checkpoint = load_checkpoint(save(tmp_path / "toy.gguf", write_gguf(metadata, tensors, alignment=64).data))
    rope = checkpoint.spec.blocks[0].attention.rope
    assert rope is not None and rope.factors == (4.0,) * 8
    assert not checkpoint.spec.tied_head and checkpoint.matrices["head"].data.tobytes() == tensors["output.weight"].data


def test_float_matrices_can_be_quantised(tmp_path: Path) -> None:
    path = save(tmp_path / "toy.gguf", toy().data)
    plain, quantised = load_checkpoint(path), load_checkpoint(path, weights="Q8_0")
    kinds = {matrix.type for matrix in plain.matrices.values()}
    assert kinds == {"Q8_0", "Q4_1", "Q5_0", "F16"} and plain.fingerprint != quantised.fingerprint
    for name, matrix in quantised.matrices.items():
        before = plain.matrices[name]
        assert matrix.type == ("Q8_0" if before.type == "F16" else before.type)
        np.testing.assert_allclose(matrix.dequantise(), before.dequantise(), atol=0.02)
    with pytest.raises(ModelError, match="Q8_0"):
        load_checkpoint(path, weights="Q2_X")


def test_the_fingerprint_follows_the_contents(tmp_path: Path) -> None:
    written = toy()
    path = save(tmp_path / "toy.gguf", written.data)

    def fingerprint(data: bytes | bytearray, time: int = 1) -> str:
        save(path, data)
        os.utime(path, (time, time))
        return load_checkpoint(path).fingerprint

    first = fingerprint(written.data)
    assert first == fingerprint(written.data)
    assert fingerprint(written.data, 2) != first
    assert fingerprint(written.with_field("tokenizer.ggml.eos_token_id", "I", 3)) != first
    weights = GGUFFile(path).tensors["blk.0.ffn_up.weight"].data
    start = bytes(written.data).index(weights[:64].tobytes())
    for at in (0, len(weights) // 2, len(weights) - 1):
        changed = bytearray(written.data)
        changed[start + at] ^= 1
        assert fingerprint(changed) != first


# A field of the toy, the layout and values written over it, and what the error says.
LYING_FIELDS: list[tuple[str, str, tuple[int, ...], str]] = [
    ("tensors", "Q", (HUGE,), "claims 4611686018427387904 tensors"),
    ("tensors", "Q", (12,), "tensor"),  # reads the data as a description
    ("entries", "Q", (HUGE,), "claims 4611686018427387904 metadata entries"),
    ("llama.block_count.type", "I", (77,), "'llama.block_count' has the unknown type 77"),
    ("tokenizer.ggml.tokens.type", "II", (9, 9), "'tokenizer.ggml.tokens' is an array of arrays"),
    ("tokenizer.ggml.tokens.type", "II", (9, 99), "'tokenizer.ggml.tokens' is an array of unknown type 99"),
    ("tokenizer.ggml.token_type.count", "Q", (HUGE,), "truncated: 'tokenizer.ggml.token_type' claims"),
    ("tokenizer.ggml.tokens.count", "Q", (HUGE,), "truncated: 'tokenizer.ggml.tokens' claims"),
    ("tokenizer.ggml.tokens", "Q", (HUGE,), "truncated: a string of 'tokenizer.ggml.tokens' ends beyond"),
    ("tokenizer.ggml.tokens", "Q", (2**64 - 1,), "truncated: a string of 'tokenizer.ggml.tokens' ends beyond"),
    ("general.architecture", "Q", (1 << 40,), "at most 16777216 are allowed"),
    ("general.architecture", "Q", (1 << 20,), "truncated: 'general.architecture' ends at byte"),
    ("general.architecture", "QB", (5, 255), "'general.architecture' is not UTF-8"),
    ("tokenizer.ggml.add_bos_token", "B", (2,), "neither true nor false"),
    ("output_norm.weight.dims", "I", (0,), "has 0 dimensions"),
    ("output_norm.weight.dims", "I", (5,), "has 5 dimensions"),
    ("blk.0.attn_q.weight.shape", "QQ", (32, 0), "impossible shape"),
    ("blk.0.attn_q.weight.shape", "QQ", (1 << 33, 1 << 33), "impossible shape"),
    ("output_norm.weight.shape", "Q", (1 << 40,), "truncated: tensor 'output_norm.weight' ends at byte"),
    ("blk.0.attn_q.weight.shape", "Q", (33,), "rows of 33 values, not a multiple"),
    (
        "blk.0.attn_q.weight.type",
        "I",
        (16,),
        "type IQ2_XXS of tensor 'blk.0.attn_q.weight' is not supported; supported: F32",
    ),
    ("blk.0.attn_q.weight.type", "I", (999,), "type number 999"),
    ("output_norm.weight.offset", "Q", (1 << 40,), "truncated: tensor 'output_norm.weight' ends at byte"),
    ("output_norm.weight.offset", "Q", (2**64 - 32,), "truncated: tensor 'output_norm.weight' ends at byte"),
    ("output_norm.weight.offset", "Q", (40,), "starts at offset 40, not a multiple of 32"),
    ("output_norm.weight.offset", "Q", (32,), "tensors '.*' and '.*' overlap"),
    ("blk.0.attn_q.weight.shape", "QQ", (1 << 20, 1 << 20), "truncated: tensor 'blk.0.attn_q.weight' ends"),
    ("blk.0.attn_q.weight.shape", "QQ", (32, 64), "tensors 'blk.0.attn_q.weight' and 'blk.0.attn_k.weight' overlap"),
]

# Metadata of the toy replaced, or dropped where the value is None.
BAD_METADATA: list[tuple[dict[str, object], str]] = [
    ({"": 1}, "metadata key 18 is empty"),
    ({"general.alignment": 24}, "general.alignment is 24"),
    ({"general.alignment": 0}, "general.alignment is 0"),
    ({"general.alignment": "x"}, "general.alignment is 'x'"),
    ({"split.count": 3}, "no whole part of a split model"),
    ({"general.architecture": None}, "'general.architecture' is missing"),
    ({"general.architecture": "mamba"}, "architecture 'mamba' is not supported; supported: .*gemma3, llama"),
    ({"general.architecture": "a\nb\x1b[31m"}, r"'a\\nb\\x1b\[31m'"),
    ({"llama.block_count": None}, "'llama.block_count' is missing"),
    ({"llama.block_count": 0}, "'llama.block_count' is 0, not between"),
    ({"llama.block_count": 2}, "tensor 'blk.1.attn_q.weight' is missing"),
    ({"llama.block_count": 10**9}, "not between 1 and 4096"),
    ({"llama.block_count": "1"}, "'llama.block_count' is '1', not an integer"),
    ({"llama.block_count": True}, "'llama.block_count' is True, not an integer"),
    ({"llama.attention.head_count": [2, 2]}, "not an integer"),
    ({"llama.attention.head_count_kv": 3}, "does not divide the 2 query heads"),
    ({"llama.attention.head_count": 4}, "shape"),
    ({"llama.attention.head_count": 3}, "'llama.attention.key_length' is missing"),
    ({"llama.attention.value_length": 8}, "differs from the key length"),
    ({"llama.attention.layer_norm_rms_epsilon": math.nan}, "layer_norm_rms_epsilon' is nan, not between"),
    ({"llama.attention.layer_norm_rms_epsilon": 0.0}, "is 0.0, not between"),
    ({"llama.rope.freq_base": math.inf}, "is inf, not between"),
    ({"llama.rope.dimension_count": 8}, "turns 8 values of each head; of llama, only whole heads of 16 are supported"),
    ({"llama.rope.scaling.type": "ntk"}, "is 'ntk'; supported: none, linear, yarn, longrope"),
    ({"llama.expert_count": 8}, "'llama.expert_count' is not supported"),
    ({"llama.vocab_size": 9}, "is 9, but the embedding has 8 rows"),
    ({"tokenizer.ggml.tokens": ["a"] * 9}, "has 9 tokens, but the vocabulary of the model is 8"),
    ({"tokenizer.ggml.eos_token_id": 8}, "special token 8 is outside the vocabulary of 8"),
]

# Tensors of the toy replaced, or dropped where the value is None.
BAD_TENSORS: list[tuple[dict[str, Raw | None], str]] = [
    ({"blk.0.ffn_up.weight": None}, "tensor 'blk.0.ffn_up.weight' is missing"),
    ({"token_embd.weight": None}, "tensor 'token_embd.weight' is missing"),
    (
        {"blk.0.attn_rot_embd.weight": random_tensor("F32", (8,), RNG)},
        "tensor 'blk.0.attn_rot_embd.weight' has no place in a llama model",
    ),
    ({"rope_freqs.weight": Raw("F32", (8,), bytes(32))}, "factors in rope_freqs.weight that are not above 0"),
    ({"rope_freqs.weight": random_tensor("F32", (7,), RNG)}, "needs 8 F32 factors"),
    ({"rope_factors_long.weight": Raw("F32", (8,), np.ones(8, "<f4").tobytes())}, "one of the two tensors"),
    ({"blk.0.ffn_up.weight": random_tensor("F32", (32, 32), RNG)}, r"has shape \[32, 32\], not \[64, 32\]"),
    ({"output_norm.weight": Raw("F32", (32,), np.full(32, np.nan, "<f4").tobytes())}, "values that are not finite"),
]

BAD_BYTES: list[tuple[bytes, str]] = [
    (b"", "is empty"),
    (b"GGU", "not a GGUF file"),
    (b"Not a model at all, but long enough.", "not a GGUF file"),
    (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1 is not supported"),
    (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    (bytes(toy(a="key b", b="x").data).replace(b"\1" + bytes(7) + b"a", b"\1" + bytes(7) + b"b"), "'b' occurs twice"),
    (bytes(toy().data).replace(b"blk.0.ffn_up", b"blk.0.attn_q"), "tensor name 'blk.0.attn_q.weight' occurs twice"),
    (bytes(toy().data[:-1]), "truncated: tensor 'output_norm.weight' ends at byte"),
]

HOSTILE = (
    [(toy().with_field(field, layout, *values), says) for field, layout, values, says in LYING_FIELDS]
    + [(bytes(toy(**changes).data), says) for changes, says in BAD_METADATA]
    + [(bytes(toy_with(changes).data), says) for changes, says in BAD_TENSORS]
    + BAD_BYTES
)


@pytest.mark.parametrize(("data", "says"), HOSTILE, ids=[f"{i} {says}" for i, (_, says) in enumerate(HOSTILE)])
def test_a_hostile_file_is_one_clear_error(data: bytes, says: str, tmp_path: Path) -> None:
    path = save(tmp_path / "hostile.gguf", data)
    with pytest.raises(ModelError, match=says) as caught:
        load_checkpoint(path)
    assert str(caught.value).startswith(f"{path}: ") and str(caught.value).isprintable()


def test_long_names_are_cut(tmp_path: Path) -> None:
    """Keys and names of tensors may be 1,024 bytes of anything; four for each escaped one."""
    long = "\x1b" * 1000
    weights = {long: random_tensor("F32", (8,), RNG)}
    for data in (toy(**{long: 1}).with_field(f"{long}.type", "I", 77), bytes(toy_with(weights).data)):
        with pytest.raises(ModelError, match=r"'(\\x1b)+.*…'") as caught:
            load_checkpoint(save(tmp_path / "long.gguf", data))
        assert len(str(caught.value)) < len(str(tmp_path)) + 200


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file or folder"):
        load_checkpoint(tmp_path / "absent.gguf")
    with pytest.raises(ModelError, match=r"has no config\.json"):
        load_checkpoint(tmp_path)


def test_pipes_are_refused_and_not_waited_for(tmp_path: Path) -> None:
    for name in ("pipe.gguf", "config.json", "model.safetensors"):
        os.mkfifo(tmp_path / name)
    for path in (tmp_path / "pipe.gguf", tmp_path, Path("/dev/null")):
        with pytest.raises(ModelError, match="is no regular file"):
            load_checkpoint(path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"model\.safetensors: is no regular file"):
        load_checkpoint(tmp_path)


def test_tokens_that_are_not_utf8_are_found_when_they_are_read(tmp_path: Path) -> None:
    written = toy()
    path = save(tmp_path / "toy.gguf", written.with_field("tokenizer.ggml.tokens", "QB", 1, 0xC3))
    checkpoint = load_checkpoint(path)
    with pytest.raises(ModelError, match=r"entry 0 of 'tokenizer\.ggml\.tokens' is not UTF-8"):
        _ = checkpoint.tokenizer


def test_every_truncation_is_an_error(tmp_path: Path) -> None:
    written = toy()
    lengths = {*range(1, written.at["data"] + 64, 7), *range(written.at["data"], len(written.data), 997)}
    for field in written.at.values():
        lengths |= {field, field + 1, field + 4, field + 8}
    for length in sorted(lengths - {0}):
        path = save(tmp_path / "cut.gguf", written.data[:length])
        with pytest.raises(ModelError, match=r"truncated|more than its|not a GGUF file"):
            load_checkpoint(path)


def mutate(data: bytearray, header: int, draw: random.Random) -> bytes:
    """One to three changes, most of them in the header."""
    data = bytearray(data)
    interesting = (0, 1, 8, 255, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, len(data))
    for _ in range(draw.randint(1, 3)):
        end = min(header, len(data)) if draw.random() < 0.9 else len(data)
        at = draw.randrange(max(1, end - 8))
        match draw.randrange(6):
            case 0 | 1:
                data[at] ^= 1 << draw.randrange(8)
            case 2:
                data[at : at + 8] = struct.pack("<Q", draw.choice(interesting))
            case 3:
                data[at : at + 4] = struct.pack("<I", draw.choice(interesting) & 0xFFFFFFFF)
            case 4:
                del data[at : at + draw.randint(1, 16)]
            case 5:
                data[at:at] = draw.randbytes(draw.randint(1, 16))
    return bytes(data)


def test_two_thousand_mutations(tmp_path: Path) -> None:
    """Always a ModelError or a model that can be used; never another exception, never much memory."""
    written, draw = toy(), random.Random(1)
    refused = 0
    tracemalloc.start()
    try:
        for _ in range(2000):
            # A new file each time: a mapping must never see another file's bytes.
            path = tmp_path / "mutant.gguf"
            path.unlink(missing_ok=True)
            save(path, mutate(written.data, written.at["data"], draw))
            try:
                with np.errstate(all="ignore"):
                    use_all(load_checkpoint(path), GGUFFile(path))
            except ModelError as error:
                refused += 1
                assert str(error).startswith(str(path)) and str(error).isprintable()
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()
    assert 1000 < refused < 2000  # the mutations reach both ways


REAL = {
    # file: (family, vocab, hidden, layers, heads, kv heads, head_dim, ffn, theta, eps, context, tied, bos, eos)
    "SmolLM2-135M-Instruct.Q4_1.gguf": ("llama", 49152, 576, 30, 9, 3, 64, 1536, 1e5, 1e-5, 8192, True, 1, (2,)),
    "gemma-3-270m.Q4_K_M.gguf": ("gemma3", 262144, 640, 18, 4, 1, 256, 2048, 1e6, 1e-6, 32768, True, 2, (1,)),
    "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf": (
        "qwen2", 151936, 896, 24, 14, 2, 64, 4864, 1e6, 1e-6, 32768, False, 151643, (151645,),
    ),
    "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf": (
        "qwen2", 151936, 1536, 28, 12, 2, 128, 8960, 1e6, 1e-6, 32768, False, 151643, (151645,),
    ),
}  # fmt: skip


@pytest.mark.models
@pytest.mark.parametrize("file", REAL)
def test_real_files(file: str) -> None:
    path = MODELS / file
    if not path.exists():
        pytest.skip(f"{file} is not in {MODELS}")
    checkpoint = load_checkpoint(path)
    spec, last = checkpoint.spec, checkpoint.spec.blocks[-1]
    attention = last.attention
    assert attention.rope is not None
    found = (
        spec.family, spec.vocab, spec.hidden, len(spec.blocks), attention.heads, attention.kv_heads, attention.head_dim,
        last.feed_forward.size, attention.rope.theta, pytest.approx(spec.norm_eps), spec.max_context, spec.tied_head,
        spec.bos_id, spec.eos_ids,
    )  # fmt: skip
    assert found == REAL[file]
    assert attention.rope.factors is None and attention.rope.dim == attention.head_dim
    assert attention.scale == attention.head_dim**-0.5 and attention.qkv_bias == (spec.family == "qwen2")
    assert not attention.out_bias
    assert (checkpoint.matrices["blocks.0.q"].row_order is not None) == (spec.family == "llama")
    gemma = spec.family == "gemma3"
    assert spec.embed_scale == (640**0.5 if gemma else 1.0) and last.post_norms == attention.qk_norm == gemma
    windows = [block.attention.window for block in spec.blocks]
    thetas = [block.attention.rope and block.attention.rope.theta for block in spec.blocks]
    if gemma:
        assert windows == ([512] * 5 + [None]) * 3 and thetas == ([1e4] * 5 + [1e6]) * 3
        assert last.feed_forward.activation == "gelu_tanh"
    else:
        assert set(windows) == {None} and len(set(thetas)) == 1 and last.feed_forward.activation == "silu"
    stored = sum(matrix.nbytes for matrix in checkpoint.matrices.values())
    assert 0.9 * path.stat().st_size < stored < path.stat().st_size
    for name in ("embed", "blocks.0.q", "blocks.0.down"):
        assert 1e-3 < checkpoint.matrices[name].dequantise(0, 64).std() < 1
