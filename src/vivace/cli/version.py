"""`vivace version`."""

from __future__ import annotations

import argparse
import json

from vivace.cli.parser import Parser


def parser() -> Parser:
    made = Parser("version", "Print the version.", "vivace version")
    made.add_argument_group("output").add_argument("--json", action="store_true", help="one JSON object")
    return made


def run(args: argparse.Namespace) -> int:
    from vivace import __version__

    print(json.dumps({"version": __version__}) if args.json else f"vivace {__version__}")
    return 0
