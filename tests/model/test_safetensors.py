"""Folders with config.json and safetensors: one file or many, and every way in which they can be wrong."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf_writer import save
from hf_zoo import zoo_model
from transformers import AutoModelForCausalLM

from vivace.model.errors import ModelError
from vivace.model.load import load_checkpoint
from vivace.model.load.safetensors import SafetensorsFile

MODEL = "llama-3to1-tied"
UP = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a folder in one shard."""
    return _saved(tmp_path_factory.mktemp("whole"), "1GB")


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return _saved(tmp_path_factory.mktemp("sharded"), "200KB")


def _saved(folder: Path, shard_size: str) -> dict[str, bytes]:
    zoo_model(MODEL).save_pretrained(folder, max_shard_size=shard_size)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def with_json(files: dict[str, bytes], name: str, change: Callable[[dict[str, Any]], object]) -> dict[str, bytes]:
    value = json.loads(files[name])
    change(value)
    return files | {name: json.dumps(value).encode()}


def with_header(files: dict[str, bytes], change: Callable[[dict[str, Any]], object]) -> dict[str, bytes]:
    data = files["model.safetensors"]
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    return files | {"model.safetensors": len(text).to_bytes(8, "little") + text + data[8 + length :]}


def test_one_file_and_many_are_the_same_model(
    whole: dict[str, bytes], sharded: dict[str, bytes], tmp_path: Path
) -> None:
    assert len([name for name in sharded if name.endswith(".safetensors")]) > 2
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    one, many = load_checkpoint(write(tmp_path / "a", whole)), load_checkpoint(write(tmp_path / "b", sharded))
    assert one.spec == many.spec and one.name == "a" and one.file_bytes == len(whole["model.safetensors"])
    assert one.fingerprint != many.fingerprint
    for name, matrix in one.matrices.items():
        np.testing.assert_array_equal(matrix.data, many.matrices[name].data)
        assert not matrix.data.flags.owndata  # a view of the mapped file
    for name, vector in one.vectors.items():
        np.testing.assert_array_equal(vector, many.vectors[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_types(dtype: torch.dtype, tmp_path: Path) -> None:
    model = zoo_model(MODEL).to(dtype)
    model.save_pretrained(tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    expected = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}[dtype]
    assert {matrix.type for matrix in checkpoint.matrices.values()} == {expected}
    wanted = model.state_dict()[UP].float().numpy()
    np.testing.assert_array_equal(checkpoint.matrices["blocks.0.up"].dequantise(), wanted)
    quantised = load_checkpoint(tmp_path, weights="Q8_0").matrices["blocks.0.up"]
    step = np.abs(wanted).reshape(-1, 32).max(1) / 127
    error = np.abs(quantised.dequantise() - wanted).reshape(-1, 32).max(1)
    assert quantised.type == "Q8_0" and (error <= 0.51 * step + 127 * step * 2**-11).all() and error.max() > 0


def test_ends_are_all_that_the_files_name(whole: dict[str, bytes], tmp_path: Path) -> None:
    files = with_json(whole, "config.json", lambda c: c.update(eos_token_id=7, bos_token_id=3))
    files = with_json(files, "generation_config.json", lambda c: c.update(eos_token_id=[9, 7]))
    spec = load_checkpoint(write(tmp_path, files)).spec
    assert spec.eos_ids == (9, 7) and spec.bos_id == 3
    (tmp_path / "generation_config.json").unlink()
    assert load_checkpoint(tmp_path).spec.eos_ids == (7,)


BAD_CONFIGS: list[tuple[dict[str, object], str]] = [
    ({"model_type": "mamba"}, "model_type 'mamba' is not supported; supported: .*gemma3_text, llama, mistral"),
    ({"model_type": None}, "'model_type' is missing"),
    ({"hidden_size": "96"}, "'hidden_size' is '96', not an integer"),
    ({"hidden_size": 10**5000}, "not valid JSON"),
    ({"hidden_size": 128}, "has shape"),
    ({"num_hidden_layers": 2}, r"tensor 'model.layers.2.* has no place"),
    ({"num_hidden_layers": 4}, "tensor 'model.layers.3.self_attn.q_proj.weight' is missing"),
    ({"num_hidden_layers": 10**9}, "not between 1 and 4096"),
    ({"num_key_value_heads": 4}, "does not divide"),
    ({"rms_norm_eps": float("nan")}, "'rms_norm_eps' is nan"),
    ({"rms_norm_eps": 10**400}, "not between 0 and 1"),
    ({"vocab_size": 321}, "has shape"),
    ({"tie_word_embeddings": False}, "tensor 'lm_head.weight' is missing"),
    ({"tie_word_embeddings": 1}, "neither true nor false"),
    ({"attention_bias": True}, "q_proj.bias' is missing"),
    ({"mlp_bias": True}, "feed-forward biases are not supported"),
    ({"model_type": "seed_oss", "mlp_bias": True}, "'mlp_bias' is true; feed-forward biases"),
    ({"model_type": "seed_oss", "hidden_act": "gelu"}, "'hidden_act' is 'gelu'; supported: silu"),
    ({"model_type": "seed_oss", "partial_rotary_factor": 0.5}, "only whole heads are supported for .*'seed_oss'"),
    ({"hidden_act": "relu"}, "'hidden_act' is 'relu'; supported: silu"),
    ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "'factor' is missing"),
    ({"rope_parameters": None, "rope_scaling": {"type": "mrope"}}, "is of type 'mrope'; supported: default, linear"),
    ({"rope_parameters": []}, "not an object"),
    ({"quantization_config": {"quant_method": "gptq"}}, "'quantization_config' is not supported"),
    ({"eos_token_id": 320}, "special token 320 is outside the vocabulary of 320"),
    ({"eos_token_id": [2, "x"]}, "not an integer"),
]


@pytest.mark.parametrize(("changes", "says"), BAD_CONFIGS, ids=[says for _, says in BAD_CONFIGS])
def test_a_wrong_config(changes: dict[str, object], says: str, whole: dict[str, bytes], tmp_path: Path) -> None:
    if says == "not valid JSON":
        files = whole | {"config.json": b'{"hidden_size": ' + b"9" * 5000 + b"}"}
    else:
        files = with_json(whole, "config.json", lambda config: config.update(changes))
    with pytest.raises(ModelError, match=says):
        load_checkpoint(write(tmp_path, files))


def test_older_rotation_keys(whole: dict[str, bytes], tmp_path: Path) -> None:
    older = {"rope_parameters": None, "rope_theta": 77.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    files = with_json(whole, "config.json", lambda config: config.update(older))
    rope = load_checkpoint(write(tmp_path, files)).spec.blocks[0].attention.rope
    assert rope is not None and rope.theta == 77 and rope.factors == (2.0,) * 8


def _entry(**changes: object) -> Callable[[dict[str, Any]], object]:
    return lambda header: header[UP].update(changes)


BAD_HEADERS: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (_entry(dtype="F7"), f"dtype 'F7' of tensor '{UP}' is not supported"),
    (_entry(dtype=None), "dtype None"),
    (_entry(dtype="I32"), f"type I32 of tensor '{UP}' is not supported"),
    (_entry(dtype="BF16"), "offsets that do not fit its shape"),
    (_entry(shape=[160, -96]), "'shape' of tensor .* is not a list of sizes"),
    (_entry(shape=[160, True]), "'shape' of tensor .* is not a list of sizes"),
    (_entry(shape=[1 << 40, 1 << 40]), "impossible shape"),
    (_entry(shape=[160, 95]), "offsets that do not fit its shape"),
    (_entry(shape=[96, 160]), r"has shape \[96, 160\], not \[160, 96\]"),
    (_entry(data_offsets=[0, 160 * 96 * 4]), "begins at"),
    (_entry(data_offsets=[1 << 40, (1 << 40) + 160 * 96 * 4]), "begins at"),
    (_entry(data_offsets=[160 * 96 * 4, 0]), "offsets that do not fit"),
    (_entry(data_offsets=[0]), "offsets that do not fit"),
    (lambda header: header.update({UP: 5}), "is not an object"),
    (lambda header: header.pop(UP), "begins at"),
    (lambda header: header.update({"model.mystery": header.pop(UP)}), f"tensor '{UP}' is missing"),
]


@pytest.mark.parametrize(("change", "says"), BAD_HEADERS, ids=[f"{i} {s}" for i, (_, s) in enumerate(BAD_HEADERS)])
def test_a_wrong_header(
    change: Callable[[dict[str, Any]], object], says: str, whole: dict[str, bytes], tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=says):
        load_checkpoint(write(tmp_path, with_header(whole, change)))


BAD_FILES: list[tuple[bytes, str]] = [
    (b"", "is empty"),
    (b"abc", "cannot hold a safetensors header"),
    ((1 << 63).to_bytes(8, "little") + b"{}", "claims a header of 9223372036854775808 bytes"),
    (bytes(8), "is not valid JSON"),
    (b"\2" + bytes(7) + b"[]", "is not a JSON object"),
    ((100_000).to_bytes(8, "little") + b"[" * 100_000, "is not valid JSON"),
    (b"\2" + bytes(7) + b"\xff\xff", "is not valid JSON"),
    (b"\x0e" + bytes(7) + b'{"a":1, "a":2}', "has a key twice"),
    (b"\2" + bytes(7) + b"{}x", "has 1 bytes after its last tensor"),
]


@pytest.mark.parametrize(("data", "says"), BAD_FILES, ids=[says for _, says in BAD_FILES])
def test_a_wrong_file(data: bytes, says: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=says):
        SafetensorsFile(save(tmp_path / "model.safetensors", data))


def test_truncations(whole: dict[str, bytes], tmp_path: Path) -> None:
    data = whole["model.safetensors"]
    for length in (*range(1, 40), *range(40, len(data), 4001), len(data) - 1):
        with pytest.raises(ModelError, match=r"truncated"):
            SafetensorsFile(save(tmp_path / f"{length}.safetensors", data[:length]))


def shard_names(files: dict[str, bytes]) -> list[str]:
    return sorted(name for name in files if name.endswith(".safetensors"))


def with_tensor(files: dict[str, bytes], name: str, like: str, change: bytes | None = None) -> dict[str, bytes]:
    """The folder with one more tensor at the end of its only file: a copy of `like`, or of other bytes."""
    data = files["model.safetensors"]
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    first, last = header[like]["data_offsets"]
    header[name] = header[like] | {"data_offsets": [len(body), len(body) + last - first]}
    text = json.dumps(header).encode()
    weights = len(text).to_bytes(8, "little") + text + body + (change or body[first:last])
    return files | {"model.safetensors": weights}


def test_a_head_in_the_files_of_a_tied_model(whole: dict[str, bytes], tmp_path: Path) -> None:
    """As `transformers` has it: a head that is not the embedding is the head, whatever config.json says."""
    embed = "model.embed_tokens.weight"
    (tmp_path / "same").mkdir(), (tmp_path / "other").mkdir()
    assert load_checkpoint(write(tmp_path / "same", with_tensor(whole, "lm_head.weight", embed))).spec.tied_head
    size = 4 * 320 * 96
    other = np.random.default_rng(0).standard_normal(320 * 96).astype(np.float32).tobytes()
    assert len(other) == size
    folder = write(tmp_path / "other", with_tensor(whole, "lm_head.weight", embed, other))
    checkpoint = load_checkpoint(folder)
    assert not checkpoint.spec.tied_head and checkpoint.matrices["head"].data.tobytes() == other
    theirs = AutoModelForCausalLM.from_pretrained(folder).lm_head.weight.detach().numpy()
    np.testing.assert_array_equal(checkpoint.matrices["head"].dequantise(), theirs)


def test_stray_shards_are_left_alone(whole: dict[str, bytes], sharded: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "many").mkdir(), (tmp_path / "one").mkdir()
    stray = {"consolidated.safetensors": b"no model at all", "model-00001-of-00099.safetensors": b""}
    many = load_checkpoint(write(tmp_path / "many", sharded | stray))
    # The one file is the model: as for `transformers`, an index beside it says nothing.
    left = {name: data for name, data in sharded.items() if name != shard_names(sharded)[0]}
    one = load_checkpoint(write(tmp_path / "one", left | whole | stray))
    assert many.file_bytes == sum(len(sharded[name]) for name in shard_names(sharded))
    assert one.file_bytes == len(whole["model.safetensors"])
    for name, matrix in many.matrices.items():
        np.testing.assert_array_equal(matrix.data, one.matrices[name].data)


def test_every_shard_is_checked(sharded: dict[str, bytes], tmp_path: Path) -> None:
    write(tmp_path, sharded)
    for name in shard_names(sharded):
        for length in (0, 7, 100, len(sharded[name]) - 1):
            (tmp_path / name).unlink()
            save(tmp_path / name, sharded[name][:length])
            with pytest.raises(ModelError, match=rf"/{name}: .*(truncated|empty)"):
                load_checkpoint(tmp_path)
        (tmp_path / name).unlink()
        save(tmp_path / name, sharded[name])


def test_a_snapshot_of_the_hubs_cache(sharded: dict[str, bytes], tmp_path: Path) -> None:
    """Its files are links to blobs named by their hashes."""
    repository = tmp_path / "models--user--tiny-model"
    snapshot, blobs = repository / "snapshots" / "0a1b2c", repository / "blobs"
    snapshot.mkdir(parents=True), blobs.mkdir()
    for number, (name, data) in enumerate(sharded.items()):
        save(blobs / f"{number:040x}", data)
        (snapshot / name).symlink_to(Path("../../blobs") / f"{number:040x}")
    checkpoint = load_checkpoint(snapshot)
    assert checkpoint.name == "tiny-model" and checkpoint.path == str(snapshot)
    assert checkpoint.file_bytes == sum(len(sharded[name]) for name in shard_names(sharded))
    (tmp_path / "mine").symlink_to(snapshot)
    assert load_checkpoint(tmp_path / "mine").fingerprint == checkpoint.fingerprint
    (blobs / f"{list(sharded).index(shard_names(sharded)[1]):040x}").unlink()  # as after a download that was cut off
    with pytest.raises(ModelError, match="cannot be opened: No such file"):
        load_checkpoint(snapshot)


def test_wrong_folders(whole: dict[str, bytes], sharded: dict[str, bytes], tmp_path: Path) -> None:
    index, first = "model.safetensors.index.json", min(name for name in sharded if name.endswith(".safetensors"))
    last = max(name for name in sharded if name.endswith(".safetensors"))

    def places(name: object) -> dict[str, bytes]:
        return with_json(sharded, index, lambda value: value["weight_map"].update({UP: name}))

    cases = {
        "no_weights": ({"config.json": whole["config.json"]}, r"has no \.safetensors file"),
        "two_files": (
            {"config.json": whole["config.json"], "a.safetensors": b"", "b.safetensors": b""},
            "has 2 .safetensors files and no",
        ),
        "missing_shard": ({n: data for n, data in sharded.items() if n != first}, f"{first}: cannot be opened"),
        "absolute_path": (places("/etc/x.safetensors"), "names a shard '/etc/x.safetensors'"),
        "path_outside": (places("../x.safetensors"), "names a shard '../x.safetensors'"),
        "other_shard": (places(last), f"tensor '{UP}' is not in {last}"),
        "index_of_numbers": (places(5), "not a string"),
        "same_twice": (sharded | {last: sharded[first]}, "is also in another shard"),
        "config_list": (whole | {"config.json": b"[]"}, "is not a JSON object"),
    }  # fmt: skip
    for name, (files, says) in cases.items():
        (tmp_path / name).mkdir()
        with pytest.raises(ModelError, match=says):
            load_checkpoint(write(tmp_path / name, files))
    with pytest.raises(ModelError, match="give the folder that holds it"):
        load_checkpoint(save(tmp_path / "model.safetensors", whole["model.safetensors"]))


def test_mutated_headers(whole: dict[str, bytes], tmp_path: Path) -> None:
    """Always a ModelError or a model that can be used."""
    draw, refused = random.Random(3), 0
    data = whole["model.safetensors"]
    header = 8 + int.from_bytes(data[:8], "little")
    write(tmp_path, whole)
    for _ in range(300):
        mutant = bytearray(data)
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(header)
            mutant[at] = draw.choice(b'0129{}[]",:-e') if draw.random() < 0.5 else mutant[at] ^ 1 << draw.randrange(8)
        (tmp_path / "model.safetensors").unlink()
        save(tmp_path / "model.safetensors", mutant)
        try:
            load_checkpoint(tmp_path)
        except ModelError as error:
            refused += 1
            assert str(error).isprintable()
    assert refused > 250
