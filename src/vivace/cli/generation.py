"""What `run` and `chat` share: the options of a generation, running one, and its closing line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vivace.cli.parser import Parser, UsageError, not_empty, number, whole
from vivace.cli.terminal import StopOnInterrupt, note
from vivace.core.machine import MAX_THREADS, default_threads
from vivace.core.names import hint

if TYPE_CHECKING:
    from vivace.api import LLM
    from vivace.core.request import Completion
    from vivace.core.step import Executor


def _stages(text: str) -> str:
    """Names of stages with commas between them."""
    from vivace.core.request import STAGES

    for name in _split(text):
        if name not in STAGES:
            raise argparse.ArgumentTypeError(f"must be names of stages; there is no {name!r}{hint(name, STAGES)}")
    return text


def _split(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _bias(text: str) -> str:
    """ID=BIAS."""
    try:
        _token_and_bias(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be ID=BIAS, as in 198=-5, not {text!r:.40}") from None
    return text


def _token_and_bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    return int(token), float(bias)


# Names on the command line: how to read a value, the default, what it is.
SAMPLING: dict[str, tuple[Any, Any, str]] = {
    "n": (whole(1), 128, "most tokens to generate"),
    "min-tokens": (whole(0), 0, "before so many tokens nothing ends the text"),
    "seed": (whole(0), 0, "the same seed gives the same text"),
    "temp": (number(0), 0.0, "temperature; 0 always takes the most probable token"),
    "top-p": (number(0, 1, open_low=True), 1.0, "keep the most probable tokens that reach this probability together"),
    "top-k": (whole(0), 0, "keep this many of the most probable tokens; 0 keeps all"),
    "min-p": (number(0, 1), 0.0, "keep tokens at least this probable, as a share of the most probable"),
    "typical": (
        number(0, 1, open_low=True),
        1.0,
        "keep the tokens of most typical surprise that reach this probability",
    ),
    "top-nsigma": (number(0), 0.0, "keep logits at most so many standard deviations below the largest; 0 keeps all"),
    "xtc-probability": (number(0, 1), 0.0, "how often to drop the top choices but the least probable of them"),
    "xtc-threshold": (number(0, 1, open_low=True), 0.1, "the probability from which a token is a top choice"),
    "repeat-penalty": (number(0.01, 100), 1.0, "divide the odds of tokens that have occurred; 1 does nothing"),
    "presence-penalty": (number(-100, 100), 0.0, "take this from the logits of generated tokens"),
    "frequency-penalty": (number(-100, 100), 0.0, "take this from their logits for each time they were generated"),
    "dry-multiplier": (number(0), 0.0, "penalty for lengthening a repetition; 0 is off"),
    "dry-base": (number(1), 1.75, "the penalty grows by this factor with each token repeated"),
    "dry-allowed-length": (whole(1), 2, "tokens from which a repetition is penalised"),
    "dry-penalty-last-n": (whole(-1), -1, "tokens in which repetitions are sought; -1 for all"),
    "stages": (_stages, None, "the order in which all this is done, as names of `generate` with commas"),
}
# Options that may be given several times: how to read a value, its name, what it is.
REPEATED: dict[str, tuple[Any, str, str]] = {
    "stop": (not_empty, "TEXT", "end before this text"),
    "dry-sequence-breaker": (not_empty, "TEXT", 'text that no repetition reaches over; by default newline : " *'),
    "logit-bias": (_bias, "ID=BIAS", "add to the logit of a token"),
    "allowed-token": (whole(0), "ID", "only tokens so given"),
    "banned-token": (whole(0), "ID", "never this token"),
    "allowed-string": (not_empty, "TEXT", "the completion is one of the texts so given"),
    "banned-string": (not_empty, "TEXT", "text that never occurs in the completion"),
}
_OPTION = {
    "n": "max_tokens",
    "temp": "temperature",
    "typical": "typical_p",
    "top-nsigma": "top_n_sigma",
    "repeat-penalty": "repetition_penalty",
    "dry-sequence-breaker": "dry_sequence_breakers",
    "allowed-token": "allowed_token_ids",
    "banned-token": "banned_token_ids",
    "allowed-string": "allowed_strings",
    "banned-string": "banned_strings",
}
# Not read from where they are known: that would import numpy for --help. A test compares them.
WEIGHT_TYPES = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "F16", "BF16", "keep")
_UNITS = {int: "N", float: "X"}
# In every help; the others are the topic `--help=sampling`.
USUAL = ("n", "seed", "temp", "top-p", "top-k", "min-p", "repeat-penalty", "stop")


def add_model_options(parser: Parser) -> None:
    parser.add_model()
    parser.add_offline()
    group = parser.add_argument_group("loading")
    group.add_argument("--plan", metavar="PLAN", default="", help="acceleration methods; see vivace methods")
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
    usual, rare = parser.add_argument_group("generation"), parser.add_rare_group("sampling")
    short = {"n": ["-n", "--tokens"], "seed": ["-s", "--seed"]}
    for name, (read, default, what) in SAMPLING.items():
        flags, dest = short.get(name, [f"--{name}"]), name.replace("-", "_")
        metavar = "TOKENS" if name == "n" else _UNITS.get(type(default), "NAMES")
        group = usual if name in USUAL else rare
        group.add_argument(*flags, dest=dest, metavar=metavar, type=read, default=default, help=what)
    for name, (read, metavar, what) in REPEATED.items():
        group = usual if name in USUAL else rare
        group.add_argument(
            f"--{name}", metavar=metavar, type=read, action="append", default=[], help=f"{what}; repeatable"
        )


def load_model(args: argparse.Namespace) -> LLM:
    """The model that the options name, loaded as they say."""
    from vivace.loading import load

    warn_of_threads(args.threads)
    return load(args.model, plan=args.plan, threads=args.threads, context=args.context, weights=args.weights)


def warn_of_threads(threads: int | None) -> None:
    """A line on standard error when there are fewer processors than threads asked for."""
    processors = default_threads()
    if threads is not None and threads > processors:
        note(f"{threads} threads share the {processors} processors that may be used: fewer threads are faster")


def options_of(args: argparse.Namespace) -> dict[str, Any]:
    """The options of `LLM.generate` that the command line asks for."""
    options = {}
    for name in (*SAMPLING, *REPEATED):
        value = getattr(args, name.replace("-", "_"))
        if value not in (None, []):
            options[_OPTION.get(name, name.replace("-", "_"))] = value
    if args.stages:
        options["stages"] = _split(args.stages)
    if args.logit_bias:
        options["logit_bias"] = dict(map(_token_and_bias, args.logit_bias))
    return options


def check_options(args: argparse.Namespace, command: str) -> None:
    """Raises UsageError for options that are not allowed together, before a model is loaded for them."""
    from vivace.sampling.options import options_for

    try:
        options_for(1, options_of(args))
    except ValueError as error:
        raise UsageError(str(error), command) from None


def complete(llm: LLM, ids: list[int], options: dict[str, Any], show: Callable[[str, list[int]], None]) -> Completion:
    """Runs one request and shows its text and token ids as they come.

    Ctrl-C ends it with what there is (finish reason "cancelled"); a second one ends the process.
    """
    from vivace.api import RequestFailed
    from vivace.core.pieces import pieces
    from vivace.core.request import Request
    from vivace.sampling.options import options_for

    (option,) = options_for(1, options)
    (handle,) = llm.engine.add(Request(ids, option.sampling, spans=option.spans))
    try:
        with StopOnInterrupt() as interrupt:
            for gained in pieces(llm.engine, [handle]):
                for piece in gained:
                    show(piece.text, piece.token_ids)
                if interrupt.stopped:
                    llm.engine.cancel(handle)
    finally:
        llm.engine.cancel(handle)
    completion = llm.completion(handle)
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
