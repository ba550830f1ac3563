"""Evicts rows, or rather does nothing."""

from __future__ import annotations

from vivace.plan.card import Card, method


@method(
    Card(
        title="Drops rows",
        fills=("kv_scorer",),
        exactness="approximate",
        neutral={},
        use_when="never",
        breaks=frozenset({"kv.append_only"}),
    )
)
class Drops:
    pass
