"""Methods of the tests' own, found like those of the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from vivace import methods
from vivace.plan import index


@pytest.fixture(autouse=True)
def toy_methods(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(Path(__file__).parent / "methods")])
    index.families.cache_clear()
    index.find.cache_clear()
    yield
    index.families.cache_clear()
    index.find.cache_clear()
