"""What the native core reads in place."""

from __future__ import annotations

import numpy as np
import pytest

from vivace.exec.rope import rope_table
from vivace.model.spec import RopeSpec

packed = pytest.importorskip("vivace.exec.packed", reason="the native core is not built")


def test_rotation_tables_take_memory_for_the_positions_in_use_only() -> None:
    table = packed.RopeTable(RopeSpec(theta=1e4, dim=128), 2**31 - 1)  # what a file may claim: a terabyte
    assert table.cos.shape == table.sin.shape == (2**31 - 1, 64)
    table.cover(1500)
    cos, sin = rope_table(table.rope, np.arange(1501))
    assert np.array_equal(table.cos[:1501], cos) and np.array_equal(table.sin[:1501], sin)
