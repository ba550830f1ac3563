"""`vivace bench MODEL`: speed at the level of steps, alone or in alternation with other engines."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from vivace.cli.generation import add_weights_option, tier_of, warn_of_threads
from vivace.cli.parser import Parser, UsageError, whole
from vivace.cli.terminal import note, progress, raise_on_interrupt
from vivace.core.machine import MAX_THREADS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vivace.measure.compare import Result
    from vivace.measure.limits import Limits
    from vivace.measure.speed import Runner

FORMATS = ("md", "json", "jsonl", "csv", "html")
COMMAND = "vivace bench"


def parser() -> Parser:
    made = Parser(
        "bench",
        "Measure prompt and generation speed: random token ids, no sampling, no early end. The engines take turns; a "
        "ratio is the median of pairs.",
        "vivace bench smollm2-135m --tests pp512,tg128@b8 --against llama.cpp",
    )
    made.add_model()
    made.add_offline()
    what = made.add_argument_group("measurement")
    what.add_argument("--tests", default="pp512,tg128", help="ppN, tgN; @bN sequences at once, @dN tokens before them")
    what.add_argument(
        "--against", metavar="ENGINE", action="append", default=[], help="llama.cpp, transformers, openvino; repeatable"
    )
    made.suggest["against"] = _peers
    what.add_argument(
        "--prompts", metavar="FILE", help="instead: whole requests, of a file or the suites chat and code"
    )
    what.add_argument("-n", "--tokens", type=whole(2), default=64, metavar="N", help="with --prompts: tokens of each")
    what.add_argument("--profile", action="store_true", help="where the time of each test goes, by operation")
    what.add_argument("--curve", action="store_true", help="what a step of 1 to 64 rows costs, beside the limits")
    what.add_argument("--reps", type=whole(1), default=5, metavar="N", help="repetitions of each test, after a warm-up")
    what.add_argument(
        "-t", "--threads", type=whole(1, MAX_THREADS), metavar="N", help="threads; by default all that may be used"
    )
    add_weights_option(what)
    what.add_argument(
        "--plan",
        metavar="PLAN",
        action="append",
        default=[],
        help="acceleration methods; see vivace methods",
    )
    made.add_argument_group("output").add_argument(
        "-o", "--output", choices=FORMATS, default="md", help="form of the report"
    )
    return made


def run(args: argparse.Namespace) -> int:
    from vivace.measure.cases import parse_tests
    from vivace.measure.peers import check_name

    try:
        tests = parse_tests(args.tests)
        names = list(dict.fromkeys(check_name(name) for name in args.against))
    except ValueError as error:
        raise UsageError(str(error), COMMAND) from None
    if not tests:
        raise UsageError("--tests names no test", COMMAND)
    for plan in filter(str.strip, args.plan):
        raise ValueError(f"plan {plan!r}: bench runs without plans so far; leave --plan out")
    if (args.profile or args.curve) and args.output in ("csv", "jsonl"):
        raise UsageError(f"-o {args.output} cannot hold --profile and --curve: use md, json or html", COMMAND)
    if args.prompts:
        if names or args.profile or args.curve:
            raise UsageError("--prompts times our engine alone: leave --against, --profile and --curve out", COMMAND)
        return _prompts(args)

    from vivace.core.machine import default_threads
    from vivace.exec.native import MAX_ROWS, NativeExecutor
    from vivace.measure import machine, peers, report
    from vivace.measure.compare import alternate
    from vivace.measure.curve import row_curve
    from vivace.measure.profile import profile
    from vivace.measure.speed import EngineRunner, Interrupted, pages_needed
    from vivace.model.catalogue import resolve
    from vivace.model.load import load_checkpoint

    threads = args.threads or default_threads()
    warn_of_threads(args.threads)
    checkpoint = load_checkpoint(resolve(args.model), weights=args.weights)
    try:
        for test in tests:
            test.check(checkpoint.spec.max_context, MAX_ROWS)
    except ValueError as error:
        raise UsageError(str(error), COMMAND) from None
    checkpoint = checkpoint.for_context(max(test.cells for test in tests))
    with ExitStack() as stack:
        executor = NativeExecutor(checkpoint, threads=threads, capacity_pages=pages_needed(tests))
        ours = EngineRunner(executor)
        runners: list[Runner] = [ours]
        stack.callback(ours.close)
        found = peers.installed() if names else {}
        versions: dict[str, str | None] = {}
        for name in names:
            if name not in found:
                raise ValueError(f"{name} is not installed in {' or '.join(peers.pythons())}; see docs/guides/bench.md")
            progress(f"loading {name}")
            peer = peers.start(name, found[name], os.path.abspath(checkpoint.path), threads)
            stack.callback(peer.close)
            runners.append(peer)
            versions[name] = peer.version
        tier, _ = tier_of(executor)

        def probe() -> Limits:
            return machine.probe(threads)

        results, profiles, curve, interrupted = [], {}, [], False
        try:
            with raise_on_interrupt():
                results = alternate(runners, tests, args.reps, probe, progress, _finished)
                profiles = {test: profile(executor, ours, test) for test in tests} if args.profile else {}
                if args.curve:
                    progress("row curve")
                    curve = row_curve(executor, checkpoint, probe, args.reps)
        except KeyboardInterrupt as stop:  # what was measured is printed
            interrupted, results = True, stop.results if isinstance(stop, Interrupted) else results
    progress("")
    if interrupted and not results:
        raise KeyboardInterrupt
    for row in results:
        if row.problem:
            note(f"{row.engine} {row.test}: {row.problem}")
    data = report.record(machine.describe(), threads, checkpoint, results, tier, profiles, curve)
    data["engines"] = versions
    sys.stdout.write(report.FORMATS[args.output](data) + "\n")
    if interrupted:
        raise KeyboardInterrupt
    return 0


def _peers() -> Iterable[str]:
    from vivace.measure.peers import PEERS

    return PEERS


def _finished(rows: list[Result]) -> None:
    """Tells of a test that is done where no line of progress shows that it goes on."""
    if not sys.stderr.isatty():
        rates = (f"{row.engine} {row.median:.1f} tok/s" for row in rows if row.timed)
        note(f"{rows[0].test}: {', '.join(rates)}")


def _prompts(args: argparse.Namespace) -> int:
    from vivace.api import LLM
    from vivace.core.batch import pages_of
    from vivace.core.machine import default_threads
    from vivace.exec.native import NativeExecutor
    from vivace.loading import CACHE_TOKENS
    from vivace.measure import machine, real_prompts, report
    from vivace.measure.speed import Interrupted
    from vivace.model.catalogue import resolve
    from vivace.model.load import load_checkpoint

    prompts = real_prompts.read(args.prompts)
    threads = args.threads or default_threads()
    warn_of_threads(args.threads)
    checkpoint = load_checkpoint(resolve(args.model), weights=args.weights)
    checkpoint = checkpoint.for_context(checkpoint.spec.short_context)
    executor = NativeExecutor(checkpoint, threads=threads, capacity_pages=pages_of(CACHE_TOKENS))
    with LLM(executor, checkpoint.tokenizer, weights_bytes=checkpoint.weights_bytes, prefix_cache=False) as llm:
        limits, rows, interrupted = [machine.probe(threads)], [], False
        try:
            with raise_on_interrupt():
                rows = real_prompts.run(llm, prompts, args.tokens, args.reps, tier_of(executor)[0])
        except Interrupted as stop:
            rows, interrupted = stop.results, True
        if not rows:
            raise KeyboardInterrupt
        limits.append(machine.probe(threads))
    data = report.head(machine.describe(), threads, checkpoint, limits) | {"results": rows, "ratios": []}
    sys.stdout.write(report.FORMATS[args.output](data) + "\n")
    if interrupted:
        raise KeyboardInterrupt
    return 0
