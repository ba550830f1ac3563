"""Names and keys of every family, against models that `transformers` saves and GGUF files made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_writer import Raw, save, write_gguf
from hf_zoo import ZOO, zoo_model
from transformers import PreTrainedModel

from vivace.model.errors import ModelError
from vivace.model.families import families, of_architecture
from vivace.model.load import load_checkpoint
from vivace.model.weights import Checkpoint

# The names of GGUF files, by what transformers calls the tensor.
GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "lm_head": "output",
    "model.norm": "output_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
GEMMA_NAMES = GGUF_NAMES | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def gguf_of(model: PreTrainedModel) -> tuple[dict[str, object], dict[str, Raw]]:
    """Metadata and tensors of the same model as its family's exporter writes them, in float32."""
    config: Any = model.config
    arch = {"gemma3_text": "gemma3"}.get(config.model_type, config.model_type)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    metadata: dict[str, object] = {
        "general.architecture": arch,
        f"{arch}.block_count": config.num_hidden_layers,
        f"{arch}.context_length": config.max_position_embeddings,
        f"{arch}.embedding_length": config.hidden_size,
        f"{arch}.feed_forward_length": config.intermediate_size,
        f"{arch}.attention.head_count": config.num_attention_heads,
        f"{arch}.attention.head_count_kv": config.num_key_value_heads,
        f"{arch}.attention.key_length": head_dim,
        f"{arch}.attention.value_length": head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
    }
    ropes = config.rope_parameters
    rope = ropes.get("full_attention", ropes)
    metadata[f"{arch}.rope.freq_base"] = float(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        metadata |= {f"{arch}.rope.scaling.type": "linear", f"{arch}.rope.scaling.factor": float(rope["factor"])}
    if arch == "gemma3":
        metadata[f"{arch}.attention.sliding_window"] = config.sliding_window
        metadata[f"{arch}.rope.freq_base_swa"] = float(ropes["sliding_attention"]["rope_theta"])
        flags = [kind == "sliding_attention" for kind in config.layer_types]
        metadata[f"{arch}.attention.sliding_window_pattern"] = flags
        if config.final_logit_softcapping:
            metadata["gemma3.final_logit_softcapping"] = float(config.final_logit_softcapping)
    tensors = {}
    for name, values in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = values.float().numpy()
        if arch == "gemma3" and name.endswith("norm.weight"):
            array = array + np.float32(1)
        if arch == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            array = array.reshape(heads, 2, head_dim // 2, -1).swapaxes(1, 2).reshape(array.shape)
        tensors[_gguf_name(name, arch)] = Raw("F32", array.shape, np.ascontiguousarray(array, "<f4").tobytes())
    return metadata, tensors


def _gguf_name(name: str, arch: str) -> str:
    stem, suffix = name.rsplit(".", 1)
    names = GEMMA_NAMES if arch == "gemma3" else GGUF_NAMES
    if not stem.startswith("model.layers."):
        return f"{names[stem]}.{suffix}"
    _, _, block, part = stem.split(".", 3)
    return f"blk.{block}.{names[part]}.{suffix}"


def saved(model: PreTrainedModel, folder: Path) -> Checkpoint:
    model.save_pretrained(folder)
    return load_checkpoint(folder)


@pytest.mark.parametrize("name", ZOO)
def test_a_folder_is_read_to_the_last_tensor(name: str, tmp_path: Path) -> None:
    model = zoo_model(name)
    checkpoint = saved(model, tmp_path)
    spec, config = checkpoint.spec, model.config
    for matrix, rows, cols in spec.matrices():
        stored = checkpoint.matrices[matrix]
        assert (stored.rows, stored.cols) == (rows, cols) and stored.dequantise().shape == (rows, cols)
    for vector, length in spec.vectors():
        assert checkpoint.vectors[vector].shape == (length,) and checkpoint.vectors[vector].dtype == np.float32
    assert set(checkpoint.matrices) == {n for n, _, _ in spec.matrices()}
    assert set(checkpoint.vectors) == {n for n, _ in spec.vectors()}
    assert spec.embed_scale == (config.hidden_size**0.5 if spec.family == "gemma3" else 1.0)
    state = model.state_dict()
    left = len(state) - (1 if config.tie_word_embeddings else 0)
    assert left == len(checkpoint.matrices) + len(checkpoint.vectors)
    # Every value is used once: sums of squares agree over the whole model (norms of Gemma are stored less one).
    gemma = spec.family == "gemma3"
    found = sum(float((m.dequantise().astype(np.float64) ** 2).sum()) for m in checkpoint.matrices.values())
    found += sum(
        float(((v.astype(np.float64) - (gemma and n.endswith("norm"))) ** 2).sum())
        for n, v in checkpoint.vectors.items()
    )
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    wanted = sum(float((t.double() ** 2).sum()) for n, t in state.items() if n not in tied)
    assert found == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("name", [name for name in ZOO if name != "qwen2-1to1-window"])  # GGUF has no key for those
def test_a_gguf_file_is_the_same_model(name: str, tmp_path: Path) -> None:
    model = zoo_model(name)
    folder = saved(model, tmp_path / "folder")
    metadata, tensors = gguf_of(model)
    file = load_checkpoint(save(tmp_path / "model.gguf", write_gguf(metadata, tensors).data))
    assert set(file.matrices) == set(folder.matrices) and set(file.vectors) == set(folder.vectors)
    for key, matrix in folder.matrices.items():
        np.testing.assert_array_equal(file.matrices[key].dequantise(), matrix.dequantise(), err_msg=key)
    for key, vector in folder.vectors.items():
        np.testing.assert_array_equal(file.vectors[key], vector, err_msg=key)
    ours, theirs = file.spec, folder.spec
    assert (ours.family, ours.vocab, ours.hidden, ours.tied_head, ours.embed_scale, ours.logit_softcap) == (
        theirs.family, theirs.vocab, theirs.hidden, theirs.tied_head, theirs.embed_scale, theirs.logit_softcap
    )  # fmt: skip
    assert ours.norm_eps == pytest.approx(theirs.norm_eps) and ours.max_context == theirs.max_context
    for mine, yours in zip(ours.blocks, theirs.blocks, strict=True):
        assert mine.feed_forward == yours.feed_forward and mine.post_norms == yours.post_norms
        a, b = mine.attention, yours.attention
        assert (a.heads, a.kv_heads, a.head_dim, a.rope, a.window) == (
            b.heads,
            b.kv_heads,
            b.head_dim,
            b.rope,
            b.window,
        )
        assert (a.qkv_bias, a.out_bias, a.qk_norm, a.softcap) == (b.qkv_bias, b.out_bias, b.qk_norm, b.softcap)
        assert a.scale == (a.head_dim**-0.5 if ours.family == "gemma3" else b.scale)


def test_gemma_layers_by_pattern(tmp_path: Path) -> None:
    metadata, tensors = gguf_of(zoo_model("gemma3-4to1"))
    key = "gemma3.attention.sliding_window_pattern"

    def windows(**changes: object) -> list[int | None]:
        data = write_gguf({k: v for k, v in (metadata | changes).items() if v is not None}, tensors).data
        (tmp_path / "g.gguf").unlink(missing_ok=True)
        spec = load_checkpoint(save(tmp_path / "g.gguf", data)).spec
        return [block.attention.window for block in spec.blocks]

    assert windows(**{key: None}) == [12] * 5 + [None, 12]
    assert windows(**{key: 3}) == [12, 12, None, 12, 12, None, 12]
    assert windows(**{key: [True] * 6 + [False]}) == [12] * 6 + [None]
    with pytest.raises(ModelError, match="not a list of 7 flags"):
        windows(**{key: [True] * 6})
    with pytest.raises(ModelError, match=r"'gemma3\.attention\.sliding_window' is missing"):
        windows(**{"gemma3.attention.sliding_window": None})


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_older_keys_for_windows_and_rotation(tmp_path: Path) -> None:
    folder = tmp_path / "qwen2"
    newer = saved(zoo_model("qwen2-1to1-window"), folder).spec
    assert [block.attention.window for block in newer.blocks] == [None, 9, 9]
    edit_config(folder, layer_types=None, rope_parameters=None, rope_theta=10000.0)
    assert load_checkpoint(folder).spec == newer
    edit_config(folder, use_sliding_window=False)
    assert {block.attention.window for block in load_checkpoint(folder).spec.blocks} == {None}

    folder = tmp_path / "gemma3"
    newer = saved(zoo_model("gemma3-4to1"), folder).spec
    edit_config(folder, layer_types=None, rope_parameters=None, rope_theta=5e4, rope_local_base_freq=100.0)
    assert load_checkpoint(folder).spec == newer
    edit_config(folder, sliding_window_pattern=2, rope_scaling={"rope_type": "linear", "factor": 8.0})
    blocks = load_checkpoint(folder).spec.blocks
    assert [block.attention.window for block in blocks] == [12, None] * 3 + [12]
    local, full = (block.attention.rope for block in blocks[:2])
    assert local is not None and full is not None and (local.factors, full.factors) == (None, (8.0,) * 32)
    edit_config(folder, rope_theta=None, rope_local_base_freq=None)
    local, full = (block.attention.rope for block in load_checkpoint(folder).spec.blocks[:2])
    assert local is not None and full is not None and (local.theta, full.theta) == (1e4, 1e6)


def test_a_family_is_found_by_its_file() -> None:
    assert [family.name for family in families()] == ["gemma3", "llama", "qwen2"]
    assert of_architecture("qwen2", "x").name == "qwen2"
