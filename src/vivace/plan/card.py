"""What a method says of itself. By its card it is checked, described and tested; its name and family are its path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from vivace.plan.facts import FACTS
from vivace.plan.knobs import check_knobs
from vivace.plan.slots import SLOTS

Exactness = Literal["exact", "same_distribution", "approximate"]
T = TypeVar("T")


@dataclass(frozen=True)
class Claim:
    """What the paper reports: the figure in words, and the setting it was measured in."""

    text: str
    setting: str


@dataclass(frozen=True)
class Artifact:
    """What a method needs beside the model, and what happens without it."""

    name: str
    what: str
    without: str


@dataclass(frozen=True)
class Card:
    """`needs`, `breaks` and `gives` are words of `vivace.plan.facts`, `fills` names of `vivace.plan.slots`.

    exactness: "exact" greedy tokens, and sampled ones of the same seed, are those of the plain model;
    "same_distribution" sampled tokens follow the same distribution, greedy ones are the same; "approximate" neither.
    taps: kinds of taps that it may ask for; a part that asks for others is refused them.
    neutral: knob values with which it changes no token.
    seed: its id among the published methods of this project's list; "" for a baseline.
    tier: how its steps run on the native executor (see `Executor.tier`), and why not better.
    degraded: by fact: what the method loses, but still works, where that fact does not hold.
    """

    title: str
    fills: tuple[str, ...]
    exactness: Exactness
    neutral: Mapping[str, Any]
    use_when: str
    seed: str = ""
    paper: str = ""
    year: int = 0
    needs: frozenset[str] = frozenset()
    breaks: frozenset[str] = frozenset()
    gives: frozenset[str] = frozenset()
    taps: frozenset[str] = frozenset()
    degraded: Mapping[str, str] = field(default_factory=dict)
    tier: Literal["T0", "T1", "T2", "T3"] = "T0"
    tier_reason: str = ""
    artifacts: tuple[Artifact, ...] = ()
    claims: tuple[Claim, ...] = ()
    limits: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        unknown = (self.needs | self.breaks | self.gives | set(self.degraded)) - set(FACTS)
        if unknown:
            raise ValueError(f"{self.title}: no such facts: {', '.join(sorted(unknown))}")
        if not self.fills or set(self.fills) - set(SLOTS):
            raise ValueError(f"{self.title}: fills must be slots, not {self.fills}")


def method(card: Card) -> Callable[[type[T]], type[T]]:
    """Makes a class a method: a frozen dataclass of knobs (checked when it is made) with a card.

    It has `parts(context) -> {slot: filler}`; without that it is itself what fills each of its slots. Its name and
    family are those of its file, `methods/<family>/<name>.py`.
    """

    def made(cls: type[T]) -> type[T]:
        family, name = cls.__module__.split(".")[-2:]
        cls.card, cls.name, cls.family = card, name, family  # type: ignore[attr-defined]
        cls.__post_init__ = check_knobs  # type: ignore[attr-defined]
        return dataclass(frozen=True)(cls)

    return made
