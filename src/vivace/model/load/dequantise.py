"""Stored blocks back to float32, in numpy: the reference for every kernel, and for what is small."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from vivace.model.load.tensors import BLOCKS, row_bytes

Bytes = NDArray[np.uint8]
Float32 = NDArray[np.float32]


def dequantise(kind: str, rows: Bytes, cols: int) -> Float32:
    """Stored rows, uint8 [..., bytes of a row], as float32 [..., cols]."""
    if kind not in BLOCKS:
        raise ValueError(f"type {kind} is not supported; supported: {', '.join(BLOCKS)}")
    if rows.shape[-1] != row_bytes(kind, cols):
        raise ValueError(f"a {kind} row of {cols} values has {row_bytes(kind, cols)} bytes, not {rows.shape[-1]}")
    blocks = np.ascontiguousarray(rows).reshape(-1, BLOCKS[kind][1])
    return _DECODERS[kind](blocks).reshape(*rows.shape[:-1], cols)


def _half(blocks: Bytes, at: int) -> Float32:
    """The half float at byte `at` of each block, [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(codes: Bytes) -> Bytes:
    """[blocks, n] bytes to [blocks, 2n] values of four bits: all low halves, then all high halves."""
    return np.concatenate([codes & 15, codes >> 4], axis=1)


def _f32(blocks: Bytes) -> Float32:
    return blocks.view("<f4").astype(np.float32)


def _f16(blocks: Bytes) -> Float32:
    return blocks.view("<f2").astype(np.float32)


def _bf16(blocks: Bytes) -> Float32:
    wide: NDArray[np.uint32] = np.left_shift(blocks.view("<u2"), 16, dtype=np.uint32)
    return wide.view(np.float32)


def _q4_1(blocks: Bytes) -> Float32:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Float32:
    fifth = np.unpackbits(blocks[:, 2:6], axis=1, bitorder="little") << 4
    values: Float32 = (_nibbles(blocks[:, 6:]) | fifth).astype(np.float32) - np.float32(16)
    return _half(blocks, 0) * values


def _q8_0(blocks: Bytes) -> Float32:
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q4_k(blocks: Bytes) -> Float32:
    """Eight groups of 32; group scales and minima of six bits share twelve bytes."""
    packed = blocks[:, 4:16]
    low, high, top = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scale = np.concatenate([low & 63, (top & 15) | (low >> 6 << 4)], axis=1)
    minimum = np.concatenate([high & 63, (top >> 4) | (high >> 6 << 4)], axis=1)
    codes = blocks[:, 16:].reshape(-1, 4, 1, 32) >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1) & 15
    factor = (_half(blocks, 0) * scale.astype(np.float32))[:, :, None]
    offset = (_half(blocks, 2) * minimum.astype(np.float32))[:, :, None]
    return factor * codes.reshape(-1, 8, 32).astype(np.float32) - offset


def _q6_k(blocks: Bytes) -> Float32:
    """Sixteen groups of 16; four low bits in 128 bytes, two high bits in 64, signed group scales in 16."""
    low = blocks[:, :128].reshape(-1, 2, 1, 64) >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1) & 15
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3
    codes = (low.reshape(-1, 16, 16) | high.reshape(-1, 16, 16) << 4).astype(np.int8) - 32
    factor = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return factor[:, :, None] * codes.astype(np.float32)


_DECODERS: dict[str, Callable[[Bytes], Float32]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q6_K": _q6_k,
}
