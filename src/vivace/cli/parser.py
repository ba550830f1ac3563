"""The options of a command, their values from the command line, the environment and a file, in that precedence."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from vivace.cli import help
from vivace.cli.config import from_environment, from_file, key
from vivace.core.names import hint

MODEL = "name (see `vivace models`), .gguf file, folder of safetensors, or user/repo[:quant] of the hub"

_NO_VARIABLE = ("help", "config", "dump_config")


class UsageError(Exception):
    """The command line cannot be understood. `command` is whose help to point at."""

    def __init__(self, message: str, command: str) -> None:
        super().__init__(message)
        self.command = command


class Parser(argparse.ArgumentParser):
    """The options of one command. Long options are also $VIVACE_NAME, and keys of the file that --config names.

    A group of options is a topic of the help. `suggest` gives, by destination, what a value may be where the option
    has no `choices`; shells complete it.
    """

    def __init__(self, command: str, description: str, example: str) -> None:
        super().__init__(prog=f"vivace {command}", description=description, add_help=False, allow_abbrev=False)
        self.example = example
        self.suggest: dict[str, Callable[[], Iterable[str]]] = {}
        self._needs_model = False
        self._rare: list[str] = []
        settings = self.add_argument_group("settings")
        settings.add_argument(
            "-h", "--help", action="store_true", help="show this; --help=TOPIC shows one topic, --help=all everything"
        )
        settings.add_argument("--config", metavar="FILE", type=Path, help="YAML file with values for the long options")
        settings.add_argument("--dump-config", action="store_true", help="print the values in force as YAML, and stop")
        settings.add_argument("-v", "--verbose", action="store_true", help="show where in the program an error arose")
        self.settings = settings

    def add_model(self, what: str = MODEL, needed: bool = True) -> None:
        """MODEL, as the first word or as -m; `args.model` is one of them."""
        self._needs_model = needed
        self.add_argument("MODEL", metavar="MODEL", nargs="?", default=argparse.SUPPRESS, help=f"{what}; also -m MODEL")
        self.add_argument("-m", "--model", metavar="MODEL", help=argparse.SUPPRESS)

    def add_offline(self) -> None:
        self.settings.add_argument("--offline", action="store_true", help="fetch nothing, as with HF_HUB_OFFLINE")

    def add_rare_group(self, title: str, about: str | None = None) -> argparse._ArgumentGroup:
        """A topic that the help shows only when asked for it."""
        self._rare.append(title)
        return self.add_argument_group(title, about)

    def set_defaults(self, **values: Any) -> None:
        """Other defaults of options. (Those that argparse keeps of a parser would pass for typed words.)"""
        for action in self._actions:
            action.default = values.get(action.dest, action.default)

    @property
    def options(self) -> list[argparse.Action]:
        """What can be set, in any of the three ways."""
        return [action for action in self._actions if action.option_strings and action.dest not in _NO_VARIABLE]

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Raises UsageError for anything that is not allowed, with the nearest match for names."""
        topic = help.asked(argv)
        if topic is not None:
            print(self.help_text(topic))
            raise SystemExit(0)
        options = self.options
        defaults = {action.dest: action.default for action in options}
        given = self._given(argv, options)
        values = dict(defaults)
        try:
            levels = {
                f"--config {given.config}": from_file(self, options, given.config) if given.config else {},
                "the environment": from_environment(self, options),
                "the command line": vars(given),
            }
        except ValueError as error:
            self.error(str(error))
        for where, level in levels.items():
            values |= {dest: defaults[dest] for dest in self._rivals(level, where)} | level
        args = argparse.Namespace(**values)
        if args.dump_config:
            _dump({key(action): values[action.dest] for action in options})
            raise SystemExit(0)
        if self._needs_model and not args.model:
            self.error(f"which MODEL? as in `{self.prog} smollm2-135m`; `vivace models` lists them")
        return args

    def _given(self, argv: Sequence[str], options: Sequence[argparse.Action]) -> argparse.Namespace:
        """What the command line alone says."""
        defaults = {action.dest: action.default for action in options}
        for action in options:
            action.default = argparse.SUPPRESS
        try:
            given, extra = self.parse_known_args(list(argv))
        finally:
            for action in options:
                action.default = defaults[action.dest]
        if extra:
            self._refuse(extra[0])
        if hasattr(given, "MODEL"):
            if hasattr(given, "model"):
                self.error(f"the model is given twice: {given.MODEL} and -m {given.model}")
            given.model = given.MODEL
            del given.MODEL
        return given

    def help_text(self, topic: str = "") -> str:
        """The usual help, that of one topic, or of "all". Raises UsageError when there is no such topic."""
        defaults = {action.dest: action.default for action in self.options}
        groups = [g for g in self._action_groups if g.title not in ("positional arguments", "options")]
        groups = [g for g in groups[1:] if g._group_actions] + groups[:1]  # the settings come last
        titles = [str(group.title) for group in groups]
        rare = [title for title in self._rare if title in titles]
        if topic not in ("", "all", *titles):
            self.error(f"unknown topic {topic!r} of --help{hint(topic, [*titles, 'all'])}")
        words = [a for a in self._positionals._group_actions if a.help is not argparse.SUPPRESS]
        parts = []
        if topic in ("", "all"):
            names = [f"{a.metavar}" if a.dest == "MODEL" and self._needs_model else _word(a) for a in words]
            parts += [" ".join(["usage:", self.prog, *names, "[OPTIONS]"]), help.wrapped(self.description or "")]
            if words:
                parts.append("\n".join(help.table((str(a.metavar), str(a.help)) for a in words)))
        shown = [g for g in groups if topic in ("all", g.title) or (not topic and g.title not in rare)]
        parts += [help.topic_lines(str(g.title), g.description, g._group_actions, defaults) for g in shown]
        if not topic and rare:
            parts.append(f"more options: {', '.join(f'--help={title}' for title in rare)}, --help=all")
        return "\n\n".join([*parts, f"example: {self.example}"])

    def error(self, message: str) -> NoReturn:
        choice = re.search(r"invalid choice: '?([^' ]*)'? \(choose from (.+)\)", message)
        if choice:
            known = [word.strip("' ") for word in choice[2].split(",")]
            message = f"{message[: choice.start()]}unknown {choice[1]!r}{hint(choice[1], known)}"
        if message.endswith("expected one argument"):
            name = message.removeprefix("argument ").partition(":")[0]
            message = f"{name} needs a value; one that begins with - is given as in {name.split('/')[-1]}=-x"
        raise UsageError(message, self.prog)

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

    def _refuse(self, word: str) -> NoReturn:
        if not word.startswith("-"):
            self.error(f"unexpected argument {word!r}")
        flag = word.partition("=")[0]
        self.error(f"unknown option {flag}{hint(flag, [s for a in self._actions for s in a.option_strings])}")


def _word(action: argparse.Action) -> str:
    return f"[{action.metavar}]" if action.nargs == "?" else str(action.metavar)


def _dump(values: Mapping[str, Any]) -> None:
    import yaml

    text = yaml.safe_dump(dict(values), sort_keys=True, allow_unicode=True)
    if "\x85" in text:  # written as it is, this line break would be read as a space
        text = yaml.safe_dump(dict(values), sort_keys=True)
    print(text, end="")


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


def text(value: str) -> str:
    """Text that was given as UTF-8, whatever the locale."""
    try:
        return os.fsencode(value).decode()
    except UnicodeError:
        raise argparse.ArgumentTypeError("is not UTF-8") from None


def not_empty(value: str) -> str:
    """Text, at least a character of it."""
    if not value:
        raise argparse.ArgumentTypeError("must not be empty")
    return text(value)


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
