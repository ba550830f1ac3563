"""A file of prompts: one a line, or in .jsonl an object a line with a prompt, or messages, and options of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Line:
    """A line that is not empty, as it stands in the file; `number` counts from 1."""

    number: int
    text: str
    json: bool


@dataclass(frozen=True)
class Prompt:
    """What a line asks for. `options` are those of `LLM.generate`; `id` is given back with the answer."""

    content: str | list[dict[str, Any]]  # text, or messages
    options: Mapping[str, Any] = field(default_factory=dict)
    id: str | int | None = None

    @property
    def title(self) -> str:
        text = self.content if isinstance(self.content, str) else str(self.content[-1].get("content", ""))
        return " ".join(text.split())[:60]


def read(file: str) -> list[Line]:
    """The lines with prompts. Raises ValueError when there are none, or for what is not UTF-8."""
    data = Path(file).read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: line {data[: error.start].count(10) + 1} is not UTF-8") from None
    of_json = file.endswith((".jsonl", ".ndjson"))
    lines = [Line(i, line, of_json) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise ValueError(f"{file}: has no prompts")
    return lines


def prompt_of(line: Line) -> Prompt:
    """Raises ValueError when a line of JSON is not as it should be."""
    if not line.json:
        return Prompt(line.text.rstrip("\r"))
    try:
        data = json.loads(line.text)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict) or ("prompt" in data) == ("messages" in data):
        raise ValueError('must be an object with "prompt" or "messages", and options')
    name = "prompt" if "prompt" in data else "messages"
    content, id_ = data.pop(name), data.pop("id", None)
    if name == "prompt" and (not isinstance(content, str) or not content):
        raise ValueError("the prompt must be text, and not empty")
    if name == "messages" and not (content and isinstance(content, list) and all(isinstance(m, dict) for m in content)):
        raise ValueError("messages must be a list of objects, each with a role and a content")
    if not _may_be_id(id_):
        raise ValueError("the id must be text, without lone surrogates, or a number")
    bias = data.get("logit_bias")
    if isinstance(bias, dict):  # JSON has no numbers for keys
        data["logit_bias"] = {int(token) if token.isdecimal() else token: value for token, value in bias.items()}
    return Prompt(content, data, id_)


def _may_be_id(value: Any) -> bool:
    if isinstance(value, str):
        return not any("\ud800" <= letter <= "\udfff" for letter in value)  # they could not be written as UTF-8
    return value is None or (isinstance(value, int) and not isinstance(value, bool))
