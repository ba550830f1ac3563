"""Checks the documentation: links lead to files, and the commands in it parse."""

from __future__ import annotations

import re
import shlex
import sys
from importlib import import_module
from pathlib import Path

from vivace.cli.main import COMMANDS
from vivace.cli.parser import UsageError

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def faults(page: Path) -> list[str]:
    text = page.read_text()
    found = [
        f"no such file: {link}" for link in re.findall(r"\]\(([^)#:]+)\)", text) if not (page.parent / link).exists()
    ]
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.S | re.M):
        for line in block.splitlines():
            words = shlex.split(line.split("|")[-1], comments=True)
            if words[:1] == ["vivace"] and len(words) > 1:
                found += _parse(words[1], words[2:])
    return found


def _parse(name: str, words: list[str]) -> list[str]:
    if name not in COMMANDS:
        return [f"no such command: {name}"]
    try:
        import_module(COMMANDS[name][0]).parser().parse(words)
    except UsageError as error:
        return [f"{name} {shlex.join(words)}: {error}"]
    return []


def main() -> int:
    found = [f"{page.relative_to(ROOT)}: {fault}" for page in PAGES for fault in faults(page)]
    print("\n".join(found) if found else f"{len(PAGES)} pages in order")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
