"""Which methods there are: found by their path, imported only when they are asked for."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from vivace import methods
from vivace.core.names import hint
from vivace.plan.errors import PlanError


@cache
def families() -> dict[str, str]:
    """The family of each method, by its name: `methods/<family>/<name>.py`, or a folder of that name."""
    found = {}
    for folder in sorted(path for root in methods.__path__ for path in Path(root).iterdir() if path.is_dir()):
        for path in sorted(folder.iterdir()):
            is_method = path.suffix == ".py" or (path / "__init__.py").is_file()
            if is_method and not path.name.startswith("_"):
                found[path.stem] = folder.name
    return found


@cache
def find(name: str) -> Any:
    """The class of the method of this name. Raises PlanError with the nearest name when there is none."""
    family = families().get(name)
    if family is None:
        known = families()
        raise PlanError(f"plan: there is no method {name!r}{hint(name, known)}; see `vivace methods list`")
    module = import_module(f"vivace.methods.{family}.{name}")
    for value in vars(module).values():
        if isinstance(value, type) and value.__module__ == module.__name__ and "card" in vars(value):
            return value
    raise PlanError(f"methods/{family}/{name}.py has no class with a card: decorate it with @method(Card(...))")
