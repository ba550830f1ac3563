"""Ops and their implementations, found by their path: a folder with an `OP`, a file in it for each backend."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from types import ModuleType

import vivace.ops
from vivace.core.names import hint
from vivace.ops.spec import Op, Prepare

ISAS = ("portable", "neon", "avx2", "avxvnni", "avx512")  # the fastest last, as in the native core


@cache
def names() -> tuple[str, ...]:
    """The names of all ops."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(vivace.ops.__path__) if module.ispkg))


def find(name: str) -> Op:
    """The op of that name; raises ValueError with the nearest match."""
    if name not in names():
        raise ValueError(f"unknown op {name!r}{hint(name, names())}")
    op = importlib.import_module(f"vivace.ops.{name}").OP
    assert isinstance(op, Op)
    return op


def cpu(name: str) -> Prepare:
    """The native implementation of an op."""
    prepare: Prepare = importlib.import_module(f"vivace.ops.{name}.cpu").prepare
    return prepare


def native() -> ModuleType:
    """The extension module; raises ValueError that says how to get it."""
    try:
        return importlib.import_module("vivace._native")
    except ImportError as error:
        raise ValueError(f"the native core cannot be loaded ({error}); build it with `make build`") from None


def missing(isa: str) -> str | None:
    """Why this instruction set cannot be used here, or None."""
    if isa not in ISAS:
        raise ValueError(f"unknown instruction set {isa!r}{hint(isa, ISAS)}")
    available = native().isas()
    return None if isa in available else f"this processor or build has no {isa}; it has {', '.join(available)}"
