"""Conversations to prompts, such that no message can forge a control token.

The template is run twice: on the messages as they are, and with every user string enclosed in a pair of private-use
characters. If the two agree apart from those, it is known of each character whether the template or a user wrote it,
and only what the template wrote may become a control token. A template that looks into its messages can make the two
differ; it is then run with the first character of each control token in a message replaced.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vivace.core.request import Span
from vivace.model.chat_template import ChatError, render_template
from vivace.model.tokenizer.matcher import Matcher

if TYPE_CHECKING:
    from vivace.model.tokenizer import Tokenizer

__all__ = ["ChatError", "ChatPrompt", "Message", "encode", "render"]

Message = Mapping[str, Any]

_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_FIRST_OPEN, _FIRST_CLOSE, _PAIRS = 0xF0000, 0x100000, 0xFFF0
_MARK = re.compile(f"[{chr(_FIRST_OPEN)}-{chr(_FIRST_CLOSE + _PAIRS)}]")


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation as text and ids; spans label the tokens of each message's content with its role.

    There are no spans where the template's output could not be traced back to the messages.
    """

    text: str
    ids: list[int]
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class _Part:
    """Characters first..end-1 of the text come from a user and belong to `label`."""

    first: int
    end: int
    label: str


def render(
    template: str,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    **variables: object,
) -> str:
    """The text that `template` makes of a conversation. Raises ChatError when it cannot."""
    _check(messages)
    values = variables | {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt}
    return render_template(template, values)


def encode(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    **variables: object,
) -> ChatPrompt:
    """The prompt for a conversation: control tokens of the template, and all user text as plain text.

    variables: what else the template may use. Raises ChatError when there is no template or it fails.
    """
    template = tokenizer.chat_template
    if template is None:
        raise ChatError("the model has no chat template; use --raw to continue plain text")
    _check(messages)
    users = variables | {"messages": messages, "tools": tools}

    def run(mark: Callable[[str, str], str]) -> str:
        """The text for user strings changed by `mark(text, label)`."""
        values = {key: _walk(value, mark, key) for key, value in users.items()}
        values["add_generation_prompt"] = add_generation_prompt
        return render_template(template, dict(tokenizer.named_tokens) | values)

    controls = Matcher(tokenizer.control_texts)
    _check_names(users, controls)
    text = run(lambda string, _: string)
    edges = {text[0] for text in tokenizer.control_texts} | {text[-1] for text in tokenizer.control_texts}
    parts = _trace(text, run, edges)
    if parts is not None:
        starts, ends = [part.first for part in parts], [part.end for part in parts]

        def untouched(start: int, end: int) -> bool:
            return bisect_right(starts, end - 1) == bisect_right(ends, start)

    else:
        disguised = _disguise(text, run, controls, tokenizer.control_texts)

        def untouched(start: int, end: int) -> bool:
            return disguised[start:end] == text[start:end]

    ids: list[int] = []
    borders: list[int] = []  # where each token ends, in bytes of the text
    byte = 0
    for tokens, more in tokenizer.segments(
        text, lambda token, start, end: not tokenizer.is_control(token) or untouched(start, end)
    ):
        byte += more
        for token in tokens:
            byte += len(tokenizer.token_bytes(token))
            borders.append(byte)
        ids += tokens
    return ChatPrompt(text, ids, _spans(tokenizer, text, borders, parts or []))


def _check(messages: Sequence[Message]) -> None:
    if isinstance(messages, str | Mapping) or not messages:
        raise ChatError("a conversation is a list of at least one message")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise ChatError(f"message {index} is {type(message).__name__}, not a mapping with 'role' and 'content'")
        role = message.get("role")
        if not isinstance(role, str) or not _ROLE.fullmatch(role):
            raise ChatError(
                f"the role of message {index} is {role!r:.60}; roles are words such as system, user, assistant"
            )


def _check_names(value: object, controls: Matcher) -> None:
    """Keys are not changed by marks, so they must hold no control token."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if isinstance(key, str) and any(controls.find(key)):
                raise ChatError(f"the key {key!r:.60} contains the text of a control token")
            _check_names(inner, controls)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_names(inner, controls)


def _walk(value: object, mark: Callable[[str, str], str], label: str, content: bool = False) -> object:
    """A copy of `value` with its strings marked; the roles of messages stay as they are."""
    if isinstance(value, str):
        return mark(value, label if content else "")
    if isinstance(value, Mapping):
        role = value.get("role")
        if label == "messages" and isinstance(role, str):
            return {
                key: role if key == "role" else _walk(inner, mark, role, content=key == "content")
                for key, inner in value.items()
            }
        return {key: _walk(inner, mark, label, content and key != "type") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_walk(inner, mark, label, content) for inner in value]
    return value


def _trace(text: str, run: Callable[[Callable[[str, str], str]], str], edges: set[str]) -> list[_Part] | None:
    """Where in `text` the users' strings are, or None if the template does not treat marked strings alike.

    Strings that are no content are words the template may compare, such as "function". They are marked only if a
    control token may begin or end in them. White space around a string stays outside the marks, so it can be trimmed.
    """
    labels: list[str] = []

    def mark(string: str, label: str) -> str:
        core = string.strip()
        if not core or len(labels) >= _PAIRS or (not label and edges.isdisjoint(core)):
            return string
        labels.append(label)
        number = len(labels) - 1
        left, _, right = string.partition(core)
        return f"{left}{chr(_FIRST_OPEN + number)}{core}{chr(_FIRST_CLOSE + number)}{right}"

    try:
        marked = run(mark)
    except ChatError:  # raised at the marks, as the plain text was made
        return None
    if len(labels) >= _PAIRS or _MARK.sub("", marked) != text:
        return None
    parts: list[_Part] = []
    opened: int | None = None
    first = 0
    for count, found in enumerate(_MARK.finditer(marked)):
        code, position = ord(found.group()), found.start() - count
        if opened is None and code < _FIRST_CLOSE:
            opened, first = code - _FIRST_OPEN, position
        elif opened is not None and code == _FIRST_CLOSE + opened:
            if position > first:
                parts.append(_Part(first, position, labels[opened]))
            opened = None
        else:
            return None
    return parts if opened is None else None


def _disguise(
    text: str, run: Callable[[Callable[[str, str], str]], str], controls: Matcher, control_texts: Mapping[str, int]
) -> str:
    """`text` with another character where a control token of a message begins."""
    stand_in = next(letter for letter in map(chr, range(_FIRST_OPEN, _FIRST_OPEN + _PAIRS)) if letter not in text)

    def mark(string: str, _: str) -> str:
        for control in control_texts:
            if any(string.endswith(control[:n]) for n in range(1, len(control))):
                raise ChatError(
                    f"a message ends like the control token {control}, which this chat template cannot keep apart"
                )
        letters = list(string)
        for _token, start, _end in controls.find(string):
            letters[start] = stand_in
        return "".join(letters)

    disguised = run(mark)
    if len(disguised) != len(text) or any(a not in (b, stand_in) for a, b in zip(disguised, text, strict=True)):
        raise ChatError("a message contains the text of a control token, which this chat template cannot keep apart")
    return disguised


def _spans(tokenizer: Tokenizer, text: str, borders: list[int], parts: list[_Part]) -> tuple[Span, ...]:
    """The tokens of the labelled parts, by where each ends; one on a border is of the part that it reaches into."""
    spans: list[Span] = []
    done = byte = 0
    for part in parts:
        byte += len(tokenizer.normalise(text[done : part.first]).encode())
        first = bisect_right(borders, byte)
        byte += len(tokenizer.normalise(text[part.first : part.end]).encode())
        last = bisect_right(borders, byte - 1)
        done = part.end
        if spans and first <= spans[-1].last:
            first = spans[-1].last + 1
        if part.label and first <= last < len(borders):
            spans.append(Span(first, last, part.label))
    return tuple(spans)
