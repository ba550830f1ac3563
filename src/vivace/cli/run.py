"""`vivace run MODEL`: one prompt streamed, or many at once."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivace.cli.generation import (
    add_model_options,
    add_sampling_options,
    check_options,
    complete,
    load_model,
    options_of,
    summary,
)
from vivace.cli.parser import Parser, UsageError, text, whole
from vivace.cli.terminal import emit, note
from vivace.core.request import MAX_SAMPLES

if TYPE_CHECKING:
    from vivace.api import LLM
    from vivace.core.request import Span

COMMAND = "vivace run"


def parser() -> Parser:
    about = "Complete a prompt, or a file of them; the text goes to standard output."
    made = Parser("run", about, "vivace run smollm2-135m -p 'Hello'")
    add_model_options(made)
    prompt = made.add_argument_group("prompt", "one of -p, -f, --prompts and standard input")
    source = prompt.add_mutually_exclusive_group()
    source.add_argument("-p", "--prompt", metavar="TEXT", type=text, help="the prompt")
    source.add_argument("-f", "--file", metavar="FILE", help="a file with the prompt")
    source.add_argument(
        "--prompts",
        metavar="FILE",
        help="many prompts, run at once: one a line; in .jsonl an object a line, with prompt or messages and options",
    )
    form = prompt.add_mutually_exclusive_group()
    form.add_argument(
        "--chat", action="store_true", help="as a user's message; the default if the model has a template"
    )
    form.add_argument("--raw", action="store_true", help="as text to continue; the default if it has none")
    prompt.add_argument(
        "--system", metavar="TEXT", type=text, help="system message before the prompt (with a chat template)"
    )
    add_sampling_options(made)
    output = made.add_argument_group("output")
    output.add_argument(
        "--samples", metavar="N", type=whole(1, MAX_SAMPLES), default=1, help="completions of each prompt"
    )
    output.add_argument("--json", action="store_true", help="JSON instead of text, an object a completion")
    output.add_argument("--logprobs", metavar="K", type=whole(0), help="in JSON: the K most probable of each token")
    output.add_argument("--ids", action="store_true", help="token ids instead of text")
    output.add_argument(
        "--out",
        metavar="FILE",
        help="with --prompts: add the JSON to this file; prompts that it answers already are left out",
    )
    return made


def run(args: argparse.Namespace) -> int:
    if args.logprobs is not None and not (args.json or args.out):
        raise UsageError("--logprobs is part of the JSON output: add --json", COMMAND)
    if args.out and not args.prompts:
        raise UsageError("--out is for --prompts: send the output of one prompt there with >", COMMAND)
    if not args.prompts:  # whose lines have options of their own
        check_options(args, COMMAND)
    if args.prompts or args.samples > 1:
        return _many(args)
    prompt = _prompt(args)
    with load_model(args) as llm:
        ids, spans = _encode(llm, prompt, args)
        options = options_of(args) | {"spans": [spans]}
        if args.logprobs is not None:
            options["logprobs"] = args.logprobs
        done = complete(llm, ids, options, lambda piece, ids: _show(args, piece, ids))
        if args.json:
            from vivace.cli.record import record

            print(json.dumps(record(llm, done, args, args.seed), ensure_ascii=False))
        else:
            if args.ids or not done.text.endswith("\n"):
                emit("\n")
            note(summary(llm, done))
    if done.finish_reason == "cancelled":
        raise KeyboardInterrupt
    return 0


def _many(args: argparse.Namespace) -> int:
    from vivace.cli import batch
    from vivace.cli.prompts import Line, read

    lines = read(args.prompts) if args.prompts else [Line(1, _prompt(args), json=False)]
    with load_model(args) as llm:
        return batch.run(llm, args, lines, lambda content: _encode(llm, content, args))


def _prompt(args: argparse.Namespace) -> str:
    if args.prompt is not None:
        prompt: str = args.prompt
    elif args.file is not None:
        prompt = _decode(Path(args.file).read_bytes(), args.file)
    elif sys.stdin is None or sys.stdin.isatty():
        raise UsageError("no prompt: give one with -p, with -f or on standard input", COMMAND)
    else:
        prompt = _decode(sys.stdin.buffer.read(), "standard input")
    if not prompt:
        raise UsageError("the prompt is empty", COMMAND)
    return prompt


def _decode(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: byte {error.start} is not UTF-8") from None


def _encode(
    llm: LLM, content: str | list[dict[str, Any]], args: argparse.Namespace
) -> tuple[list[int], tuple[Span, ...]]:
    """Token ids and spans of a prompt, or of messages."""
    chat = args.chat or (not args.raw and llm.tokenizer.has_chat_template)
    if isinstance(content, str) and not chat:
        if args.system:
            raise UsageError("--system needs a chat template: use --chat with a model that has one", COMMAND)
        return llm.tokenizer.encode(content, True), ()
    if not chat:
        raise ValueError("messages need a model with a chat template, and no --raw")
    messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
    system = [{"role": "system", "content": args.system}] if args.system else []
    prompt = llm.chat_prompt([*system, *messages])
    return prompt.ids, prompt.spans


def _show(args: argparse.Namespace, piece: str, ids: list[int]) -> None:
    if args.json:
        return
    emit("".join(f"{token} " for token in ids) if args.ids else piece)
