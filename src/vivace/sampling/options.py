"""From named arguments, as a user gives them, to checked `Sampling` values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite
from operator import index
from typing import Any

from vivace.core.request import Sampling, Span

Check = Callable[[Any], Any]


@dataclass(frozen=True)
class PromptOptions:
    """What one prompt asks for."""

    sampling: Sampling
    samples: int = 1
    add_special_tokens: bool = True
    spans: tuple[Span, ...] = ()


def _integer(low: int | None = None) -> Check:
    def check(value: Any) -> int:
        if isinstance(value, bool):
            raise ValueError("an integer")
        try:
            number = index(value)
        except TypeError:
            raise ValueError("an integer") from None
        if low is not None and number < low:
            raise ValueError(f"an integer of at least {low}")
        return number

    return check


def _number(accepts: Callable[[float], bool], wanted: str) -> Check:
    def check(value: Any) -> float:
        try:
            number = float(value) if not isinstance(value, (bool, str)) else float("nan")
        except (TypeError, ValueError):
            raise ValueError(wanted) from None
        if not isfinite(number) or not accepts(number):
            raise ValueError(wanted)
        return number

    return check


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("True or False")
    return value


def _or_none(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _texts(value: Any) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else value or ()
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) and text for text in texts):
        raise ValueError("text, or a list of texts, none of them empty")
    return tuple(texts)


def _ids(value: Any) -> tuple[int, ...]:
    try:
        return tuple(_integer(0)(item) for item in value or ())
    except (TypeError, ValueError):
        raise ValueError("a list of token ids") from None


def _spans(value: Any) -> tuple[Span, ...]:
    spans = tuple(value or ()) if isinstance(value, (list, tuple)) or value is None else (value,)
    if not all(isinstance(span, Span) for span in spans):
        raise ValueError("a list of Span")
    return spans


_CHECKS: dict[str, Check] = {
    "max_tokens": _integer(0),
    "min_tokens": _integer(0),
    "temperature": _number(lambda x: x >= 0, "a finite number of at least 0"),
    "top_p": _number(lambda x: 0 < x <= 1, "a number above 0 and at most 1"),
    "top_k": _integer(0),
    "min_p": _number(lambda x: 0 <= x <= 1, "a number from 0 to 1"),
    "repetition_penalty": _number(lambda x: 0.01 <= x <= 100, "a number from 0.01 to 100"),
    "stop": _texts,
    "stop_token_ids": _ids,
    "include_stop": _switch,
    "ignore_eos": _switch,
    "seed": _integer(),
    "logprobs": _or_none(_integer(0)),
    "prompt_logprobs": _or_none(_integer(0)),
    "skip_special_tokens": _switch,
    "n": _integer(1),
    "add_special_tokens": _switch,
    "spans": _spans,
}
OPTIONS = tuple(_CHECKS)
_LISTS = ("stop", "stop_token_ids", "spans")


def options_for(prompts: int, arguments: Mapping[str, Any]) -> list[PromptOptions]:
    """The options of each prompt. A list gives one value per prompt, otherwise all have the same.

    `stop`, `stop_token_ids` and `spans` are lists themselves: one per prompt is a list of lists.
    Raises TypeError for a name that is not an option, ValueError for a value that is not allowed.
    """
    reject_unknown(arguments, OPTIONS)
    columns = {name: _column(name, value, prompts) for name, value in arguments.items()}
    return [_options({name: column[i] for name, column in columns.items()}) for i in range(prompts)]


def reject_unknown(names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, 1, 0.5)
            hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(known)}"
            raise TypeError(f"unknown argument '{name}': {hint}")


def _column(name: str, value: Any, prompts: int) -> list[Any]:
    if not _is_column(name, value):
        return [value] * prompts
    if len(value) != prompts:
        raise ValueError(f"{name} has {len(value)} values for {prompts} prompts: give one value, or one per prompt")
    return list(value)


def _is_column(name: str, value: Any) -> bool:
    if not isinstance(value, list):
        return False
    if name in _LISTS:
        return any(isinstance(item, (list, tuple)) or item is None for item in value)
    return True


def _options(values: dict[str, Any]) -> PromptOptions:
    checked = {name: _checked(name, value) for name, value in values.items()}
    samples, special, spans = checked.pop("n", 1), checked.pop("add_special_tokens", True), checked.pop("spans", ())
    sampling = Sampling(**checked)
    if sampling.min_tokens > sampling.max_tokens:
        raise ValueError(f"min_tokens {sampling.min_tokens} is more than max_tokens {sampling.max_tokens}")
    return PromptOptions(sampling, samples, special, spans)


def _checked(name: str, value: Any) -> Any:
    try:
        return _CHECKS[name](value)
    except (TypeError, ValueError) as wanted:
        raise ValueError(f"{name} must be {wanted}, not {value!r}") from None
