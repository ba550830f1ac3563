"""Running a chat template, a Jinja2 program that comes with a model file and is trusted with nothing.

Beyond Jinja's sandbox there are limits on loop turns, time, and the size of every string, list and number made.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache, wraps
from threading import local
from typing import Any, NoReturn

from jinja2 import nodes, pass_eval_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.filters import do_indent, do_join, do_replace
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_TEMPLATE = 1 << 20  # characters
MAX_SIZE = 1 << 24  # characters of one string, or entries of one list
MAX_MADE = 1 << 28  # characters and entries made in one run
MAX_TURNS = 200_000  # of all loops and macros together
MAX_SECONDS = 5.0
_MAX_INTEGER = 1 << 64

_REMOVED_FILTERS = ("batch", "center", "slice", "wordwrap")  # they can make much of nothing
_REMOVED_METHODS = frozenset(("center", "expandtabs", "ljust", "rjust", "translate", "zfill"))
_WIDE_FIELD = re.compile(r"\d{4,}|\*|[{].*[{]")  # a width of over 999, or one that is computed


class ChatError(ValueError):
    """A conversation cannot be put into the model's form. One line."""


class _Used(local):
    """What the current run of this thread has used."""

    turns = 0
    made = 0
    deadline = 0.0


_used = _Used()


class _TemplateRaised(TemplateError):
    """What `raise_exception` in a template raises."""


class _Generation(Extension):
    """{% generation %} … {% endgeneration %} marks what a model is trained on; it stays as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Meter(NodeTransformer):
    """Counts the turns of loops and macros, and lets `~` and slices be measured."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _call("turn"))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _call("turn"))
        return node

    visit_CallBlock = visit_Macro

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return nodes.Call(nodes.EnvironmentAttribute("concatenate"), node.nodes, [], None, None)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = [bound or nodes.Const(None) for bound in (node.arg.start, node.arg.stop, node.arg.step)]
        return nodes.Call(nodes.EnvironmentAttribute("cut"), [node.node, *bounds], [], None, None)


def _call(method: str) -> nodes.Output:
    return nodes.Output([nodes.Call(nodes.EnvironmentAttribute(method), [], [], None, None)])


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("+", "-", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
            finalize=_measure,
        )
        for name in _REMOVED_FILTERS:
            del self.filters[name]
        del self.globals["lipsum"]
        self.filters |= {"tojson": _to_json, "replace": _replace, "join": _join, "indent": _indent, "format": _format}
        self.filters = {name: _measured(function) for name, function in self.filters.items()}
        self.globals |= {"raise_exception": _raise, "strftime_now": _strftime_now}

    def turn(self) -> str:
        _used.turns += 1
        if _used.turns > MAX_TURNS:
            raise SecurityError(f"it takes more than {MAX_TURNS} turns")
        if _used.turns % 256 == 0 and time.monotonic() > _used.deadline:
            raise SecurityError(f"it takes more than {MAX_SECONDS:g} seconds")
        return ""

    def concatenate(self, *values: object) -> str:
        texts = [str(value) for value in values]
        _limit(sum(map(len, texts)))
        return "".join(texts)

    def cut(self, value: Any, start: int | None, stop: int | None, step: int | None) -> Any:
        return value[start:stop:step]

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if isinstance(getattr(value, "__self__", None), str) and value.__name__ in ("format", "format_map"):
            _check_format(value.__self__)
        return super().wrap_str_format(value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(side) if isinstance(side, str | list | tuple) else None for side in (left, right)]
        if operator == "%" and isinstance(left, str):
            _check_format(left)
        elif operator == "**":
            raise SecurityError("powers are not supported")
        elif operator == "+" and None not in sizes:
            _limit(sum(size for size in sizes if size is not None))
        elif operator == "*" and sizes != [None, None]:
            _limit((right if sizes[1] is None else sizes[1]) * (left if sizes[0] is None else sizes[0]))
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, int) and abs(result) > _MAX_INTEGER:
            raise SecurityError("it computes with huge numbers")
        return result

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str | bytes | int) and attr in _REMOVED_METHODS | {"to_bytes"}:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """`replace` and `join` of strings are measured before they run, and all results are."""
        text = getattr(__obj, "__self__", None)
        if isinstance(text, str):
            name = __obj.__name__
            if name == "replace" and len(args) >= 2:
                _check_replace(text, *args[:2])
            elif name == "join" and args:
                args = (list(args[0]),)
                _check_join(args[0], text)
        return _measure(super().call(__context, __obj, *args, **kwargs))


def _start() -> None:
    _used.turns = _used.made = 0
    _used.deadline = time.monotonic() + MAX_SECONDS


def _limit(size: int) -> None:
    """Account for something of this size that is about to be made."""
    _used.made += size
    if size > MAX_SIZE or _used.made > MAX_MADE:
        raise SecurityError("it makes too much text")


def _measure(value: Any) -> Any:
    if isinstance(value, str | list | tuple):
        _limit(len(value))
    return value


def _measured(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with its results accounted for."""

    @wraps(function)
    def measured(*args: Any, **kwargs: Any) -> Any:
        return _measure(function(*args, **kwargs))

    return measured


def _check_format(form: str) -> None:
    if _WIDE_FIELD.search(form):
        raise SecurityError("it formats with a wide or computed width")


def _check_replace(text: str, old: object, new: object) -> None:
    _limit(len(text) + text.count(str(old)) * len(str(new)))


def _check_join(parts: list[object], between: str) -> None:
    _limit(sum(len(part) for part in parts if isinstance(part, str)) + len(parts) * len(between))


@pass_eval_context
def _replace(eval_ctx: nodes.EvalContext, text: object, old: str, new: str, count: int | None = None) -> str:
    _check_replace(str(text), old, new)
    return do_replace(eval_ctx, str(text), old, new, count)


@pass_eval_context
def _join(eval_ctx: nodes.EvalContext, value: Any, d: str = "", attribute: str | int | None = None) -> str:
    parts = list(value)
    _check_join(parts, str(d))
    return do_join(eval_ctx, parts, d, attribute)


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    wide = width if isinstance(width, int) else len(width)
    _limit(len(text) + (text.count("\n") + 1) * wide)
    return do_indent(text, width, first, blank)


def _format(form: str, *args: object) -> str:
    _check_format(str(form))
    return str(form) % args


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if indent is not None and (len(indent) if isinstance(indent, str) else indent) > 64:
        raise SecurityError("it indents too far")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(form: str) -> str:
    _check_format(form)
    return datetime.now().strftime(form)


def _raise(message: object) -> NoReturn:
    raise _TemplateRaised(str(message))


@lru_cache(1)
def _environment() -> _Environment:
    return _Environment()


@lru_cache(16)
def _compiled(source: str) -> Callable[[Mapping[str, object]], str]:
    environment = _environment()
    _start()  # constants are computed while compiling
    tree = _Meter().visit(environment.parse(source))
    code = environment.compile(tree)
    template = environment.template_class.from_code(environment, code, environment.make_globals(None))

    def run(values: Mapping[str, object]) -> str:
        _start()
        return template.render(values)

    return run


def render_template(source: str, values: Mapping[str, object]) -> str:
    """What the template writes for `values`. Raises ChatError for whatever goes wrong in it."""
    if len(source) > MAX_TEMPLATE:
        raise ChatError(f"the chat template has {len(source)} characters; at most {MAX_TEMPLATE} are allowed")
    try:
        return _compiled(source)(values)
    except _TemplateRaised as error:
        raise ChatError(f"the chat template refuses this conversation: {error}") from None
    except Exception as error:  # a template can provoke anything
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ChatError(f"the chat template fails: {reason:.300}") from None
