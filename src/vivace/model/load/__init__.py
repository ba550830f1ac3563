"""Model files to a Checkpoint: GGUF files and Hugging Face folders."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from vivace.model.errors import ModelError
from vivace.model.families import of_architecture, of_model_type
from vivace.model.keys import Keys
from vivace.model.load.assemble import assemble
from vivace.model.load.fingerprint import fingerprint
from vivace.model.load.gguf import GGUFFile
from vivace.model.load.safetensors import Folder
from vivace.model.load.tensors import FLOAT_TYPES
from vivace.model.spec import ModelSpec
from vivace.model.weights import Checkpoint, StoredMatrix

if TYPE_CHECKING:
    from vivace.model.tokenizer import Tokenizer

# Ends of a message or of the text; a model may name several.
_GGUF_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")


def load_checkpoint(
    path: str | os.PathLike[str], *, name: str | None = None, weight_type: str | None = None
) -> Checkpoint:
    """The model in a GGUF file or in a folder with config.json and safetensors; weights stay in the mapped file.

    `weight_type` "Q8_0" quantises matrices stored as floats; matrices that are quantised already stay as they are.
    The tokenizer is built when first asked for. Raises ModelError with one line that names the file and the fact.
    """
    if weight_type not in (None, "Q8_0"):
        raise ModelError(f"weight type '{weight_type}' is not supported; supported: Q8_0")
    where = Path(path)
    if not where.exists():
        raise ModelError(f"{where}: no such file or folder")
    if where.suffix == ".safetensors":
        raise ModelError(f"{where}: is only weights; give the folder that holds it and config.json")
    checkpoint = _load_folder(where, name) if where.is_dir() else _load_gguf(where, name)
    if weight_type is None:
        return checkpoint
    from vivace.model.load.quantise import quantise_matrix

    def quantised(key: str, matrix: StoredMatrix) -> StoredMatrix:
        try:
            return quantise_matrix(matrix) if matrix.type in FLOAT_TYPES else matrix
        except ValueError as error:
            raise ModelError(f"{where}: matrix '{key}' {error}") from None

    return dataclasses.replace(
        checkpoint,
        fingerprint=f"{checkpoint.fingerprint}-{weight_type}",
        matrices={key: quantised(key, matrix) for key, matrix in checkpoint.matrices.items()},
    )


def _load_gguf(path: Path, name: str | None) -> Checkpoint:
    file = GGUFFile(path)
    top = Keys(str(path), file.metadata)
    if top.integer("split.count", 1, low=0, high=1 << 16) > 1:
        raise ModelError(f"{path}: is one part of a split model; join the parts into one file first")
    architecture = top.text("general.architecture")
    family = of_architecture(architecture, str(path))
    keys = Keys(str(path), file.metadata, f"{architecture}.")
    spec = family.from_gguf(keys, {tensor.name: tensor.shape for tensor in file.tensors.values()})
    tokens = file.metadata.count("tokenizer.ggml.tokens")
    if tokens is not None and tokens != spec.vocab:
        raise ModelError(f"{path}: has {tokens} tokens, but the vocabulary of the model is {spec.vocab}")
    ids = Keys(str(path), file.metadata, "tokenizer.ggml.")
    spec = _with_special_tokens(
        spec, ids, "bos_token_id", [ids.integer(key, low=0, high=1 << 32) for key in _GGUF_ENDS if key in ids]
    )
    matrices, vectors = assemble(file, spec, family.gguf_names, interleaved=family.gguf_interleaved, norm_offset=0.0)

    def make_tokenizer() -> Tokenizer:
        from vivace.model.tokenizer import Tokenizer

        return Tokenizer.from_gguf(file.metadata)

    return Checkpoint(
        name=name or path.stem,
        path=str(path),
        fingerprint=fingerprint([file.bytes[: file.data_start].data], [path], file.tensors.values()),
        spec=spec,
        matrices=matrices,
        vectors=vectors,
        make_tokenizer=make_tokenizer,
        file_bytes=len(file.bytes),
    )


def _load_folder(path: Path, name: str | None) -> Checkpoint:
    folder = Folder(path)
    config = folder.config
    family = of_model_type(config.text("model_type"), config.source)
    spec = family.from_config(config, {tensor.name: tensor.shape for tensor in folder.tensors.values()})
    ends = [
        token for keys in (folder.generation, config) for token in keys.integers("eos_token_id", low=0, high=1 << 32)
    ]
    spec = _with_special_tokens(spec, config, "bos_token_id", ends)
    matrices, vectors = assemble(
        folder, spec, family.folder_names, interleaved=False, norm_offset=family.folder_norm_offset
    )

    def make_tokenizer() -> Tokenizer:
        from vivace.model.tokenizer import Tokenizer

        return Tokenizer.from_folder(path)

    files = [file.path for file in folder.files]
    return Checkpoint(
        name=name or path.resolve().name,
        path=str(path),
        fingerprint=fingerprint(
            [(path / "config.json").read_bytes(), *(file.header for file in folder.files)],
            files,
            folder.tensors.values(),
        ),
        spec=spec,
        matrices=matrices,
        vectors=vectors,
        make_tokenizer=make_tokenizer,
        file_bytes=sum(len(file.bytes) for file in folder.files),
    )


def _with_special_tokens(spec: ModelSpec, keys: Keys, bos_key: str, ends: Iterable[int]) -> ModelSpec:
    """`spec` with its first and its ending tokens, in the order in which the file names them."""
    bos = keys.integer(bos_key, low=0, high=1 << 32) if bos_key in keys else None
    eos = tuple(dict.fromkeys(ends))
    for token in (*eos, *(() if bos is None else (bos,))):
        if token >= spec.vocab:
            raise ModelError(f"{keys.source}: special token {token} is outside the vocabulary of {spec.vocab}")
    return dataclasses.replace(spec, bos_id=bos, eos_ids=eos)
