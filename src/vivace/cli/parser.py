"""Options of a command from the command line, the environment and a file, in that order of precedence."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

MODEL = "alias (see `vivace models`), .gguf file, folder of safetensors, or user/repo[:quant] of the hub"

_NO_VARIABLE = ("help", "config", "dump_config")


class UsageError(Exception):
    """The command line cannot be understood. `command` is whose help to point at."""

    def __init__(self, message: str, command: str) -> None:
        super().__init__(message)
        self.command = command


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or the names there are."""
    known = list(known)
    near = difflib.get_close_matches(name, known, 1, 0.5)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}" if len(known) < 12 else ""


class _Help(argparse.HelpFormatter):
    """Adds the default and the environment variable to each option's text."""

    defaults: Mapping[str, Any] = {}

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=110)

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        if not action.option_strings or action.dest in _NO_VARIABLE:
            return text
        notes = [variable(action)]
        default = self.defaults.get(action.dest)
        if default not in (None, "", []) and default is not False:
            notes.insert(0, f"default {default}")
        return f"{text} [{'; '.join(notes)}]".replace("%", "%%")


class Parser(argparse.ArgumentParser):
    """The options of one command. Long options are also $VIVACE_NAME, and keys of the file that --config names."""

    def __init__(self, command: str, description: str, example: str) -> None:
        super().__init__(
            prog=f"vivace {command}",
            description=description,
            epilog=f"example: {example}",
            formatter_class=_Help,
            allow_abbrev=False,
        )
        settings = self.add_argument_group("settings")
        settings.add_argument("--config", metavar="FILE", type=Path, help="YAML file with values for the long options")
        settings.add_argument("--dump-config", action="store_true", help="print the values in force and stop")

    def error(self, message: str) -> NoReturn:
        choice = re.search(r"invalid choice: '?([^' ]+)'? \(choose from (.+)\)", message)
        if choice:
            known = [word.strip("' ") for word in choice[2].split(",")]
            message = f"{message[: choice.start()]}unknown {choice[1]!r}{nearest(choice[1], known)}"
        raise UsageError(message, self.prog)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Raises UsageError for anything that is not allowed, with the nearest match for names."""
        options = [a for a in self._actions if a.option_strings and a.dest not in _NO_VARIABLE]
        defaults = {action.dest: action.default for action in options}
        _Help.defaults = defaults
        for action in options:
            action.default = argparse.SUPPRESS
        try:
            given, extra = self.parse_known_args(list(argv))
        finally:
            for action in options:
                action.default = defaults[action.dest]
        if extra:
            self._refuse(extra[0], options)
        values = dict(defaults)
        levels = {
            f"--config {given.config}": self._from_file(given.config, options),
            "the environment": self._from_environment(options),
            "the command line": vars(given),
        }
        for where, level in levels.items():
            values |= {dest: defaults[dest] for dest in self._rivals(level, where)} | level
        args = argparse.Namespace(**values)
        if args.dump_config:
            _dump({key(action): values[action.dest] for action in options})
            raise SystemExit(0)
        return args

    def _rivals(self, level: Mapping[str, Any], where: str) -> set[str]:
        """The options that those given at one level exclude, so that they beat lower levels. Two of a group: error."""
        found: set[str] = set()
        for group in self._mutually_exclusive_groups:
            members = {action.dest: action for action in group._group_actions}
            chosen = [dest for dest in members if level.get(dest) not in (None, False)]
            if len(chosen) > 1:
                self.error(f"{where}: has {' and '.join(key(members[dest]) for dest in chosen)}; give one of them")
            found |= {dest for dest in members if chosen and dest not in chosen}
        return found

    def _refuse(self, word: str, options: list[argparse.Action]) -> NoReturn:
        if not word.startswith("-"):
            self.error(f"unexpected argument {word!r}")
        flag = word.partition("=")[0]
        self.error(f"unknown option {flag}{nearest(flag, [s for a in options for s in a.option_strings])}")

    def _from_environment(self, options: list[argparse.Action]) -> dict[str, Any]:
        found = {}
        for action in options:
            text = os.environ.get(variable(action))
            if text:
                found[action.dest] = self._value(action, text, f"${variable(action)}")
        return found

    def _from_file(self, path: Path | None, options: list[argparse.Action]) -> dict[str, Any]:
        if path is None:
            return {}
        import yaml

        try:
            data = yaml.safe_load(path.read_text())
        except OSError as error:
            self.error(f"--config {path}: {error.strerror}")
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            self.error(f"--config {path}: is not YAML: {' '.join(str(error).split())}")
        if not isinstance(data, Mapping):
            self.error(f"--config {path}: must be a mapping of option names to values")
        by_key = {key(action): action for action in options}
        found = {}
        for name, value in data.items():
            action = by_key.get(str(name).replace("_", "-"))
            if action is None:
                self.error(f"--config {path}: unknown option {name!r}{nearest(str(name), by_key)}")
            if value is not None:  # null stands for no value, as in what --dump-config prints
                found[action.dest] = self._value(action, value, f"{name} in {path}")
        return found

    def _value(self, action: argparse.Action, value: Any, where: str) -> Any:
        """A value from outside the command line, held to the same rules as there."""
        if action.nargs == 0:  # a switch: its constant when the value says yes
            yes = str(value).lower()
            if yes not in ("0", "1", "true", "false", "yes", "no"):
                self.error(f"{where}: must be yes or no, not {value!r}")
            return action.const if yes in ("1", "true", "yes") else action.default
        values = value if isinstance(value, list) else [value]
        for one in values:
            if isinstance(one, bool) or not isinstance(one, (str, int, float)):
                self.error(f"{where}: must be text or a number, not {one!r:.60}; quote what is meant as text")
        try:
            made = [self._get_value(action, str(one)) for one in values]
            if action.choices is not None:
                for one in made:
                    self._check_value(action, one)
        except argparse.ArgumentError as error:
            self.error(f"{where}: {error.message}")
        if isinstance(action, argparse._AppendAction):
            return made
        if len(made) != 1:
            self.error(f"{where}: takes one value")
        return made[0]


def key(action: argparse.Action) -> str:
    """The name of an option in a file: its long form without dashes."""
    return max(action.option_strings, key=len).lstrip("-")


def variable(action: argparse.Action) -> str:
    return "VIVACE_" + key(action).upper().replace("-", "_")


def _dump(values: Mapping[str, Any]) -> None:
    import yaml

    yaml.safe_dump(dict(values), sys.stdout, sort_keys=True)


# Types of values. argparse shows their messages after the name of the option.


def whole(low: int, high: int | None = None) -> Any:
    """An integer from `low` to `high`."""
    limit = "" if high is None else f" and at most {high}"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if value < low or (high is not None and value > high):
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {low}{limit}, not {text!r:.40}")
        return value

    return parse


def not_empty(value: str) -> str:
    """Text, at least a character of it."""
    if not value:
        raise argparse.ArgumentTypeError("must not be empty")
    return value


def number(low: float, high: float = float("inf"), *, open_low: bool = False) -> Any:
    """A number from `low` (or above it) to `high`."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not (low < value if open_low else low <= value) or value > high or value == float("inf"):
            above = f"above {low:g}" if open_low else f"of at least {low:g}"
            limit = f" and at most {high:g}" if high != float("inf") else ""
            raise argparse.ArgumentTypeError(f"must be a number {above}{limit}, not {text!r}")
        return value

    return parse
