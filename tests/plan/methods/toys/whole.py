"""Needs the cache whole; does nothing."""

from __future__ import annotations

from vivace.plan.card import Card, method
from vivace.plan.knobs import knob


@method(
    Card(
        title="Needs all rows",
        fills=("kv_budget",),
        exactness="exact",
        neutral={},
        use_when="never",
        needs=frozenset({"kv.append_only", "kv.uniform"}),
        degraded={"kv.uniform": "it counts rows of the common list only"},
    )
)
class Whole:
    share: float = knob(low=0, high=1, doc="of the rows")
