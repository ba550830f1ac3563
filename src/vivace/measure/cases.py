"""Speed tests by name: `pp512`, `tg128`, `tg128@b8`, `tg64@d4096`, `tg64@b4@d512`."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"(pp|tg)(\d+)((?:@[bd]\d+)*)")


@dataclass(frozen=True)
class SpeedTest:
    """Prompt processing (pp) of `tokens` rows, or generation (tg) of `tokens` tokens, each for `batch` sequences.

    A sequence holds `depth` tokens before the clock starts.
    """

    kind: str
    tokens: int
    batch: int = 1
    depth: int = 0

    @classmethod
    def parse(cls, text: str) -> SpeedTest:
        match = _NAME.fullmatch(text.strip())
        if not match:
            raise ValueError(f"unknown test {text!r}; tests look like pp512, tg128, tg128@b8 or tg64@d4096")
        kind, tokens, rest = match.groups()
        parts = {part[0]: int(part[1:]) for part in rest.split("@")[1:]}
        test = cls(kind, int(tokens), parts.get("b", 1), parts.get("d", 0))
        if test.tokens < 1 or test.batch < 1:
            raise ValueError(f"test {text!r} needs at least one token and one sequence")
        return test

    def __str__(self) -> str:
        batch = f"@b{self.batch}" if self.batch != 1 else ""
        return f"{self.kind}{self.tokens}{batch}{f'@d{self.depth}' if self.depth else ''}"

    def check(self, context: int, rows: int) -> None:
        """Raises ValueError for more than the `context` of the model (0: no limit) or the `rows` of a step hold."""
        if 0 < context < self.cells:
            raise ValueError(f"test {self} needs {self.cells} positions; the context of the model is {context}")
        if self.kind == "tg" and self.batch > rows:
            raise ValueError(f"test {self} needs steps of {self.batch} rows; at most {rows} are run at once")

    @property
    def total(self) -> int:
        """Tokens whose time is taken."""
        return self.batch * self.tokens

    @property
    def cells(self) -> int:
        """Cache positions that a sequence needs."""
        return self.depth + self.tokens


def parse_tests(text: str) -> list[SpeedTest]:
    return [SpeedTest.parse(part) for part in text.split(",") if part.strip()]
