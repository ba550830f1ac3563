"""Float weights to other types at load: the bits, which matrices are converted, and the models that result."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants
from hf_zoo import random_tokens, save_folder, zoo_model
from transformers import LlamaConfig, LlamaForCausalLM

import vivace
from vivace.cli.generation import WEIGHT_TYPES
from vivace.cli.models import describe
from vivace.cli.parser import UsageError
from vivace.core.step import Segment, StepRequest
from vivace.exec.native import NativeExecutor
from vivace.exec.reference import ReferenceExecutor
from vivace.measure.kl import mean_kl
from vivace.model.errors import ModelError
from vivace.model.load import load_checkpoint
from vivace.model.load.convert import KEEP, WEIGHTS, ConvertedMatrix
from vivace.model.load.dequantise import dequantise
from vivace.model.load.quantise import quantise
from vivace.model.load.tensors import FLOAT_TYPES
from vivace.model.weights import Checkpoint, StoredMatrix

TYPES = [kind for kind in WEIGHTS if kind != KEEP]
RNG = np.random.default_rng(0)


def varied_values() -> np.ndarray:
    values = (RNG.standard_normal((300, 320)) * np.exp(RNG.uniform(-12, 6, (300, 1)))).astype(np.float32)
    values[3], values[4, :32] = 0, 0
    values[5] = np.round(RNG.uniform(-127, 127, 320) * 2) / 2  # ties
    values[5, ::32] = 127
    values[6] = 1e-9  # below what a half float holds
    values[7], values[8] = 3.25, -3.25  # one value: no distance between least and greatest
    values[9] = np.abs(values[9])
    values[10, ::2], values[10, 1::2] = 2, -2  # two values of the largest magnitude
    return values


@pytest.mark.parametrize("kind", TYPES)
def test_the_bits_are_those_of_the_format(kind: str) -> None:
    values = varied_values()
    expected = quants.quantize(values, GGMLQuantizationType[kind]).view(np.uint8)
    np.testing.assert_array_equal(quantise(kind, values), expected)


@pytest.mark.parametrize("kind", TYPES)
def test_conversion_follows_the_order_of_rows(kind: str) -> None:
    values = RNG.standard_normal((64, 32 * 1024)).astype(np.float32)  # more than one chunk
    order = RNG.permutation(64)
    matrix = StoredMatrix("F32", 64, values.shape[1], values.view(np.uint8), order)
    converted = ConvertedMatrix(kind, matrix, "w")
    assert converted.row_order is None
    np.testing.assert_array_equal(converted.data, quantise(kind, values[order]))
    np.testing.assert_array_equal(converted.dequantise(7, 9), dequantise(kind, converted.data[7:9], 32 * 1024))
    assert converted.nbytes == converted.data.nbytes and converted.source is matrix.data


@pytest.mark.parametrize("kind", TYPES)
def test_values_that_a_type_cannot_hold(kind: str) -> None:
    for bad in (np.nan, np.inf, -np.inf, 1e38):
        values = np.zeros((2, 32), np.float32)
        values[1, 5] = bad
        if kind == "BF16" and np.isfinite(bad):
            continue
        with pytest.raises(ValueError, match=r"not finite|cannot hold|too large"):
            quantise(kind, values)
        with pytest.raises(ModelError, match=f"^the matrix has values .*: not to be had as {kind}$"):
            _ = ConvertedMatrix(kind, StoredMatrix("F32", 2, 32, values.view(np.uint8)), "the matrix").data


def test_rows_that_no_block_divides() -> None:
    with pytest.raises(ModelError, match="the matrix has rows of 48 values, which Q8_0 blocks of 32 do not divide"):
        ConvertedMatrix("Q8_0", StoredMatrix("F32", 2, 48, np.zeros((2, 192), np.uint8)), "the matrix")


@pytest.mark.parametrize("command", ["run", "chat", "bench"])
def test_the_command_line_knows_the_types(command: str) -> None:
    assert WEIGHT_TYPES == WEIGHTS
    parser = import_module(f"vivace.cli.{command}").parser()
    for kind in WEIGHTS:
        assert parser.parse(["model", "--weights", kind]).weights == kind
    assert parser.parse(["model"]).weights is None
    with pytest.raises(UsageError, match="unknown 'Q4_9'; did you mean Q4_"):
        parser.parse(["model", "--weights", "Q4_9"])


def ragged_folder(folder: Path, dtype: torch.dtype = torch.float32, *, tied: bool = False) -> Path:
    """A model with rows of 100, 128 and 150 values: blocks of 32 divide only those of its attention's output."""
    config = LlamaConfig(
        vocab_size=320, hidden_size=100, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        intermediate_size=150, max_position_embeddings=512, tie_word_embeddings=tied, attn_implementation="eager",
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            noise = torch.randn(tensor.shape, generator=draw)
            tensor.copy_(1 + noise * 0.3 if "norm" in key else noise * 1.5 / tensor.shape[-1] ** 0.5)
    return save_folder(model.to(dtype), folder)


def logits(checkpoint: Checkpoint, tokens: np.ndarray, cls: type = NativeExecutor) -> np.ndarray:
    executor = cls(checkpoint, capacity_pages=4)
    seq = executor.store.new()
    result = executor.run(StepRequest([Segment(seq, tokens, logits=np.arange(len(tokens), dtype=np.int32))]))
    found = np.array(result.logits)
    executor.close()
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("weights", [KEEP, "Q8_0"])
def test_rows_that_blocks_do_not_divide(dtype: torch.dtype, weights: str, tmp_path: Path) -> None:
    checkpoint = load_checkpoint(ragged_folder(tmp_path, dtype), weights=weights)
    stored = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}[dtype]
    types = {name: matrix.type for name, matrix in checkpoint.matrices.items()}
    assert {types[f"blocks.{i}.o"] for i in range(2)} == {stored if weights == KEEP else "Q8_0"}
    assert {kind for name, kind in types.items() if not name.endswith(".o")} == {stored}
    tokens = random_tokens(70)
    expected = logits(checkpoint, tokens, ReferenceExecutor)
    # What is left is the arithmetic: a cache of half floats, and activations of eight bits for Q8_0.
    assert mean_kl(expected, logits(checkpoint, tokens)) < (1e-6 if weights == KEEP else 2e-4)


@pytest.mark.parametrize("name", ["qwen2-7to1", "llama-4to1-biased-wide-heads"])
def test_every_type_is_a_model_close_to_the_floats(name: str, tmp_path: Path) -> None:
    folder, tokens = save_folder(zoo_model(name), tmp_path), random_tokens(70)
    plain = load_checkpoint(folder)
    expected = logits(plain, tokens, ReferenceExecutor)
    found = {}
    for weights in TYPES:
        checkpoint = load_checkpoint(folder, weights=weights)
        head = "embed" if checkpoint.spec.tied_head else "head"
        assert {m.type for n, m in checkpoint.matrices.items() if n not in (head, "embed")} == {weights}
        assert head == "embed" or checkpoint.matrices["embed"].type == "F32"  # looked up as it lies in the file
        assert checkpoint.matrices[head].type == (weights if weights in FLOAT_TYPES else "Q8_0")
        assert checkpoint.fingerprint == f"{plain.fingerprint}-{weights}"
        assert checkpoint.weights_bytes < plain.weights_bytes
        found[weights] = mean_kl(expected, logits(checkpoint, tokens, ReferenceExecutor))
    assert found["F16"] < found["Q8_0"] < found["Q5_1"] < found["Q4_1"] and found["Q5_0"] < found["Q4_0"], found
    assert found["Q8_0"] < 2e-3 and found["Q4_0"] < 0.3, found


@pytest.mark.parametrize("weights", TYPES)
def test_every_type_is_packed(weights: str, tmp_path: Path) -> None:
    checkpoint = load_checkpoint(save_folder(zoo_model("qwen2-7to1"), tmp_path), weights=weights)
    tokens = random_tokens(70)
    assert mean_kl(logits(checkpoint, tokens, ReferenceExecutor), logits(checkpoint, tokens)) < 1e-3


def test_the_default_is_eight_bits_for_folders_only(tmp_path: Path) -> None:
    folder = save_folder(zoo_model("llama-3to1-tied"), tmp_path)
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    assert describe(str(folder))["tensors"] == {"F32": 22} and describe(str(folder))["loaded_as"] == {"Q8_0": 22}
    with vivace.load(str(folder)) as llm, vivace.load(str(folder), weights="keep") as kept:
        assert llm.weights_bytes < 0.3 * kept.weights_bytes
        assert llm.generate([[1, 2, 3]], max_tokens=4)[0].memory.weights_bytes == llm.weights_bytes
    with pytest.raises(ModelError, match=r"weight type 'Q9' is not supported; supported: Q8_0, .*, keep"):
        vivace.load(str(folder), weights="Q9")


TOKENIZER = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "post_processor": None,
    "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
              "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
              "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
}  # fmt: skip
