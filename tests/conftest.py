"""What tests of several folders share: where the real models are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

MODELS = Path(os.environ.get("VIVACE_MODELS") or Path.home() / ".cache" / "vivace" / "models")


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test looks anything up


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The file of the default model; skips when it is not here."""
    path = MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.exists():
        pytest.skip(f"{path.name} is not in {MODELS}: vivace models pull smollm2-135m")
    return path
