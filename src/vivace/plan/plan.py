"""A plan: methods with their knobs and scopes, in one canonical form."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vivace.core.names import hint
from vivace.plan import grammar
from vivace.plan.errors import PlanError
from vivace.plan.index import find
from vivace.plan.knobs import KnobError, knobs_of, values_of
from vivace.plan.scope import EVERYWHERE, Scope
from vivace.plan.slots import SLOTS


@dataclass(frozen=True)
class Use:
    """A method as a plan uses it: an instance of its class, and where it applies."""

    method: Any
    scope: Scope = EVERYWHERE

    @property
    def name(self) -> str:
        name: str = self.method.name
        return name

    @property
    def text(self) -> str:
        """Only knobs that differ from their defaults are written."""
        knobs, values = knobs_of(type(self.method)), values_of(self.method)
        set_ones = [f"{k}={grammar.write(v)}" for k, v in values.items() if knobs[k].required or v != knobs[k].default]
        scope = f" @ {self.scope.text}" if self.scope.text else ""
        return self.name + (f"({', '.join(set_ones)})" if set_ones else "") + scope


@dataclass(frozen=True)
class Plan:
    """Parts whose order does not matter stand in order of their names, so that equal plans have equal texts."""

    uses: tuple[Use, ...] = ()

    @staticmethod
    def of(*parts: Any) -> Plan:
        """Of methods (instances) and `Use`s."""
        uses = [part if isinstance(part, Use) else Use(part) for part in parts]
        seen = set()
        for use in uses:
            if use.text in seen:
                raise PlanError(f"{use.text} stands in the plan twice: leave one out")
            seen.add(use.text)
        loose = sorted((use for use in uses if not _ordered(use)), key=lambda use: use.text)
        return Plan((*loose, *(use for use in uses if _ordered(use))))

    @staticmethod
    def parse(text: str) -> Plan:
        """A plan's text, or the path of a YAML file that ends in .yaml or .yml. Raises PlanError."""
        if text.strip().endswith((".yaml", ".yml")):
            return Plan.from_yaml(Path(text.strip()))
        return Plan.of(*(make(term.name, term.knobs, term.scope) for term in grammar.parse(text)))

    @staticmethod
    def from_yaml(path: Path) -> Plan:
        """`methods:` and a list of names, or of mappings with `name`, knobs, and perhaps `scope`."""
        import yaml

        try:
            data = yaml.safe_load(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise PlanError(f"the plan {path} cannot be read: {error}") from None
        except yaml.YAMLError as error:
            raise PlanError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
        listed = data.get("methods") if isinstance(data, dict) else None
        if not isinstance(listed, list):
            raise PlanError(f"{path} has no list `methods:` of names or of mappings with `name` and knobs")
        return Plan.of(*(_from_entry(entry, path) for entry in listed))

    @property
    def text(self) -> str:
        return " + ".join(use.text for use in self.uses)

    @property
    def key(self) -> str:
        """The same for equal plans only; "" for the empty one."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16] if self.uses else ""

    def __str__(self) -> str:
        return self.text

    def __bool__(self) -> bool:
        return bool(self.uses)


def make(name: str, knobs: Mapping[str, Any], scope: str = "") -> Use:
    """A method by its name. Raises PlanError for knobs that it does not have, or not with such a value."""
    cls = find(name)
    known = knobs_of(cls)
    for knob in knobs:
        if knob not in known:
            has = f"{hint(knob, known)}" if known else "; it has none"
            raise PlanError(f"{name} has no knob {knob!r}{has}")
    missing = [knob.name for knob in known.values() if knob.required and knob.name not in knobs]
    if missing:
        raise PlanError(f"{name} needs {', '.join(missing)}, as in {name}({missing[0]}=...): {known[missing[0]].doc}")
    try:
        method = cls(**{knob: tuple(v) if isinstance(v, list) else v for knob, v in knobs.items()})
    except KnobError as error:
        raise PlanError(f"{name}: {error}") from None
    return Use(method, Scope.parse(scope) if scope else EVERYWHERE)


def _from_entry(entry: Any, path: Path) -> Use:
    if isinstance(entry, str):
        return make(entry, {})
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise PlanError(f"{path}: an entry is a name, or a mapping with `name`, not {entry!r:.60}")
    knobs: dict[str, Any] = {str(key): value for key, value in entry.items() if key not in ("name", "scope")}
    return make(entry["name"], knobs, str(entry.get("scope", "")))


def _ordered(use: Use) -> bool:
    return any(SLOTS[slot].ordered for slot in use.method.card.fills)


def as_plan(plan: Plan | str | Iterable[Any] | None) -> Plan:
    """What a user may give for a plan."""
    if plan is None:
        return Plan()
    if isinstance(plan, Plan):
        return plan
    if isinstance(plan, str):
        return Plan.parse(plan)
    raise PlanError(f"plan must be text or a Plan, not {plan!r:.60}")
