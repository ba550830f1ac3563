"""What binding says of a plan."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["ok", "degraded", "refused"]


@dataclass(frozen=True)
class Reason:
    """`method` and `other` do not go together because of `fact` (a word of `vivace.plan.facts`, or "")."""

    verdict: Verdict
    method: str
    fact: str
    other: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.why}: {self.remedy}" if self.remedy else self.why


@dataclass(frozen=True)
class Report:
    """`memory`: bytes, as far as they can be told. `tier`: the lowest of the parts'."""

    plan: str
    key: str
    verdict: Verdict
    exactness: str
    tier: str
    tier_reason: str
    reasons: tuple[Reason, ...] = ()
    memory: dict[str, int] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        reasons = [dataclasses.asdict(reason) for reason in self.reasons]
        return {
            "plan": self.plan,
            "plan_key": self.key,
            "verdict": self.verdict,
            "exactness": self.exactness,
            "tier": self.tier,
            "tier_reason": self.tier_reason,
            "reasons": reasons,
            "memory": self.memory,
        }
