"""Values of options from the environment and from a file, held to the rules of the command line."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vivace.core.names import hint

Options = Sequence[argparse.Action]


def key(action: argparse.Action) -> str:
    """The name of an option in a file: its long form without dashes."""
    return max(action.option_strings, key=len).lstrip("-")


def variable(action: argparse.Action) -> str:
    """The name of an option in the environment."""
    return "VIVACE_" + key(action).upper().replace("-", "_")


def from_environment(parser: argparse.ArgumentParser, options: Options) -> dict[str, Any]:
    """By destination. Raises ValueError, as `from_file` does, for what is not allowed."""
    found = {}
    for action in options:
        text = os.environ.get(variable(action))
        if text:
            found[action.dest] = _value(parser, action, text, f"${variable(action)}")
    return found


def from_file(parser: argparse.ArgumentParser, options: Options, path: Path) -> dict[str, Any]:
    import yaml

    where = f"--config {path}"
    try:
        data = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ValueError(f"{where}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # also of dates and tags whose values are none
        raise ValueError(f"{where}: is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, Mapping):
        raise ValueError(f"{where}: must be a mapping of option names to values")
    by_key = {key(action): action for action in options}
    found = {}
    for name, value in data.items():
        action = by_key.get(str(name).replace("_", "-"))
        if action is None:
            raise ValueError(f"{where}: unknown option {name!r}{hint(str(name), by_key)}")
        if value is not None:  # null stands for no value, as in what --dump-config prints
            found[action.dest] = _value(parser, action, value, f"{name} in {path}")
    return found


def _value(parser: argparse.ArgumentParser, action: argparse.Action, value: Any, where: str) -> Any:
    if action.nargs == 0:  # a switch: its constant when the value says yes
        yes = str(value).lower()
        if yes not in ("0", "1", "true", "false", "yes", "no"):
            raise ValueError(f"{where}: must be yes or no, not {value!r}")
        return action.const if yes in ("1", "true", "yes") else action.default
    values = value if isinstance(value, list) else [value]
    for one in values:
        if isinstance(one, bool) or not isinstance(one, (str, int, float)):
            raise ValueError(f"{where}: must be text or a number, not {one!r:.60}; quote what is meant as text")
    try:
        made = [parser._get_value(action, str(one)) for one in values]
        if action.choices is not None:
            for one in made:
                parser._check_value(action, one)
    except argparse.ArgumentError as error:
        raise ValueError(f"{where}: {error.message}") from None
    if isinstance(action, argparse._AppendAction):
        return made
    if len(made) != 1:
        raise ValueError(f"{where}: takes one value")
    return made[0]
