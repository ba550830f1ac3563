"""The help of a command: its options by topic, each with its unit, its default and its variable."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from vivace.cli.config import variable

COLUMN = 28  # where explanations begin
WIDEST = 110


def asked(argv: Iterable[str]) -> str | None:
    """What help the words ask for: "" for the usual one, else a topic or "all"; None when they do not."""
    for word in argv:
        if word == "--":
            break
        if word in ("-h", "--help"):
            return ""
        if word.startswith("--help="):
            return word.removeprefix("--help=").lower() or "all"
    return None


def table(rows: Iterable[tuple[str, str]], column: int = COLUMN) -> list[str]:
    """Lines of two columns, the second wrapped."""
    width, lines = _width(), []
    for left, right in rows:
        first, *more = textwrap.wrap(right, max(width - column, 30), break_on_hyphens=False) or [""]
        fits = len(left) + 4 <= column
        lines += [f"  {left}".ljust(column) + first] if fits else [f"  {left}", " " * column + first]
        lines += [" " * column + line for line in more]
    return [line.rstrip() for line in lines]


def _width() -> int:
    """Columns of the terminal, at most WIDEST. (`shutil` can tell too, and takes as long to import as the rest.)"""
    try:
        return min(
            int(os.environ.get("COLUMNS") or os.get_terminal_size(sys.stdout.fileno()).columns) or WIDEST, WIDEST
        )
    except (OSError, ValueError, AttributeError):
        return WIDEST


def wrapped(text: str) -> str:
    return textwrap.fill(text, _width(), break_on_hyphens=False)


def topic_lines(title: str, about: str | None, actions: Iterable[argparse.Action], defaults: Mapping[str, Any]) -> str:
    """One topic and its options."""
    rows = [(_left(action), _right(action, defaults)) for action in actions if action.help is not argparse.SUPPRESS]
    head = f"{title} ({about})" if about else title
    return "\n".join([f"{head}:", *table(rows)])


def _left(action: argparse.Action) -> str:
    names = ", ".join(action.option_strings) or str(action.metavar)
    takes_value = action.option_strings and action.nargs != 0
    return f"{names} {value_name(action)}" if takes_value else names


def value_name(action: argparse.Action) -> str:
    """What stands for the value of an option: its unit, or the choices."""
    if action.metavar is None and action.choices is not None:
        return "|".join(map(str, action.choices))
    return str(action.metavar or action.dest.upper().replace("_", "-"))


def _right(action: argparse.Action, defaults: Mapping[str, Any]) -> str:
    text = action.help or ""
    if not action.option_strings or action.dest in ("help", "config", "dump_config"):
        return text
    default = defaults.get(action.dest)
    notes = [f"default {default}"] if default not in (None, "", []) and default is not False else []
    return f"{text} [{'; '.join([*notes, variable(action)])}]"
