"""Standard output is for the model's text; notes, progress and questions go to standard error."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from vivace.cli.entry import leave_on_interrupt


def emit(text: str) -> None:
    """The model's text, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def note(text: str) -> None:
    """A line beside the text; dim where colour is welcome."""
    print(f"\x1b[2m{text}\x1b[0m" if _colour() else text, file=sys.stderr, flush=True)


def progress(text: str) -> None:
    """A line that replaces the one before it; nothing when nobody watches, or the terminal cannot do that."""
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def bar(done: int, total: int, text: str) -> None:
    """Progress as a bar, with `text` behind it."""
    full = 24 * done // max(total, 1)
    progress(f"[{'#' * full}{'.' * (24 - full)}] {done} of {total} {text}")


def _colour() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class StopOnInterrupt:
    """Within it, Ctrl-C sets `stopped` the first time and ends the process the second."""

    def __init__(self) -> None:
        self.stopped = False
        self._before: Any = None

    def __enter__(self) -> StopOnInterrupt:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        leave_on_interrupt()
        self.stopped = True


@contextmanager
def raise_on_interrupt() -> Iterator[None]:
    """Within it, Ctrl-C raises KeyboardInterrupt, so that what is open is closed; a second one ends the process."""

    def handle(number: int, frame: FrameType | None) -> None:
        leave_on_interrupt()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
