"""What `run` and `chat` share: the options of a generation, running one, and its closing line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vivace.cli.parser import MODEL, Parser, not_empty, number, whole
from vivace.cli.terminal import StopOnInterrupt
from vivace.core.machine import MAX_THREADS

if TYPE_CHECKING:
    from vivace.api import LLM
    from vivace.core.request import Completion
    from vivace.core.step import Executor

# Names on the command line: how to read a value, the default, what it is.
SAMPLING: dict[str, tuple[Any, Any, str]] = {
    "n": (whole(1), 128, "most tokens to generate"),
    "seed": (whole(0), 0, "the same seed gives the same text"),
    "temp": (number(0), 0.0, "temperature; 0 always takes the most probable token"),
    "top-p": (number(0, 1, open_low=True), 1.0, "keep the most probable tokens that reach this probability together"),
    "top-k": (whole(0), 0, "keep this many of the most probable tokens; 0 keeps all"),
    "min-p": (number(0, 1), 0.0, "keep tokens at least this probable, as a share of the most probable"),
    "repeat-penalty": (number(0.01, 100), 1.0, "divide the odds of tokens that have occurred; 1 does nothing"),
}
# Not read from where they are known: that would import numpy for --help. A test compares them.
WEIGHT_TYPES = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "F16", "BF16", "keep")
_OPTION = {"n": "max_tokens", "temp": "temperature", "repeat-penalty": "repetition_penalty"}


def add_model_options(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    group = parser.add_argument_group("loading")
    group.add_argument("--plan", metavar="PLAN", default="", help="acceleration methods; none exist yet")
    add_weights_option(group)
    group.add_argument("-c", "--context", metavar="TOKENS", type=whole(1), help="most tokens of prompt and completion")
    group.add_argument(
        "-t", "--threads", metavar="N", type=whole(1, MAX_THREADS), help="threads; by default all that may be used"
    )


def add_weights_option(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--weights",
        metavar="TYPE",
        choices=WEIGHT_TYPES,
        help="type of float weights at load: " + ", ".join(WEIGHT_TYPES),
    )


def add_sampling_options(parser: Parser) -> None:
    group = parser.add_argument_group("generation")
    short = {"n": ["-n", "--tokens"], "seed": ["-s", "--seed"]}
    for name, (read, default, what) in SAMPLING.items():
        flags = short.get(name, [f"--{name}"])
        dest = name.replace("-", "_")
        group.add_argument(*flags, dest=dest, metavar=name.upper(), type=read, default=default, help=what)
    group.add_argument(
        "--stop", metavar="TEXT", type=not_empty, action="append", default=[], help="end before this text; repeatable"
    )


def options_of(args: argparse.Namespace) -> dict[str, Any]:
    """The options of `LLM.generate` that the command line asks for."""
    named = {name: getattr(args, name.replace("-", "_")) for name in SAMPLING}
    options = {_OPTION.get(name, name.replace("-", "_")): value for name, value in named.items()}
    return options | {"stop": args.stop}


def complete(llm: LLM, ids: list[int], options: dict[str, Any], show: Callable[[str, list[int]], None]) -> Completion:
    """Runs one request and shows its text and token ids as they come.

    Ctrl-C ends it with what there is (finish reason "cancelled"); a second one ends the process.
    """
    from vivace.api import RequestFailed
    from vivace.core.report import completion_of
    from vivace.core.request import Request
    from vivace.sampling.options import options_for

    (option,) = options_for(1, options)
    (handle,) = llm.engine.add(Request(ids, option.sampling, spans=option.spans))
    shown, tokens = 0, handle.prompt_length
    try:
        with StopOnInterrupt() as interrupt:
            while not handle.finished:
                llm.engine.step()
                if interrupt.stopped:
                    llm.engine.cancel(handle)
                if len(handle.text) > shown or len(handle.tokens) > tokens:
                    show(handle.text[shown:], handle.tokens[tokens:])
                    shown, tokens = len(handle.text), len(handle.tokens)
    finally:
        llm.engine.cancel(handle)
    completion = completion_of(handle, llm.weights_bytes, llm.load_s, llm.engine)
    if handle.error is not None:
        raise RequestFailed(str(handle.error), [completion]) from handle.error
    return completion


def tier_of(executor: Executor) -> tuple[str, str]:
    """The program tier of a plain decode step, and why it is not a better one."""
    import numpy as np

    from vivace.core.step import Segment, StepRequest

    return executor.tier(StepRequest([Segment(0, np.zeros(1, np.int32))]))


def summary(llm: LLM, done: Completion) -> str:
    timings, memory = done.timings, done.memory
    cached = f" ({done.cached_tokens} cached)" if done.cached_tokens else ""
    parts = [
        f"prompt {len(done.prompt_token_ids)} tokens{cached} {timings.prefill_tok_s:.0f} tok/s",
        f"decode {len(done.token_ids)} tokens {timings.decode_tok_s:.1f} tok/s",
        f"first token {timings.ttft_s:.3f} s",
        f"load {timings.load_s:.2f} s",
        f"peak memory {memory.peak_rss_bytes / 1e6:.0f} MB",
        tier_of(llm.executor)[0],
        done.finish_reason,
    ]
    return " · ".join(parts)
