"""Names and keys of every family, against models that `transformers` saves and GGUF files made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf_writer import Raw, save, write_gguf
from hf_zoo import LENGTH, ZOO, random_tokens, zoo_model
from transformers import PreTrainedModel

from vivace.exec.reference import ReferenceExecutor
from vivace.model import families as families_package
from vivace.model.errors import ModelError
from vivace.model.families import families, of_architecture
from vivace.model.load import load_checkpoint
from vivace.model.spec import RopeSpec
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
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
GEMMA_NAMES = GGUF_NAMES | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
SEED_OSS_NAMES = GGUF_NAMES | {"post_attention_layernorm": "post_attention_norm"}


def gguf_of(model: PreTrainedModel) -> tuple[dict[str, object], dict[str, Raw]]:
    """Metadata and tensors of the same model as its family's exporter writes them, in float32."""
    config: Any = model.config
    arch = {"gemma3_text": "gemma3", "mistral": "llama"}.get(config.model_type, config.model_type)
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
    if arch.startswith("gemma") or (arch in ("llama", "phi3") and getattr(config, "sliding_window", None)):
        metadata[f"{arch}.attention.sliding_window"] = config.sliding_window
    if arch == "gemma3":
        metadata[f"{arch}.rope.freq_base_swa"] = float(ropes["sliding_attention"]["rope_theta"])
        flags = [kind == "sliding_attention" for kind in config.layer_types]
        metadata[f"{arch}.attention.sliding_window_pattern"] = flags
    for cap in ("attn_logit_softcapping", "final_logit_softcapping"):
        if getattr(config, cap, None):
            metadata[f"{arch}.{cap}"] = float(getattr(config, cap))
    more, tensors = _rope_of(model, arch, rope, head_dim)
    metadata |= more
    for name, values in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = values.float().numpy()
        if arch.startswith("gemma") and name.endswith("norm.weight"):
            array = array + np.float32(1)
        if arch in ("llama", "smollm3") and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            array = array.reshape(heads, 2, head_dim // 2, -1).swapaxes(1, 2).reshape(array.shape)
        tensors[_gguf_name(name, arch)] = Raw("F32", array.shape, np.ascontiguousarray(array, "<f4").tobytes())
    return metadata, tensors


def _rope_of(
    model: PreTrainedModel, arch: str, rope: dict[str, Any], head_dim: int
) -> tuple[dict[str, object], dict[str, Raw]]:
    """Keys and tensors of the rotation: factors that no key can say lie in tensors."""
    dim = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    keys: dict[str, object] = {"dimension_count": dim}
    factors: dict[str, Any] = {}
    embedding: Any = model.base_model.rotary_emb
    if rope["rope_type"] in ("linear", "yarn"):
        keys |= {"scaling.type": rope["rope_type"], "scaling.factor": float(rope["factor"])}
    if rope["rope_type"] in ("yarn", "longrope"):
        keys["scaling.original_context_length"] = rope["original_max_position_embeddings"]
    if rope["rope_type"] == "longrope":
        keys["scaling.attn_factor"] = float(embedding.attention_scaling)
        factors = {f"rope_factors_{length}.weight": rope[f"{length}_factor"] for length in ("short", "long")}
    if rope["rope_type"] == "llama3":
        plain = rope["rope_theta"] ** -(torch.arange(0, dim, 2) / dim)
        factors = {"rope_freqs.weight": (plain / embedding.inv_freq).numpy()}
    tensors = {name: Raw("F32", (dim // 2,), np.asarray(v, "<f4").tobytes()) for name, v in factors.items()}
    return {f"{arch}.rope.{key}": value for key, value in keys.items()}, tensors


def _gguf_name(name: str, arch: str) -> str:
    stem, suffix = name.rsplit(".", 1)
    names = GEMMA_NAMES if arch.startswith("gemma") else SEED_OSS_NAMES if arch == "seed_oss" else GGUF_NAMES
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
    gemma = spec.family.startswith("gemma")
    assert spec.embed_scale == (config.hidden_size**0.5 if gemma else 1.0)
    state = model.state_dict()
    # Every value is used once: sums of squares agree over the whole model (norms of Gemma are stored less one).
    found = sum(float((m.dequantise().astype(np.float64) ** 2).sum()) for m in checkpoint.matrices.values())
    found += sum(
        float(((v.astype(np.float64) - (gemma and n.endswith("norm"))) ** 2).sum())
        for n, v in checkpoint.vectors.items()
    )
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    wanted = sum(float((t.double() ** 2).sum()) for n, t in state.items() if n not in tied)
    assert found == pytest.approx(wanted, rel=1e-6)


def logits(checkpoint: Checkpoint) -> np.ndarray:
    tokens = torch.from_numpy(random_tokens(LENGTH))[None]
    return ReferenceExecutor(checkpoint, capacity_pages=1).forward(tokens)[0].detach().numpy()


def assert_same_rope(mine: RopeSpec | None, yours: RopeSpec | None) -> None:
    """Equal but for the rounding of factors that a file holds in float32."""
    if mine is None or yours is None:
        assert mine is yours
        return
    assert (mine.theta, mine.dim) == (yours.theta, yours.dim)
    assert mine.attention_factor == pytest.approx(yours.attention_factor, rel=1e-6)
    for a, b in ((mine.factors, yours.factors), (mine.long_factors, yours.long_factors)):
        assert (a is None and b is None) or a == pytest.approx(b, rel=1e-6)
    assert mine.original_context == yours.original_context


# GGUF has no key for windows in some of the layers of a Qwen.
@pytest.mark.parametrize("name", [name for name in ZOO if not (name.startswith("qwen") and "window" in name)])
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
    assert ours.family == {"mistral": "llama"}.get(theirs.family, theirs.family)
    assert (ours.vocab, ours.hidden, ours.tied_head, ours.embed_scale, ours.logit_softcap) == (
        theirs.vocab, theirs.hidden, theirs.tied_head, theirs.embed_scale, theirs.logit_softcap
    )  # fmt: skip
    assert ours.norm_eps == pytest.approx(theirs.norm_eps) and ours.max_context == theirs.max_context
    for mine, yours in zip(ours.blocks, theirs.blocks, strict=True):
        assert mine.feed_forward == yours.feed_forward and mine.post_norms == yours.post_norms
        a, b = mine.attention, yours.attention
        assert_same_rope(a.rope, b.rope)
        assert (a.heads, a.kv_heads, a.head_dim, a.window) == (b.heads, b.kv_heads, b.head_dim, b.window)
        assert (a.qkv_bias, a.out_bias, a.qk_norm, a.softcap) == (b.qkv_bias, b.out_bias, b.qk_norm, b.softcap)
        assert a.scale == (a.head_dim**-0.5 if ours.family.startswith("gemma") else b.scale)
    if all(a.attention.scale == b.attention.scale for a, b in zip(ours.blocks, theirs.blocks, strict=True)):
        wanted = logits(folder.for_context(LENGTH))
        np.testing.assert_allclose(logits(file.for_context(LENGTH)), wanted, atol=1e-5 * np.abs(wanted).max())


def test_query_scale_of_the_largest_gemmas(tmp_path: Path) -> None:
    """27B divides by the share of a head, not by its size; GGUF files show it only by the number of layers."""
    for name, layers in (("gemma2-2to1", 46), ("gemma3-3to1-softcap", 62)):
        metadata, tensors = gguf_of(zoo_model(name))
        arch = metadata["general.architecture"]
        metadata |= {f"{arch}.block_count": layers, f"{arch}.attention.sliding_window_pattern": 2}
        blocks = {key.split(".", 2)[2]: raw for key, raw in tensors.items() if key.startswith("blk.0.")}
        tensors |= {f"blk.{i}.{part}": raw for i in range(layers) for part, raw in blocks.items()}
        spec = load_checkpoint(save(tmp_path / f"{name}.gguf", write_gguf(metadata, tensors).data)).spec
        assert {block.attention.scale for block in spec.blocks} == {(96 // spec.blocks[0].attention.heads) ** -0.5}


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


def test_gemma2_files_without_keys_for_what_all_sizes_share(tmp_path: Path) -> None:
    """The first exporters wrote neither window nor caps."""
    metadata, tensors = gguf_of(zoo_model("gemma2-2to1"))
    left_out = ("attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping")
    early = {key: value for key, value in metadata.items() if not key.endswith(left_out)}
    spec = load_checkpoint(save(tmp_path / "early.gguf", write_gguf(early, tensors).data)).spec
    assert [block.attention.window for block in spec.blocks] == [4096, None, 4096]
    assert (spec.blocks[0].attention.softcap, spec.logit_softcap) == (50.0, 30.0)


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


def test_heads_whose_size_is_null_have_their_share(tmp_path: Path) -> None:
    """A family's own size stands for an absent key only, as in transformers."""
    spec = saved(zoo_model("ernie-1to1"), tmp_path).spec
    edit_config(tmp_path, head_dim=None)
    assert load_checkpoint(tmp_path).spec == spec


def test_fused_tensors_are_cut_without_a_copy(tmp_path: Path) -> None:
    checkpoint = saved(zoo_model("phi3-1to1-window"), tmp_path)
    q, k, v, gate, up = (checkpoint.matrices[f"blocks.1.{part}"].data for part in ("q", "k", "v", "gate", "up"))
    ends = [
        matrix.__array_interface__["data"][0] + edge * matrix.nbytes
        for matrix, edge in ((q, 1), (k, 0), (k, 1), (v, 0), (gate, 1), (up, 0))
    ]
    assert ends[::2] == ends[1::2]  # each begins where the one before it in its tensor ends
    edit_config(tmp_path, intermediate_size=100)
    with pytest.raises(ModelError, match=r"gate_up_proj.weight' has shape \[192, 192\], not \[200, 192\]"):
        load_checkpoint(tmp_path)


def test_a_head_in_the_file_of_a_tied_model_counts(tmp_path: Path) -> None:
    """As in transformers: it may have been trained apart after all."""
    model = zoo_model("mistral-2to1-tied")
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(torch.randn(model.lm_head.weight.shape))
    model.save_pretrained(tmp_path)
    edit_config(tmp_path, tie_word_embeddings=True)
    checkpoint = load_checkpoint(tmp_path)
    assert not checkpoint.spec.tied_head
    with torch.no_grad():
        theirs = type(model).from_pretrained(tmp_path)(torch.from_numpy(random_tokens(LENGTH)).long()[None]).logits[0]
    np.testing.assert_allclose(logits(checkpoint), theirs.numpy(), atol=1e-4 * theirs.abs().max().item())


def test_an_untied_model_without_a_head_is_refused(tmp_path: Path) -> None:
    saved(zoo_model("mistral-2to1-tied"), tmp_path)
    edit_config(tmp_path, tie_word_embeddings=False)
    with pytest.raises(ModelError, match=r"tensor 'lm_head.weight' is missing"):
        load_checkpoint(tmp_path)


def test_gemma_caps_are_off_only_where_the_file_says_so(tmp_path: Path) -> None:
    saved(zoo_model("gemma2-2to1"), tmp_path)

    def caps() -> tuple[float | None, float | None]:
        spec = load_checkpoint(tmp_path).spec
        return spec.blocks[0].attention.softcap, spec.logit_softcap

    assert caps() == (3.0, 6.0)
    edit_config(tmp_path, attn_logit_softcapping=None, final_logit_softcapping=None)
    assert caps() == (None, None)
    path = tmp_path / "config.json"
    config = {k: v for k, v in json.loads(path.read_text()).items() if not k.endswith("softcapping")}
    path.write_text(json.dumps(config))
    assert caps() == (50.0, 30.0)


def test_what_would_be_dropped_is_refused(tmp_path: Path) -> None:
    saved(zoo_model("mistral-2to1-tied"), tmp_path / "folder")
    edit_config(tmp_path / "folder", layer_types=["full_attention", "sliding_attention"])
    with pytest.raises(ModelError, match="layer_types"):
        load_checkpoint(tmp_path / "folder")
    metadata, tensors = gguf_of(zoo_model("llama-3to1-tied"))
    for key, value in (("attention.causal", False), ("attention.temperature_scale", 0.5), ("logit_scale", 2.0)):
        data = write_gguf(metadata | {f"llama.{key}": value}, tensors).data
        with pytest.raises(ModelError, match=key):
            load_checkpoint(save(tmp_path / f"{key}.gguf", data))


def test_heads_stored_for_pairs_are_turned_whole_or_refused(tmp_path: Path) -> None:
    saved(zoo_model("ernie-4to1-tied-wide-heads"), tmp_path)
    edit_config(tmp_path, partial_rotary_factor=0.5)
    with pytest.raises(ModelError, match="turns 24 values of each head; of ernie4_5, only whole heads of 48"):
        load_checkpoint(tmp_path)


def test_adapters_are_no_models(tmp_path: Path) -> None:
    model = zoo_model("llama-3to1-tied")
    saved(model, tmp_path)
    adapter = tmp_path / "adapter_model.safetensors"
    adapter.write_bytes(b"not read")
    (tmp_path / "adapter_config.json").write_text("{}")
    assert load_checkpoint(tmp_path).spec.vocab == model.config.vocab_size
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has no \.safetensors file of a model"):
        load_checkpoint(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ModelError, match="is an adapter; merge it into its model"):
        load_checkpoint(tmp_path)
    metadata = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}
    lora = {"blk.0.attn_q.weight.lora_a": Raw("F32", (4, 8), bytes(128))}
    with pytest.raises(ModelError, match=r"'general\.type' is 'adapter'; only whole models are supported"):
        load_checkpoint(save(tmp_path / "lora.gguf", write_gguf(metadata, lora).data))


def test_a_family_is_found_by_its_file() -> None:
    files = Path(families_package.__file__).parent.glob("[!_]*.py")
    assert [family.name for family in families()] == sorted(file.stem for file in files)
    assert of_architecture("qwen2", "x").name == "qwen2"
