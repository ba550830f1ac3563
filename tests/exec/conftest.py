"""Makes the helpers of the model tests importable here, and keeps torch on one thread."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "model"), str(TESTS / "core"), str(TESTS)]


@pytest.fixture(autouse=True)
def torch_threads():
    """Where another process has a core, torch's threads wait for each other most of the time (seven times slower)."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
