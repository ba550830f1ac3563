"""Plan text: `name(knob=value, ...) @ scope`, joined by ` + `.

A value is a number, true, false, none, text (in quotes, or bare when it has none of `,()[]+@` and no space), or a list
of these in brackets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vivace.plan.errors import PlanError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORDS = {"true": True, "false": False, "none": None}
_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"")
_PLAIN = re.compile(r"[^\s,()\[\]+@'\"]+")


@dataclass(frozen=True)
class Term:
    """One part as it is written."""

    name: str
    knobs: Mapping[str, Any] = field(default_factory=dict)
    scope: str = ""


def parse(text: str) -> list[Term]:
    """The parts of a plan in their order. Raises PlanError, which shows where."""
    reader, terms = _Reader(text), list[Term]()
    if reader.ended():
        return terms
    while True:
        terms.append(reader.term())
        if reader.ended():
            return terms
        reader.expect("+", "parts of a plan are joined by +")


def write(value: Any) -> str:
    """A value as `parse` reads it."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(write, value)) + "]"
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and isinstance(_value(value), str)
        return value if plain else "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    word = next((word for word, meant in _WORDS.items() if value is meant), None)
    return repr(value).replace("e+", "e") if word is None else word


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def term(self) -> Term:
        name = self._match(_NAME, "a method's name")
        knobs: dict[str, Any] = {}
        if self._take("("):
            while not self._take(")"):
                if knobs:
                    self.expect(",", "knobs are separated by commas")
                knob = self._match(_NAME, f"a knob, as in {name}(knob=value)")
                self.expect("=", f"knobs are given by name, as in {name}({knob}=value)")
                if knob in knobs:
                    raise self._error(f"{knob} is given twice")
                knobs[knob] = self._value()
        return Term(name, knobs, self._scope() if self._take("@") else "")

    def _value(self) -> Any:
        if self._take("["):
            values: list[Any] = []
            while not self._take("]"):
                if values:
                    self.expect(",", "items of a list are separated by commas")
                values.append(self._value())
            return values
        self._skip()
        if quoted := _QUOTED.match(self.text, self.at):
            self.at = quoted.end()
            return re.sub(r"\\(.)", r"\1", quoted[1] if quoted[1] is not None else quoted[2])
        return _value(self._match(_PLAIN, "a value"))

    def _scope(self) -> str:
        end = self.text.find("+", self.at)
        end = len(self.text) if end < 0 else end
        scope, self.at = self.text[self.at : end].strip(), end
        if not scope:
            raise self._error("a scope is missing after @, as in `@ layers=4..`")
        return scope

    def ended(self) -> bool:
        self._skip()
        return self.at == len(self.text)

    def expect(self, sign: str, rule: str) -> None:
        if not self._take(sign):
            raise self._error(rule)

    def _take(self, sign: str) -> bool:
        self._skip()
        if not self.text.startswith(sign, self.at):
            return False
        self.at += len(sign)
        return True

    def _match(self, pattern: re.Pattern[str], what: str) -> str:
        self._skip()
        found = pattern.match(self.text, self.at)
        if found is None:
            raise self._error(f"expected {what}")
        self.at = found.end()
        return found[0]

    def _skip(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def _error(self, what: str) -> PlanError:
        rest = self.text[self.at : self.at + 20]
        where = f"at {rest!r}" if rest else "at its end"
        return PlanError(f"plan {self.text.strip()!r}: {where}: {what}")


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
