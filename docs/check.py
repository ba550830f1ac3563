"""Checks the documentation: links lead to files and headings, and the commands in it parse."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from vivace.cli.commands import find, help_text
from vivace.cli.parser import UsageError

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def faults(page: Path) -> list[str]:
    text = page.read_text()
    found = []
    for link, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", text):
        target = page.parent / link if link else page
        if not target.exists():
            found.append(f"no such file: {link}")
        elif heading and heading not in _headings(target):
            found.append(f"no such heading: {link}#{heading}")
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.S | re.M):
        for line in block.splitlines():
            words = shlex.split(line.split("|")[-1].split(" > ")[0], comments=True)
            if words[:1] == ["vivace"] and len(words) > 1:
                found += _parse(words[1:])
    return found


def _headings(page: Path) -> set[str]:
    """The names by which links lead to the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def _parse(words: list[str]) -> list[str]:
    try:
        if words[0] in ("help", "--help"):
            help_text(words[1:])
        else:
            command, rest = find(words)
            prints = any(word.startswith(("--help", "--dump-config")) for word in rest)  # and ends the process
            if not prints:
                command.parser().parse(rest)
    except UsageError as error:
        return [f"{shlex.join(words)}: {error}"]
    return []


def main() -> int:
    found = [f"{page.relative_to(ROOT)}: {fault}" for page in PAGES for fault in faults(page)]
    print("\n".join(found) if found else f"{len(PAGES)} pages in order")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
