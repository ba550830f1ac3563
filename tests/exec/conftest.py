"""Makes the helpers of the model tests importable here, and keeps torch on one thread for tiny models."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "model"))


@pytest.fixture(autouse=True)
def torch_threads(request):
    """On a shared machine, threads that wait for each other cost more than tiny products."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(before if request.node.get_closest_marker("models") else 1)
    yield
    torch.set_num_threads(before)
