"""`vivace bench MODEL`: speed at the level of steps, alone or in alternation with other engines."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from vivace.cli.generation import tier_of
from vivace.cli.parser import Parser, whole
from vivace.cli.terminal import note, progress

if TYPE_CHECKING:
    from vivace.measure.speed import Runner

FORMATS = ("md", "json", "jsonl", "csv")


def parser() -> Parser:
    made = Parser(
        "bench",
        "Measure prompt and generation speed: random token ids, no sampling, no early end. The engines take turns; a "
        "ratio is the median of pairs.",
        "vivace bench smollm2-135m --tests pp512,tg128@b8 --against llama.cpp",
    )
    made.add_argument("model", metavar="MODEL", help="alias (see `vivace models`), .gguf file or folder of safetensors")
    what = made.add_argument_group("measurement")
    what.add_argument("--tests", default="pp512,tg128", help="ppN, tgN; @bN sequences at once, @dN tokens before them")
    what.add_argument(
        "--against", metavar="ENGINE", action="append", default=[], help="llama.cpp, transformers, openvino"
    )
    what.add_argument("--reps", type=whole(1), default=5, metavar="N", help="repetitions of each test, after a warm-up")
    what.add_argument("-t", "--threads", type=whole(1), metavar="N", help="threads; by default all that may be used")
    what.add_argument("--plan", metavar="PLAN", default="", help="acceleration methods; none exist yet")
    made.add_argument_group("output").add_argument(
        "-o", "--output", choices=FORMATS, default="md", help="form of the report"
    )
    return made


def run(args: argparse.Namespace) -> int:
    from vivace.measure.cases import parse_tests
    from vivace.measure.peers import check_name

    tests = parse_tests(args.tests)
    if not tests:
        raise ValueError("--tests names no test")
    if args.plan.strip():
        raise ValueError(f"plan {args.plan!r}: no methods exist yet; leave --plan out")
    names = list(dict.fromkeys(check_name(name) for name in args.against))

    from vivace.core.machine import default_threads
    from vivace.exec.native import NativeExecutor
    from vivace.measure import machine, peers, report
    from vivace.measure.compare import alternate
    from vivace.measure.speed import EngineRunner, pages_needed
    from vivace.model.catalogue import resolve
    from vivace.model.load import load_checkpoint

    threads = args.threads or default_threads()
    checkpoint = load_checkpoint(resolve(args.model))
    with ExitStack() as stack:
        executor = NativeExecutor(checkpoint, threads=threads, capacity_pages=pages_needed(tests))
        runners: list[Runner] = [EngineRunner(executor)]
        stack.callback(runners[0].close)
        found = peers.installed() if names else {}
        for name in names:
            if name not in found:
                raise ValueError(f"{name} is not installed in {' or '.join(peers.pythons())}; see docs/guides/bench.md")
            progress(f"loading {name}")
            peer = peers.PeerRunner(name, found[name], os.path.abspath(checkpoint.path), threads)
            stack.callback(peer.close)
            runners.append(peer)
        tier, _ = tier_of(executor)
        results = alternate(runners, tests, args.reps, lambda: machine.probe(threads), progress)
    progress("")
    for row in results:
        if row.problem:
            note(f"{row.engine} {row.test}: {row.problem}")
    data = report.record(machine.describe(), threads, checkpoint, results, tier)
    sys.stdout.write(report.FORMATS[args.output](data) + "\n")
    return 0
