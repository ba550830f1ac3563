"""A file of answers that outlives the process: what it holds is not run again."""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vivace.cli.prompts import Line

_BEGINNING = b'{"line": '  # of each answer, as `batch.records` makes it


class Answers:
    """Lines of JSON, appended as they come. `setting` is all that, beside a line's text, decides what its answer is."""

    def __init__(self, file: str, setting: Mapping[str, Any]) -> None:
        """Drops what a killed process left half written.

        Raises ValueError for a file that holds something else, or that another process adds to.
        """
        self._file, self._setting = Path(file), json.dumps(setting, sort_keys=True, ensure_ascii=False)
        self._known = Counter[str]()
        if self._file.exists() and not self._file.is_file():  # a device may be read without end
            raise ValueError(f"{self._file}: is no regular file; give --out another")
        self._out = self._file.open("ab", buffering=0)
        try:
            fcntl.flock(self._out, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{self._file}: another run adds to it; wait for it, or give --out another file") from None
        data = self._file.read_bytes()
        whole = position = 0
        found = Counter[str]()
        for text in data.splitlines(keepends=True):
            if not text.endswith(b"\n"):
                if not text.startswith(_BEGINNING[: len(text)]):
                    raise self._foreign()
                break
            key, samples = self._parse(text)
            position += len(text)
            found[key] += 1
            if found[key] % samples == 0:
                self._known[key] += 1
                whole = position
        if whole < len(data):
            os.truncate(self._file, whole)

    def missing(self, lines: Sequence[Line]) -> list[Line]:
        """The lines that are still to be answered; of equal ones each needs an answer of its own."""
        known, left = Counter(self._known), []
        for line in lines:
            key = self.key(line)
            if known[key]:
                known[key] -= 1
            else:
                left.append(line)
        return left

    def key(self, line: Line) -> str:
        import hashlib

        return hashlib.sha256(f"{self._setting}\n{line.json}\n{line.text}".encode()).hexdigest()[:16]

    def add(self, line: Line, records: list[dict[str, Any]]) -> None:
        """All completions of a line. Raises OSError when they cannot all be written; then nothing is."""
        marks = {"key": self.key(line), "samples": len(records)}
        text = "".join(json.dumps(r | marks, ensure_ascii=False) + "\n" for r in records)
        data = text.encode(errors="backslashreplace")  # a lone surrogate, as JSON escapes it
        before, left = self._out.seek(0, os.SEEK_END), memoryview(data)
        try:
            while left:  # a full disk takes a part first, and refuses the rest
                left = left[self._out.write(left) :]
        except BaseException as error:
            self._out.truncate(before)
            if isinstance(error, OSError):  # that of a write does not say where
                error.filename = self._file
            raise

    def close(self) -> None:
        self._out.close()

    def _parse(self, text: bytes) -> tuple[str, int]:
        try:
            record = json.loads(text)
            return str(record["key"]), max(int(record["samples"]), 1)
        except (ValueError, TypeError, KeyError, RecursionError):
            raise self._foreign() from None

    def _foreign(self) -> ValueError:
        return ValueError(f"{self._file}: holds other things than answers; give --out another file")
