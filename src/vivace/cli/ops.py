"""`vivace ops test|bench|support`: the kernels of each instruction set, against the reference or the clock."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from vivace.cli.commands import Command, Family
from vivace.cli.parser import Parser, UsageError
from vivace.cli.terminal import note

if TYPE_CHECKING:
    from vivace.ops.spec import Op


def _parser(action: str, about: str) -> Parser:
    made = Parser(f"ops {action}", about, f"vivace ops {action} --op matmul")
    group = made.add_argument_group("which")
    group.add_argument("--op", metavar="NAME", help="only this op")
    group.add_argument("--isa", metavar="ISA", help="only this instruction set: portable, neon, avx2, avxvnni, avx512")
    made.suggest |= {"op": _ops, "isa": _isas}
    return made


def _ops() -> Iterable[str]:
    from vivace.ops import registry

    return registry.names()


def _isas() -> Iterable[str]:
    from vivace.ops import registry

    return registry.ISAS


def _chosen(args: argparse.Namespace, command: str) -> tuple[list[Op], Mapping[str, str | None]]:
    """The ops, and for each instruction set why it cannot be used here, or None."""
    from vivace.ops import registry

    try:
        ops = [registry.find(name) for name in ([args.op] if args.op else registry.names())]
        return ops, {isa: registry.missing(isa) for isa in ([args.isa] if args.isa else registry.ISAS)}
    except ValueError as error:
        raise UsageError(str(error), command) from None


def _usable(args: argparse.Namespace, why_not: Mapping[str, str | None]) -> list[str]:
    if args.isa and (why := why_not[args.isa]):
        raise ValueError(why)
    return [isa for isa, why in why_not.items() if why is None]


def _support(args: argparse.Namespace) -> int:
    """A column for each instruction set, and below the reason why one cannot be used; the dispatched one is starred."""
    from vivace.ops.registry import native

    ops, why_not = _chosen(args, "vivace ops support")
    chosen = native().isa()
    heads = [f"{isa}*" if isa == chosen else isa for isa in why_not]
    print(f"| op | {' | '.join(heads)} | what it does |")
    print(f"| --- |{' --- |' * len(heads)} --- |")
    marks = " | ".join("no" if why else "yes" for why in why_not.values())
    for op in ops:
        print(f"| {op.name} | {marks} | {op.summary} |")
    note("\n".join(["* what this machine runs", *(why for why in why_not.values() if why)]))
    return 0


def _test(args: argparse.Namespace) -> int:
    from vivace.ops.check import faults
    from vivace.ops.spec import describe

    ops, why_not = _chosen(args, "vivace ops test")
    isas = _usable(args, why_not)
    failed = 0
    for op in ops:
        for isa in isas:
            found = [(axes, fault) for axes in op.cases for fault in faults(op, axes, isa)]
            failed += len(found)
            print(f"{op.name:14} {isa:9} {len(op.cases)} cases, {len(found)} faults")
            for axes, fault in found:
                print(f"  {describe(axes)}: {fault}")
    return 1 if failed else 0


def _bench(args: argparse.Namespace) -> int:
    from vivace.measure.machine import probe
    from vivace.ops.bench import measure
    from vivace.ops.spec import describe

    ops, why_not = _chosen(args, "vivace ops bench")
    isas = _usable(args, why_not)
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


FAMILY = Family(
    "ops",
    "The kernels of each instruction set: against the numpy reference, against the clock, and where they run.",
    {
        "test": Command(
            lambda: _parser("test", "Test the kernels against the numpy reference."),
            _test,
            "compare with the reference",
        ),
        "bench": Command(lambda: _parser("bench", "Time the kernels on one thread."), _bench, "time, on one thread"),
        "support": Command(
            lambda: _parser("support", "List which instruction sets can run here."), _support, "which run here"
        ),
    },
    example="vivace ops test --op matmul",
    default="test",
)
