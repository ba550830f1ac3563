"""From named arguments, as a user gives them, to checked `Sampling` values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from operator import index
from typing import Any

from vivace.core.names import hint
from vivace.core.request import MAX_SAMPLES, STAGES, Sampling, Span

Check = Callable[[Any], Any]


@dataclass(frozen=True)
class PromptOptions:
    """What one prompt asks for."""

    sampling: Sampling
    samples: int = 1
    add_special_tokens: bool = True
    spans: tuple[Span, ...] = ()


def _integer(low: int | None = None, high: int | None = None) -> Check:
    def check(value: Any) -> int:
        if isinstance(value, bool):
            raise ValueError("an integer")
        try:
            number = index(value)
        except TypeError:
            raise ValueError("an integer") from None
        if low is not None and number < low:
            raise ValueError(f"an integer of at least {low}")
        if high is not None and number > high:
            raise ValueError(f"an integer of at most {high}")
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
    texts = (value,) if isinstance(value, str) else () if value is None else value
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) and text for text in texts):
        raise ValueError("text, or a list of texts, none of them empty")
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("text without lone surrogates") from None
    return tuple(texts)


def _banned_texts(value: Any) -> tuple[str, ...]:
    texts = _texts(value)
    if any("\ufffd" in text for text in texts):
        raise ValueError("text without U+FFFD, which stands for bytes that are no character")
    return texts


def _some(check: Check) -> Check:
    """At least one value, or None for no rule: an empty list would allow nothing."""

    def some(value: Any) -> Any:
        values = check(value)
        if value is not None and not values:
            raise ValueError("None or not empty")
        return values

    return some


def _ids(value: Any) -> tuple[int, ...]:
    try:
        if isinstance(value, (str, bytes, bytearray, Mapping)):
            raise TypeError
        return tuple(_integer(0)(item) for item in (() if value is None else value))
    except (TypeError, ValueError):
        raise ValueError("a list of token ids") from None


def _biases(value: Any) -> tuple[tuple[int, float], ...]:
    wanted = "{token id: number from -1e9 to 1e9}"
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(wanted)
    token, bias = _integer(0), _number(lambda x: abs(x) <= 1e9, wanted)
    try:
        return tuple((token(key), bias(number)) for key, number in (value or {}).items())
    except ValueError:
        raise ValueError(wanted) from None


def _stages(value: Any) -> tuple[str, ...]:
    names = _texts(value) if value is not None else STAGES
    for name in names:
        if name not in STAGES:
            raise ValueError(f"names of stages (there is no {name!r}{hint(name, STAGES)})")
    if len(set(names)) < len(names):
        raise ValueError("names of stages, each once")
    return names


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
    "typical_p": _number(lambda x: 0 < x <= 1, "a number above 0 and at most 1"),
    "top_n_sigma": _number(lambda x: x >= 0, "a finite number of at least 0"),
    "xtc_probability": _number(lambda x: 0 <= x <= 1, "a number from 0 to 1"),
    "xtc_threshold": _number(lambda x: 0 < x <= 1, "a number above 0 and at most 1"),
    "repetition_penalty": _number(lambda x: 0.01 <= x <= 100, "a number from 0.01 to 100"),
    "presence_penalty": _number(lambda x: abs(x) <= 100, "a number from -100 to 100"),
    "frequency_penalty": _number(lambda x: abs(x) <= 100, "a number from -100 to 100"),
    "dry_multiplier": _number(lambda x: x >= 0, "a finite number of at least 0"),
    "dry_base": _number(lambda x: x >= 1, "a finite number of at least 1"),
    "dry_allowed_length": _integer(1),
    "dry_sequence_breakers": _texts,
    "dry_penalty_last_n": _integer(-1),
    "stages": _stages,
    "logit_bias": _biases,
    "allowed_token_ids": _some(_ids),
    "banned_token_ids": _ids,
    "allowed_strings": _some(_texts),
    "banned_strings": _banned_texts,
    "stop": _texts,
    "stop_token_ids": _ids,
    "include_stop": _switch,
    "ignore_eos": _switch,
    "seed": _integer(),
    "logprobs": _or_none(_integer(0)),
    "prompt_logprobs": _or_none(_integer(0)),
    "skip_special_tokens": _switch,
    "n": _integer(1, MAX_SAMPLES),
    "add_special_tokens": _switch,
    "spans": _spans,
}
OPTIONS = tuple(_CHECKS)
_LISTS = (
    "dry_sequence_breakers",
    "stages",
    "allowed_token_ids",
    "banned_token_ids",
    "allowed_strings",
    "banned_strings",
    "stop",
    "stop_token_ids",
    "spans",
)


def options_for(prompts: int, arguments: Mapping[str, Any]) -> list[PromptOptions]:
    """The options of each prompt. A list gives one value per prompt, otherwise all have the same.

    Strings, token ids, `stages` and `spans` are lists themselves: one per prompt is a list of lists.
    Raises TypeError for a name that is not an option, ValueError for a value that is not allowed.
    """
    for name in arguments:
        if name not in OPTIONS:
            raise TypeError(f"unknown argument {name!r}{hint(name, OPTIONS)}")
    columns = {name: _column(name, value, prompts) for name, value in arguments.items()}
    return [_options({name: column[i] for name, column in columns.items()}) for i in range(prompts)]


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
    for name in sorted(sampling.wanted_stages.difference(sampling.stages)):
        raise ValueError(f"stages leaves out '{name}', which the request asks for")
    if sampling.allowed_strings:
        for name in ("stop", "min_tokens", "banned_strings"):
            if getattr(sampling, name):
                raise ValueError(f"allowed_strings say how the completion ends: leave out {name}")
    return PromptOptions(sampling, samples, special, spans)


def _checked(name: str, value: Any) -> Any:
    try:
        return _CHECKS[name](value)
    except (TypeError, ValueError) as wanted:
        raise ValueError(f"{name} must be {wanted}, not {value!r}") from None
