"""Float rows to stored blocks, in numpy: each type as its format defines it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from vivace.model.load.tensors import BLOCKS, row_bytes

Bytes = NDArray[np.uint8]
Float32 = NDArray[np.float32]

_HALF_MAX = float(np.finfo(np.float16).max)


def quantise(kind: str, values: Float32) -> Bytes:
    """float32 [rows, cols] to stored rows of `kind`, uint8 [rows, bytes of a row].

    The rounding of each type is the one its format defines. Raises ValueError for values that are not finite or
    beyond what the type holds, and for cols that its block does not divide.
    """
    rows, cols = values.shape
    size = row_bytes(kind, cols)
    blocks = np.ascontiguousarray(values).reshape(-1, BLOCKS[kind][0])
    if not np.isfinite(blocks.sum(dtype=np.float64)) or not np.isfinite(blocks).all():
        raise ValueError("has values that are not finite")
    return _ENCODERS[kind](blocks).reshape(rows, size)


def _bytes_of(halves: Float32) -> Bytes:
    """[blocks, 1] as half floats."""
    if not (np.abs(halves) <= _HALF_MAX).all():
        raise ValueError("has values too large for its scales of half precision")
    return halves.astype("<f2").view(np.uint8)


def _inverse(d: Float32) -> Float32:
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(d == 0, np.float32(0), np.float32(1) / d)


def _nibbles(codes: Bytes) -> Bytes:
    """[blocks, 32] values of four bits as [blocks, 16]: value i in the low, value i + 16 in the high half of byte i."""
    half = codes.shape[1] // 2
    return codes[:, :half] | codes[:, half:] << np.uint8(4)


def _signed_codes(blocks: Float32, bits: int) -> tuple[Float32, Bytes]:
    """d of each block and codes 0 .. 2^bits - 1 that stand for (code - 2^(bits - 1)) * d.

    The value of the largest magnitude gets code 0.
    """
    zero = np.float32(1 << bits - 1)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)
    d = largest / -zero
    codes = np.clip(blocks * _inverse(d) + (zero + np.float32(0.5)), 0, (1 << bits) - 1)
    return d, codes.astype(np.uint8)


def _offset_codes(blocks: Float32, bits: int) -> tuple[Float32, Float32, Bytes]:
    """d, the minimum of each block, and codes 0 .. 2^bits - 1 that stand for minimum + code * d."""
    low, high = blocks.min(axis=1, keepdims=True), blocks.max(axis=1, keepdims=True)
    d = (high - low) / np.float32((1 << bits) - 1)
    codes = np.clip((blocks - low) * _inverse(d) + np.float32(0.5), 0, (1 << bits) - 1)
    return d, low, codes.astype(np.uint8)


def _fifth_bits(codes: Bytes) -> Bytes:
    return np.packbits(codes >> 4, axis=1, bitorder="little")


def _q4_0(blocks: Float32) -> Bytes:
    d, codes = _signed_codes(blocks, 4)
    return np.concatenate([_bytes_of(d), _nibbles(codes)], axis=1)


def _q4_1(blocks: Float32) -> Bytes:
    d, low, codes = _offset_codes(blocks, 4)
    return np.concatenate([_bytes_of(d), _bytes_of(low), _nibbles(codes)], axis=1)


def _q5_0(blocks: Float32) -> Bytes:
    d, codes = _signed_codes(blocks, 5)
    return np.concatenate([_bytes_of(d), _fifth_bits(codes), _nibbles(codes & np.uint8(15))], axis=1)


def _q5_1(blocks: Float32) -> Bytes:
    d, low, codes = _offset_codes(blocks, 5)
    return np.concatenate([_bytes_of(d), _bytes_of(low), _fifth_bits(codes), _nibbles(codes & np.uint8(15))], axis=1)


def _q8_0(blocks: Float32) -> Bytes:
    """Codes are rounded half away from zero, with the unrounded d."""
    d = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    scaled = blocks * _inverse(d)
    # Half of the way to the next code is added before the fraction is cut off; 0.5 less one bit would round up.
    whole = np.trunc(scaled)
    codes = whole + np.trunc(np.float32(2) * (scaled - whole))
    return np.concatenate([_bytes_of(d), codes.astype(np.int8).view(np.uint8)], axis=1)


def _f16(blocks: Float32) -> Bytes:
    if not (np.abs(blocks) <= _HALF_MAX).all():
        raise ValueError("has values that half floats cannot hold")
    return blocks.astype("<f2").view(np.uint8)


def _bf16(blocks: Float32) -> Bytes:
    """Rounded to nearest, ties to even."""
    bits = blocks.view(np.uint32)
    rounded = bits + (np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return rounded.astype("<u2").view(np.uint8)


_ENCODERS: Mapping[str, Callable[[Float32], Bytes]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "F16": _f16,
    "BF16": _bf16,
}
TARGETS = tuple(_ENCODERS)
