"""`vivace ops test|bench|support`: the kernels of each instruction set, against the reference or the clock."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vivace.cli.parser import Parser, UsageError
from vivace.cli.terminal import note

if TYPE_CHECKING:
    from vivace.ops.spec import Op


def parser() -> Parser:
    made = Parser(
        "ops",
        "Test the kernels against the numpy reference, time them on one thread, or list the instruction sets of each.",
        "vivace ops test --op matmul",
    )
    made.add_argument("action", choices=("test", "bench", "support"), nargs="?", default="test", help="(default: test)")
    made.add_argument("--op", metavar="NAME", help="only this op")
    made.add_argument("--isa", metavar="ISA", help="only this instruction set: portable, avx2, avx512")
    return made


def run(args: argparse.Namespace) -> int:
    from vivace.ops import registry

    try:
        ops = [registry.find(name) for name in ([args.op] if args.op else registry.names())]
        why_not = {isa: registry.missing(isa) for isa in ([args.isa] if args.isa else registry.ISAS)}
    except ValueError as error:
        raise UsageError(str(error), "vivace ops") from None
    if args.action == "support":
        return _support(ops, why_not)
    if args.isa and (why := why_not[args.isa]):
        raise ValueError(why)
    isas = [isa for isa, why in why_not.items() if why is None]
    return _test(ops, isas) if args.action == "test" else _bench(ops, isas)


def _support(ops: list[Op], why_not: Mapping[str, str | None]) -> int:
    """A column for each instruction set, and below the reason why one cannot be used; the dispatched one is starred."""
    from vivace.ops.registry import native

    chosen = native().isa()
    heads = [f"{isa}*" if isa == chosen else isa for isa in why_not]
    print(f"| op | {' | '.join(heads)} | what it does |")
    print(f"| --- |{' --- |' * len(heads)} --- |")
    marks = " | ".join("no" if why else "yes" for why in why_not.values())
    for op in ops:
        print(f"| {op.name} | {marks} | {op.summary} |")
    note("\n".join(["* what this machine runs", *(why for why in why_not.values() if why)]))
    return 0


def _test(ops: list[Op], isas: list[str]) -> int:
    from vivace.ops.check import faults
    from vivace.ops.spec import describe

    failed = 0
    for op in ops:
        for isa in isas:
            found = [(axes, fault) for axes in op.cases for fault in faults(op, axes, isa)]
            failed += len(found)
            print(f"{op.name:14} {isa:9} {len(op.cases)} cases, {len(found)} faults")
            for axes, fault in found:
                print(f"  {describe(axes)}: {fault}")
    return 1 if failed else 0


def _bench(ops: list[Op], isas: list[str]) -> int:
    from vivace.measure.machine import probe
    from vivace.ops.bench import measure
    from vivace.ops.spec import describe

    limits = probe(1)
    print("| op | isa | case | us | GB/s | Gop/s | share of int8 peak |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: |")
    for op in ops:
        for isa in isas:
            for axes in op.bench:
                t = measure(op, axes, isa)
                rates = f"{t.bytes_s / 1e9:.1f} | {t.ops_s / 1e9:.1f} | {100 * t.ops_s / limits.int8_ops_s:.0f} %"
                print(f"| {op.name} | {isa} | {describe(axes)} | {t.seconds * 1e6:.1f} | {rates} |", flush=True)
    note(f"one thread; it reads {limits.bytes_s / 1e9:.1f} GB/s and does {limits.int8_ops_s / 1e9:.0f} int8 Gop/s here")
    return 0
