"""Names of the files of a split GGUF model: NAME-00001-of-00003.gguf."""

from __future__ import annotations

import re

PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def part_name(stem: str, number: int, count: int) -> str:
    """The file name of a part; the first has number 1."""
    return f"{stem}-{number:05}-of-{count:05}.gguf"
