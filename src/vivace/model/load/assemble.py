"""From the tensors of a file to the weights of a model: every matrix and vector found, shaped as the spec says."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from vivace.model.errors import ModelError, shown
from vivace.model.family import tensor_name
from vivace.model.load.dequantise import dequantise
from vivace.model.load.tensors import BLOCKS, Tensor, TensorFile, row_bytes
from vivace.model.spec import AttentionSpec, ModelSpec
from vivace.model.weights import StoredMatrix

Vectors = dict[str, NDArray[np.float32]]

# Constants that some exporters store although they follow from the hyper-parameters.
_DERIVED = re.compile(r".*\.rotary_emb\.inv_freq|.*\.attn\.masked_bias")


def assemble(
    file: TensorFile, spec: ModelSpec, names: Mapping[str, str], *, interleaved: bool, norm_offset: float
) -> tuple[dict[str, StoredMatrix], Vectors]:
    """The weights of `spec` by its own names, out of `file`, whose names for them are `names`.

    `interleaved`: the rows of q and k are stored for pairs (x[2i], x[2i + 1]); they are given back half-split.
    `norm_offset` is added to norm weights. A tensor that the model has no place for is an error: its
    arithmetic would be missing.
    """
    left = dict(file.tensors)

    def take(ours: str, *shape: int) -> Tensor:
        name = tensor_name(names, ours)
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
    for name, rows, cols in spec.matrices():
        tensor = take(name, rows, cols)
        data = tensor.data.reshape(rows, row_bytes(tensor.type, cols))
        order = _half_split_rows(spec, name) if interleaved else None
        matrices[name] = StoredMatrix(tensor.type, rows, cols, data, order)

    vectors: Vectors = {}
    for name, length in spec.vectors():
        tensor = take(name, length)
        values = dequantise(tensor.type, tensor.data, length)
        if not np.isfinite(values).all():
            raise ModelError(f"{file.path}: tensor {shown(tensor.name)} has values that are not finite")
        order = _half_split_rows(spec, name.removesuffix(".bias")) if interleaved and name.endswith(".bias") else None
        values = values if order is None else values[order]
        vectors[name] = values + np.float32(norm_offset) if name.endswith("norm") else values

    if spec.tied_head:
        left.pop(tensor_name(names, "head"), None)
    for name in left:
        if not _DERIVED.fullmatch(name):
            raise ModelError(f"{file.path}: tensor {shown(name)} has no place in a {spec.family} model as known here")
    return matrices, vectors


def half_split_rows(heads: int, head_dim: int) -> NDArray[np.int64]:
    """For each row h * D + p * D / 2 + i of a half-split matrix, its row h * D + 2 * i + p in interleaved order."""
    rows = np.arange(heads * head_dim, dtype=np.int64).reshape(heads, head_dim // 2, 2)
    return np.ascontiguousarray(rows.transpose(0, 2, 1)).reshape(-1)


def _half_split_rows(spec: ModelSpec, name: str) -> NDArray[np.int64] | None:
    if not name.endswith((".q", ".k")):
        return None
    attention: AttentionSpec = spec.blocks[int(name.split(".")[1])].attention
    return half_split_rows(attention.heads if name.endswith(".q") else attention.kv_heads, attention.head_dim)
