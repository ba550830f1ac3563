"""`vivace chat MODEL`: a conversation, line by line, from a terminal or a pipe."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivace.cli.generation import (
    REPEATED,
    SAMPLING,
    add_model_options,
    add_sampling_options,
    check_options,
    complete,
    load_model,
    options_of,
    summary,
)
from vivace.cli.parser import Parser, UsageError, text
from vivace.cli.terminal import emit, note, raise_on_interrupt
from vivace.core.names import hint

if TYPE_CHECKING:
    from vivace.api import LLM
    from vivace.core.request import Completion

HELP = """\
/stats             how the last reply went; of its prompt only what is not cached had to run
/plan              the acceleration plan in use
/set NAME VALUE    change an option: {names}; /set alone shows them
/save FILE         write the conversation as JSON
/load FILE         go on with a saved conversation
/quit              leave, as does the end of input"""


def parser() -> Parser:
    made = Parser("chat", "Talk with a model. /help lists what can be typed.", "vivace chat smollm2-135m --temp 0.7")
    add_model_options(made)
    add_sampling_options(made)
    made.set_defaults(n=512)
    made.add_argument_group("prompt").add_argument("--system", metavar="TEXT", type=text, help="system message")
    return made


def run(args: argparse.Namespace) -> int:
    if sys.stdin is None:
        raise UsageError("standard input is closed: there is nobody to talk with", "vivace chat")
    check_options(args, "vivace chat")
    with load_model(args) as llm:
        if not llm.tokenizer.has_chat_template:
            raise ValueError(f"{llm.model} has no chat template; use `vivace run` for text to continue")
        talk = Conversation(llm, args)
        if sys.stdin.isatty():
            note(f"{llm.model}; /help for commands, /quit to leave")
        while (line := _read()) is not None:
            try:
                if not talk.take(line):
                    break
            except BrokenPipeError:
                raise
            except OSError as error:
                note(f"vivace: error: {error.filename}: {error.strerror}")
            except (ValueError, RuntimeError) as error:
                note(f"vivace: error: {error}")
    return 0


class Conversation:
    """The messages so far and the options in force."""

    def __init__(self, llm: LLM, args: argparse.Namespace) -> None:
        self.llm, self.args = llm, args
        self.messages: list[dict[str, str]] = []
        if args.system:
            self.messages.append({"role": "system", "content": args.system})
        self.last: Completion | None = None

    def take(self, line: str) -> bool:
        """Acts on a line; False when it was the last."""
        if not line.strip():
            return True
        try:
            line = text(line)
        except argparse.ArgumentTypeError:
            raise ValueError("this line is not UTF-8") from None
        if not line.startswith("/"):
            self.say(line)
            return True
        name, _, rest = line[1:].strip().partition(" ")
        actions = {"help": self._help, "stats": self._stats, "plan": self._plan, "save": self._save}
        actions |= {"load": self._load, "set": self._set}
        if name in ("quit", "exit"):
            return False
        if name not in actions:
            raise ValueError(f"unknown command /{name}{hint(name, [*actions, 'quit'])}")
        actions[name](rest.strip())
        return True

    def say(self, words: str) -> None:
        """One exchange. A reply that was stopped stays in the history as far as it got."""
        asked = [*self.messages, {"role": "user", "content": words}]
        prompt = self.llm.chat_prompt(asked)
        options = options_of(self.args) | {"spans": [prompt.spans]}
        self.last = complete(self.llm, prompt.ids, options, lambda piece, _: emit(piece))
        emit("\n")
        self.messages = [*asked, {"role": "assistant", "content": self.last.text}]

    def _help(self, _: str) -> None:
        note(HELP.format(names=", ".join([*SAMPLING, *REPEATED])))

    def _stats(self, _: str) -> None:
        note(summary(self.llm, self.last) if self.last else "nothing was generated yet")

    def _plan(self, wanted: str) -> None:
        if wanted:
            raise ValueError("a plan is chosen when the model is loaded, with --plan")
        note(self.llm.check().plan or "no acceleration methods in use")

    def _set(self, words: str) -> None:
        if not words:
            values = {name: getattr(self.args, name.replace("-", "_")) for name in (*SAMPLING, *REPEATED)}
            width = max(map(len, values))
            note("\n".join(f"{name:{width}}  {value}" for name, value in values.items()))
            return
        name, _, value = words.partition(" ")
        name = "n" if name in ("tokens", "max-tokens", "max_tokens") else name.replace("_", "-")
        try:
            if name in REPEATED:
                made = [REPEATED[name][0](value)] if value else []
            elif name in SAMPLING:
                made = SAMPLING[name][0](value.strip())
            else:
                raise ValueError(f"unknown option {name!r}{hint(name, [*SAMPLING, *REPEATED])}")
        except argparse.ArgumentTypeError as error:
            raise ValueError(f"{name} {error}") from None
        setattr(self.args, name.replace("-", "_"), made)

    def _save(self, file: str) -> None:
        text = json.dumps(self.messages, ensure_ascii=False, indent=1) + "\n"
        Path(_named(file)).write_bytes(text.encode(errors="backslashreplace"))  # a lone surrogate, as JSON escapes it
        note(f"{len(self.messages)} messages written to {file}")

    def _load(self, file: str) -> None:
        try:
            self.messages = _checked(json.loads(Path(_named(file)).read_text()))
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            raise ValueError(f"{file}: is not JSON") from None
        note(f"{len(self.messages)} messages read from {file}")


def _named(file: str) -> str:
    if not file:
        raise ValueError("give the name of a file")
    return file


def _checked(data: Any) -> list[dict[str, str]]:
    good = isinstance(data, list) and all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in data
    )
    if not good:
        raise ValueError("a conversation is a list of messages, each with a role and a content")
    return [{"role": message["role"], "content": message["content"]} for message in data]


def _read() -> str | None:
    """The next line, or None at the end."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        line = sys.stdin.readline()
        return line.rstrip("\n") if line else None
    import readline  # noqa: F401  line editing for input()

    try:
        with raise_on_interrupt():  # the terminal has to be set back
            return input("> ")
    except EOFError:
        return None
