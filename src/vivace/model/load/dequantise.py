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


def _f32(blocks: Bytes) -> Float32:
    return blocks.view("<f4").astype(np.float32)


def _f16(blocks: Bytes) -> Float32:
    return blocks.view("<f2").astype(np.float32)


def _bf16(blocks: Bytes) -> Float32:
    wide: NDArray[np.uint32] = np.left_shift(blocks.view("<u2"), 16, dtype=np.uint32)
    return wide.view(np.float32)


def _codes(packed: Bytes, run: int, bits: int) -> Bytes:
    """Runs of `run` bytes to values of `bits` bits: the lowest bits of a whole run, then those above, [blocks, n]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(-1, 1)
    planes = packed.reshape(len(packed), -1, 1, run) >> shifts & np.uint8((1 << bits) - 1)
    return planes.reshape(len(packed), -1)


def _scaled(scale: Float32, values: NDArray[np.integer], minimum: Float32 | None = None) -> Float32:
    """Groups of values [blocks, n] times their scales [blocks, groups], less their minima where there are any."""
    groups = values.reshape(*scale.shape, -1).astype(np.float32) * scale[:, :, None]
    return (groups if minimum is None else groups - minimum[:, :, None]).reshape(values.shape)


def _fifth_bits(words: Bytes) -> Bytes:
    """[blocks, 4] bytes to [blocks, 32] values of 0 or 16."""
    return np.unpackbits(words, axis=1, bitorder="little") * np.uint8(16)


def _q4_0(blocks: Bytes) -> Float32:
    return _half(blocks, 0) * (_codes(blocks[:, 2:], 16, 4).astype(np.float32) - np.float32(8))


def _q4_1(blocks: Bytes) -> Float32:
    return _half(blocks, 0) * _codes(blocks[:, 4:], 16, 4).astype(np.float32) + _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Float32:
    codes = _codes(blocks[:, 6:], 16, 4) | _fifth_bits(blocks[:, 2:6])
    return _half(blocks, 0) * (codes.astype(np.float32) - np.float32(16))


def _q5_1(blocks: Bytes) -> Float32:
    codes = _codes(blocks[:, 8:], 16, 4) | _fifth_bits(blocks[:, 4:8])
    return _half(blocks, 0) * codes.astype(np.float32) + _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Float32:
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q2_k(blocks: Bytes) -> Float32:
    """Sixteen groups of 16; a scale and a minimum of four bits in a byte for each."""
    fields = blocks[:, :16]
    scale = _half(blocks, 80) * (fields & 15).astype(np.float32)
    minimum = _half(blocks, 82) * (fields >> 4).astype(np.float32)
    return _scaled(scale, _codes(blocks[:, 16:80], 32, 2), minimum)


def _q3_k(blocks: Bytes) -> Float32:
    """Sixteen groups of 16; third bits in 32 bytes, low bits in 64, group scales of six bits in twelve."""
    scale = (_codes(blocks[:, 96:104], 8, 4) | _codes(blocks[:, 104:108], 4, 2) << 4).astype(np.int8) - np.int8(32)
    codes = (_codes(blocks[:, 32:96], 32, 2) | _codes(blocks[:, :32], 32, 1) << 2).astype(np.int8) - np.int8(4)
    return _scaled(_half(blocks, 108) * scale.astype(np.float32), codes)


def _scales_and_minima(blocks: Bytes) -> tuple[Float32, Float32]:
    """Those of eight groups, [blocks, 8] each; fields of six bits share twelve bytes."""
    packed = blocks[:, 4:16]
    low, high, top = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scale = np.concatenate([low & 63, (top & 15) | (low >> 6 << 4)], axis=1)
    minimum = np.concatenate([high & 63, (top >> 4) | (high >> 6 << 4)], axis=1)
    return _half(blocks, 0) * scale.astype(np.float32), _half(blocks, 2) * minimum.astype(np.float32)


def _q4_k(blocks: Bytes) -> Float32:
    scale, minimum = _scales_and_minima(blocks)
    return _scaled(scale, _codes(blocks[:, 16:], 32, 4), minimum)


def _q5_k(blocks: Bytes) -> Float32:
    scale, minimum = _scales_and_minima(blocks)
    return _scaled(scale, _codes(blocks[:, 48:], 32, 4) | _codes(blocks[:, 16:48], 32, 1) << 4, minimum)


def _q6_k(blocks: Bytes) -> Float32:
    """Sixteen groups of 16; four low bits in 128 bytes, two high bits in 64, signed group scales in 16."""
    codes = (_codes(blocks[:, :128], 64, 4) | _codes(blocks[:, 128:192], 32, 2) << 4).astype(np.int8) - np.int8(32)
    return _scaled(_half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32), codes)


_NON_LINEAR = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)


def _iq4_nl(blocks: Bytes) -> Float32:
    return _half(blocks, 0) * _NON_LINEAR[_codes(blocks[:, 2:], 16, 4)].astype(np.float32)


def _iq4_xs(blocks: Bytes) -> Float32:
    """Eight groups of 32; group scales of six bits, high bits in two bytes and low bits in four."""
    scale = (_codes(blocks[:, 4:8], 1, 4) | _codes(blocks[:, 2:4], 1, 2) << 4).astype(np.int8) - np.int8(32)
    return _scaled(_half(blocks, 0) * scale.astype(np.float32), _NON_LINEAR[_codes(blocks[:, 8:], 16, 4)])


_DECODERS: dict[str, Callable[[Bytes], Float32]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}
