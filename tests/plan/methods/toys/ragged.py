"""Makes lists ragged, or rather does nothing."""

from __future__ import annotations

from vivace.plan.card import Card, method


@method(
    Card(
        title="Ragged rows",
        fills=("kv_scorer",),
        exactness="approximate",
        neutral={},
        use_when="never",
        breaks=frozenset({"kv.uniform"}),
    )
)
class Ragged:
    pass
