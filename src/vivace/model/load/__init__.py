"""Model files to a Checkpoint: GGUF files and Hugging Face folders."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vivace.model.errors import ModelError, naming, shown
from vivace.model.families import of_architecture, of_model_type
from vivace.model.family import tensor_name
from vivace.model.keys import Keys
from vivace.model.load.assemble import assemble
from vivace.model.load.convert import KEEP, WEIGHTS, converted, default_weights
from vivace.model.load.fingerprint import fingerprint
from vivace.model.load.safetensors import Folder
from vivace.model.load.split import GGUFModel
from vivace.model.spec import ModelSpec
from vivace.model.tokenizer.vocabulary import GGUF_END_KEYS
from vivace.model.weights import Checkpoint

if TYPE_CHECKING:
    from vivace.model.tokenizer import Tokenizer


def load_checkpoint(path: str | os.PathLike[str], *, name: str | None = None, weights: str | None = KEEP) -> Checkpoint:
    """The model in a GGUF file (or any part of a split one) or in a folder with config.json and safetensors.

    Weights stay in the mapped files. `weights`, one of WEIGHTS, converts matrices stored as floats to that type
    (see `convert.type_at_load`); matrices that are quantised already stay as they are; None is the default of the
    kind of model (`convert.default_weights`). The tokenizer is built when first asked for. Raises ModelError with one
    line that names the file and the fact.
    """
    where = Path(path)
    if weights is None:
        weights = default_weights(where)
    if weights not in WEIGHTS:
        raise ModelError(f"weight type {shown(str(weights))} is not supported; supported: {', '.join(WEIGHTS)}")
    if not where.exists():
        raise ModelError(f"{where}: no such file or folder")
    if where.suffix == ".safetensors":
        raise ModelError(f"{where}: is only weights; give the folder that holds it and config.json")
    return converted(_load_folder(where, name) if where.is_dir() else _load_gguf(where, name), weights)


def _load_gguf(path: Path, name: str | None) -> Checkpoint:
    file = GGUFModel(path)
    source = str(file.path)
    general = Keys(source, file.metadata, "general.")
    if (kind := general.text("type", "model")) != "model":
        general.fail("type", f"is '{kind:.40}'; only whole models are supported")
    architecture = general.text("architecture")
    family = of_architecture(architecture, source)
    keys = Keys(source, file.metadata, f"{architecture}.")
    spec = family.from_gguf(keys, file.tensors)
    tokens = file.metadata.count("tokenizer.ggml.tokens")
    if tokens is not None and tokens != spec.vocab:
        raise ModelError(f"{source}: has {tokens} tokens, but the vocabulary of the model is {spec.vocab}")
    ids = Keys(source, file.metadata, "tokenizer.ggml.")
    spec = _with_special_tokens(
        spec, ids, "bos_token_id", [ids.integer(key, low=0, high=1 << 32) for key in GGUF_END_KEYS if key in ids]
    )
    matrices, vectors = assemble(file, spec, family.gguf_names, interleaved=family.gguf_interleaved, norm_offset=0.0)

    def make_tokenizer() -> Tokenizer:
        from vivace.model.tokenizer import Tokenizer

        with naming(source):
            return Tokenizer.from_gguf(file.metadata)

    return Checkpoint(
        name=name or file.name,
        path=source,
        fingerprint=fingerprint(
            [part.bytes[: part.data_start].data for part in file.parts],
            [part.path for part in file.parts],
            file.tensors.values(),
        ),
        spec=spec,
        matrices=matrices,
        vectors=vectors,
        make_tokenizer=make_tokenizer,
        file_bytes=sum(len(part.bytes) for part in file.parts),
    )


def _load_folder(path: Path, name: str | None) -> Checkpoint:
    folder = Folder(path)
    config = folder.config
    family = of_model_type(config.text("model_type"), config.source)
    spec = family.from_config(config, folder.tensors)
    if spec.tied_head and _has_own_head(folder, family.folder_names):
        spec = dataclasses.replace(spec, tied_head=False)
    ends = [
        token for keys in (folder.generation, config) for token in keys.integers("eos_token_id", low=0, high=1 << 32)
    ]
    spec = _with_special_tokens(spec, config, "bos_token_id", ends)
    matrices, vectors = assemble(
        folder,
        spec,
        family.folder_names,
        interleaved=family.folder_interleaved,
        norm_offset=family.folder_norm_offset,
    )

    def make_tokenizer() -> Tokenizer:
        from vivace.model.tokenizer import Tokenizer

        with naming(str(path)):
            return Tokenizer.from_folder(path)

    files = [file.path for file in folder.files]
    return Checkpoint(
        name=name or _folder_name(path),
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


def _has_own_head(folder: Folder, names: Mapping[str, str]) -> bool:
    """Whether a head lies in the files that is not the embedding, whatever config.json says."""
    head, embed = (folder.tensors.get(tensor_name(names, ours)) for ours in ("head", "embed"))
    if head is None or embed is None:
        return False
    return (head.type, head.shape) != (embed.type, embed.shape) or not np.array_equal(head.data, embed.data)


def _folder_name(path: Path) -> str:
    """The folder's own name; the repository's for models--USER--REPO/snapshots/REVISION in the hub's cache."""
    path = path.resolve()
    if path.parent.name == "snapshots" and path.parents[1].name.startswith("models--"):
        return path.parents[1].name.rpartition("--")[2]
    return path.name


def _with_special_tokens(spec: ModelSpec, keys: Keys, bos_key: str, ends: Iterable[int]) -> ModelSpec:
    """`spec` with its first and its ending tokens, in the order in which the file names them."""
    bos = keys.integer(bos_key, low=0, high=1 << 32) if bos_key in keys else None
    eos = tuple(dict.fromkeys(ends))
    for token in (*eos, *(() if bos is None else (bos,))):
        if token >= spec.vocab:
            raise ModelError(f"{keys.source}: special token {token} is outside the vocabulary of {spec.vocab}")
    return dataclasses.replace(spec, bos_id=bos, eos_ids=eos)
