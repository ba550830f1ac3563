"""vivace: LLM inference on CPUs, exact to the bit. `vivace.load(model)` is the way in."""

from __future__ import annotations

TYPE_CHECKING = False  # importing `typing` would be most of the time that this file takes
if TYPE_CHECKING:
    from typing import Any

    from vivace.api import LLM, RequestFailed
    from vivace.core.request import Completion, Piece, Sampling
    from vivace.loading import load
    from vivace.plan.plan import Plan

__version__ = "0.1.0"
__all__ = ["LLM", "Completion", "Piece", "Plan", "RequestFailed", "Sampling", "load"]

_HOMES = {
    "load": "vivace.loading",
    "LLM": "vivace.api",
    "Plan": "vivace.plan.plan",
    "RequestFailed": "vivace.api",
    "Sampling": "vivace.core.request",
    "Completion": "vivace.core.request",
    "Piece": "vivace.core.request",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vivace' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
