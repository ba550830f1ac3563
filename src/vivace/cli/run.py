"""`vivace run MODEL`: one prompt, one completion."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivace.cli.generation import add_model_options, add_sampling_options, complete, options_of, summary, tier_of
from vivace.cli.parser import Parser, UsageError, whole
from vivace.cli.terminal import emit, note

if TYPE_CHECKING:
    from vivace.api import LLM
    from vivace.core.request import Completion, Span

COMMAND = "vivace run"


def parser() -> Parser:
    made = Parser("run", "Complete one prompt; the text goes to standard output.", "vivace run smollm2-135m -p 'Hello'")
    add_model_options(made)
    prompt = made.add_argument_group("prompt (one of -p, -f and standard input)")
    source = prompt.add_mutually_exclusive_group()
    source.add_argument("-p", "--prompt", metavar="TEXT", help="the prompt")
    source.add_argument("-f", "--file", metavar="FILE", help="a file with the prompt")
    form = prompt.add_mutually_exclusive_group()
    form.add_argument(
        "--chat", action="store_true", help="as a user's message; the default if the model has a template"
    )
    form.add_argument("--raw", action="store_true", help="as text to continue; the default if it has none")
    prompt.add_argument("--system", metavar="TEXT", help="system message before the prompt (with a chat template)")
    add_sampling_options(made)
    output = made.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="one JSON object instead of text")
    output.add_argument("--logprobs", metavar="K", type=whole(0), help="with --json: the K most probable of each token")
    output.add_argument("--ids", action="store_true", help="token ids instead of text")
    return made


def run(args: argparse.Namespace) -> int:
    if args.logprobs is not None and not args.json:
        raise UsageError("--logprobs is part of the JSON output: add --json", COMMAND)
    text = _prompt(args)
    from vivace.api import load

    with load(args.model, plan=args.plan, threads=args.threads, context=args.context, weights=args.weights) as llm:
        ids, spans = _encode(llm, text, args)
        options = options_of(args) | {"spans": [spans]}
        if args.logprobs is not None:
            options["logprobs"] = args.logprobs
        done = complete(llm, ids, options, lambda piece, ids: _show(args, piece, ids))
        if args.json:
            print(json.dumps(_record(llm, done, args), ensure_ascii=False))
        else:
            if args.ids or not done.text.endswith("\n"):
                emit("\n")
            note(summary(llm, done))
    if done.finish_reason == "cancelled":
        raise KeyboardInterrupt
    return 0


def _prompt(args: argparse.Namespace) -> str:
    if args.prompt is not None:
        text: str = args.prompt
    elif args.file is not None:
        text = _decode(Path(args.file).read_bytes(), args.file)
    elif sys.stdin is None or sys.stdin.isatty():
        raise UsageError("no prompt: give one with -p, with -f or on standard input", COMMAND)
    else:
        text = _decode(sys.stdin.buffer.read(), "standard input")
    if not text:
        raise UsageError("the prompt is empty", COMMAND)
    return text


def _decode(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: byte {error.start} is not UTF-8") from None


def _encode(llm: LLM, text: str, args: argparse.Namespace) -> tuple[list[int], tuple[Span, ...]]:
    chat = args.chat or (not args.raw and llm.tokenizer.has_chat_template)
    if chat:
        system = [{"role": "system", "content": args.system}] if args.system else []
        prompt = llm.chat_prompt([*system, {"role": "user", "content": text}])
        return prompt.ids, prompt.spans
    if args.system:
        raise UsageError("--system needs a chat template: use --chat with a model that has one", COMMAND)
    return llm.tokenizer.encode(text, True), ()


def _show(args: argparse.Namespace, piece: str, ids: list[int]) -> None:
    if args.json:
        return
    emit("".join(f"{token} " for token in ids) if args.ids else piece)


def _record(llm: LLM, done: Completion, args: argparse.Namespace) -> dict[str, Any]:
    tier, reason = tier_of(llm.executor)
    record: dict[str, Any] = {
        "text": done.text,
        "token_ids": done.token_ids,
        "finish_reason": done.finish_reason,
        "usage": {
            "prompt_tokens": len(done.prompt_token_ids),
            "completion_tokens": len(done.token_ids),
            "cached_tokens": done.cached_tokens,
        },
        "timings": dataclasses.asdict(done.timings),
        "steps": dataclasses.asdict(done.steps),
        "memory": dataclasses.asdict(done.memory),
        "plan": args.plan,
        "plan_key": "",
        "tier": tier,
        "tier_reason": reason,
        "model": llm.model,
        "seed": args.seed,
    }
    if done.logprobs is not None:
        record["logprobs"] = done.logprobs
    return record
