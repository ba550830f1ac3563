"""Blocks to floats and back, bit for bit as the `gguf` package does it."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from vivace.model.load.dequantise import dequantise
from vivace.model.load.quantise import ConvertedMatrix, quantise
from vivace.model.load.tensors import BLOCKS, row_bytes
from vivace.model.weights import StoredMatrix

RNG = np.random.default_rng(0)


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


def test_quantised_bits() -> None:
    values = (RNG.standard_normal((300, 320)) * np.exp(RNG.uniform(-12, 6, (300, 1)))).astype(np.float32)
    values[3], values[4, :32] = 0, 0
    values[5] = np.round(RNG.uniform(-127, 127, 320) * 2) / 2  # ties
    values[5, ::32] = 127
    values[6] = 1e-9  # below what a half float holds
    np.testing.assert_array_equal(quantise("Q8_0", values), quants.quantize(values, GGMLQuantizationType.Q8_0))


def test_quantising_follows_the_order_of_rows() -> None:
    values = RNG.standard_normal((64, 32 * 1024)).astype(np.float32)  # more than one chunk
    order = RNG.permutation(64)
    matrix = StoredMatrix("F32", 64, values.shape[1], values.view(np.uint8), order)
    converted = ConvertedMatrix("Q8_0", matrix, "w")
    assert converted.row_order is None
    np.testing.assert_array_equal(converted.data, quantise("Q8_0", values[order]))
    np.testing.assert_array_equal(converted.dequantise(7, 9), dequantise("Q8_0", converted.data[7:9], 32 * 1024))
    assert converted.nbytes == converted.data.nbytes and converted.source is matrix.data


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e7])
def test_values_that_q8_0_cannot_hold(bad: float) -> None:
    values = np.zeros((2, 32), np.float32)
    values[1, 5] = bad
    with pytest.raises(ValueError, match="not finite|too large"):
        quantise("Q8_0", values)
