from __future__ import annotations

import numpy as np
import pytest

from vivace.measure.kl import kl, mean_kl


def test_known_value():
    p, q = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.25, 0.5])
    logits_p, logits_q = (np.log(x)[None].astype(np.float32) + 7 for x in (p, q))
    assert mean_kl(logits_p, logits_q) == pytest.approx(0.25 * np.log(2), rel=1e-6)


def test_rows_and_shift():
    logits = np.random.default_rng(0).normal(size=(5, 40)).astype(np.float32) * 10
    assert kl(logits, logits + 3).max() < 1e-10
    assert kl(logits, logits[::-1]).shape == (5,)
    assert kl(logits, logits[::-1])[0] > 0.1


def test_large_logits_do_not_overflow():
    assert mean_kl(np.array([[3000.0, 0.0]], np.float32), np.array([[3000.0, 0.0]], np.float32)) == 0


def test_unlike_shapes_and_nan_are_errors():
    with pytest.raises(ValueError, match="unlike shapes"):
        mean_kl(np.zeros((1, 3), np.float32), np.zeros((2, 3), np.float32))
    with pytest.raises(ValueError, match="1 rows have logits that are not finite"):
        mean_kl(np.zeros((2, 3), np.float32), np.array([[0, 0, np.nan], [0, 0, 0]], np.float32))
