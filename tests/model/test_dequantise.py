"""Blocks to floats and back, bit for bit as the `gguf` package does it."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from vivace.model.load.dequantise import dequantise
from vivace.model.load.gguf import TYPE_NAMES
from vivace.model.load.tensors import BLOCKS, row_bytes

RNG = np.random.default_rng(0)


def test_types_are_those_of_the_format() -> None:
    for kind in GGMLQuantizationType:
        assert TYPE_NAMES[kind.value] == kind.name
    for kind, sizes in BLOCKS.items():
        assert GGML_QUANT_SIZES[GGMLQuantizationType[kind]] == sizes


def bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, np.float32).view(np.uint32)


@pytest.mark.parametrize("kind", BLOCKS)
def test_every_bit_of_any_block(kind: str) -> None:
    cols = 512
    rows = RNG.integers(0, 256, (200, row_bytes(kind, cols)), dtype=np.uint8)
    given = rows.view({"F32": np.float32, "F16": np.float16}.get(kind, np.uint8))
    with np.errstate(all="ignore"):  # infinities and NaNs are among the random half floats
        wanted = quants.dequantize(given, GGMLQuantizationType[kind]).astype(np.float32)
        found = dequantise(kind, rows, cols)
        assert found.shape == (200, cols) and found.dtype == np.float32
        same = bits(found) == bits(wanted)
        assert (same | (np.isnan(found) & np.isnan(wanted))).all()
        np.testing.assert_array_equal(bits(dequantise(kind, rows[::3], cols)), bits(found[::3]))
        np.testing.assert_array_equal(bits(dequantise(kind, rows[7], cols)), bits(found[7]))


def test_sizes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="supported: F32"):
        dequantise("IQ2_XXS", np.zeros((1, 66), np.uint8), 256)
    with pytest.raises(ValueError, match="has 34 bytes, not 33"):
        dequantise("Q8_0", np.zeros((1, 33), np.uint8), 32)
    with pytest.raises(ValueError, match="blocks of 256 do not divide"):
        dequantise("Q4_K", np.zeros((1, 144), np.uint8), 128)
