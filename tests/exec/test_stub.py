"""The stub that types the extension module says what the module has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import vivace

native = pytest.importorskip("vivace._native", reason="the native core is not built")

STUB = ast.parse((Path(vivace.__file__).parent / "_native.pyi").read_text())
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}
FUNCTIONS = {node.name: node for node in STUB.body if isinstance(node, ast.FunctionDef)}


def parameters(function: ast.FunctionDef) -> list[str]:
    """Names, or a mark where callers cannot name the parameter."""
    arguments = function.args
    unnamed = [argument.arg for argument in arguments.posonlyargs if argument.arg != "self"]
    return ["/"] * len(unnamed) + [argument.arg for argument in arguments.args if argument.arg != "self"]


def bound_parameters(function: object) -> list[str]:
    ((signature, *_),) = function.__nb_signature__  # type: ignore[attr-defined]
    names = re.findall(r"(\w+): ", signature)
    return ["/"] * len(names) if ", /)" in signature else names


def public(names: object) -> set[str]:
    return {name for name in names if not name.startswith("_")}  # type: ignore[attr-defined]


def test_names_of_the_module() -> None:
    assert public(vars(native)) == CLASSES.keys() | FUNCTIONS.keys()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_parameters_of_functions(name: str) -> None:
    assert parameters(FUNCTIONS[name]) == bound_parameters(getattr(native, name))


@pytest.mark.parametrize("name", CLASSES)
def test_members_of_classes(name: str) -> None:
    bound, fields, methods = getattr(native, name), set(), {}
    for node in CLASSES[name].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            fields.add(node.target.id)
        elif isinstance(node, ast.FunctionDef):
            if node.decorator_list:
                fields.add(node.name)
            else:
                methods[node.name] = node
    assert fields == {key for key, member in vars(bound).items() if isinstance(member, property)}
    assert methods.keys() - {"__init__"} == public(vars(bound)) - fields
    for method, node in methods.items():
        assert parameters(node) == bound_parameters(getattr(bound, method)), method
