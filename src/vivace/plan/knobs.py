"""The knobs of a method: typed fields with a range and a line of help, checked when a method is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from math import isnan
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

Number = int | float


class KnobError(ValueError):
    """A knob that a method does not have, or a value that is not allowed; the message says what is."""


@dataclass(frozen=True)
class Knob:
    """One knob. `low` and `high` are included; None: no bound. `choices`: the only values allowed, if any."""

    name: str
    types: tuple[type, ...]
    default: Any
    low: Number | None
    high: Number | None
    choices: tuple[Any, ...]
    doc: str

    @property
    def required(self) -> bool:
        return self.default is MISSING

    @property
    def type_name(self) -> str:
        return " or ".join("none" if t is NoneType else t.__name__ for t in self.types)

    @property
    def allowed(self) -> str:
        if self.choices:
            return "one of " + ", ".join(map(str, self.choices))
        low = "" if self.low is None else f" from {self.low}"
        high = "" if self.high is None else f"{' from any' if self.low is None else ''} to {self.high}"
        return f"{self.type_name}{low}{high}"

    def checked(self, value: Any) -> Any:
        """The value in the knob's type. Raises KnobError when it is not allowed."""
        if type(value) is int and float in self.types and int not in self.types:
            value = float(value)
        if type(value) not in self.types or (self.choices and value not in self.choices):
            raise KnobError(f"{self.name} must be {self.allowed}, not {value!r}")
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            below, above = self.low is not None and value < self.low, self.high is not None and value > self.high
            if below or above or isnan(value):
                raise KnobError(f"{self.name} must be {self.allowed}, not {value!r}")
        return value


def knob(
    default: Any = MISSING,
    low: Number | None = None,
    high: Number | None = None,
    *,
    choices: tuple[Any, ...] = (),
    doc: str = "",
) -> Any:
    """A field of a method's class. Without a default the plan has to give a value."""
    metadata = {"low": low, "high": high, "choices": choices, "doc": doc}
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


def knobs_of(cls: type) -> dict[str, Knob]:
    """The knobs of a method's class by name, in the order in which they are declared."""
    hints = get_type_hints(cls)
    return {
        f.name: Knob(
            f.name,
            _types(hints[f.name]),
            f.default,
            f.metadata.get("low"),
            f.metadata.get("high"),
            f.metadata.get("choices", ()),
            f.metadata.get("doc", ""),
        )
        for f in fields(cls)
        if f.init
    }


def check_knobs(instance: Any) -> None:
    """Raises KnobError for the first value that is not allowed; puts whole numbers of real-valued knobs into float."""
    for name, one in knobs_of(type(instance)).items():
        object.__setattr__(instance, name, one.checked(getattr(instance, name)))


def values_of(instance: Any) -> Mapping[str, Any]:
    return {name: getattr(instance, name) for name in knobs_of(type(instance))}


def _types(hint: Any) -> tuple[type, ...]:
    if get_origin(hint) in (Union, UnionType):
        return tuple(t for part in get_args(hint) for t in _types(part))
    return (get_origin(hint) or hint,)
