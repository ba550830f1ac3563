"""Which commands there are. Each is a module, imported only when it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from vivace.cli import help
from vivace.core.names import hint

if TYPE_CHECKING:
    import argparse

    from vivace.cli.parser import Parser

# Topic: name: what it does; the module is the one of that name here. The order is that of the help.
TOPICS: Mapping[str, Mapping[str, str]] = {
    "text": {"run": "complete a prompt, or a file of prompts", "chat": "talk with a model"},
    "models": {"models": "list, fetch, describe, name and remove models"},
    "speed": {
        "bench": "measure speed, alone or against other engines",
        "ops": "test or measure the kernels",
        "doctor": "this machine: processor, limits, what is installed",
    },
    "program": {"completion": "let a shell complete what you type", "version": "print the version"},
}
COMMANDS = {name: what for names in TOPICS.values() for name, what in names.items()}


class Command(NamedTuple):
    """What the first word, or two, of a command line name."""

    parser: Callable[[], Parser]
    run: Callable[[argparse.Namespace], int]
    what: str = ""


class Family(NamedTuple):
    """A command with actions, as `models` has them. `default` is what it does when none is named."""

    name: str
    what: str
    actions: Mapping[str, Command]
    example: str
    default: str | None = None

    def find(self, words: Sequence[str]) -> tuple[Command, list[str]]:
        """The action and what follows it. Raises UsageError for an unknown one."""
        first = words[0] if words else ""
        if first in self.actions:
            return self.actions[first], list(words[1:])
        if self.default and (not first or first.startswith("-")):
            return self.actions[self.default], list(words)
        wrong = f"unknown action {first!r}{hint(first, self.actions)}" if first else f"which? {', '.join(self.actions)}"
        raise _usage_error(wrong, f"vivace {self.name}")

    def help_text(self) -> str:
        rows = [(n, a.what + (" (the default)" if n == self.default else "")) for n, a in self.actions.items()]
        parts = [f"usage: vivace {self.name} [ACTION] [OPTIONS]", help.wrapped(self.what)]
        parts += ["\n".join(["actions:", *help.table(rows, 14)])]
        parts += [f"vivace {self.name} ACTION --help shows the options of an action.", f"example: {self.example}"]
        return "\n\n".join(parts)


def load(name: str) -> Command | Family:
    """The command of that name. Raises UsageError, with the nearest match, when there is none."""
    if name not in COMMANDS:
        raise _usage_error(f"unknown command {name!r}{hint(name, COMMANDS)}", "vivace")
    module = import_module(f"vivace.cli.{name}")
    family: Family | None = getattr(module, "FAMILY", None)
    return family or Command(module.parser, module.run, COMMANDS[name])


def find(words: Sequence[str]) -> tuple[Command, list[str]]:
    """The command that the first word or two name, and the rest of them."""
    command = load(words[0])
    return command.find(words[1:]) if isinstance(command, Family) else (command, list(words[1:]))


def help_text(words: Sequence[str] = ()) -> str:
    """The help of a command or action, or of everything."""
    if not words:
        return _overview()
    command = load(words[0])
    if isinstance(command, Family):
        if len(words) == 1 or words[1].startswith("-"):
            return command.help_text()
        command, _ = command.find(words[1:])
    return command.parser().help_text()


def _overview() -> str:
    column = max(map(len, COMMANDS)) + 4
    topics = ["\n".join([f"{topic}:", *help.table(names.items(), column)]) for topic, names in TOPICS.items()]
    about = "Run language models on CPUs. Text goes to standard output, everything else to standard error."
    parts = ["usage: vivace COMMAND [OPTIONS]", about, *topics]
    parts += ["vivace COMMAND --help shows the options of a command, each with its default and its variable."]
    return "\n\n".join([*parts, "example: vivace run smollm2-135m -p 'Hello'"])


def _usage_error(message: str, command: str) -> Exception:
    from vivace.cli.parser import UsageError

    return UsageError(message, command)
