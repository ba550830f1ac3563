"""Whether the parts of a plan fit together, and fit a model. The only place that looks at combinations."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING

from vivace.plan.facts import FACTS
from vivace.plan.plan import Plan, Use
from vivace.plan.report import Reason, Report, Verdict
from vivace.plan.slots import SLOTS

if TYPE_CHECKING:
    from vivace.model.spec import ModelSpec

# What a tap shows is there only where this fact holds.
TAP_FACTS = {"attention_mass": "attn.masses", "attention_sum": "attn.masses", "log_sum_exp": "attn.full"}
EXACTNESS = ("exact", "same_distribution", "approximate")


def check(plan: Plan, spec: ModelSpec | None = None) -> Report:
    """The verdict on a plan, for a model if one is given. Nothing is loaded or run."""
    reasons = tuple(dict.fromkeys(_reasons(plan, spec)))
    verdicts = {reason.verdict for reason in reasons}
    verdict: Verdict = "refused" if "refused" in verdicts else "degraded" if "degraded" in verdicts else "ok"
    exactness = max((use.method.card.exactness for use in plan.uses), key=EXACTNESS.index, default="exact")
    slowest = max(plan.uses, key=lambda use: use.method.card.tier, default=None)
    tier, why = "T0", "the whole step is one native call"
    if slowest is not None and slowest.method.card.tier > tier:
        tier, why = slowest.method.card.tier, f"{slowest.name}: {slowest.method.card.tier_reason}"
    return Report(plan.text, plan.key, verdict, exactness, tier, why, reasons)


def _reasons(plan: Plan, spec: ModelSpec | None) -> Iterator[Reason]:
    yield from _filled(plan)
    for use in plan.uses:
        yield from _scoped(use)
        if spec is not None and use.scope.role == "target":
            yield from _fits_model(use, spec)
    for one, other in combinations(plan.uses, 2):
        if one.scope.role == other.scope.role:
            yield from _clash(one, other)
            yield from _clash(other, one)


def _filled(plan: Plan) -> Iterator[Reason]:
    """Each slot is filled by as many as it takes, and with those that it cannot do without."""
    for one, other in combinations(plan.uses, 2):
        for slot in sorted(set(one.method.card.fills) & set(other.method.card.fills)):
            rule = SLOTS[slot]
            if one.scope.meets(other.scope) and (rule.exclusive or not rule.many):
                why = f"{one.name} and {other.name} both fill {slot} ({rule.what})"
                remedy = f"leave one of {one.name} and {other.name} out"
                if "layers" in rule.scopes:
                    remedy += ", or give them layers that do not overlap, as in `@ layers=0..3` and `@ layers=4..`"
                yield Reason("refused", one.name, "", other.name, why, remedy)
    for use in plan.uses:
        roles = {slot for other in plan.uses if other.scope.role == use.scope.role for slot in other.method.card.fills}
        for slot in use.method.card.fills:
            needed = SLOTS[slot].requires
            if needed and not roles & set(needed):
                fillers = " or ".join(needed)
                yield Reason(
                    "refused", use.name, "", "", f"{use.name} fills {slot}, which means nothing without a {fillers}",
                    f"add a method that fills {fillers}: see `vivace methods list`",
                )  # fmt: skip


def _scoped(use: Use) -> Iterator[Reason]:
    """A scope that none of its slots can keep to would be ignored, so it is refused."""
    for key in ("layers", "heads", "phase"):
        if getattr(use.scope, key) is not None and not any(key in SLOTS[s].scopes for s in use.method.card.fills):
            yield Reason(
                "refused", use.name, "", "", f"{use.name} cannot be confined to some {key}",
                f"leave {key} out of its scope",
            )  # fmt: skip


def _fits_model(use: Use, spec: ModelSpec) -> Iterator[Reason]:
    lacking = _model_lacks(spec)
    for fact in sorted(use.method.card.needs & lacking.keys()):
        if fact in use.method.card.degraded:
            why = f"{use.name}: {use.method.card.degraded[fact]} ({lacking[fact]})"
            yield Reason("degraded", use.name, fact, "the model", why, "")
        else:
            why = f"{use.name} needs that {FACTS[fact]}, and {lacking[fact]}"
            yield Reason("refused", use.name, fact, "the model", why, f"leave {use.name} out, or take another model")
    refuses = getattr(use.method, "refuses", None)
    if refuses is not None and (found := refuses(spec)) is not None:
        why, remedy = found
        yield Reason("refused", use.name, "", "the model", f"{use.name}: {why}", remedy)


def _model_lacks(spec: ModelSpec) -> dict[str, str]:
    """Facts that do not hold for the model, each with what is so instead."""
    lacking = {}
    if any(block.attention.window is not None for block in spec.blocks):
        lacking["arch.full_window"] = "layers of this model see only a window of the last tokens"
    return lacking


def _clash(one: Use, other: Use) -> Iterator[Reason]:
    """What `one` needs and `other` breaks."""
    card, breaker = one.method.card, other.method.card
    needs = card.needs | {TAP_FACTS[tap] for tap in card.taps if tap in TAP_FACTS}
    for fact in sorted((needs & breaker.breaks) - card.gives):
        if fact in card.degraded:
            why = f"{one.name} with {other.name}: {card.degraded[fact]}"
            yield Reason("degraded", one.name, fact, other.name, why, f"leave out {other.name} to avoid it")
            continue
        why = f"{one.name} needs that {FACTS[fact]}, and {other.name} breaks that"
        yield Reason("refused", one.name, fact, other.name, why, f"leave out {one.name} or {other.name}")
