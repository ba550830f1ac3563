"""Adds a number to the logit of one token."""

from __future__ import annotations

from vivace.plan.card import Card, method
from vivace.plan.knobs import knob
from vivace.slots.logits import Candidates, Context


@method(
    Card(
        title="Prefer one token",
        fills=("logit_stage",),
        exactness="approximate",
        neutral={"by": 0.0},
        use_when="never",
        needs=frozenset({"logits.original"}),
        breaks=frozenset({"logits.original"}),
    )
)
class Loud:
    keeps_argmax = False

    token: int = knob(0, 0, doc="the token")
    by: float = knob(5.0, -100, 100, doc="added to its logit")
    mode: str = knob("add", choices=("add", "set"), doc="what is done")
    names: tuple[str, ...] = knob((), doc="unused")

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        candidates.logits[candidates.ids == self.token] += self.by
        return candidates
