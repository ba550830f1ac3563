"""`vivace version`."""

from __future__ import annotations

import argparse

from vivace.cli.parser import Parser


def parser() -> Parser:
    return Parser("version", "Print the version.", "vivace version")


def run(args: argparse.Namespace) -> int:
    from vivace import __version__

    print(f"vivace {__version__}")
    return 0
