"""From the tensors of a file to the weights of a model: every matrix and vector found, shaped as the spec says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from vivace.model.errors import ModelError, shown
from vivace.model.family import tensor_name
from vivace.model.load.dequantise import dequantise
from vivace.model.load.tensors import BLOCKS, Tensor, TensorFile, row_bytes
from vivace.model.rope import FACTOR_TENSORS
from vivace.model.spec import AttentionSpec, ModelSpec
from vivace.model.weights import StoredMatrix

Vectors = dict[str, NDArray[np.float32]]

# Constants that some exporters store although they follow from the hyper-parameters, and what the spec has already.
_DERIVED = re.compile(r".*\.rotary_emb\.inv_freq|.*\.attn\.masked_bias")


def assemble(
    file: TensorFile, spec: ModelSpec, names: Mapping[str, str], *, interleaved: bool, norm_offset: float
) -> tuple[dict[str, StoredMatrix], Vectors]:
    """The weights of `spec` by its own names, out of `file`, whose names for them are `names`.

    `interleaved`: the rows of q and k are stored for pairs (x[2i], x[2i + 1]); they are given back half-split, which
    is known for whole heads only.
    `norm_offset` is added to norm weights. A tensor that the model has no place for is an error: its
    arithmetic would be missing.
    """
    if interleaved:
        _check_whole_heads(file, spec)
    left = dict(file.tensors)

    def take(name: str, *shape: int) -> Tensor:
        tensor = left.pop(name, None)
        if tensor is None:
            raise ModelError(f"{file.path}: tensor {shown(name)} is missing")
        if tensor.shape != shape:
            raise ModelError(f"{file.path}: tensor {shown(name)} has shape {list(tensor.shape)}, not {list(shape)}")
        if tensor.type not in BLOCKS:
            supported = ", ".join(BLOCKS)
            raise ModelError(
                f"{file.path}: type {tensor.type} of tensor {shown(name)} is not supported; supported: {supported}"
            )
        return tensor

    matrices: dict[str, StoredMatrix] = {}
    for source, parts in _by_tensor(names, ((name, (rows, cols)) for name, rows, cols in spec.matrices())).items():
        rows, cols = sum(shape[0] for _, shape in parts), parts[0][1][1]
        tensor = take(source, rows, cols)
        data = tensor.data.reshape(rows, row_bytes(tensor.type, cols))
        first = 0
        for name, (rows, _) in parts:
            order = _half_split_rows(spec, name) if interleaved else None
            matrices[name] = StoredMatrix(tensor.type, rows, cols, data[first : first + rows], order)
            first += rows

    vectors: Vectors = {}
    for source, parts in _by_tensor(names, ((name, (length,)) for name, length in spec.vectors())).items():
        tensor = take(source, sum(shape[0] for _, shape in parts))
        values = dequantise(tensor.type, tensor.data, tensor.size)
        if not np.isfinite(values).all():
            raise ModelError(f"{file.path}: tensor {shown(source)} has values that are not finite")
        first = 0
        for name, (length,) in parts:
            part = values[first : first + length]
            first += length
            if interleaved and name.endswith(".bias"):
                order = _half_split_rows(spec, name.removesuffix(".bias"))
                part = part if order is None else part[order]
            vectors[name] = part + np.float32(norm_offset) if name.endswith("norm") else part

    if spec.tied_head:
        left.pop(tensor_name(names, "head"), None)
    for name in left:
        if not _DERIVED.fullmatch(name) and name not in FACTOR_TENSORS:
            raise ModelError(f"{file.path}: tensor {shown(name)} has no place in a {spec.family} model as known here")
    return matrices, vectors


def _by_tensor(
    names: Mapping[str, str], ours: Iterable[tuple[str, tuple[int, ...]]]
) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    """The file's tensors, each with the (name, shape) of what lies in it one after another."""
    found: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for name, shape in ours:
        found.setdefault(tensor_name(names, name), []).append((name, shape))
    return found


def _check_whole_heads(file: TensorFile, spec: ModelSpec) -> None:
    for attention in (block.attention for block in spec.blocks):
        rope, size = attention.rope, attention.head_dim
        if rope is not None and rope.dim != size:
            raise ModelError(
                f"{file.path}: turns {rope.dim} values of each head; of {spec.family}, only whole heads of {size} are "
                "supported"
            )


def half_split_rows(heads: int, head_dim: int) -> NDArray[np.int64]:
    """For each row h * D + p * D / 2 + i of a half-split matrix, its row h * D + 2 * i + p in interleaved order."""
    rows = np.arange(heads * head_dim, dtype=np.int64).reshape(heads, head_dim // 2, 2)
    return np.ascontiguousarray(rows.transpose(0, 2, 1)).reshape(-1)


def _half_split_rows(spec: ModelSpec, name: str) -> NDArray[np.int64] | None:
    if not name.endswith((".q", ".k")):
        return None
    attention: AttentionSpec = spec.blocks[int(name.split(".")[1])].attention
    return half_split_rows(attention.heads if name.endswith(".q") else attention.kv_heads, attention.head_dim)
