"""One file per family of models, found by its path. A file defines FAMILY; there is no list to edit."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from functools import cache
from importlib import import_module

from vivace.model.errors import ModelError
from vivace.model.family import Family


@cache
def families() -> tuple[Family, ...]:
    """Every family of this folder, by file name."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return tuple(import_module(f"{__name__}.{name}").FAMILY for name in names)


def of_architecture(architecture: str, source: str) -> Family:
    """The family of a GGUF file's general.architecture."""
    for family in families():
        if architecture in family.architectures:
            return family
    raise _unknown(source, f"architecture '{architecture:.60}'", (a for f in families() for a in f.architectures))


def of_model_type(model_type: str, source: str) -> Family:
    """The family of a folder's model_type."""
    for family in families():
        if model_type in family.model_types:
            return family
    raise _unknown(source, f"model_type '{model_type:.60}'", (t for f in families() for t in f.model_types))


def _unknown(source: str, what: str, known: Iterator[str]) -> ModelError:
    return ModelError(f"{source}: {what} is not supported; supported: {', '.join(sorted(known))}")
