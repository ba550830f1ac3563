"""Where a part of a plan applies: layers, heads, phase, and which model of the pool."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from vivace.core.names import hint
from vivace.plan.errors import PlanError

Ranges = tuple[tuple[int, int | None], ...]  # first and last, both included; last None: to the end
PHASES = ("prefill", "decode")
KEYS = ("layers", "heads", "phase", "role")
_NEXT_KEY = re.compile(r"[,\s]\s*(?=[A-Za-z_]+\s*=)")
_RANGE = re.compile(r"(\d+)(?:\s*(\.\.)\s*(\d+)?)?")


@dataclass(frozen=True)
class Scope:
    """None means everywhere. `role`: the model of the pool whose part it is."""

    layers: Ranges | None = None
    heads: Ranges | None = None
    phase: Literal["prefill", "decode"] | None = None
    role: str = "target"

    @staticmethod
    def parse(text: str) -> Scope:
        """`layers=4.., heads=0,3, phase=decode, role=draft`. Raises PlanError."""
        found: dict[str, str] = {}
        for part in filter(None, (part.strip(" ,") for part in _NEXT_KEY.split(text.strip()))):
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if key not in KEYS:
                raise PlanError(f"scope {part!r}: a scope is {', '.join(f'{k}=...' for k in KEYS)}{hint(key, KEYS)}")
            if not equals or not value or key in found:
                raise PlanError(f"scope {text.strip()!r}: give {key} once, as {key}=VALUE")
            found[key] = value
        if not found:
            raise PlanError("a scope is missing after @: for instance `@ layers=4..`")
        phase = found.get("phase")
        if phase is not None and phase not in PHASES:
            raise PlanError(f"scope phase={phase}: a phase is prefill or decode")
        return Scope(
            _ranges("layers", found.get("layers")),
            _ranges("heads", found.get("heads")),
            phase,  # type: ignore[arg-type]
            found.get("role", "target"),
        )

    @property
    def text(self) -> str:
        """As `parse` reads it; "" for everywhere in the target."""
        parts = [f"{key}={_text(ranges)}" for key in ("layers", "heads") if (ranges := getattr(self, key)) is not None]
        parts += [f"phase={self.phase}"] if self.phase else []
        parts += [f"role={self.role}"] if self.role != "target" else []
        return ", ".join(parts)

    def layers_of(self, count: int) -> list[int]:
        """Those of a model's `count` layers that are in the scope."""
        return _members(self.layers, count)

    def heads_of(self, count: int) -> list[int]:
        return _members(self.heads, count)

    def meets(self, other: Scope) -> bool:
        """Whether something lies in both."""
        return (
            self.role == other.role
            and (self.phase is None or other.phase is None or self.phase == other.phase)
            and _overlap(self.layers, other.layers)
            and _overlap(self.heads, other.heads)
        )


EVERYWHERE = Scope()


def _ranges(key: str, text: str | None) -> Ranges | None:
    if text is None:
        return None
    ranges = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise PlanError(f"scope {key}={text}: give numbers and ranges from 0 on, as in {key}=0,3 or {key}=4..")
        first, dots, last = match.groups()
        bounds = int(first), (int(last) if last else None) if dots else int(first)
        if bounds[1] is not None and bounds[1] < bounds[0]:
            raise PlanError(f"scope {key}={part}: the range is empty; write the smaller number first")
        ranges.append(bounds)
    return tuple(sorted(ranges, key=lambda r: r[0]))


def _text(ranges: Ranges) -> str:
    return ",".join(str(a) if a == b else f"{a}..{'' if b is None else b}" for a, b in ranges)


def _members(ranges: Ranges | None, count: int) -> list[int]:
    if ranges is None:
        return list(range(count))
    return [i for i in range(count) if any(a <= i and (b is None or i <= b) for a, b in ranges)]


def _overlap(one: Ranges | None, other: Ranges | None) -> bool:
    if one is None or other is None:
        return True
    top = max(a for a, _ in (*one, *other)) + 1
    return bool({*_members(one, top + 1)} & {*_members(other, top + 1)})
