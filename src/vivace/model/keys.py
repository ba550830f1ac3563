"""Checked access to the hyper-parameters of a model file: nothing is used before its type and range are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NoReturn, TypeVar, cast

from vivace.model.errors import ModelError, shown

T = TypeVar("T")

MAX_POSITIONS = 1 << 31  # of a context or a window


class Keys:
    """The keys of one file under `prefix`; a key whose value is null counts as absent.

    Every getter returns `default` when the key is absent, and raises ModelError when it is absent without a
    default, of another type, or out of range.
    """

    def __init__(self, source: str, values: Mapping[str, object], prefix: str = "") -> None:
        self.source, self.prefix, self._values = source, prefix, values

    def fail(self, key: str, fact: str) -> NoReturn:
        raise ModelError(f"{self.source}: {shown(self.prefix + key)} {fact}")

    def __contains__(self, key: str) -> bool:
        return self._values.get(self.prefix + key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def under(self, start: str) -> list[str]:
        """What follows prefix and `start` in the keys that begin with both."""
        whole = self.prefix + start
        return [key.removeprefix(whole) for key in self._values if key.startswith(whole)]

    def is_null(self, key: str) -> bool:
        """Whether the key is there with the value null, which every getter takes for absent."""
        return self.prefix + key in self._values and key not in self

    def integer(self, key: str, default: int | None = None, *, low: int = 1, high: int = 1 << 24) -> int:
        return self._integer(key, self._get(key, default), low, high)

    def number(self, key: str, default: float | None = None, *, low: float = 0.0, high: float = 1e30) -> float:
        """A number with low < number < high."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(key, f"is {value!r:.60}, not a number")
        if not low < value < high:  # false for NaN; a bound is never beyond the largest float
            self.fail(key, f"is {str(value)[:24]}, not between {low:g} and {high:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            self.fail(key, f"is {value!r:.60}, neither true nor false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            self.fail(key, f"is {value!r:.60}, not a string")
        return value

    def integers(self, key: str, *, low: int, high: int) -> list[int]:
        """A list of integers or a single one; empty when absent."""
        if key not in self:
            return []
        values = self.items(key) if self.is_list(key) else [self._get(key, 0)]
        return [self._integer(key, value, low, high) for value in values]

    def is_list(self, key: str) -> bool:
        return isinstance(self._values.get(self.prefix + key), list)

    def items(self, key: str) -> list[object]:
        """A list; empty when absent."""
        value = self._get(key, [])
        if not isinstance(value, list):
            self.fail(key, f"is {value!r:.60}, not a list")
        return value

    def section(self, key: str) -> Keys:
        """The object under `key`; an absent one is empty."""
        value = self._get(key, {})
        if not isinstance(value, dict):
            self.fail(key, f"is {value!r:.60}, not an object")
        return Keys(self.source, cast("Mapping[str, object]", value))

    def _get(self, key: str, default: T | None) -> object | T:
        value = self._values.get(self.prefix + key)
        if value is None:
            if default is None:
                self.fail(key, "is missing")
            return default
        return value

    def _integer(self, key: str, value: object, low: int, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(key, f"is {value!r:.60}, not an integer")
        if not low <= value <= high:
            self.fail(key, f"is {str(value)[:24]}, not between {low} and {high}")
        return value
